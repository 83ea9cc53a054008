"""How an AMQP connection begins (spec 2.2.4): start, login, tune, open. Each function takes the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, u8

from rookery.errors import InvalidArgument, RookeryError
from rookery.format.bytes import write_i32_be
from rookery.format.fieldtables import decode_table, write_table
from rookery.wire.amqp.codec import (
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    CONNECTION_UPDATE_SECRET,
    CONNECTION_UPDATE_SECRET_OK,
    FRAME_MIN_BYTES,
    FRAME_OVERHEAD,
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_channel,
    put_long_string,
    put_method,
    put_short_string,
)

if TYPE_CHECKING:
    from rookery.wire.amqp.connection import AmqpConnection

DEFAULT_VHOST: Final = "/"
DEFAULT_TENANT: Final = "default"
MECHANISMS: Final = b"PLAIN AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
"""Offered to who came with a certificate: the name in it is the user's."""
SHARES_PREFETCH: Final = "py-amqp"
"""The library under kombu and Celery. With a broker that does not call itself RabbitMQ it relies on the specification's
basic.qos: without `global`, one limit for the whole channel, which Celery raises and lowers while it consumes."""


def put_start(connection: AmqpConnection) -> None:
    out = connection.out
    start = begin_method(out, 0, CONNECTION_START)
    out.w.append(u8(0))
    out.w.append(u8(9))
    write_table(out.w, connection.face.server_properties)
    put_long_string(out.w, MECHANISMS + b" EXTERNAL" if connection.certified else MECHANISMS)
    put_long_string(out.w, b"en_US")
    end_method(out, start)


def start_ok(connection: AmqpConnection, arguments: Arguments) -> None:
    """Take the peer's capabilities and credentials."""
    client = arguments.table()
    mechanism = arguments.short_string()
    response = arguments.long_string()
    capabilities = client.get("capabilities")
    if isinstance(capabilities, dict):
        connection.cancel_notify = capabilities.get("consumer_cancel_notify") is True
        connection.tells_blocked = capabilities.get("connection.blocked") is True
        connection.tells_refusal = capabilities.get("authentication_failure_close") is True
    connection.shared_prefetch = client.get("product") == SHARES_PREFETCH
    connection.mechanism = mechanism
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise Fault(502, "PLAIN wants a name and a password")
        connection.user = parts[1].decode("utf-8", "surrogateescape")
        connection.password = parts[2].decode("utf-8", "surrogateescape")
    elif mechanism == "AMQPLAIN":
        try:
            table = decode_table(response, 0, len(response))
        except InvalidArgument as error:
            raise Fault(502, str(error)) from None
        connection.user = str(table.get("LOGIN", ""))
        connection.password = str(table.get("PASSWORD", ""))
    elif mechanism == EXTERNAL and connection.certified:
        connection.user = connection.certified
    else:
        raise Fault(504, f"unknown authentication mechanism '{mechanism}'")


def put_tune(connection: AmqpConnection) -> None:
    face = connection.face
    out = connection.out
    start = begin_method(out, 0, CONNECTION_TUNE)
    put_channel(out.w, face.channels_max)
    write_i32_be(out.w, i32(face.frame_max))
    put_channel(out.w, face.heartbeat_sec)
    end_method(out, start)


def tune_ok(connection: AmqpConnection, arguments: Arguments) -> None:
    """Settle the limits. The peer may lower what was proposed; 0 leaves it as it is, and means no heartbeats."""
    channels = arguments.short()
    frame = arguments.long()
    heartbeat = arguments.short()
    face = connection.face
    if channels > face.channels_max:
        raise Fault(
            530, f"negotiated channel_max = {channels} is higher than the maximum allowed ({face.channels_max})"
        )
    if frame and frame < FRAME_MIN_BYTES:
        raise Fault(530, f"negotiated frame_max = {frame} is lower than the minimum allowed ({FRAME_MIN_BYTES})")
    if frame > face.frame_max:
        raise Fault(530, f"negotiated frame_max = {frame} is higher than the maximum allowed ({face.frame_max})")
    connection.channels_max = channels or face.channels_max
    connection.payload_max = (frame or face.frame_max) - FRAME_OVERHEAD
    connection.heartbeat_ms = heartbeat * 1000


def secret_updated(connection: AmqpConnection, accepted: bool, secret: str) -> None:
    """connection.update-secret: the peer goes on with what its new credential allows, or not at all."""
    tenant = connection.tenant
    assert tenant is not None
    if accepted:
        try:
            connection.principal = connection.face.enter(connection, connection.user, secret, tenant.name)
        except RookeryError:
            accepted = False
    if accepted:
        put_method(connection.out, 0, CONNECTION_UPDATE_SECRET_OK)
    else:
        text = f"New secret was refused by one of the backends for user '{connection.user}'"
        connection.close(530, text, CONNECTION_UPDATE_SECRET)


def enter(connection: AmqpConnection, arguments: Arguments) -> None:
    """connection.open: enter the tenant that the vhost names."""
    vhost = arguments.short_string()
    name = DEFAULT_TENANT if vhost == DEFAULT_VHOST else vhost
    tenant = connection.shard.tenants.get(name)
    if tenant is None:
        raise Fault(530, f"vhost {vhost} not found")
    try:
        connection.principal = connection.face.enter(connection, connection.user, connection.password, name)
    except RookeryError:
        raise Fault(530, f"access to vhost '{vhost}' refused for user '{connection.user}'") from None
    connection.password = ""
    connection.vhost = vhost
    connection.tenant = tenant
    out = connection.out
    start = begin_method(out, 0, CONNECTION_OPEN_OK)
    put_short_string(out.w, "")
    end_method(out, start)
