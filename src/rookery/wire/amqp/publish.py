"""What a peer publishes: from basic.publish and its content frames to messages in the core.

A publish whose method, header and body frames lie in one read, as nearly all do, becomes a message in one step; any
other is collected frame by frame in its channel's `Incoming`. Publishers repeat themselves, so what a basic.publish
frame means is remembered by the bytes of that frame (`Target`) as long as the tenant's topology is the same, and
property lists that repeat are read and kept once.

Most messages go straight to the core. Those that ask for more (further keys in CC and BCC, a direct reply-to, a
transaction) take a second look, `_special`.

At the memory limit a message is refused: with a nack where the channel confirms, and else by closing the channel with
506, so that nothing is lost in silence. Parts of messages that have not arrived whole count towards that limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, i64

from rookery.core.history import copies_of
from rookery.core.publishing import EACH, Publish, new_message, post
from rookery.core.queue import REFUSED
from rookery.errors import InvalidArgument, MemoryLimitExceeded, MessageTooLarge, RookeryError
from rookery.format import properties
from rookery.format.bytes import read_i16_be, read_i32_be, read_i64_be
from rookery.format.model import PERSISTENT, Message, Route
from rookery.wire.amqp import replies
from rookery.wire.amqp.arguments import TYPES
from rookery.wire.amqp.channel import Channel, Incoming, Target
from rookery.wire.amqp.codec import (
    BASIC,
    BASIC_PUBLISH,
    BODY,
    FRAME_END,
    FRAME_ERROR,
    HEADER,
    Arguments,
    Fault,
    put_return,
)
from rookery.wire.amqp.names import find_exchange, reply_text, require, tenant_of

if TYPE_CHECKING:
    from rookery.core.topology import Way
    from rookery.wire.amqp.connection import AmqpConnection

TARGETS_MAX: Final = 1_000

_USER_ID: Final[i64] = 0x10
_HEADERS: Final[i64] = 0x20
_DELIVERY_MODE: Final[i64] = 0x10
_REPLY_TO: Final[i64] = 0x02
"""Flags of a property list: the first in its second octet, the others in its first."""

_BROKER_REPLY_TO: Final = replies.REPLY_TO.encode()


@final
class Publisher:
    """The publishing side of one connection."""

    def __init__(self, connection: AmqpConnection) -> None:
        self.connection = connection
        self._face = connection.face
        self._shard = connection.shard
        self._targets: dict[bytes, Target] = {}
        self._last: Target | None = None
        self._last_frame = b""
        self._unconfirmed: list[Channel] = []
        # the last property list, and what it says
        self._scan = properties.Scan()
        self._props = properties.EMPTY
        self._props_ttl_ms: i64 = -1
        self._props_priority: i64 = 0
        self._props_flags: i32 = 0
        self._props_special = False

    def forget_targets(self) -> None:
        """A channel ended, and may begin anew under the same number."""
        self._targets = {}
        self._last = None
        self._last_frame = b""

    def publish(self, data: bytes, pos: i64, after: i64, end: i64) -> i64:
        """Take a basic.publish that ends at `after`, and its content if it is all here; returns where to go on."""
        frame = data[pos:after]
        target = self._last
        if frame != self._last_frame:
            target = self._targets.get(frame)
            self._last = target
            self._last_frame = frame
        if target is None or target.way.version != target.tenant.version:
            target = self._target(frame)
            self._last = target
            if target is None:
                return after
        if target.channel.incoming is not None:
            raise unexpected(target.channel.incoming)
        most = self.connection.payload_max
        if end - after >= 22:
            size = i64(read_i32_be(data, after + 3))
            body = after + size + 8
            if (
                data[after] == HEADER
                and size >= 14
                and size <= most
                and body <= end
                and data[body - 1] == FRAME_END
                and read_i16_be(data, after + 1) == read_i16_be(data, pos + 1)
                and read_i16_be(data, after + 7) == BASIC
            ):
                length = read_i64_be(data, after + 11)
                if length == 0:
                    self._accept(target, data[after + 19 : body - 1], b"")
                    return body
                if (
                    length > 0
                    and length <= most
                    and length < end - body - 7
                    and data[body] == BODY
                    and i64(read_i32_be(data, body + 3)) == length
                    and read_i16_be(data, body + 1) == read_i16_be(data, pos + 1)
                    and data[body + 7 + length] == FRAME_END
                ):
                    self._accept(target, data[after + 19 : body - 1], data[body + 7 : body + 7 + length])
                    return body + length + 8
        target.channel.incoming = Incoming(target)
        return after

    def _target(self, frame: bytes) -> Target | None:
        """What a basic.publish frame means now; None when its channel is closing, or closes for it."""
        channel = self.connection.open_channel(i64(read_i16_be(frame, 1)) & 0xFFFF, BASIC_PUBLISH)
        if channel.closing:
            return None
        try:
            target = publish_target(channel, frame)
        except Fault as fault:
            if fault.hard:
                fault.method = BASIC_PUBLISH
                raise
            self.connection.close_channel(channel, fault.code, fault.reply_text(), BASIC_PUBLISH)
            return None
        if len(self._targets) >= TARGETS_MAX and frame not in self._targets:
            self._targets = {}
        self._targets[frame] = target
        return target

    def _accept(self, target: Target, props: bytes, body: bytes) -> None:
        """Publish a message that has arrived whole."""
        channel = target.channel
        try:
            if props == self._props:
                # one object for all the messages that say the same
                props = self._props
            else:
                self._read_props(props)
            if self._props_special or target.reply or channel.tx is not None:
                self._special(target, props, body)
                return
            expires_ms: i64 = 0
            if self._props_ttl_ms >= 0:
                expires_ms = self._shard.wall_ms + self._props_ttl_ms
            message = new_message(
                self._shard, target.tenant, target.way, props, body, self._props_priority, expires_ms, self._props_flags
            )
        except MessageTooLarge as error:
            self.connection.close_channel(channel, error.amqp, reply_text(error), BASIC_PUBLISH)
            return
        except RookeryError as error:
            self._refuse(channel, error)
            return
        except Fault as fault:
            if fault.hard:
                fault.method = BASIC_PUBLISH
                raise
            self.connection.close_channel(channel, fault.code, fault.reply_text(), BASIC_PUBLISH)
            return
        reached = post(self._shard, target.tenant, target.way, message, 0, EACH)
        if channel.confirming or reached == 0:
            self._published(target, target.way, message, reached)

    def _published(self, target: Target, way: Way, message: Message, reached: i64) -> None:
        channel = target.channel
        if reached == 0 and target.mandatory:
            self._return(channel, message.route, message.props, message.body)
        if channel.confirming:
            self._count(channel, reached == REFUSED)
            if reached > 0 and (message.flags & PERSISTENT or way.streams or way.by_headers):
                channel.lasting = True

    # What takes a second look

    def _special(self, target: Target, props: bytes, body: bytes) -> None:
        """Publish a message that asks for more than to be routed by its key."""
        channel = target.channel
        way = target.way
        copies: list[str] = []
        if props[0] & _HEADERS:
            try:
                copies = _copies(props)
            except InvalidArgument as error:
                raise Fault(502, str(error)) from None
            if properties.header(props, "BCC") is not None:
                props = properties.with_headers(props, {"BCC": None}, True)
        if props[0] & _REPLY_TO and properties.reply_to(props) == replies.REPLY_TO:
            props = replies.renamed(channel, props)
        if channel.tx is not None:
            self._in_transaction(target, props, body, copies)
            return
        if target.reply:
            self._reply(target, props, body)
            return
        if copies:
            way = target.tenant.joined(way.exchange, [way.route.key, *copies], props)
        expires_ms: i64 = 0
        if self._props_ttl_ms >= 0:
            expires_ms = self._shard.wall_ms + self._props_ttl_ms
        message = new_message(
            self._shard, target.tenant, way, props, body, self._props_priority, expires_ms, self._props_flags
        )
        self._published(target, way, message, post(self._shard, target.tenant, way, message, 0, EACH))

    def _in_transaction(self, target: Target, props: bytes, body: bytes, copies: list[str]) -> None:
        tx = target.channel.tx
        assert tx is not None
        publish = Publish(
            target.way.exchange.name,
            target.way.route.key,
            props,
            body,
            self._props_priority,
            persistent=self._props_flags != 0,
            copies=copies,
        )
        if target.reply:
            tx.reply(publish, target.mandatory)
        else:
            tx.publish(publish, self._props_ttl_ms, target.mandatory)

    def _reply(self, target: Target, props: bytes, body: bytes) -> None:
        """An answer goes to the channel that asked, if it is still there."""
        channel = target.channel
        route = target.way.route
        asker = replies.find(self.connection, route.key)
        if asker is not None:
            replies.deliver(asker, route.key, props, body)
        elif target.mandatory:
            self._return(channel, route, props, body)
        if channel.confirming:
            self._count(channel, False)

    def _count(self, channel: Channel, refused: bool) -> None:
        if channel.published == channel.seen:
            self.connection.turn.expect(self.connection)
            if channel.published == channel.confirmed:
                self._unconfirmed.append(channel)
        channel.take(refused)

    def confirm(self) -> bool:
        """The turn ends: confirm what is as durable as its queues promise; True when there is more to come."""
        log = self._shard.log
        unconfirmed = self._unconfirmed
        self._unconfirmed = []
        for channel in unconfirmed:
            if not channel.ended and channel.confirm(log):
                self._unconfirmed.append(channel)
        return bool(self._unconfirmed)

    def _read_props(self, props: bytes) -> None:
        scan = self._scan
        # not the last list any more, also when the new one turns out to be malformed
        self._props = properties.EMPTY
        self._props_ttl_ms = -1
        self._props_priority = 0
        self._props_flags = 0
        self._props_special = False
        try:
            scan.read(props)
        except InvalidArgument as error:
            raise _fault_of(props, error) from None
        if props[0] & _DELIVERY_MODE and scan.delivery_mode != 2 and scan.delivery_mode != 1:
            raise Fault(406, f"invalid message: {{delivery_mode_unknown,{scan.delivery_mode}}}")
        if props[1] & _USER_ID:
            check_user_id(self.connection, props)
        if props[0] & _HEADERS:
            self._props_special = b"\x02CC" in props or b"\x03BCC" in props
        if props[0] & _REPLY_TO and _BROKER_REPLY_TO in props:
            self._props_special = True
        self._props = props
        self._props_ttl_ms = scan.expiration_ms
        self._props_priority = max(0, scan.priority)
        self._props_flags = PERSISTENT if scan.delivery_mode == 2 else 0

    def _refuse(self, channel: Channel, error: RookeryError) -> None:
        """There is no room for the message: a nack, or, where none was asked for, the end of the channel."""
        if channel.confirming:
            self._count(channel, True)
        else:
            self.connection.close_channel(channel, 506, f"RESOURCE_ERROR - {error}", BASIC_PUBLISH)

    def _return(self, channel: Channel, route: Route, props: bytes, body: bytes) -> None:
        put_return(channel.out, channel.number, self.connection.payload_max, route, props, body)

    # Content that comes in pieces

    def content(self, data: bytes, pos: i64, after: i64) -> None:
        """Take a content header or body frame of a message that comes in pieces."""
        channel = self.connection.open_channel(i64(read_i16_be(data, pos + 1)) & 0xFFFF, 0)
        if channel.closing:
            return
        incoming = channel.incoming
        if incoming is None:
            raise Fault(505, "expected method frame, got non method frame instead")
        if data[pos] == HEADER:
            self._header(data, pos, after, channel, incoming)
        else:
            self._body(data, pos, after, channel, incoming)

    def _header(self, data: bytes, pos: i64, after: i64, channel: Channel, incoming: Incoming) -> None:
        if incoming.size >= 0:
            raise unexpected(incoming)
        if after - pos < 22:
            raise Fault(FRAME_ERROR, "malformed content header")
        kind = i64(read_i16_be(data, pos + 7)) & 0xFFFF
        if kind != BASIC:
            text = f"expected content header for class {BASIC}, got one for class {kind} instead"
            raise Fault(505, text, BASIC_PUBLISH)
        size = read_i64_be(data, pos + 11)
        if size < 0:
            raise Fault(FRAME_ERROR, "malformed content header: negative size")
        most = incoming.target.tenant.message_bytes_max
        if size > most:
            text = f"CONTENT_TOO_LARGE - message size {size} is larger than configured max size {most}"
            self.connection.close_channel(channel, 311, text, BASIC_PUBLISH)
            return
        incoming.props = data[pos + 19 : after - 1]
        incoming.size = size
        if size == 0:
            self._arrived(channel, incoming)

    def _body(self, data: bytes, pos: i64, after: i64, channel: Channel, incoming: Incoming) -> None:
        if incoming.size < 0:
            raise unexpected(incoming)
        size = after - pos - 8
        incoming.got += size
        if incoming.got > incoming.size:
            raise Fault(FRAME_ERROR, "a content body is longer than its header says")
        if not incoming.refused:
            self._face.partial_bytes += size
            incoming.parts.append(data[pos + 7 : after - 1])
            if self._shard.memory_bytes + self._face.partial_bytes > self._shard.memory_bytes_max:
                self.forget(incoming)
                incoming.refused = True
                if not channel.confirming:
                    self._refuse(channel, MemoryLimitExceeded())
                    return
        if incoming.got == incoming.size:
            self._arrived(channel, incoming)

    def _arrived(self, channel: Channel, incoming: Incoming) -> None:
        channel.incoming = None
        target = incoming.target
        if incoming.refused:
            self._refuse(channel, MemoryLimitExceeded())
            return
        parts = incoming.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.forget(incoming)
        if target.way.version != target.tenant.version:
            # the topology changed while the message was under way
            try:
                target = renewed(target)
            except Fault as fault:
                self.connection.close_channel(channel, fault.code, fault.reply_text(), BASIC_PUBLISH)
                return
        self._accept(target, incoming.props, body)

    def forget(self, incoming: Incoming) -> None:
        for part in incoming.parts:
            self._face.partial_bytes -= len(part)
        incoming.parts = []


def unexpected(incoming: Incoming) -> Fault:
    """A frame that does not belong to the message under way on its channel."""
    if incoming.size < 0:
        text = f"expected content header for class {BASIC}, got non content header frame instead"
    else:
        text = "expected content body, got non content body frame instead"
    return Fault(505, text, BASIC_PUBLISH)


def publish_target(channel: Channel, frame: bytes) -> Target:
    """What one basic.publish frame asks for."""
    arguments = Arguments(frame, 11, len(frame) - 1)
    arguments.short()
    name = arguments.short_string()
    key = arguments.short_string()
    bits = arguments.octet()
    if bits & 2:
        raise Fault(540, "immediate=true")
    require(channel, "exchange.publish", "exchange", name)
    exchange = find_exchange(channel, name)
    if exchange.internal:
        vhost = channel.connection.vhost
        raise Fault(403, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
    tenant = tenant_of(channel)
    target = Target(channel, tenant, tenant.way(exchange, key), bits & 1 != 0)
    target.reply = not name and key.startswith(replies.PREFIX)
    return target


def renewed(target: Target) -> Target:
    """The same target after a change of the topology."""
    route = target.way.route
    exchange = find_exchange(target.channel, route.exchange)
    again = Target(target.channel, target.tenant, target.tenant.way(exchange, route.key), target.mandatory)
    again.reply = target.reply
    return again


def check_user_id(connection: AmqpConnection, props: bytes) -> None:
    claimed = properties.user_id(props)
    if claimed != connection.user:
        raise Fault(406, f"user_id property set to '{claimed}' but authenticated user was '{connection.user}'")


def _copies(props: bytes) -> list[str]:
    """The further keys of a message: those everybody may see (CC), and those nobody may (BCC)."""
    found: list[str] = []
    for name in ("CC", "BCC"):
        kind = properties.header_type(props, name)
        if kind and kind != "A":
            raise Fault(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{TYPES[kind]}}}')
    found.extend(copies_of(props))
    hidden = properties.header(props, "BCC")
    if isinstance(hidden, list):
        found.extend(each for each in hidden if isinstance(each, str))
    return found


def _fault_of(props: bytes, error: InvalidArgument) -> Fault:
    """A list that is malformed or beyond the limits ends the connection, an expiration that is none the channel."""
    if error.argument != "expiration":
        return Fault(502, str(error))
    try:
        return Fault(406, _expiration_text(properties.decode(props).expiration or ""))
    except InvalidArgument as malformed:
        return Fault(502, str(malformed))


def _expiration_text(text: str) -> str:
    """RabbitMQ's words for an expiration that is none."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    length = len(digits) - len(digits.lstrip("0123456789"))
    if not length:
        why = "no_integer"
    elif digits[length:]:
        why = f'{{leftover_string,"{digits[length:]}"}}'
    elif text.startswith("-"):
        why = f"{{value_negative,{text}}}"
    else:
        why = f"{{value_too_large,{text}}}"
    return f"invalid expiration '{text}': {why}"
