"""`rookery subscribe`: messages as they come, printed, or handed to a program each.

A queue is claimed from, and a message is acked when it has been printed or its program has ended well. Topics and
streams are read as server-sent events. When the broker goes away, the command waits for it and goes on where it was.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from rookery.cli.claiming import body_of, put, settle_all
from rookery.cli.commands import command, single, time_option
from rookery.cli.completing import queue_names
from rookery.cli.output import note
from rookery.cli.session import Session
from rookery.errors import BrokerUnreachable, InvalidArgument, LeaseLost

app = single()

WAIT_MS: Final = 20_000
SILENCE_SEC: Final = 60.0
"""Longer than this no connection is silent: there are heartbeats."""

PAUSES_SEC: Final = (1, 1, 2, 3, 5, 10)
LEASE_MS: Final = 60_000

BATCH_MAX: Final = 100
"""Messages of a queue that are printed, and then acked together."""

Handle = Callable[[list[Any]], None]


@command(
    app,
    "subscribe",
    "rookery subscribe jobs | jq -c .message",
    "rookery subscribe jobs --exec './resize.sh'",
    "rookery subscribe orders --to topic --pattern 'order.*'",
    "rookery subscribe clicks --to stream --from first --max 100",
)
def subscribe(
    at: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A queue (or see --to).", autocompletion=queue_names)],
    to: Annotated[Literal["queue", "topic", "stream"], typer.Option("--to", help="What NAME is.")] = "queue",
    pattern: Annotated[str, typer.Option("--pattern", "-k", help="Of routing keys, for topics.")] = "#",
    start: Annotated[str, typer.Option("--from", help="For streams: first, next or an offset.")] = "next",
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="For streams: only this one.")] = None,
    program: Annotated[
        str | None, typer.Option("--exec", metavar="COMMAND", help="Run for each message, with its body on stdin.")
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print bodies only.")] = False,
    max: Annotated[int, typer.Option("--max", "-n", min=0, help="End after so many; 0: never.")] = 0,
    idle: Annotated[int | None, time_option("--idle", "End when nothing came for so long.")] = None,
    lease: Annotated[int, time_option("--lease", "For queues: how long a message is ours.")] = "60s",  # type: ignore[assignment]
) -> None:
    """Follow a queue, a topic or a stream; each message is a JSON line on stdout.

    Of a queue, each message is acked once it is printed. With --exec a command of the shell gets the body on stdin and
    ROOKERY_MESSAGE_ID, ROOKERY_ROUTING_KEY and ROOKERY_ATTEMPT in its environment: exit code 0 acks the message, any
    other has it tried again. Ctrl-C ends; what was not settled goes back.
    """
    ends = _Ends(max, idle)
    if to == "queue":
        if program is None:
            _queue(at, name, ends, lease, BATCH_MAX, lambda found: _print(at, name, found, body))
        else:
            _queue(at, name, ends, lease, 1, lambda found: _deal(at, name, found[0], program, lease))
        return
    query: dict[str, object] = {"routing_key": pattern} if to == "topic" else {"from": start, "partition": partition}

    def handle(message: Any) -> None:
        if "value" in message or "value_base64" in message:
            message = {**message, "message": message.get("value"), "message_base64": message.get("value_base64")}
        if program is None:
            put(at, message, body, False)
        else:
            _run(program, message, None)

    for message in _events(at, f"/{to}s/{{}}/stream", name, query, ends):
        handle(message)
        if ends.counted():
            return


class _Ends:
    """When it is enough."""

    def __init__(self, max: int, idle_ms: int | None) -> None:
        self._left = max or None
        self._idle_sec = None if idle_ms is None else idle_ms / 1000
        self._heard = time.monotonic()

    def counted(self, count: int = 1) -> bool:
        """More have come; whether that was the last of them."""
        self._heard = time.monotonic()
        if self._left is not None:
            self._left -= count
        return self._left == 0

    def at_most(self, count: int) -> int:
        """How many more may come at once."""
        return count if self._left is None else min(count, self._left)

    def patience_sec(self, most: float) -> float:
        """How long to wait for the next, at most; 0 when it has been quiet for long enough."""
        if self._idle_sec is None:
            return most
        return max(0.0, min(most, self._heard + self._idle_sec - time.monotonic()))


# Queues


def _queue(at: Session, name: str, ends: _Ends, lease_ms: int, batch: int, handle: Handle) -> None:
    pauses = _Pauses()
    while True:
        wait_sec = ends.patience_sec(WAIT_MS / 1000)
        wish = {"max": ends.at_most(batch), "wait_ms": int(wait_sec * 1000), "lease_ms": lease_ms}
        try:
            found = at.post("/queues/{}/claim", name, body=wish, wait_ms=wish["wait_ms"])["deliveries"]
        except BrokerUnreachable as error:
            pauses.wait(error)
            continue
        pauses.reached()
        if found:
            handle(found)
            if ends.counted(len(found)):
                return
        elif not ends.patience_sec(1):
            return


def _print(at: Session, queue: str, found: list[Any], body: bool) -> None:
    """Print messages, then ack them."""
    for delivery in found:
        put(at, delivery, body, False)
    _settle(at, queue, [delivery["lease"] for delivery in found], {"outcome": "ack"})


def _deal(at: Session, queue: str, delivery: Any, program: str, lease_ms: int) -> None:
    """Have a program deal with a message, and settle that by its exit code."""
    token = delivery["lease"]

    def extend() -> None:
        # without the broker the lease lapses, and the settle below will tell
        with contextlib.suppress(BrokerUnreachable):
            at.post("/queues/{}/extend", queue, body={"leases": [token], "lease_ms": lease_ms})

    code = _run(program, delivery, (lease_ms / 2000, extend))
    _settle(at, queue, [token], {"outcome": "retry", "reason": f"exit code {code}"} if code else {"outcome": "ack"})


def _settle(at: Session, queue: str, leases: list[str], wish: dict[str, Any]) -> None:
    try:
        settle_all(at, queue, leases, wish)
    except (LeaseLost, BrokerUnreachable) as error:
        note(f"rookery: what was not settled will come again: {error}")


def _run(program: str, message: Any, extend: tuple[float, Callable[[], None]] | None) -> int:
    """Run a program for a message; its exit code. Meanwhile the lease is extended."""
    environ = {
        **os.environ,
        "ROOKERY_MESSAGE_ID": str(message.get("message_id", "")),
        "ROOKERY_ROUTING_KEY": str(message.get("routing_key", "")),
        "ROOKERY_ATTEMPT": str(message.get("attempt", 1)),
    }
    with subprocess.Popen(program, shell=True, stdin=subprocess.PIPE, env=environ) as running:  # noqa: S602  the caller's
        data: bytes | None = body_of(message)
        while True:
            try:
                running.communicate(data, None if extend is None else extend[0])
            except subprocess.TimeoutExpired:
                assert extend is not None
                data = None
                extend[1]()
                continue
            break
    if running.returncode:
        note(f"rookery: the command ended with {running.returncode} for message {message.get('message_id', '')}")
    return running.returncode


# Topics and streams


def _events(at: Session, path: str, name: str, query: dict[str, object], ends: _Ends) -> Iterator[Any]:
    """The values of server-sent events, over broken connections."""
    seen = ""
    pauses = _Pauses()
    while True:
        try:
            answer = at.open(path, name, headers={"Last-Event-ID": seen} if seen else None, **query)
            pauses.reached()
            with answer:
                for event_id, value in _parsed(answer, ends):
                    yield value
                    seen = event_id or seen
            return
        except TimeoutError as error:
            if not ends.patience_sec(1):
                return
            pauses.wait(error)
        except (BrokerUnreachable, OSError) as error:
            pauses.wait(error)


def _parsed(answer: Any, ends: _Ends) -> Iterator[tuple[str, Any]]:
    event_id, kind, data = "", "", b""
    while True:
        answer.timeout_sec = ends.patience_sec(SILENCE_SEC) or 0.001
        line = answer.line()
        if line is None:
            raise ConnectionError("the broker ended the connection")
        field, _, value = line.partition(b": ")
        if field == b"id":
            event_id = value.decode()
        elif field == b"event":
            kind = value.decode()
        elif field == b"data":
            data += value
        elif not line and data:
            if kind == "end":
                raise InvalidArgument(f"there will be no more: {msgspec.json.decode(data)['reason']}", argument="NAME")
            yield event_id, msgspec.json.decode(data)
            kind, data = "", b""


class _Pauses:
    """Between tries to reach the broker. What was never reached is not waited for."""

    def __init__(self) -> None:
        self._was_reached = False
        self._tries = 0

    def reached(self) -> None:
        if self._tries:
            note("rookery: the broker is back")
        self._was_reached = True
        self._tries = 0

    def wait(self, error: Exception) -> None:
        if not self._was_reached:
            raise error
        if not self._tries:
            note(f"rookery: {error}; waiting for it")
        time.sleep(PAUSES_SEC[min(self._tries, len(PAUSES_SEC) - 1)])
        self._tries += 1
