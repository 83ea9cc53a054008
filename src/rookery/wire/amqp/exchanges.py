"""The methods of exchanges and of the bindings between them (spec 1.6, and RabbitMQ's exchange.bind)."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32

from rookery.core.topology import STANDARD_EXCHANGES, Exchange
from rookery.errors import InUse, InvalidArgument, NotFound
from rookery.wire.amqp.arguments import TYPES, Typed, check_same, check_same_field
from rookery.wire.amqp.channel import Channel
from rookery.wire.amqp.codec import (
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    EXCHANGE_UNBIND,
    EXCHANGE_UNBIND_OK,
    Arguments,
    Fault,
    put_method,
)
from rookery.wire.amqp.names import (
    RESERVED,
    find_exchange,
    not_default,
    not_implemented,
    require,
    reserved,
    tenant_of,
)

# What a type is called by RabbitMQ's clients, and here
KINDS: Final = {
    "direct": "direct",
    "fanout": "fanout",
    "topic": "topic",
    "headers": "headers",
    "x-consistent-hash": "consistent-hash",
    "x-delayed-message": "delayed-message",
}
ALTERNATE: Final = "alternate-exchange"


def call(channel: Channel, method: i32, arguments: Arguments) -> None:
    if method == EXCHANGE_DECLARE:
        _declare(channel, arguments)
    elif method == EXCHANGE_DELETE:
        _delete(channel, arguments)
    elif method == EXCHANGE_BIND:
        _bind(channel, arguments, True)
    elif method == EXCHANGE_UNBIND:
        _bind(channel, arguments, False)
    else:
        raise not_implemented()


def _declare(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = _plain(arguments.short_string())
    kind = arguments.short_string()
    bits = arguments.octet()
    table = arguments.typed_table()
    not_default(name)
    if bits & 1:
        find_exchange(channel, name)
    else:
        require(channel, "exchange.declare", "exchange", name)
        if kind not in KINDS:
            raise Fault(503, f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")
        exchange = tenant_of(channel).exchanges.get(name)
        if exchange is None:
            _make(channel, name, kind, bits, table)
        else:
            _check_same(channel, exchange, kind, bits, table)
    if not bits & 16:
        put_method(channel.out, channel.number, EXCHANGE_DECLARE_OK)


def _plain(name: str) -> str:
    """RabbitMQ takes the ends of lines out of names that are declared."""
    return name.replace("\r", "").replace("\n", "")


def _make(channel: Channel, name: str, kind: str, bits: int, table: Typed) -> None:
    if name.startswith(RESERVED):
        raise reserved("exchange", name)
    where = f"exchange '{name}' in vhost '{channel.connection.vhost}'"
    given = {argument: value for argument, (_, value) in table.items()}
    alternate = given.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        raise Fault(406, f"invalid type '{TYPES[table[ALTERNATE][0]]}' for arg '{ALTERNATE}' in {where}")
    if ALTERNATE in table:
        require(channel, "exchange.alternate", "exchange", name)
        require(channel, "exchange.alternate", "alternate", alternate)
    if kind == "x-delayed-message":
        inner = given.get("x-delayed-type")
        if not isinstance(inner, str) or inner not in KINDS or inner == kind:
            raise Fault(406, "Invalid argument, 'x-delayed-type' must be an existing exchange type")
        given["x-delayed-type"] = KINDS[inner]
    try:
        tenant_of(channel).declare_exchange(
            name, KINDS[kind], bits & 2 != 0, bits & 4 != 0, bits & 8 != 0, alternate, arguments=given
        )
    except InvalidArgument as error:
        raise _refused(error, table) from None


def _refused(error: InvalidArgument, table: Typed) -> Fault:
    """How RabbitMQ's plugin words what a consistent-hash exchange cannot hash."""
    if error.argument == "hash-property":
        if "hash-header" in table:
            return Fault(406, "hash-header and hash-property are mutually exclusive")
        return Fault(406, f"Unsupported property: {table['hash-property'][1]}")
    return Fault(406, str(error))


def _check_same(channel: Channel, exchange: Exchange, kind: str, bits: int, table: Typed) -> None:
    """A redeclaration must agree in all but the arguments, of which only the alternate counts (as in RabbitMQ)."""
    where = f"exchange '{exchange.name}' in vhost '{channel.connection.vhost}'"
    current = next((each for each, known in KINDS.items() if known == exchange.kind), exchange.kind)
    check_same(where, "type", current, kind)
    check_same(where, "durable", exchange.durable, bits & 2 != 0)
    check_same(where, "auto_delete", exchange.auto_delete, bits & 4 != 0)
    check_same(where, "internal", exchange.internal, bits & 8 != 0)
    before: tuple[str, object] | None = None
    if exchange.alternate or ALTERNATE in exchange.arguments:
        before = ("S", exchange.alternate)
    check_same_field(where, ALTERNATE, before, table.get(ALTERNATE))


def _delete(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    bits = arguments.octet()
    not_default(name)
    vhost = channel.connection.vhost
    if name in STANDARD_EXCHANGES or name.startswith(RESERVED):
        raise Fault(403, f"deletion of system exchange '{name}' in vhost '{vhost}' not allowed")
    require(channel, "exchange.delete", "exchange", name)
    try:
        tenant_of(channel).delete_exchange(name, bits & 1 != 0)
    except NotFound:
        pass
    except InUse:
        raise Fault(406, f"exchange '{name}' in vhost '{vhost}' in use") from None
    if not bits & 2:
        put_method(channel.out, channel.number, EXCHANGE_DELETE_OK)


def _bind(channel: Channel, arguments: Arguments, bind: bool) -> None:
    arguments.short()
    destination = arguments.short_string()
    source = arguments.short_string()
    key = arguments.short_string()
    nowait = arguments.octet() & 1
    table = arguments.typed_table()
    not_default(destination)
    not_default(source)
    require(channel, "exchange.bind", "destination", destination)
    require(channel, "exchange.bind", "source", source)
    tenant = tenant_of(channel)
    given = {argument: value for argument, (_, value) in table.items()}
    if bind:
        check_binding(find_exchange(channel, source), key, table)
        tenant.bind(source, find_exchange(channel, destination), key, given)
    elif source in tenant.exchanges and destination in tenant.exchanges:
        tenant.unbind(source, tenant.exchanges[destination], key, given)
    if not nowait:
        put_method(channel.out, channel.number, EXCHANGE_BIND_OK if bind else EXCHANGE_UNBIND_OK)


def check_binding(source: Exchange, key: str, table: Typed) -> None:
    """Refuse, in RabbitMQ's words, what an exchange of this kind cannot be bound with."""
    if source.routing == "headers" and "x-match" in table:
        kind, mode = table["x-match"]
        if not isinstance(mode, str):
            raise Fault(406, f"Invalid x-match field type {TYPES[kind]} (value {mode}); expected longstr")
        if mode not in ("all", "any", "all-with-x", "any-with-x"):
            raise Fault(406, f'Invalid x-match field value <<"{mode}">>; expected all, any, all-with-x, or any-with-x')
    elif source.routing == "consistent-hash":
        if not (key.isascii() and key.isdigit()):
            raise Fault(406, f'The binding key must be an integer: <<"{key}">>')
        if int(key[:9]) == 0:
            raise Fault(406, "The binding key must be greater than 0")
