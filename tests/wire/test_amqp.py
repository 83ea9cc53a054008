"""AMQP connections without sockets: conversations in exact bytes, and what each method does to the core."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.access import Rights
from rookery.errors import MemoryLimitExceeded, StoreFailed
from rookery.format.properties import Properties, decode, encode
from rookery.wire.amqp.channel import SPARSE_AT
from tests.wire.amqp_peer import (
    HEARTBEAT,
    NO_ARGUMENTS,
    PROTOCOL,
    Broker,
    Delivered,
    Frame,
    Peer,
    bodies,
    closed,
    deliveries,
    frame,
    frames,
    header,
    long,
    long_string,
    longlong,
    method,
    octet,
    open_vhost,
    publish,
    short,
    short_string,
    start_ok,
    strings,
    table,
    tune_ok,
)

LIMITED = Rights(configure="^mine", write="^mine", read="^mine")


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def peer(broker: Broker) -> Peer:
    """A connection with channel 1 open."""
    return Peer(broker).handshake().channel()


def another(broker: Broker, **capabilities: bool) -> Peer:
    return Peer(broker).handshake(**capabilities).channel()


# Conversations: (clause, what is sent, what comes back). Fed whole, byte by byte, and with a tail that is not whole.

OPENED = PROTOCOL + start_ok() + tune_ok() + open_vhost()
READY = OPENED + method(1, 20, 10, b"\x00")
CHANNEL_OPEN_OK = method(1, 20, 11, long(0))
DECLARE_Q = method(1, 50, 10, short(0) + short_string("q") + octet(0) + NO_ARGUMENTS)
DECLARED_Q = method(1, 50, 11, short_string("q") + long(0) + long(0))
CONSUME_Q = method(1, 60, 20, short(0) + short_string("q") + short_string("c") + octet(0) + NO_ARGUMENTS)


def close_of(channel: int, code: int, text: str, class_id: int = 0, method_id: int = 0) -> bytes:
    kind = (20, 40) if channel else (10, 50)
    words = short(code) + short_string(text) + short(class_id) + short(method_id)
    return method(channel, *kind, words)


CONVERSATIONS: list[tuple[str, bytes, bytes]] = [
    (
        "2.3.4 channel open and close",
        READY + method(1, 20, 40, short(200) + b"\x00" + long(0)),
        CHANNEL_OPEN_OK + method(1, 20, 41),
    ),
    ("1.5.2.3 channel.flow on", READY + method(1, 20, 20, b"\x01"), CHANNEL_OPEN_OK + method(1, 20, 21, b"\x01")),
    ("1.7.2.1 queue.declare", READY + DECLARE_Q, CHANNEL_OPEN_OK + DECLARED_Q),
    (
        "1.7.2.1 queue.declare nowait",
        READY + DECLARE_Q.replace(b"q\x00\x00", b"q\x10\x00") + DECLARE_Q,
        CHANNEL_OPEN_OK + DECLARED_Q,
    ),
    (
        "1.6.2.1 exchange.declare, 1.6.2.3 delete",
        READY
        + method(1, 40, 10, short(0) + short_string("x") + short_string("fanout") + octet(0) + NO_ARGUMENTS)
        + method(1, 40, 20, short(0) + short_string("x") + octet(0)),
        CHANNEL_OPEN_OK + method(1, 40, 11) + method(1, 40, 21),
    ),
    (
        "1.8.3.7 publish, 1.8.3.10 get, single frame body",
        READY + DECLARE_Q + publish(1, "", "q", b"hi") + method(1, 60, 70, short(0) + short_string("q") + octet(1)),
        CHANNEL_OPEN_OK
        + DECLARED_Q
        + method(1, 60, 71, longlong(1) + octet(0) + short_string("") + short_string("q") + long(0))
        + header(1, 2)
        + bodies(1, b"hi"),
    ),
    (
        "4.2.6 content without a body frame",
        READY + DECLARE_Q + publish(1, "", "q", b"") + method(1, 60, 70, short(0) + short_string("q") + octet(1)),
        CHANNEL_OPEN_OK
        + DECLARED_Q
        + method(1, 60, 71, longlong(1) + octet(0) + short_string("") + short_string("q") + long(0))
        + header(1, 0),
    ),
    (
        "4.2.6 content in several body frames",
        READY
        + DECLARE_Q
        + method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
        + header(1, 6)
        + bodies(1, b"abcdef", 4)
        + method(1, 60, 70, short(0) + short_string("q") + octet(1)),
        CHANNEL_OPEN_OK
        + DECLARED_Q
        + method(1, 60, 71, longlong(1) + octet(0) + short_string("") + short_string("q") + long(0))
        + header(1, 6)
        + bodies(1, b"abcdef"),
    ),
    (
        "1.8.3.3 consume, 1.8.3.9 deliver",
        READY + DECLARE_Q + CONSUME_Q + publish(1, "", "q", b"hi", b"\x10\x00\x02"),
        CHANNEL_OPEN_OK
        + DECLARED_Q
        + method(1, 60, 21, short_string("c"))
        + method(1, 60, 60, short_string("c") + longlong(1) + octet(0) + short_string("") + short_string("q"))
        + header(1, 2, b"\x10\x00\x02")
        + bodies(1, b"hi"),
    ),
    (
        "1.8.3.10 get from an empty queue",
        READY + DECLARE_Q + method(1, 60, 70, short(0) + short_string("q") + octet(0)),
        CHANNEL_OPEN_OK + DECLARED_Q + method(1, 60, 72, b"\x00"),
    ),
    ("1.8.3.1 qos", READY + method(1, 60, 10, long(0) + short(9) + octet(0)), CHANNEL_OPEN_OK + method(1, 60, 11)),
    ("1.8.3.14 recover", READY + method(1, 60, 110, octet(1)), CHANNEL_OPEN_OK + method(1, 60, 111)),
    ("confirm.select", READY + method(1, 85, 10, b"\x00"), CHANNEL_OPEN_OK + method(1, 85, 11)),
    ("4.2.7 heartbeats are taken", READY + HEARTBEAT * 3 + DECLARE_Q, CHANNEL_OPEN_OK + DECLARED_Q),
    (
        "1.5.2.5 channel.close for a soft error, then reuse",
        READY
        + method(1, 50, 10, short(0) + short_string("q") + octet(1) + NO_ARGUMENTS)
        + DECLARE_Q  # ignored: the channel is closing
        + method(1, 20, 41)
        + method(1, 20, 10, b"\x00")
        + DECLARE_Q,
        CHANNEL_OPEN_OK
        + close_of(1, 404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
        + CHANNEL_OPEN_OK
        + DECLARED_Q,
    ),
    (
        "4.2.3 frame of an unknown kind",
        READY + frame(4, 1, b""),
        CHANNEL_OPEN_OK + close_of(0, 501, "FRAME_ERROR - no frame of type 4 and 0 bytes is known"),
    ),
    (
        "2.3.5.1 method on a channel that is not open",
        OPENED + DECLARE_Q,
        close_of(0, 504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10),
    ),
    (
        "2.3.5.1 channel opened twice",
        READY + method(1, 20, 10, b"\x00"),
        CHANNEL_OPEN_OK + close_of(0, 504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10),
    ),
    (
        "4.2.6 header without a publish",
        READY + header(1, 2),
        CHANNEL_OPEN_OK + close_of(0, 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
    ),
    (
        "4.2.6 method where content belongs",
        READY + method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + DECLARE_Q,
        CHANNEL_OPEN_OK
        + close_of(
            0,
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
            60,
            40,
        ),
    ),
    (
        "1.8.3.7 immediate",
        READY + publish(1, "", "q", b"", bits=2),
        CHANNEL_OPEN_OK + close_of(0, 540, "NOT_IMPLEMENTED - immediate=true", 60, 40),
    ),
    (
        "a class that does not exist",
        READY + method(1, 91, 10),
        CHANNEL_OPEN_OK + close_of(0, 503, "COMMAND_INVALID - unimplemented method", 91, 10),
    ),
    (
        "1.9.2.1 tx.select, 1.9.2.3 commit, 1.9.2.5 rollback",
        READY + method(1, 90, 10) + method(1, 90, 20) + method(1, 90, 30),
        CHANNEL_OPEN_OK + method(1, 90, 11) + method(1, 90, 21) + method(1, 90, 31),
    ),
    (
        "access.request of AMQP 0-8",
        READY + method(1, 30, 10, short_string("/data") + octet(31)),
        CHANNEL_OPEN_OK + method(1, 30, 11, short(1)),
    ),
    ("1.8.3.13 recover-async", READY + method(1, 60, 100, octet(1)) + DECLARE_Q, CHANNEL_OPEN_OK + DECLARED_Q),
    (
        "connection.update-secret",
        READY + method(0, 10, 70, long_string(b"guest") + b"\x00"),
        CHANNEL_OPEN_OK + method(0, 10, 71),
    ),
    (
        "1.5.2.3 channel.flow off",
        READY + method(1, 20, 20, b"\x00"),
        CHANNEL_OPEN_OK + close_of(0, 540, "NOT_IMPLEMENTED - active=false", 20, 20),
    ),
    (
        "1.8.3.14 recover without requeue",
        READY + method(1, 60, 110, octet(0)),
        CHANNEL_OPEN_OK + close_of(0, 540, "NOT_IMPLEMENTED - requeue=false", 60, 110),
    ),
    (
        "1.8.3.1 qos by size",
        READY + method(1, 60, 10, long(5) + short(0) + octet(0)),
        CHANNEL_OPEN_OK + close_of(0, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (5)", 60, 10),
    ),
    (
        "4.2.5.3 arguments cut off",
        READY + method(1, 50, 10, short(0) + b"\x09q"),
        CHANNEL_OPEN_OK + close_of(0, 502, "SYNTAX_ERROR - a method's arguments are cut off", 50, 10),
    ),
    (
        "1.4.2.8 connection.open of an unknown vhost",
        PROTOCOL + start_ok() + tune_ok() + open_vhost("nowhere"),
        close_of(0, 530, "NOT_ALLOWED - vhost nowhere not found", 10, 40),
    ),
    (
        "1.4.2.10 connection.close",
        READY + method(0, 10, 50, short(200) + b"\x00" + long(0)),
        CHANNEL_OPEN_OK + method(0, 10, 51),
    ),
]
START = {(10, 10), (10, 30), (10, 41)}


def answers(data: bytes) -> bytes:
    """What came after the handshake."""
    return b"".join(frame(*each) for each in frames(data) if each.kind != 1 or each.name not in START)


@pytest.mark.parametrize(
    ("sent", "expected"), [row[1:] for row in CONVERSATIONS], ids=[row[0] for row in CONVERSATIONS]
)
@pytest.mark.parametrize("feed", ["whole", "byte by byte", "with a tail", "by sevens"])
def test_conversation(broker: Broker, feed: str, sent: bytes, expected: bytes) -> None:
    peer = Peer(broker)
    if feed == "whole":
        peer.send(sent)
    elif feed == "with a tail":
        peer.send(sent + HEARTBEAT[:5])
    else:
        step = 1 if feed == "byte by byte" else 7
        for at in range(0, len(sent), step):
            peer.send(sent[at : at + step])
    assert answers(peer.received()) == expected
    assert not broker.log


# 1.4 Connection


def test_start_names_the_server_and_its_mechanisms(broker: Broker) -> None:
    broker.face.server_properties = {"product": "Rookery"}
    peer = Peer(broker)
    peer.send(PROTOCOL)
    (start,) = peer.frames()
    expected = b"\x00\x09" + table(product="Rookery") + long_string(b"PLAIN AMQPLAIN") + long_string(b"en_US")
    assert (start.name, start.arguments) == ((10, 10), expected)


@pytest.mark.parametrize("start", [b"AMQP\x01\x01\x00\x09", b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"X"])
def test_another_protocol_is_told_the_right_one_and_hung_up_on(broker: Broker, start: bytes) -> None:
    peer = Peer(broker)
    peer.send(start)
    assert peer.received() == PROTOCOL
    assert peer.transport.closed
    peer.send(PROTOCOL)
    assert peer.received() == b""


def test_amqplain(broker: Broker) -> None:
    peer = Peer(broker)
    response = table(LOGIN="guest", PASSWORD="guest")[4:]
    words = NO_ARGUMENTS + short_string("AMQPLAIN") + long_string(response) + short_string("en_US")
    peer.send(PROTOCOL + method(0, 10, 11, words))
    assert peer.frames()[-1].name == (10, 30)
    assert peer.connection.user == "guest"


def test_wrong_password_with_and_without_the_capability(broker: Broker) -> None:
    silent = Peer(broker)
    silent.send(PROTOCOL)
    silent.received()
    silent.send(start_ok("guest", "wrong"))
    assert silent.received() == b""
    assert silent.transport.closed
    told = Peer(broker)
    told.send(PROTOCOL)
    (answer,) = told.ask(start_ok("guest", "wrong", authentication_failure_close=True))
    refusal = closed(answer, hard=True)
    assert refusal.code == 403
    text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
    assert refusal.text == f"{text} For details see the broker logfile."
    told.send(method(0, 10, 51))
    assert told.transport.closed


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (NO_ARGUMENTS + short_string("EXTERNAL") + long_string(b"") + short_string("en_US"), 504),
        (NO_ARGUMENTS + short_string("PLAIN") + long_string(b"guest") + short_string("en_US"), 502),
        (NO_ARGUMENTS + short_string("AMQPLAIN") + long_string(b"\x05LO") + short_string("en_US"), 502),
        (b"\x00\x00\x00\x09\x01a", 502),
    ],
)
def test_malformed_start_ok(broker: Broker, words: bytes, code: int) -> None:
    peer = Peer(broker)
    peer.send(PROTOCOL)
    (answer,) = peer.ask(method(0, 10, 11, words))
    assert closed(answer, hard=True).code == code


def test_slow_login_holds_what_was_sent_ahead(broker: Broker) -> None:
    broker.slow_logins = []
    peer = Peer(broker)
    ahead = tune_ok() + open_vhost() + method(1, 20, 10, b"\x00")
    peer.send(PROTOCOL + start_ok() + ahead[:10])
    peer.send(ahead[10:30])
    peer.send(ahead[30:])
    assert [each.name for each in peer.frames()] == [(10, 10)]
    ((connection, known),) = broker.slow_logins
    broker.take_turn(lambda: connection.login_done(known))
    assert [each.name for each in peer.frames()] == [(10, 30), (10, 41), (20, 11)]


def test_slow_login_of_a_peer_that_left_or_floods(broker: Broker) -> None:
    broker.slow_logins = []
    gone = Peer(broker)
    gone.send(PROTOCOL + start_ok())
    gone.lose()
    flood = Peer(broker)
    flood.send(PROTOCOL + start_ok())
    flood.received()
    for _ in range(9):
        flood.send(bytes(8000))
    assert closed(flood.frames()[0], hard=True).code == 505
    for connection, known in broker.slow_logins:
        broker.take_turn(partial(connection.login_done, known))
    assert gone.transport.sent[1:] == []


def test_a_peer_that_is_closed_during_its_slow_login(broker: Broker) -> None:
    broker.slow_logins = []
    peer = Peer(broker)
    peer.send(PROTOCOL + start_ok() + tune_ok() + open_vhost())
    broker.take_turn(lambda: broker.face.close_all("shutdown"))
    peer.send(method(1, 20, 10, b"\x00"))
    assert [each.name for each in peer.frames()] == [(10, 10), (10, 50)]
    peer.send(method(0, 10, 51))
    assert peer.transport.closed


@pytest.mark.parametrize(
    ("tune", "code"),
    [
        (tune_ok(0, 4095), 530),
        (tune_ok(0, 131073), 530),
        (tune_ok(2048, 0), 530),
        (tune_ok(1, 4096), 0),
        (tune_ok(2047, 131072), 0),
    ],
)
def test_tuning(broker: Broker, tune: bytes, code: int) -> None:
    peer = Peer(broker)
    peer.send(PROTOCOL + start_ok())
    peer.received()
    peer.send(tune + open_vhost())
    answer = peer.frames()[0]
    if code:
        assert closed(answer, hard=True).code == code
    else:
        assert answer.name == (10, 41)


def test_channel_max_is_kept(broker: Broker) -> None:
    peer = Peer(broker)
    peer.send(PROTOCOL + start_ok() + tune_ok(2) + open_vhost())
    for number in (1, 7):
        assert peer.call(number, 20, 10, b"\x00").name == (20, 11)
    assert closed(peer.call(2, 20, 10, b"\x00"), hard=True).code == 530


def test_methods_out_of_order_before_open(broker: Broker) -> None:
    for early in (tune_ok(), open_vhost(), method(0, 10, 99), method(0, 60, 40)):
        peer = Peer(broker)
        peer.send(PROTOCOL)
        (answer,) = peer.ask(early)
        assert closed(answer, hard=True).code == 503
    for early, code in ((method(1, 20, 10, b"\x00"), 504), (publish(1, "", "q", b"x"), 504), (header(1, 2), 505)):
        peer = Peer(broker)
        peer.send(PROTOCOL)
        assert closed(peer.ask(early)[0], hard=True).code == code


# 4.2.3 Frames: every length is checked before anything waits for it


@pytest.mark.parametrize(
    "bad",
    [
        frame(1, 1, b"\x00\x32\x00\x0a")[:-1] + b"\x00",
        b"\x01\x00\x01\xff\xff\xff\xff",
        b"\x03\x00\x01" + long(131072 - 8 + 1),
        frame(1, 1, b"\x00\x3c\x00"),
        frame(0, 0, b""),
        frame(255, 0, b"abc"),
        b"AMQP\x00\x00\x09\x01",
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_frame_errors_end_the_connection_and_nothing_more_is_read(peer: Peer, bad: bytes, step: int) -> None:
    data = bad + DECLARE_Q
    for at in range(0, len(data), step):
        peer.send(data[at : at + step])
    (answer,) = peer.frames()
    assert closed(answer, hard=True).code == 501
    assert "q" not in peer.broker.tenant.queues
    assert not peer.transport.closed  # the peer is given the time to read why
    peer.broker.pass_time(11_000)
    assert peer.transport.aborted


def test_after_a_frame_error_close_ok_ends_it(peer: Peer) -> None:
    peer.ask(b"\x01\x00\x01" + long(1 << 30) + b"hello")
    peer.send(DECLARE_Q)
    assert not peer.transport.closed
    peer.send(DECLARE_Q + method(0, 10, 51))
    assert peer.transport.closed and not peer.transport.aborted
    assert "q" not in peer.broker.tenant.queues


def test_frames_before_tuning_are_small(broker: Broker) -> None:
    peer = Peer(broker)
    peer.send(PROTOCOL)
    (answer,) = peer.ask(b"\x01\x00\x00" + long(8192))
    assert closed(answer, hard=True).code == 501


def test_after_a_hard_error_only_close_ok_counts(peer: Peer) -> None:
    received = peer.ask(method(1, 91, 10) + DECLARE_Q + publish(1, "", "q", b"x") + HEARTBEAT + method(0, 10, 51))
    assert closed(received[0], hard=True).code == 503
    assert len(received) == 1
    assert "q" not in peer.broker.tenant.queues
    assert peer.transport.closed


def test_both_sides_close_at_once(peer: Peer) -> None:
    received = peer.ask(method(1, 91, 10) + method(0, 10, 50, short(200) + b"\x00" + long(0)))
    assert [each.name for each in received] == [(10, 50), (10, 51)]
    assert peer.transport.closed


def test_content_errors(broker: Broker) -> None:
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
    cases = [
        (start + start, 505),
        (start + bodies(1, b"x"), 505),
        (start + header(1, 2) + header(1, 2), 505),
        (start + header(1, 2) + bodies(1, b"xyz"), 501),
        (start + frame(2, 1, short(60) + short(0) + longlong(0)), 501),
        (start + frame(2, 1, short(61) + short(0) + longlong(0) + b"\x00\x00"), 505),
        (start + frame(2, 1, short(60) + short(0) + longlong(1 << 63) + b"\x00\x00"), 501),
        (start + header(1, 0, b"\x80\x00\x09abc"), 502),
        (start + header(1, 0, b"\x00\x00\x00"), 502),
        (start + header(2, 0), 504),
    ]
    for sent, code in cases:
        peer = another(broker)
        (answer,) = peer.ask(sent)
        assert closed(answer, hard=True).code == code, sent


def test_ack_and_get_inside_content_are_unexpected(broker: Broker) -> None:
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
    peer = another(broker)
    (answer,) = peer.ask(start + method(1, 60, 80, longlong(1) + octet(0)))
    assert closed(answer, hard=True).code == 505


def test_messages_of_two_channels_may_interleave(peer: Peer) -> None:
    peer.channel(2)
    peer.declare("q")
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
    other = method(2, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
    peer.send(start + other + header(1, 4) + header(2, 2) + bodies(1, b"on") + bodies(2, b"22") + bodies(1, b"e."))
    assert [each.body for each in deliveries(peer.get("q", True) + peer.get("q", True))] == [b"22", b"one."]


# Publishing


def test_fan_out_shares_one_body(peer: Peer) -> None:
    for name in ("a", "b"):
        peer.declare(name)
        assert peer.call(
            1, 50, 20, short(0) + short_string(name) + short_string("amq.fanout") + b"\x00\x00" + NO_ARGUMENTS
        ).name == (50, 21)
    peer.send(publish(1, "amq.fanout", "k", b"body"))
    a = peer.broker.tenant.queues["a"].ready_entries()[0].message
    assert a is peer.broker.tenant.queues["b"].ready_entries()[0].message
    (got,) = deliveries(peer.get("a", True))
    assert got == Delivered(1, False, "amq.fanout", "k", b"\x00\x00", b"body", "")


def test_what_a_publish_means_is_forgotten_when_the_topology_changes(peer: Peer) -> None:
    peer.declare("a")
    message = publish(1, "amq.direct", "k", b"x", bits=1)
    assert len(deliveries(peer.ask(message))) == 1  # returned
    words = short(0) + short_string("a") + short_string("amq.direct") + short_string("k") + b"\x00" + NO_ARGUMENTS
    peer.call(1, 50, 20, words)
    assert peer.ask(message) == []
    peer.call(1, 50, 50, short(0) + short_string("a") + short_string("amq.direct") + short_string("k") + NO_ARGUMENTS)
    assert len(deliveries(peer.ask(message))) == 1
    peer.call(1, 40, 10, short(0) + short_string("x") + short_string("topic") + octet(0) + NO_ARGUMENTS)
    to_x = publish(1, "x", "k", b"x")
    assert peer.ask(to_x) == []
    peer.call(1, 40, 20, short(0) + short_string("x") + octet(0))
    assert closed(peer.ask(to_x)[0]) == (404, "NOT_FOUND - no exchange 'x' in vhost '/'", (60, 40))


def test_topology_may_change_while_a_message_is_under_way(peer: Peer) -> None:
    other = another(peer.broker)
    other.call(1, 40, 10, short(0) + short_string("x") + short_string("direct") + octet(0) + NO_ARGUMENTS)
    peer.send(method(1, 60, 40, short(0) + short_string("x") + short_string("k") + octet(0)) + header(1, 2))
    other.call(1, 40, 20, short(0) + short_string("x") + octet(0))
    (answer,) = peer.ask(bodies(1, b"hi"))
    assert closed(answer).code == 404


def test_many_keys_do_not_fill_memory(peer: Peer) -> None:
    peer.declare("q")
    for n in range(2500):
        peer.send(publish(1, "", f"key{n}", b"x"))
    assert len(peer.connection.publisher._targets) <= 1000
    peer.send(publish(1, "", "q", b"x"))
    assert peer.broker.tenant.queues["q"].ready == 1


def test_mandatory_is_returned_before_it_is_confirmed(peer: Peer) -> None:
    peer.confirm()
    received = peer.ask(publish(1, "", "nowhere", b"body", b"\x10\x00\x01", bits=1))
    assert [each.kind for each in received] == [1, 2, 3, 1]
    assert received[0].name == (60, 50)
    assert received[0].arguments[:11] == short(312) + short_string("NO_ROUTE")
    assert deliveries(received) == [Delivered(0, False, "", "nowhere", b"\x10\x00\x01", b"body", "")]
    assert received[3] == Frame(1, 1, b"\x00\x3c\x00\x50" + longlong(1) + b"\x01")
    assert [each.name for each in peer.ask(publish(1, "", "nowhere", b"body"))] == [(60, 80)]


def test_one_confirm_per_channel_and_read(peer: Peer) -> None:
    peer.channel(2).channel(3)
    peer.confirm(1).confirm(3)
    peer.declare("q")
    received = peer.ask(b"".join(publish(1 + n % 3, "", "q", b"%d" % n) for n in range(30)))
    assert [(each.channel, each.arguments) for each in received] == [
        (1, longlong(10) + b"\x01"),
        (3, longlong(10) + b"\x01"),
    ]
    received = peer.ask(publish(3, "", "q"))
    assert [(each.channel, each.arguments) for each in received] == [(3, longlong(11) + b"\x01")]


def test_refused_publishes_are_nacked_each_and_the_rest_acked(peer: Peer) -> None:
    peer.confirm()
    peer.declare("full", x_max_length=1, x_overflow="reject-publish")
    peer.declare("q")
    received = peer.ask(
        publish(1, "", "full", b"1")
        + publish(1, "", "full", b"2")
        + publish(1, "", "q", b"3")
        + publish(1, "", "full", b"4")
    )
    assert [(each.name, each.arguments) for each in received] == [
        ((60, 120), longlong(2) + b"\x00"),
        ((60, 120), longlong(4) + b"\x00"),
        ((60, 80), longlong(4) + b"\x01"),
    ]
    received = peer.ask(publish(1, "", "full", b"5"))
    assert [(each.name, each.arguments) for each in received] == [((60, 120), longlong(5) + b"\x00")]


def test_confirms_are_not_lost_when_the_channel_closes_in_the_same_read(peer: Peer) -> None:
    peer.confirm()
    peer.declare("q")
    received = peer.ask(publish(1, "", "q") * 3 + method(1, 20, 40, short(200) + b"\x00" + long(0)))
    assert [each.name for each in received] == [(60, 80), (20, 41)]
    peer.channel().confirm()
    received = peer.ask(publish(1, "", "q") * 2 + publish(1, "nowhere", "k"))
    assert [each.name for each in received] == [(60, 80), (20, 40)]
    assert received[0].arguments == longlong(2) + b"\x01"
    last = another(peer.broker).confirm()
    received = last.ask(publish(1, "", "q") + method(0, 10, 50, short(200) + b"\x00" + long(0)))
    assert [each.name for each in received] == [(60, 80), (10, 51)]


@pytest.fixture
def durable(broker: Broker) -> Peer:
    """A confirming channel on a broker with a journal, and the durable queue `q`."""
    broker.shard.log.active = True
    peer = another(broker).confirm()
    peer.declare("q", bits=2)
    return peer


PERSISTENT = encode(Properties(delivery_mode=2))


def tags(received: list[Frame]) -> list[tuple[int, bool, bool]]:
    """Confirms as (tag, whether all up to it, whether taken)."""
    return [(int.from_bytes(each.arguments[:8]), each.arguments[8] == 1, each.name == (60, 80)) for each in received]


def test_persistent_messages_are_confirmed_when_they_are_durable(durable: Peer) -> None:
    broker = durable.broker
    assert durable.ask(publish(1, "", "q", b"1", PERSISTENT) * 2) == []
    assert broker.turn.awaits_journal()
    assert durable.ask(HEARTBEAT) == []
    broker.sync()
    assert tags(durable.frames()) == [(2, True, True)]
    broker.take_turn()
    assert durable.frames() == []
    assert not broker.turn.awaits_journal()


def test_confirms_wait_each_for_their_own_batch_and_keep_their_order(durable: Peer) -> None:
    broker, log = durable.broker, durable.broker.shard.log
    log.open_segment(1)
    durable.send(publish(1, "", "q", b"1", PERSISTENT))
    log.take(1, 0)
    durable.send(publish(1, "", "q", b"2", PERSISTENT))
    durable.send(publish(1, "", "nowhere", b"3"))  # has nothing to wait for, but comes after one that has
    assert durable.frames() == []
    log.durable = log.batch - 1
    broker.take_turn()
    assert tags(durable.frames()) == [(1, True, True)]
    broker.sync()
    assert tags(durable.frames()) == [(3, True, True)]


def test_transient_messages_and_queues_do_not_wait(durable: Peer) -> None:
    assert tags(durable.ask(publish(1, "", "q", b"transient"))) == [(1, True, True)]
    durable.declare("passing", bits=0)
    durable.broker.sync()
    assert tags(durable.ask(publish(1, "", "passing", b"x", PERSISTENT))) == [(2, True, True)]
    assert not durable.broker.turn.awaits_journal()


def test_refused_messages_are_told_with_their_batch(durable: Peer) -> None:
    durable.declare("full", bits=2, x_max_length=1, x_overflow="reject-publish")
    durable.send(publish(1, "", "full", b"1", PERSISTENT) * 2 + publish(1, "", "q", b"3", PERSISTENT))
    assert durable.frames() == []
    durable.send(publish(1, "", "full", b"4"))
    durable.broker.sync()
    assert tags(durable.frames()) == [(2, False, False), (4, False, False), (4, True, True)]


def test_after_a_failure_of_the_store_nothing_is_confirmed(durable: Peer) -> None:
    log = durable.broker.shard.log
    durable.send(publish(1, "", "q", b"1", PERSISTENT) * 3)
    log.failure = StoreFailed("the disk is gone")
    log.refuse(log.failure)
    durable.broker.take_turn()
    assert tags(durable.frames()) == [(3, True, False)]
    assert tags(durable.ask(publish(1, "", "q", b"4", PERSISTENT))) == [(4, False, False)]
    other = another(durable.broker)
    refusal = closed(other.ask(publish(1, "", "q", b"5", PERSISTENT))[0])
    assert refusal[:2] == (506, "RESOURCE_ERROR - the disk is gone")


CHANGES = {
    "queue.declare": (50, 10, short(0) + short_string("new") + octet(2) + NO_ARGUMENTS),
    "queue.declare again": (50, 10, short(0) + short_string("fresh") + octet(2) + NO_ARGUMENTS),
    "queue.bind": (50, 20, short(0) + short_string("q") + short_string("amq.topic") + b"\x01k\x00" + NO_ARGUMENTS),
    "queue.delete": (50, 40, short(0) + short_string("q") + octet(0)),
    "queue.purge": (50, 30, short(0) + short_string("q") + octet(0)),
    "exchange.declare": (40, 10, short(0) + short_string("e") + short_string("topic") + octet(2) + NO_ARGUMENTS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_what_is_durable_are_answered_when_they_are_durable(durable: Peer, change: str) -> None:
    broker = durable.broker
    kind, number, words = CHANGES[change]
    durable.send(publish(1, "", "q", b"kept", PERSISTENT))
    broker.sync()
    durable.frames()
    if change.endswith("again"):
        # by somebody who has not been answered yet
        another(broker).send(method(1, 50, 10, words))
    assert durable.ask(method(1, kind, number, words)) == []
    assert durable.ask(HEARTBEAT + publish(1, "", "nowhere", b"x")) == []
    broker.sync()
    assert [each.name for each in durable.frames()] == [(kind, number + 1), (60, 80)]


def test_changes_of_what_is_transient_do_not_wait(durable: Peer) -> None:
    words = short(0) + short_string("passing") + octet(0) + NO_ARGUMENTS
    assert [each.name for each in durable.ask(method(1, 50, 10, words))] == [(50, 11)]
    assert not durable.broker.turn.awaits_journal()


def test_a_change_that_may_be_lost_ends_the_connection(durable: Peer) -> None:
    broker = durable.broker
    _, _, words = CHANGES["queue.declare"]
    assert durable.ask(method(1, 50, 10, words)) == []
    broker.shard.log.failure = StoreFailed("the disk is gone")
    broker.take_turn()
    assert closed(durable.frames()[0], hard=True)[:2] == (541, "INTERNAL_ERROR - the disk is gone")
    # and nothing is declared any more
    other = another(broker)
    assert other.ask(method(1, 50, 10, words)) == []
    broker.take_turn()
    assert closed(other.frames()[0], hard=True)[:2] == (541, "INTERNAL_ERROR - the disk is gone")


def test_a_peer_that_leaves_before_its_answer_harms_nobody(durable: Peer) -> None:
    other = another(durable.broker)
    other.send(method(1, 50, 10, CHANGES["queue.declare"][2]))
    other.lose()
    assert [each.name for each in durable.ask(method(1, 50, 10, CHANGES["queue.declare"][2]))] == []
    durable.broker.sync()
    assert [each.name for each in durable.frames()] == [(50, 11)]


def test_a_channel_that_ends_before_its_confirms_gets_none(durable: Peer) -> None:
    close = method(1, 20, 40, short(200) + b"\x00" + long(0))
    assert [each.name for each in durable.ask(publish(1, "", "q", b"1", PERSISTENT) + close)] == [(20, 41)]
    durable.channel().confirm()
    durable.broker.sync()
    assert durable.frames() == []
    durable.send(publish(1, "", "q", b"1", PERSISTENT))
    durable.lose()
    durable.broker.sync()
    assert durable.broker.tenant.queues["q"].ready == 2


def test_memory_limit(peer: Peer) -> None:
    peer.declare("q")
    peer.broker.shard.memory_bytes_max = 1_200
    peer.channel(2).confirm(2)
    received = peer.ask(
        publish(1, "", "q", b"x" * 900) + publish(2, "", "q", b"y" * 900) + publish(1, "", "q", b"z" * 900)
    )
    assert [each.name for each in received] == [(20, 40), (60, 120)]
    text = "RESOURCE_ERROR - The memory limit for messages is reached; try again after some were consumed"
    assert closed(received[0]) == (506, text, (60, 40))
    assert peer.broker.tenant.queues["q"].ready == 1


def test_parts_of_large_messages_count_towards_the_memory_limit(peer: Peer) -> None:
    peer.declare("q")
    peer.broker.shard.memory_bytes_max = 300_000
    peer.channel(2).confirm(2)
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + header(1, 600_000)
    second = method(2, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + header(2, 400_000)
    peer.send(start + second)
    for _ in range(2):
        peer.send(bodies(1, bytes(100_000)))
    assert peer.broker.face.partial_bytes == 200_000
    received = peer.ask(bodies(2, bytes(100_001)))
    assert received == []  # channel 2 confirms: its message is read to its end, and then refused
    assert peer.broker.face.partial_bytes == 200_000
    received = peer.ask(bodies(1, bytes(100_001)))
    assert closed(received[0]).code == 506
    assert peer.broker.face.partial_bytes == 0
    received = peer.ask(bodies(2, bytes(299_999)))
    assert [(each.channel, each.name) for each in received] == [(2, (60, 120))]
    assert peer.broker.tenant.queues["q"].ready == 0


def test_unfinished_messages_are_forgotten_with_their_channel(broker: Broker) -> None:
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + header(1, 10)
    for end in (
        method(1, 20, 40, short(200) + b"\x00" + long(0)),
        method(0, 10, 50, short(200) + b"\x00" + long(0)),
        None,
    ):
        peer = another(broker)
        peer.send(start + bodies(1, b"part"))
        assert broker.face.partial_bytes == 4
        if end is None:
            peer.lose()
        else:
            peer.send(end)
        assert broker.face.partial_bytes == 0


def test_message_size_limit(peer: Peer) -> None:
    peer.declare("q")
    peer.broker.tenant.set_limits({"message_bytes_max": 10})
    assert closed(peer.ask(publish(1, "", "q", b"x" * 11))[0]).code == 311
    peer.send(method(1, 20, 41))
    peer.channel()
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0))
    (answer,) = peer.ask(start + header(1, 1 << 62))
    assert closed(answer).text == f"CONTENT_TOO_LARGE - message size {1 << 62} is larger than configured max size 10"


def test_properties_pass_through_unchanged_and_say_how_to_queue(peer: Peer) -> None:
    props = encode(Properties(content_type="text/plain", headers={"a": 1}, delivery_mode=2, priority=7, message_id="m"))
    peer.declare("q")
    for _ in range(2):
        peer.send(publish(1, "", "q", b"x", props))
    peer.send(publish(1, "", "q", b"x"))
    first, second, plain = (entry.message for entry in peer.broker.tenant.queues["q"].ready_entries())
    assert first.props is second.props
    assert (first.flags, first.priority, plain.flags, plain.priority) == (1, 7, 0, 0)
    assert [each.props for each in deliveries(peer.get("q") + peer.get("q") + peer.get("q"))] == [
        props,
        props,
        b"\x00\x00",
    ]


def test_expiration_and_user_id(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x", encode(Properties(expiration="100", user_id="guest"))))
    peer.broker.pass_time(99)
    assert peer.broker.tenant.queues["q"].ready == 1
    peer.broker.pass_time(1)
    assert peer.broker.tenant.queues["q"].ready == 0
    (answer,) = peer.ask(publish(1, "", "q", b"x", encode(Properties(expiration="soon"))))
    assert closed(answer).code == 406
    peer.send(method(1, 20, 41))
    peer.channel()
    (answer,) = peer.ask(publish(1, "", "q", b"x", encode(Properties(user_id="root"))))
    assert closed(answer).text == (
        "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"
    )
    assert peer.broker.tenant.queues["q"].ready == 0


# Deliveries and their ends


def test_prefetch_is_per_consumer(peer: Peer) -> None:
    peer.declare("q")
    peer.send(b"".join(publish(1, "", "q", b"%d" % n) for n in range(9)))
    peer.qos(2)
    got = deliveries(peer.consume("q", "a"))
    assert [(each.tag, each.body) for each in got] == [(1, b"0"), (2, b"1")]
    got = deliveries(peer.consume("q", "b"))
    assert [(each.tag, each.body, each.consumer) for each in got] == [(3, b"2", "b"), (4, b"3", "b")]
    got = deliveries(peer.ack(1))
    assert [(each.tag, each.body, each.consumer) for each in got] == [(5, b"4", "a")]
    got = deliveries(peer.ack(4, multiple=True))
    assert sorted(each.body for each in got) == [b"5", b"6", b"7"]


def test_global_prefetch_is_shared_by_the_channel_and_by_its_queues(peer: Peer) -> None:
    for name in ("a", "b"):
        peer.declare(name)
        peer.send(b"".join(publish(1, "", name, name.encode()) for _ in range(4)))
    peer.qos(3, together=True)
    got = deliveries(peer.consume("a", "a"))
    assert [each.body for each in got] == [b"a"] * 3
    assert deliveries(peer.consume("b", "b")) == []
    assert [each.body for each in deliveries(peer.ack(1))] == [b"a"]
    # nothing is left in a: what comes free goes to b
    assert [each.body for each in deliveries(peer.ack(4, multiple=True))] == [b"b"] * 3
    received = peer.ask(method(1, 60, 10, long(0) + short(0) + octet(1)))
    assert [each.body for each in deliveries(received)] == [b"b"]


def test_py_amqp_shares_its_prefetch_and_changes_it_while_it_consumes(broker: Broker) -> None:
    peer = Peer(broker)
    login = table(product="py-amqp") + short_string("PLAIN") + long_string(b"\x00guest\x00guest")
    peer.send(PROTOCOL + method(0, 10, 11, login + short_string("en_US")) + tune_ok() + open_vhost())
    peer.received()
    peer.channel()
    peer.declare("q")
    peer.send(publish(1, "", "q") * 5)
    peer.qos(2)
    assert [each.tag for each in deliveries(peer.consume("q", "a"))] == [1, 2]
    assert deliveries(peer.consume("q", "b")) == []
    received = peer.ask(method(1, 60, 10, long(0) + short(4) + octet(0)))
    assert [each.tag for each in deliveries(received)] == [3, 4]


def test_global_prefetch_set_after_consuming_counts_what_is_out(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 2)
    assert len(deliveries(peer.consume("q"))) == 2
    peer.qos(3, together=True)
    assert len(deliveries(peer.ask(publish(1, "", "q") * 5))) == 1
    assert len(deliveries(peer.ack(0, multiple=True))) == 3


def test_no_ack_consumers_do_not_use_up_credit(peer: Peer) -> None:
    peer.declare("q")
    peer.qos(1)
    peer.consume("q", "c", bits=2)
    got = deliveries(peer.ask(publish(1, "", "q") * 5))
    assert [each.tag for each in got] == [1, 2, 3, 4, 5]
    assert peer.broker.tenant.queues["q"].acked == 5
    assert closed(peer.ack(5)[0]).text == "PRECONDITION_FAILED - unknown delivery tag 5"


@pytest.mark.parametrize(
    ("tag", "multiple"), [(0, False), (3, False), (3, True), (99, False), (99, True), (1 << 63, False), (1 << 63, True)]
)
def test_unknown_delivery_tags(peer: Peer, tag: int, multiple: bool) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 2)
    peer.consume("q")
    refusal = closed(peer.ack(tag, multiple)[0])
    assert (refusal.code, refusal.method) == (406, (60, 80))
    assert refusal.text.startswith("PRECONDITION_FAILED - unknown delivery tag ")
    queue = peer.broker.tenant.queues["q"]
    assert (queue.ready, queue.leased, queue.acked) == (2, 0, 0)


def test_a_delivery_is_settled_once(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 3)
    peer.consume("q")
    assert peer.ack(2) == []
    assert closed(peer.nack(2)[0]).text == "PRECONDITION_FAILED - unknown delivery tag 2"
    queue = peer.broker.tenant.queues["q"]
    assert (queue.ready, queue.acked) == (2, 1)


def test_tag_zero_means_all(peer: Peer) -> None:
    peer.declare("q")
    peer.consume("q")
    peer.send(publish(1, "", "q") * 3)
    peer.ack(2)
    assert peer.ack(0, multiple=True) == []
    assert peer.broker.tenant.queues["q"].acked == 3
    assert peer.ack(0, multiple=True) == []


def test_requeue_keeps_the_place_and_says_redelivered(peer: Peer) -> None:
    peer.declare("q")
    peer.send(b"".join(publish(1, "", "q", b"%d" % n) for n in range(3)))
    peer.qos(2)
    peer.consume("q")
    peer.received()
    assert peer.nack(1, multiple=False, requeue=True)
    got = deliveries(peer.nack(2) + peer.ask(method(1, 60, 110, octet(1))))
    assert all(each.redelivered for each in got)
    assert {each.body for each in got} <= {b"0", b"1"}
    queue = peer.broker.tenant.queues["q"]
    assert queue.leased == 2
    assert queue.ready_entries()[0].message.body == b"2"


def test_reject_without_requeue_goes_to_the_dead_letter_exchange(peer: Peer) -> None:
    peer.declare("dead")
    peer.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    peer.send(publish(1, "", "q", b"bad", encode(Properties(headers={"mine": 1}))))
    peer.consume("q")
    assert peer.ask(method(1, 60, 90, longlong(1) + octet(0))) == []
    (letter,) = deliveries(peer.get("dead"))
    assert (letter.body, letter.exchange, letter.key) == (b"bad", "", "dead")
    headers = decode(letter.props).headers
    assert headers is not None
    assert headers["mine"] == 1
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-first-death-reason"] == "rejected"
    rows: Any = headers["x-death"]
    (death,) = rows
    assert death["count"] == 1
    assert death["routing-keys"] == ["q"]
    assert death["time"] == peer.broker.clock.wall_ms() // 1000


def test_the_delivery_limit_counts_requeues_and_lost_channels(peer: Peer) -> None:
    peer.declare("dead")
    peer.declare("q", x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    peer.send(publish(1, "", "q", b"poison"))
    (got,) = deliveries(peer.consume("q"))
    (again,) = deliveries(peer.nack(got.tag))
    assert again.redelivered
    peer.send(method(1, 20, 40, short(200) + b"\x00" + long(0)))
    peer.channel()
    (third,) = deliveries(peer.get("q"))
    peer.nack(third.tag)
    assert peer.get("q")[0].name == (60, 72)
    (letter,) = deliveries(peer.get("dead"))
    assert decode(letter.props).headers["x-first-death-reason"] == "delivery_limit"  # type: ignore[index]


def test_without_a_limit_a_release_is_not_counted(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x"))
    for tag in range(1, 20):
        (got,) = deliveries(peer.get("q"))
        assert (got.tag, got.redelivered) == (tag, tag > 1)
        peer.nack(tag)
    assert peer.broker.tenant.queues["q"].ready_entries()[0].attempts == 0


@pytest.mark.parametrize("how", ["lost", "connection.close", "channel.close", "fault"])
def test_the_end_of_a_channel_gives_back_what_it_holds(peer: Peer, how: str) -> None:
    other = another(peer.broker)
    peer.declare("q")
    peer.send(publish(1, "", "q", b"a") + publish(1, "", "q", b"b"))
    peer.consume("q")
    peer.get("q")
    assert other.consume("q", "other")[1:] == []
    if how == "lost":
        peer.lose()
    elif how == "connection.close":
        peer.send(method(0, 10, 50, short(200) + b"\x00" + long(0)))
        assert peer.transport.closed
    elif how == "channel.close":
        peer.send(method(1, 20, 40, short(200) + b"\x00" + long(0)))
    else:
        peer.send(method(1, 60, 80, longlong(77) + octet(0)))
    got = deliveries(other.frames())
    assert [(each.body, each.redelivered) for each in got] == [(b"a", True), (b"b", True)]
    queue = peer.broker.tenant.queues["q"]
    assert queue.consumers() == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["deliver", "ack", "multiple", "nack", "reject"]), st.integers(0, 60)), max_size=80
    )
)
def test_settling_in_any_order_keeps_the_books(steps: list[tuple[str, int]]) -> None:
    """Tags are settled as a plain dict says they would be."""
    broker = Broker()
    peer = another(broker)
    peer.declare("q")
    peer.consume("q")
    queue = broker.tenant.queues["q"]
    outstanding: dict[int, bytes] = {}
    number = acked = rejected = 0
    for what, at in steps:
        if what == "deliver" or not outstanding:
            number += 1
            new = peer.ask(publish(1, "", "q", b"%d" % number))
        elif what == "multiple":
            tag = sorted(outstanding)[at % len(outstanding)]
            new = peer.ack(tag, multiple=True)
            gone = [each for each in outstanding if each <= tag]
            acked += len(gone)
            for each in gone:
                del outstanding[each]
        else:
            tag = sorted(outstanding)[at % len(outstanding)]
            del outstanding[tag]
            if what == "ack":
                new = peer.ack(tag)
                acked += 1
            else:
                new = peer.nack(tag, requeue=what == "nack")
                rejected += what == "reject"
        for got in deliveries(new):
            outstanding[got.tag] = got.body
    assert queue.leased == len(outstanding)
    assert (queue.acked, queue.rejected) == (acked, rejected)
    assert len(set(outstanding.values())) == len(outstanding)
    peer.lose()
    assert {entry.message.body for entry in queue.ready_entries()} == set(outstanding.values())


def test_a_few_old_deliveries_do_not_keep_a_long_list(peer: Peer) -> None:
    peer.declare("q")
    peer.consume("q")
    peer.send(publish(1, "", "q", b"old"))
    batch = 1000
    tag = 1
    for _ in range(SPARSE_AT * 4 // batch):
        peer.send(publish(1, "", "q", b"new") * batch)
        peer.send(b"".join(method(1, 60, 80, longlong(tag + n) + octet(0)) for n in range(1, batch + 1)))
        tag += batch
    channel = peer.connection.channels[1]
    assert len(channel.unacked) <= SPARSE_AT + batch
    assert peer.broker.tenant.queues["q"].leased == 1
    peer.send(publish(1, "", "q", b"newest"))
    assert peer.ack(1) == []
    assert closed(peer.ack(1)[0]).code == 406
    assert peer.broker.tenant.queues["q"].ready == 1


def test_old_deliveries_are_settled_by_multiple_too(peer: Peer) -> None:
    peer.declare("q")
    peer.consume("q")
    peer.consume("q", "auto", bits=2)
    peer.send(publish(1, "", "q", b"x") * (SPARSE_AT * 2 + 10))
    peer.broker.settle()
    assert peer.broker.tenant.queues["q"].leased == SPARSE_AT + 5
    assert peer.ack(SPARSE_AT + 1, multiple=True) == []
    assert peer.broker.tenant.queues["q"].leased == SPARSE_AT // 2 + 4
    assert peer.ack(0, multiple=True) == []
    assert peer.broker.tenant.queues["q"].leased == 0


# Queues


def test_server_named_and_last_declared(peer: Peer) -> None:
    assert strings(peer.declare("").arguments[:-8]) == ["amq.gen-random1"]
    words = short(0) + short_string("") + short_string("amq.topic") + short_string("") + b"\x00" + NO_ARGUMENTS
    assert peer.call(1, 50, 20, words).name == (50, 21)
    assert peer.broker.tenant.exchanges["amq.topic"].matcher.bindings()[0][0] == "amq.gen-random1"
    fresh = another(peer.broker)
    assert closed(fresh.declare("", bits=1)) == (404, "NOT_FOUND - no queue '' in vhost '/'", (50, 10))
    fresh = another(peer.broker)
    (answer,) = fresh.get("")
    assert closed(answer) == (404, "NOT_FOUND - no previously declared queue", (60, 70))


def test_declare_counts(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 3)
    peer.qos(1)
    peer.consume("q")
    assert peer.declare("q", bits=1).arguments == short_string("q") + long(2) + long(1)


ARGUMENTS: list[tuple[str, object, str, object]] = [
    ("x-message-ttl", 1000, "ttl_ms", 1000),
    ("x-message-ttl", 0, "ttl_ms", 0),
    ("x-expires", 1, "expires_ms", 1),
    ("x-max-length", 5, "length_max", 5),
    ("x-max-length-bytes", 6, "bytes_max", 6),
    ("x-overflow", "drop-head", "overflow", "drop-head"),
    ("x-overflow", "reject-publish-dlx", "overflow", "reject-publish-dead-letter"),
    ("x-dead-letter-exchange", "amq.direct", "dead_letter_exchange", "amq.direct"),
    ("x-max-priority", 10, "priority_max", 10),
    ("x-single-active-consumer", True, "single_active", True),
    ("x-delivery-limit", 3, "max_attempts", 4),
    ("x-queue-type", "quorum", "queue_type", "quorum"),
    ("x-queue-type", "classic", "queue_type", "classic"),
    ("x-consumer-timeout", 60000, "consumer_timeout_ms", 60000),
    ("x-message-deduplication", True, "dedup", True),
    ("x-deduplication-window", 5000, "dedup_window_ms", 5000),
    ("x-queue-mode", "lazy", "durable", True),
    ("x-something-else", "?", "durable", True),
]


@pytest.mark.parametrize(("argument", "value", "setting", "expected"), ARGUMENTS)
def test_arguments_become_settings(peer: Peer, argument: str, value: Any, setting: str, expected: object) -> None:
    for _ in range(2):
        assert peer.declare("q", bits=2, **{argument: value}).name == (50, 11)
    settings = peer.broker.tenant.queues["q"].settings
    assert getattr(settings, setting) == expected
    assert settings.ordered == (argument == "x-max-priority")


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "soon", '"expected integer, got longstr"'),
        ("x-message-ttl", 1 << 60, "{value_too_large,1152921504606846976}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", True, '"expected integer, got bool"'),
        ("x-overflow", "explode", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,long}"),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-delivery-limit", "a", '"expected integer, got longstr"'),
        ("x-delivery-limit", -1, "{value_negative,-1}"),
        ("x-consumer-timeout", 0, "{value_zero,0}"),
        ("x-single-active-consumer", 1, "{unacceptable_type,long}"),
        ("x-message-deduplication", "yes", "{unacceptable_type,longstr}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", 5, "{unacceptable_type,long}"),
        ("x-queue-type", "mirrored", "\"unsupported queue type 'mirrored'\""),
        ("x-queue-type", 5, "{unacceptable_type,long}"),
        ("x-queue-mode", "eager", "\"unsupported queue mode 'eager'\""),
        ("x-queue-mode", 1, "{unacceptable_type,long}"),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
    ],
)
def test_invalid_arguments(peer: Peer, argument: str, value: Any, problem: str) -> None:
    refusal = closed(peer.declare("q", **{argument: value}))
    assert refusal.code == 406
    assert refusal.text == f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 'q' in vhost '/': {problem}"
    assert "q" not in peer.broker.tenant.queues


@pytest.mark.parametrize(
    ("bits", "arguments", "text"),
    [
        (0, {"x-dead-letter-exchange": 5}, "invalid type 'long' for arg 'x-dead-letter-exchange' in {}"),
        (0, {"x-queue-type": "quorum"}, "invalid property 'non-durable' for {}"),
        (6, {"x-queue-type": "quorum"}, "invalid property 'exclusive-owner' for {}"),
        (10, {"x-queue-type": "quorum"}, "invalid property 'auto-delete' for {}"),
        (
            2,
            {"x-queue-type": "quorum", "x-max-priority": 3},
            "invalid arg 'x-max-priority' for {} of queue type rabbit_quorum_queue",
        ),
    ],
)
def test_combinations_that_are_refused(peer: Peer, bits: int, arguments: dict[str, Any], text: str) -> None:
    refusal = closed(peer.declare("q", bits=bits, **arguments))
    assert refusal[:2] == (406, "PRECONDITION_FAILED - " + text.format("queue 'q' in vhost '/'"))
    assert "q" not in peer.broker.tenant.queues


NUMBER = "the value '{}' of type 'long'"
TEXT = "the value '{}' of type 'longstr'"
BOOL = "the value '{}' of type 'bool'"


@pytest.mark.parametrize(
    ("first", "second", "argument", "received", "current"),
    [
        ((2, {}), (0, {}), "durable", "'false'", "'true'"),
        ((0, {}), (8, {}), "auto_delete", "'true'", "'false'"),
        ((0, {"x-message-ttl": 60000}), (0, {}), "x-message-ttl", "none", NUMBER.format(60000)),
        ((0, {}), (0, {"x-max-priority": 5}), "x-max-priority", NUMBER.format(5), "none"),
        (
            (0, {"x-delivery-limit": 1}),
            (0, {"x-delivery-limit": 2}),
            "x-delivery-limit",
            "'2'",
            "'1'",
        ),
        (
            (0, {"x-overflow": "reject-publish-dlx"}),
            (0, {"x-overflow": "drop-head"}),
            "x-overflow",
            "'drop-head'",
            "'reject-publish-dlx'",
        ),
        ((0, {"x-message-ttl": 5, "x-expires": 5}), (0, {}), "x-expires", "none", NUMBER.format(5)),
        ((2, {}), (2, {"x-queue-type": "quorum"}), "x-queue-type", TEXT.format("quorum"), "none"),
        ((0, {"x-colour": "red"}), (0, {"x-colour": "blue"}), "x-colour", "'blue'", "'red'"),
        ((0, {"x-colour": "red"}), (0, {}), "x-colour", "none", TEXT.format("red")),
        ((0, {}), (0, {"x-single-active-consumer": True}), "x-single-active-consumer", BOOL.format("true"), "none"),
    ],
)
def test_redeclare_must_agree(
    peer: Peer,
    first: tuple[int, dict[str, Any]],
    second: tuple[int, dict[str, Any]],
    argument: str,
    received: str,
    current: str,
) -> None:
    assert peer.declare("q", first[0], **first[1]).name == (50, 11)
    refusal = closed(peer.declare("q", second[0], **second[1]))
    assert refusal.code == 406
    assert refusal.text == (
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue 'q' in vhost '/': "
        f"received {received} but current is {current}"
    )


def test_queues_of_other_faces_keep_their_settings(peer: Peer) -> None:
    peer.broker.tenant.declare_queue("made-by-http", {}, "http")
    assert peer.declare("made-by-http", bits=2).name == (50, 11)
    assert peer.broker.tenant.queues["made-by-http"].settings.max_attempts == 6
    assert closed(peer.declare("made-by-http", bits=0)).code == 406


def test_exclusive_queues(peer: Peer) -> None:
    other = another(peer.broker)
    peer.declare("mine", bits=4)
    assert peer.declare("mine", bits=4).name == (50, 11)
    for attempt in (
        lambda: other.declare("mine", bits=4),
        lambda: other.declare("mine", bits=1),
        lambda: other.consume("mine")[0],
        lambda: other.get("mine")[0],
        lambda: other.call(1, 50, 30, short(0) + short_string("mine") + octet(0)),
        lambda: other.call(1, 50, 40, short(0) + short_string("mine") + octet(0)),
    ):
        refusal = closed(attempt())
        assert refusal.code == 405
        assert refusal.text.startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'"
        )
        other.send(method(1, 20, 41))
        other.channel()
    assert closed(peer.declare("mine", bits=0)).code == 405
    other.send(publish(1, "", "mine", b"anybody may publish"))
    assert peer.broker.tenant.queues["mine"].ready == 1
    peer.lose()
    assert "mine" not in peer.broker.tenant.queues


def test_many_short_lived_exclusive_queues_are_not_remembered(peer: Peer) -> None:
    for n in range(300):
        peer.declare(f"t{n}", bits=4)
        peer.call(1, 50, 40, short(0) + short_string(f"t{n}") + octet(0))
    assert len(peer.connection.exclusive) <= 65


def test_auto_delete_and_cancel_notification(broker: Broker) -> None:
    peer = another(broker, consumer_cancel_notify=True)
    peer.declare("q", bits=8)
    peer.consume("q")
    assert peer.call(1, 60, 30, short_string("c") + octet(0)).arguments == short_string("c")
    assert "q" not in broker.tenant.queues
    peer.declare("r")
    peer.consume("r", "tag")
    other = another(broker)
    other.call(1, 50, 40, short(0) + short_string("r") + octet(0))
    (notice,) = peer.frames()
    assert (notice.name, notice.arguments) == ((60, 30), short_string("tag") + b"\x01")
    quiet = another(broker)
    quiet.declare("s")
    quiet.consume("s")
    quiet.received()
    other.call(1, 50, 40, short(0) + short_string("s") + octet(0))
    assert quiet.frames() == []


def test_deleting_a_queue_with_deliveries_out(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x" * 100) * 3)
    peer.qos(2)
    peer.consume("q")
    peer.get("q")
    answer = peer.call(1, 50, 40, short(0) + short_string("q") + octet(0))
    assert answer.arguments == long(0)
    assert peer.ack(1) == []
    assert peer.nack(3, multiple=True) == []
    assert peer.broker.shard.memory_bytes == 0


def test_delete_conditions_and_idempotence(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 2)
    delete = short(0) + short_string("q")
    assert (
        closed(peer.call(1, 50, 40, delete + octet(2))).text == "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    )
    peer.send(method(1, 20, 41))
    peer.channel()
    peer.consume("q", bits=2)
    peer.received()
    assert closed(peer.call(1, 50, 40, delete + octet(1))).text == "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    peer.send(method(1, 20, 41))
    peer.channel()
    peer.send(publish(1, "", "q") * 2)
    assert peer.call(1, 50, 40, delete + octet(0)).arguments == long(2)
    assert peer.call(1, 50, 40, delete + octet(0)).arguments == long(0)
    assert peer.call(1, 40, 20, short(0) + short_string("x") + octet(0)).name == (40, 21)


def test_purge(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q") * 5)
    peer.get("q")
    assert peer.call(1, 50, 30, short(0) + short_string("q") + octet(0)).arguments == long(4)
    assert closed(peer.call(1, 50, 30, short(0) + short_string("none") + octet(0))).code == 404


def test_unbind_is_idempotent(peer: Peer) -> None:
    peer.declare("q")
    for queue, exchange in (("q", "amq.topic"), ("none", "amq.topic"), ("q", "none")):
        words = short(0) + short_string(queue) + short_string(exchange) + short_string("k") + NO_ARGUMENTS
        assert peer.call(1, 50, 50, words).name == (50, 51)


# Exchanges


def declare_exchange(peer: Peer, name: str, kind: str = "direct", bits: int = 0, **arguments: object) -> Frame:
    words = short(0) + short_string(name) + short_string(kind) + octet(bits) + table(**arguments)
    return peer.call(1, 40, 10, words)


def test_exchange_declare(peer: Peer) -> None:
    assert declare_exchange(peer, "x", "topic", 2 | 4).name == (40, 11)
    made = peer.broker.tenant.exchanges["x"]
    assert (made.kind, made.durable, made.auto_delete, made.internal) == ("topic", True, True, False)
    assert declare_exchange(peer, "x", bits=1).name == (40, 11)
    assert declare_exchange(peer, "h", "x-consistent-hash").name == (40, 11)
    assert declare_exchange(peer, "y", alternate_exchange="x").name == (40, 11)
    assert peer.broker.tenant.exchanges["y"].alternate == "x"
    assert declare_exchange(peer, "amq.direct", "direct", 2).name == (40, 11)


@pytest.mark.parametrize(
    ("name", "kind", "bits", "arguments", "code", "text"),
    [
        ("none", "direct", 1, {}, 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        ("", "direct", 0, {}, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            "amq.mine",
            "direct",
            0,
            {},
            403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        ("amq.direct", "fanout", 2, {}, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct'"),
        (
            "x",
            "direct",
            0,
            {"alternate-exchange": 5},
            406,
            "PRECONDITION_FAILED - invalid type 'long' for arg 'alternate-exchange'",
        ),
    ],
)
def test_exchange_declare_refused(
    peer: Peer, name: str, kind: str, bits: int, arguments: dict[str, object], code: int, text: str
) -> None:
    refusal = closed(declare_exchange(peer, name, kind, bits, **arguments))
    assert refusal.code == code
    assert refusal.text.startswith(text)


def test_unknown_exchange_kind_is_a_hard_error(peer: Peer) -> None:
    refusal = closed(declare_exchange(peer, "x", "round"), hard=True)
    assert (refusal.code, refusal.text) == (503, "COMMAND_INVALID - unknown exchange type 'round'")


def test_exchange_delete_refused(peer: Peer) -> None:
    declare_exchange(peer, "x")
    peer.declare("q")
    peer.call(1, 50, 20, short(0) + short_string("q") + short_string("x") + short_string("k") + b"\x00" + NO_ARGUMENTS)
    refusal = closed(peer.call(1, 40, 20, short(0) + short_string("x") + octet(1)))
    assert refusal.text == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    peer.send(method(1, 20, 41))
    peer.channel()
    assert closed(peer.call(1, 40, 20, short(0) + short_string("amq.topic") + octet(0))).code == 403


def test_exchange_to_exchange(peer: Peer) -> None:
    declare_exchange(peer, "in", "fanout")
    declare_exchange(peer, "out", "direct")
    peer.declare("q")
    peer.call(
        1, 50, 20, short(0) + short_string("q") + short_string("out") + short_string("k") + b"\x00" + NO_ARGUMENTS
    )
    words = short(0) + short_string("out") + short_string("in") + short_string("")
    assert peer.call(1, 40, 30, words + b"\x00" + NO_ARGUMENTS).name == (40, 31)
    peer.send(publish(1, "in", "k", b"through"))
    assert peer.broker.tenant.queues["q"].ready == 1
    assert peer.call(1, 40, 40, words + b"\x00" + NO_ARGUMENTS).name == (40, 51)
    peer.send(publish(1, "in", "k", b"lost"))
    assert peer.broker.tenant.queues["q"].ready == 1


def test_internal_exchanges_take_no_publishes(peer: Peer) -> None:
    declare_exchange(peer, "inside", "direct", 8)
    refusal = closed(peer.ask(publish(1, "inside", "k"))[0])
    assert refusal.text == "ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost '/'"


# Consumers


def test_consumer_tags(peer: Peer) -> None:
    peer.declare("q")
    assert peer.consume("q", "")[0].arguments == short_string("amq.ctag-random1")
    assert peer.consume("q", "mine")[0].arguments == short_string("mine")
    assert closed(peer.consume("q", "mine")[0], hard=True).text == "NOT_ALLOWED - attempt to reuse consumer tag 'mine'"


def test_cancel_of_an_unknown_tag_is_answered(peer: Peer) -> None:
    assert peer.call(1, 60, 30, short_string("who") + octet(0)).name == (60, 31)
    assert peer.ask(method(1, 60, 30, short_string("who") + octet(1))) == []


def test_exclusive_consumers(peer: Peer) -> None:
    other = another(peer.broker)
    peer.declare("q")
    peer.consume("q", "only", bits=4)
    refusal = closed(other.consume("q")[0])
    assert (refusal.code, refusal.text) == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")
    peer.call(1, 60, 30, short_string("only") + octet(0))
    peer.consume("q", "shared")
    third = another(peer.broker)
    assert closed(third.consume("q", bits=4)[0]).code == 403


def test_consumer_priority(peer: Peer) -> None:
    other = another(peer.broker)
    peer.declare("q")
    peer.consume("q", "low")
    other.consume("q", "high", x_priority=5)
    other.received()
    peer.send(publish(1, "", "q"))
    assert len(deliveries(other.frames())) == 1
    assert closed(peer.consume("q", "odd", x_priority="x")[0]).code == 406


def test_single_active_consumer(peer: Peer) -> None:
    other = another(peer.broker)
    peer.declare("q", **{"x-single-active-consumer": True})
    peer.consume("q")
    other.consume("q")
    assert len(deliveries(peer.ask(publish(1, "", "q") * 3))) == 3
    peer.lose()
    assert len(deliveries(other.frames())) == 3


# Rights


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (method(1, 50, 10, short(0) + short_string("q") + octet(0) + NO_ARGUMENTS), "access to queue 'q'"),
        (method(1, 50, 30, short(0) + short_string("q") + octet(0)), "access to queue 'q'"),
        (method(1, 50, 40, short(0) + short_string("q") + octet(0)), "access to queue 'q'"),
        (method(1, 60, 70, short(0) + short_string("q") + octet(0)), "access to queue 'q'"),
        (CONSUME_Q, "access to queue 'q'"),
        (publish(1, "amq.direct", "k"), "access to exchange 'amq.direct'"),
        (publish(1, "", "mine"), "access to exchange 'amq.default'"),
        (
            method(1, 50, 20, short(0) + short_string("mine") + short_string("x") + b"\x00\x00" + NO_ARGUMENTS),
            "access to exchange 'x'",
        ),
        (
            method(1, 40, 10, short(0) + short_string("x") + short_string("direct") + octet(0) + NO_ARGUMENTS),
            "access to exchange 'x'",
        ),
        (method(1, 40, 20, short(0) + short_string("x") + octet(0)), "access to exchange 'x'"),
        (
            method(1, 50, 10, short(0) + short_string("mine") + octet(0) + table(x_dead_letter_exchange="x")),
            "access to exchange 'x'",
        ),
    ],
)
def test_rights(broker: Broker, ask: bytes, text: str) -> None:
    broker.users["limited"] = ("pw", LIMITED)
    peer = Peer(broker)
    peer.send(PROTOCOL + start_ok("limited", "pw") + tune_ok() + open_vhost())
    peer.channel()
    (answer,) = peer.ask(ask)
    assert closed(answer)[:2] == (403, f"ACCESS_REFUSED - {text} in vhost '/' refused for user 'limited'")


def test_connections_end_when_their_rights_do(broker: Broker) -> None:
    peer = another(broker)
    broker.take_turn(lambda: broker.face.recheck(lambda _principal: False, False))
    assert peer.frames() == []
    broker.take_turn(lambda: broker.face.recheck(lambda _principal: False, True))
    assert closed(peer.frames()[0], hard=True).code == 320


# Time


def test_heartbeats_are_sent_and_missed(broker: Broker) -> None:
    peer = Peer(broker).handshake(heartbeat=10)
    broker.pass_time(4_000)
    assert peer.received() == b""
    broker.pass_time(1_000)
    assert peer.received() == HEARTBEAT
    broker.pass_time(3_000)
    assert peer.received() == b""
    peer.send(HEARTBEAT)
    for _ in range(20):
        broker.pass_time(1_000)
    assert not peer.transport.aborted
    broker.pass_time(1_000)
    assert peer.transport.aborted
    assert broker.log == [("connection_dropped", "no heartbeat")]


def test_no_heartbeats_when_there_is_traffic_or_none_was_agreed(broker: Broker) -> None:
    silent = Peer(broker).handshake(heartbeat=0).channel()
    busy = Peer(broker).handshake(heartbeat=10).channel()
    busy.declare("q")
    for _ in range(30):
        broker.pass_time(1_000)
        busy.declare("q")
    assert HEARTBEAT not in busy.received()
    broker.pass_time(1_000_000)
    assert silent.received() == b""
    assert not silent.transport.closed


def test_a_peer_that_never_finishes_its_handshake_is_dropped(broker: Broker) -> None:
    slow = [Peer(broker) for _ in range(4)]
    slow[1].send(PROTOCOL)
    slow[2].send(PROTOCOL + start_ok())
    slow[3].send(PROTOCOL + start_ok() + tune_ok())
    broker.pass_time(10_000)
    assert not any(each.transport.aborted for each in slow)
    broker.pass_time(1)
    assert all(each.transport.aborted for each in slow)


# Nothing leaks


def test_a_lost_connection_leaves_nothing_behind(broker: Broker) -> None:
    for _ in range(3):
        peer = another(broker)
        peer.declare("q", bits=4)
        peer.send(publish(1, "", "q", b"x" * 100) * 10)
        peer.consume("q")
        peer.send(method(1, 60, 40, short(0) + b"\x00\x01q" + octet(0)) + header(1, 9) + bodies(1, b"part"))
        peer.lose()
        peer.connection.connection_lost(None)
        assert not broker.face.connections
        assert not broker.tenant.queues
        assert broker.shard.memory_bytes == 0
        assert broker.face.partial_bytes == 0


def test_a_defect_costs_one_connection(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    other = another(peer.broker)
    other.declare("q")
    bad = Peer(peer.broker)
    bad.broker.face.login = None
    bad.send(PROTOCOL + start_ok())
    refusal = closed(bad.frames()[-1], hard=True)
    assert (refusal.code, refusal.text) == (541, "INTERNAL_ERROR - an internal error")
    assert peer.broker.log[0][0] == "connection_failed"
    assert other.declare("q").name == (50, 11)
    peer.broker.face.explain = lambda error: type(error).__name__
    worse = Peer(peer.broker)
    worse.send(PROTOCOL + start_ok())
    assert closed(worse.frames()[-1], hard=True).text == "INTERNAL_ERROR - an internal error: TypeError"


def test_an_engine_that_has_ended_drops_its_peers(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise MemoryLimitExceeded

    monkeypatch.setattr(peer.broker.driver, "begin", refuse)
    peer.send(DECLARE_Q)
    assert peer.transport.aborted
    peer.connection.connection_lost(None)


# Fuzzing: whatever is sent, nothing is raised, and another connection goes on working


def _survives(chunks: list[bytes], prefix: bytes) -> None:
    broker = Broker()
    witness = another(broker)
    witness.declare("w")
    witness.consume("w")
    peer = Peer(broker)
    peer.send(prefix)
    for chunk in chunks:
        peer.send(chunk)
        if peer.transport.closed:
            break
    list(frames(peer.received().removeprefix(PROTOCOL)))
    assert [name for name, _ in broker.log if name != "connection_dropped"] == []
    assert len(deliveries(witness.ask(publish(1, "", "w", b"alive")))) == 1
    if not peer.transport.closed:
        peer.lose()
    else:
        peer.connection.connection_lost(None)
    assert broker.face.partial_bytes == 0
    queue = broker.tenant.queues["w"]
    assert queue.leased == 1
    for each in broker.tenant.queues.values():
        if each is not queue:
            assert each.leased == 0


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from([b"", PROTOCOL, PROTOCOL + start_ok(), READY]))
def test_random_bytes(chunks: list[bytes], prefix: bytes) -> None:
    _survives(chunks, prefix)


payloads = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda c, m, rest: short(c) + short(m) + rest,
        st.sampled_from([10, 20, 40, 50, 60, 85, 90]),
        st.sampled_from([10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 70, 80, 90, 100, 110, 120]),
        st.one_of(
            st.binary(max_size=40),
            st.just(short(0) + short_string("q") + octet(0) + NO_ARGUMENTS),
            st.just(short(0) + short_string("q") + short_string("c") + octet(0) + NO_ARGUMENTS),
            st.builds(lambda tag, bits: longlong(tag) + octet(bits), st.integers(0, 5), st.integers(0, 3)),
        ),
    ),
)


@given(
    st.lists(
        st.builds(frame, st.sampled_from([1, 1, 1, 2, 3, 8]), st.sampled_from([0, 1, 1, 2]), payloads), max_size=12
    )
)
def test_random_frames(parts: list[bytes]) -> None:
    _survives(parts, READY + DECLARE_Q)


SESSION = (
    DECLARE_Q
    + CONSUME_Q
    + publish(1, "", "q", b"one", encode(Properties(headers={"a": 1}, expiration="1000")))
    + publish(1, "amq.topic", "a.b", b"two" * 30, bits=1)
    + method(1, 60, 80, longlong(1) + octet(0))
    + method(1, 60, 120, longlong(2) + octet(3))
    + method(1, 50, 40, short(0) + short_string("q") + octet(0))
)


@given(
    st.lists(st.tuples(st.integers(0, len(SESSION) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(1, len(SESSION)),
)
def test_mutated_sessions(mutations: list[tuple[int, int]], step: int) -> None:
    data = bytearray(SESSION)
    for at, value in mutations:
        data[at] = value
    _survives([bytes(data[at : at + step]) for at in range(0, len(data), step)], READY)


@given(st.integers(0, len(SESSION)), st.binary(max_size=8))
def test_spliced_sessions(cut: int, garbage: bytes) -> None:
    _survives([SESSION[:cut] + garbage + SESSION[cut:]], READY)
