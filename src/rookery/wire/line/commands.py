"""The commands of the line protocol, apart from publishing: what each is called, what it takes, and what it does.

A command's arguments are separated by single spaces, and the last one of those that end with a message takes the rest
of the line as it is. Answers are those of Raven-MQ, to the letter, where Raven-MQ has the command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from rookery import spans
from rookery.core import rights
from rookery.core.policy import FACES
from rookery.core.queue import Queue
from rookery.core.queue_settings import QUEUE_SETTINGS
from rookery.core.shard import check_subscriptions
from rookery.core.topology import Tenant
from rookery.errors import AccessRefused, ExchangeNotFound, InUse, InvalidArgument, QueueNotFound
from rookery.wire.line.consumer import ACK, AUTO, MANUAL, PROBING, REJECT, RELEASE, RETRY, LineConsumer

if TYPE_CHECKING:
    from rookery.wire.line.connection import LineConnection

FACE: Final = "line"
KINDS: Final = ("direct", "fanout", "topic")
RESERVED: Final = "amq."
PREFETCH_MAX: Final = 100_000
PRIORITY_MAX: Final = (1 << 31) - 1
LEASE_MAX_MS: Final = 1 << 53
NAME_MAX: Final = 255

_OUTCOMES: Final = {"ACK": ACK, "RETRY": RETRY, "RELEASE": RELEASE, "REJECT": REJECT}


class Misused(Exception):
    """A command came with other arguments than it takes."""


@final
class Command:
    """`least` arguments are needed; above `most` the rest of the line is part of the last one, unless `most` is 0."""

    def __init__(self, usage: str, options: str, text: str, least: int, most: int, work: Any) -> None:
        self.usage = usage
        self.options = options
        self.text = text
        self.least = least
        self.most = most
        self.work = work


def call(connection: LineConnection, line: bytes) -> bool:
    """Do what a line says; False when it has to wait for room."""
    line = line.lstrip(b" \t")
    if not line:
        return True
    word, _, rest = line.partition(b" ")
    verb = _verb(word)
    if verb == "PUBLISH":
        return connection.publish(b"PUBLISH " + rest)
    command = COMMANDS.get(verb)
    if command is None:
        if line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
            # a page in somebody's browser must not speak through it: its headers and body would be lines too
            connection.end("Error: this is not HTTP")
        else:
            connection.answer(b"Unknown command")
        return True
    arguments: list[str] = []
    if rest:
        parts = rest.split(b" ", command.most - 1) if command.most else rest.rstrip(b" ").split(b" ")
        arguments = [part.decode("utf-8", "surrogateescape") for part in parts]
    if len(arguments) < command.least:
        connection.answer(usage_of(verb))
        return True
    try:
        command.work(connection, verb, arguments)
    except Misused:
        connection.answer(usage_of(verb))
    return True


def is_command(line: bytes) -> bool:
    """Whether a line, or its beginning, is a command."""
    return _verb(line.lstrip(b" \t").partition(b" ")[0][:32]) in COMMANDS


def _verb(word: bytes) -> str:
    return word.decode("latin-1").strip().upper()


def usage_of(verb: str) -> bytes:
    return f"Usage: {COMMANDS[verb].usage}".encode()


def one_line(text: str) -> bytes:
    """A text as a line, whatever is in it."""
    return text.encode("utf-8", "surrogateescape").replace(b"\n", b" ").replace(b"\r", b" ")


def say(connection: LineConnection, text: str) -> None:
    connection.answer(one_line(text))


# Names


def find_queue(tenant: Tenant, name: str) -> Queue:
    queue = tenant.queues.get(name)
    if queue is None:
        raise QueueNotFound(f"Queue {name} does not exist", argument="queue")
    tenant.check_owner(queue, None)
    return queue


def read_options(words: list[str], readers: dict[str, Callable[[str], object]]) -> dict[str, object]:
    """The `name=value` words behind a command's arguments."""
    said: dict[str, object] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise Misused
        reader = readers.get(name)
        if reader is None:
            raise InvalidArgument(f"unknown option {name}; there are {', '.join(readers)}", argument=name)
        try:
            said[name] = reader(value)
        except ValueError as error:
            raise InvalidArgument(f"{name} must be {error}", argument=name) from None
    return said


def whole(low: int, high: int) -> Callable[[str], object]:
    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(text) <= high):
            raise ValueError(f"a whole number from {low} to {high}, not {text}")
        return int(text)

    return read


def choice(*words: str) -> Callable[[str], object]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}, not {text}")
        return text

    return read


def plain(longest: int) -> Callable[[str], object]:
    def read(text: str) -> str:
        if not text or len(text) > longest:
            raise ValueError(f"a text of 1 to {longest} characters")
        return text

    return read


def number(text: str) -> object:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ValueError(f"a number, not {text}") from None


def truth(text: str) -> object:
    return choice("true", "false")(text) == "true"


def setting_readers() -> dict[str, Callable[[str], object]]:
    """How each setting of a queue is read; that it is in range is seen to by the core."""
    readers: dict[str, Callable[[str], object]] = {}
    for row in QUEUE_SETTINGS:
        if row.type is bool:
            readers[row.name] = truth
        elif row.type is str:
            readers[row.name] = choice(*row.choices) if row.choices else plain(NAME_MAX)
        else:
            readers[row.name] = number
    return readers


# Declaring


def declare_exchange(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise Misused
    name, kind = arguments
    tenant = connection.entered()
    if kind not in KINDS:
        raise InvalidArgument(f"unsupported exchange type: {kind}", argument="type")
    connection.require("exchange.declare", "exchange", name)
    # one that is there keeps its kind
    if name not in tenant.exchanges or not name:
        if name.startswith(RESERVED):
            raise AccessRefused(f"names that begin with {RESERVED} are reserved")
        tenant.declare_exchange(name, kind)
    connection.lasting()
    say(connection, "Exchange declared successfully")


def declare_queue(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    tenant = connection.entered()
    name = arguments[0]
    settings = read_options(arguments[1:], SETTING_READERS)
    connection.require("queue.declare", "queue", name)
    if connection.principal is not None:
        rights.require_dead_letter(connection.principal, name, settings)
    if name.startswith(RESERVED) and name not in tenant.queues:
        raise AccessRefused(f"names that begin with {RESERVED} are reserved")
    suffix = connection.face.dlq_suffix
    face = "dead-letter" if suffix and name.endswith(suffix) and name != suffix else FACE
    target = {"dead_letter_queue": "{queue}" + suffix}
    if tenant.face_defaults.get(FACE, FACES[FACE]) != {**FACES[FACE], **target}:
        tenant.set_face_defaults(FACE, target)
    tenant.declare_queue(name, settings, face)
    connection.lasting()
    say(connection, "Queue declared successfully")


def bind_queue(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    if len(arguments) > 3 and not arguments[3]:
        arguments.pop()
    if len(arguments) != 3:
        raise Misused
    name, source, key = arguments
    tenant = connection.entered()
    connection.require("queue.bind", "source", source)
    connection.require("queue.bind", "queue", name)
    if source not in tenant.exchanges:
        raise ExchangeNotFound(f"Exchange {source} does not exist", argument="exchange")
    tenant.bind(source, find_queue(tenant, name), key)
    connection.lasting()
    say(connection, "Queue bound to exchange successfully")


# Consuming


def consume(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    tenant = connection.entered()
    name = arguments[0]
    said = read_options(arguments[1:], CONSUME_READERS)
    connection.require("queue.consume", "queue", name)
    if name not in tenant.queues:
        say(connection, f"Queue {name} does not exist")
        return
    queue = find_queue(tenant, name)
    if name in connection.consumers:
        raise InUse(f"this connection consumes {name} already", argument="queue")
    if any(each.exclusive for each in queue.roster.all):
        raise InUse(f"Queue {name} is in exclusive use", argument="queue")
    check_subscriptions(queue)
    consumer = LineConsumer(connection, queue, *_demand(said))
    label = said.get("name", "")
    assert isinstance(label, str)
    consumer.name = label
    consumer.traced = said.get("trace") == "on"
    connection.consumers[name] = consumer
    say(connection, "Consumer started")
    consumer.pause_for_answer()
    queue.subscribe(consumer)


def _demand(said: dict[str, object]) -> tuple[i64, i64, i64, i64]:
    """Mode, prefetch, priority and lease of a consumer that said this."""
    how = said.get("ack", "")
    numbers = [said.get("prefetch", 0), said.get("priority", 0), said.get("lease_ms", 0)]
    prefetch, priority, lease_ms = [value if isinstance(value, int) else 0 for value in numbers]
    if how == "auto":
        if prefetch or lease_ms:
            raise InvalidArgument("prefetch and lease_ms are for consumers with ack=manual", argument="ack")
        return AUTO, 0, priority, 0
    mode = MANUAL if how or prefetch or lease_ms else PROBING
    return mode, prefetch or 1, priority, lease_ms


def settle(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    """Settle a delivery of this connection by its text; that there is none is no error."""
    tenant = connection.entered()
    name, text = arguments
    if not text:
        raise Misused
    connection.require("queue.settle", "queue", name)
    find_queue(tenant, name)
    consumer = connection.consumers.get(name)
    if consumer is not None and consumer.settle(text.encode("utf-8", "surrogateescape"), _OUTCOMES[verb]):
        connection.lasting()
    say(connection, f"{verb} successfully")


def cancel(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise Misused
    connection.entered()
    consumer = connection.consumers.pop(arguments[0], None)
    if consumer is None:
        raise InvalidArgument(f"this connection does not consume {arguments[0]}", argument="queue")
    consumer.stop()
    consumer.give_back(False)
    say(connection, "Consumer stopped")


# The connection itself


def auth(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    if len(arguments) == 1 or not arguments[1]:
        connection.log_in("", arguments[0])
    else:
        connection.log_in(arguments[0], arguments[1])


def trace(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    """What is published from now on belongs to this trace."""
    found = spans.context(*arguments)
    if not found and arguments != ["off"]:
        raise InvalidArgument("this is no traceparent of W3C trace context", argument="traceparent")
    connection.set_trace(found)
    say(connection, "Trace set" if found else "Trace off")


def ping(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    say(connection, "PONG")


def leave(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    connection.take_leave()


def show_help(connection: LineConnection, verb: str, arguments: list[str]) -> None:
    if not arguments:
        for each in COMMANDS.values():
            say(connection, f"{each.usage:<58} {each.text}")
        say(connection, "HELP <command> tells more about one.")
        return
    command = COMMANDS.get(arguments[0].upper())
    if command is None:
        say(connection, "Unknown command")
        return
    say(connection, f"{command.usage}{command.options}")
    say(connection, f"    {command.text}")


SETTING_READERS: Final = setting_readers()
CONSUME_READERS: Final[dict[str, Callable[[str], object]]] = {
    "ack": choice("auto", "manual"),
    "prefetch": whole(1, PREFETCH_MAX),
    "priority": whole(-PRIORITY_MAX, PRIORITY_MAX),
    "name": plain(NAME_MAX),
    "lease_ms": whole(1, LEASE_MAX_MS),
    "trace": choice("on", "off"),
}

COMMANDS: Final = {
    "DECLARE_EXCHANGE": Command(
        "DECLARE_EXCHANGE <exchange_name> <type>",
        "    type: direct, fanout, topic",
        "make an exchange, unless it is there",
        2,
        0,
        declare_exchange,
    ),
    "DECLARE_QUEUE": Command(
        "DECLARE_QUEUE <queue_name>",
        " [<setting>=<value> ...]    " + " ".join(SETTING_READERS),
        "make a queue, unless it is there",
        1,
        0,
        declare_queue,
    ),
    "BIND_QUEUE": Command(
        "BIND_QUEUE <queue_name> <exchange_name> <routing_key>",
        "    in the key of a topic, * is one word and # any number",
        "let an exchange route to a queue",
        3,
        4,
        bind_queue,
    ),
    "PUBLISH": Command(
        "PUBLISH <exchange_name> <routing_key> <message>",
        "    the message is the rest of the line; the exchange amq.default takes the name of a queue as key",
        "publish a message",
        3,
        3,
        None,
    ),
    "CONSUME": Command(
        "CONSUME <queue_name>",
        " [ack=auto|manual] [prefetch=n] [priority=n] [name=text] [lease_ms=n] [trace=on]",
        "have the messages of a queue sent",
        1,
        0,
        consume,
    ),
    "CANCEL": Command("CANCEL <queue_name>", "", "consume no more of a queue", 1, 0, cancel),
    "ACK": Command("ACK <queue_name> <message>", "", "done with a message, named by its text", 2, 2, settle),
    "RETRY": Command(
        "RETRY <queue_name> <message>", "", "failed: again after the queue's backoff, or dead-letter", 2, 2, settle
    ),
    "RELEASE": Command("RELEASE <queue_name> <message>", "", "not touched: again at once", 2, 2, settle),
    "REJECT": Command("REJECT <queue_name> <message>", "", "unfit: dead-letter", 2, 2, settle),
    "AUTH": Command("AUTH <user> <password>", "    or AUTH <api_key>", "say who you are", 1, 2, auth),
    "TRACE": Command(
        "TRACE <traceparent>",
        " [<tracestate>]    or TRACE off",
        "have a trace go with what is published from now on",
        1,
        2,
        trace,
    ),
    "PING": Command("PING", "", "see whether somebody is there", 0, 0, ping),
    "HELP": Command("HELP", " [<command>]", "this list", 0, 0, show_help),
    "QUIT": Command("QUIT", "", "end the connection", 0, 0, leave),
}
