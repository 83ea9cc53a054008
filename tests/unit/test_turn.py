"""Turns and outlets: one write a peer, dead peers harm nobody, slow peers wait alone."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.errors import StoreFailed, StoreFull
from rookery.wire.turn import BEHIND, CORK_BYTES, FREE, FULL, HELD, KEEP_BYTES, NO_DISK, UNREAD
from rookery.wire.turn import Peer as TurnPeer
from tests.wire.amqp_peer import (
    NO_ARGUMENTS,
    Broker,
    Peer,
    bodies,
    deliveries,
    header,
    long,
    longlong,
    method,
    octet,
    publish,
    short,
    short_string,
)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def another(broker: Broker) -> Peer:
    return Peer(broker).handshake().channel()


def test_one_write_per_touched_connection_and_turn(broker: Broker) -> None:
    publisher, *consumers = (another(broker) for _ in range(4))
    publisher.confirm()
    publisher.declare("q")
    for consumer in consumers[:2]:
        consumer.consume("q")
    before = [each.transport.writes for each in (publisher, *consumers)]
    publisher.send(publish(1, "", "q", b"x") * 100)
    after = [each.transport.writes for each in (publisher, *consumers)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1, 0]


@pytest.mark.parametrize("how", ["raises", "closing", "gone"])
def test_a_dead_peer_does_not_stall_the_others(broker: Broker, how: str) -> None:
    publisher, dead, alive = (another(broker) for _ in range(3))
    publisher.declare("x")
    for consumer in (dead, alive):
        consumer.declare("", bits=4)
        words = short(0) + short_string("") + short_string("amq.fanout") + b"\x00\x00" + NO_ARGUMENTS
        consumer.call(1, 50, 20, words)
        consumer.consume("", bits=2)
    dead.received()
    alive.received()

    def fail(_data: Any) -> None:
        raise OSError("broken pipe")

    if how == "raises":
        dead.transport.write = dead.transport.writelines = fail  # type: ignore[method-assign, assignment]
    elif how == "closing":
        dead.transport.closed = True
    else:
        dead.connection.out.transport = None
    for n in range(3):
        publisher.send(publish(1, "amq.fanout", "k", b"%d" % n) + publish(1, "amq.fanout", "k", b"L" * 5000))
        assert [each.body[:1] for each in deliveries(alive.frames())] == [b"%d" % n, b"L"]
    assert dead.received() == b""
    assert dead.transport.aborted == (how == "raises")
    if how != "gone":
        dead.lose()
    publisher.send(publish(1, "amq.fanout", "k", b"end"))
    assert [each.body for each in deliveries(alive.frames())] == [b"end"]


def test_a_burst_does_not_leave_its_buffer_behind(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    writer = peer.connection.out.w
    peer.send(publish(1, "", "q", b"x" * 3000) * 30)
    peer.consume("q")
    assert len(peer.transport.sent[-1]) > KEEP_BYTES
    assert peer.connection.out.w is not writer
    kept = peer.connection.out.w
    peer.ack(1)
    assert peer.connection.out.w is kept


def test_a_backlog_is_handed_over_in_portions(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    body = b"x" * 10_000
    peer.send(publish(1, "", "q", body) * 100)
    got = deliveries(peer.consume("q"))
    assert CORK_BYTES // 10_000 <= len(got) <= CORK_BYTES // 10_000 + 1
    assert broker.woken == 1
    # a publish meanwhile does not overtake
    other = another(broker)
    other.send(publish(1, "", "q", b"last"))
    broker.settle()
    got += deliveries(peer.frames())
    assert [each.tag for each in got] == list(range(1, 102))
    assert got[-1].body == b"last"


def test_a_peer_that_does_not_read_gets_no_deliveries_until_it_does(broker: Broker) -> None:
    slow, quick, publisher = (another(broker) for _ in range(3))
    publisher.declare("q")
    for consumer in (slow, quick):
        consumer.consume("q")
        consumer.received()
    slow.connection.pause_writing()
    publisher.send(publish(1, "", "q", b"x") * 10)
    assert deliveries(slow.frames()) == []
    assert len(deliveries(quick.frames())) == 10
    assert slow.transport.reading  # it has a consumer: its acks are welcome
    quick.lose()
    assert broker.tenant.queues["q"].ready == 10
    slow.connection.resume_writing()
    assert len(deliveries(slow.frames())) == 10


def test_consumers_that_come_while_the_peer_does_not_read_wait_too(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x"))
    peer.connection.pause_writing()
    assert deliveries(peer.consume("q")) == []
    peer.connection.resume_writing()
    assert len(deliveries(peer.frames())) == 1


def test_corked_and_paused_at_once(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x" * 50_000) * 20)
    peer.transport.on_write = peer.connection.pause_writing
    first = deliveries(peer.consume("q"))
    assert 5 <= len(first) < 10
    broker.settle()
    assert deliveries(peer.frames()) == []
    peer.transport.on_write = None
    peer.connection.resume_writing()
    broker.settle()
    assert len(deliveries(peer.frames())) == 20 - len(first)


def test_a_publisher_that_does_not_read_its_confirms_is_not_read(broker: Broker) -> None:
    peer = another(broker)
    peer.connection.pause_writing()
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert peer.transport.reading
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x"))
    peer.get("q")
    peer.connection.pause_writing()
    assert peer.transport.reading  # it holds a delivery: its ack is welcome


def test_a_peer_that_asks_without_reading_is_dropped(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.consume("q")
    peer.connection.pause_writing()
    peer.transport.unsent_bytes = 128 * 2**20 + 16 * 2**20
    broker.pass_time(1000)
    assert not peer.transport.aborted
    peer.transport.unsent_bytes += 1
    broker.pass_time(1000)
    assert peer.transport.aborted


def test_half_closed_is_closed(broker: Broker) -> None:
    assert another(broker).connection.eof_received() is False


def test_deliveries_outside_of_a_turn_ask_for_one(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.consume("q")
    peer.received()
    # as a program that embeds the broker would
    for _ in range(3):
        broker.driver.begin()
        broker.shard.publish(broker.tenant, "", "q", b"\x00\x00", b"from inside")
        broker.shard.flush()
        broker.driver.end()
    assert broker.woken == 1
    assert peer.received() == b""
    broker.settle()
    assert [each.body for each in deliveries(peer.frames())] == [b"from inside"] * 3


def test_expiry_reaches_a_consumer_of_the_dead_letter_queue(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("dead")
    peer.declare("q", x_message_ttl=500, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    peer.consume("dead")
    peer.received()
    peer.send(publish(1, "", "q", b"old"))
    broker.clock.advance(500)
    broker.take_turn()
    (letter,) = deliveries(peer.frames())
    assert letter.body == b"old"


def test_connection_is_refused_when_the_face_says_so(broker: Broker) -> None:
    broker.face.admit = lambda _connection, _transport: False
    peer = Peer(broker)
    assert peer.transport.aborted
    peer.connection.connection_lost(None)
    assert not broker.face.connections


def test_a_connection_is_gone_also_when_no_more_turns_are_taken(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a program closes its broker before what is attached to it."""
    left: list[TurnPeer] = []
    broker.face.left = left.append
    peer = another(broker)

    def over() -> None:
        raise StoreFailed("it is over")

    monkeypatch.setattr(broker.driver, "begin", over)
    peer.connection.connection_lost(None)
    assert not broker.face.connections
    assert left == [peer.connection]
    peer.connection.connection_lost(None)
    assert len(left) == 1


def test_close_all_tells_every_peer_and_waits_for_close_ok(broker: Broker) -> None:
    peer, young = another(broker), Peer(broker)
    broker.take_turn(lambda: broker.face.close_all("shutdown"))
    (notice,) = peer.frames()
    assert notice.name == (10, 50)
    assert b"CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'" in notice.payload
    assert young.transport.closed
    assert not peer.transport.closed
    peer.send(method(0, 10, 51))
    assert peer.transport.closed


def test_large_bodies_cross_frame_sizes(broker: Broker) -> None:
    small = Peer(broker).handshake(frame_max=4096).channel()
    large = another(broker)
    large.declare("q")
    small.consume("q")
    body = bytes(range(256)) * 100
    start = method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + header(1, len(body))
    large.send(start + bodies(1, body, 20_000))
    received = small.frames()
    assert max(len(each.payload) for each in received) <= 4088
    (got,) = [each for each in deliveries(received) if each.body]
    assert got.body == body
    small.send(method(1, 60, 80, longlong(got.tag) + octet(0)))
    assert broker.tenant.queues["q"].acked == 1
    assert small.call(1, 20, 40, short(200) + b"\x00" + long(0)).name == (20, 41)


class Publisher(TurnPeer):
    """A peer that publishes `sizes` when there is room, and notes what it is told."""

    def __init__(self, broker: Broker, *sizes: int) -> None:
        super().__init__()
        self.broker = broker
        self.sizes = list(sizes)
        self.told: list[int] = []

    def room(self, held: int) -> None:
        self.told.append(held)
        if held == FREE:
            for size in self.sizes:
                self.broker.shard.publish(self.broker.tenant, "", "q", b"\x00\x00", b"x" * size)


def test_publishers_are_held_above_the_memory_watermark_until_there_is_slack(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    broker.turn.hold_above(16_000)
    reasons: list[int] = []
    broker.turn.on_held = reasons.append
    peer.send(publish(1, "", "q", b"x" * 1000) * 17)
    broker.take_turn()
    assert broker.turn.held == FULL
    first, second = Publisher(broker, 9_000), Publisher(broker, 1_000)
    broker.turn.wait_for_room(first)
    broker.turn.wait_for_room(second)
    peer.get("q", no_ack=True)
    broker.settle()
    assert broker.turn.held == FULL  # below the mark, but not by a sixteenth
    assert first.told == []
    for _ in range(7):
        peer.get("q", no_ack=True)
    broker.settle()
    # the first filled it again: the second still waits
    assert (first.told, second.told) == ([FREE], [FULL])
    broker.take_turn(lambda: broker.tenant.queues["q"].purge())
    broker.settle()
    assert (first.told, second.told) == ([FREE], [FULL, FREE])
    assert reasons == [FULL, FREE, FULL, FREE]


def test_what_is_parked_does_not_hold_publishers_by_itself(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    broker.turn.hold_above(1_000)
    peer.send(publish(1, "", "q", b"x" * 2_000))
    broker.take_turn()
    assert broker.turn.held == FULL
    broker.turn.parked_bytes += 5_000
    waiting = Publisher(broker)
    broker.turn.wait_for_room(waiting)
    broker.take_turn(lambda: broker.tenant.queues["q"].purge())
    broker.settle()
    assert waiting.told == [FREE]


def test_publishers_are_held_while_the_journal_is_behind(broker: Broker) -> None:
    peer = another(broker)
    broker.shard.log.active = True
    peer.declare("q", bits=2)
    persistent = b"\x10\x00\x02"
    peer.send(publish(1, "", "q", b"x" * 3_000_000, persistent) * 3)
    waiting, gone = Publisher(broker), Publisher(broker)
    broker.turn.wait_for_room(waiting)
    broker.turn.wait_for_room(gone)
    broker.turn.leave(gone)
    broker.take_turn()
    assert broker.turn.held == BEHIND
    assert broker.turn.awaits_journal()
    broker.sync()
    assert broker.turn.held == FREE
    assert waiting.told == [BEHIND, FREE]
    assert gone.told == []


def test_publishers_are_held_while_the_disk_is_full_and_refused_when_the_store_failed(broker: Broker) -> None:
    waiting = Publisher(broker)
    log = broker.shard.log
    log.refuse(StoreFull("no room"))
    broker.take_turn()
    broker.turn.wait_for_room(waiting)
    assert broker.turn.held == NO_DISK
    log.failure = StoreFailed("gone")
    broker.take_turn()
    assert broker.turn.held == FREE
    assert waiting.told == [FREE]


def test_a_peer_is_read_again_when_no_reason_is_left(broker: Broker) -> None:
    peer = another(broker)
    out = peer.connection.out
    out.resume(HELD)
    out.pause(HELD)
    out.pause(UNREAD)
    out.resume(HELD)
    assert not peer.transport.reading
    out.resume(UNREAD)
    assert peer.transport.reading
    peer.transport.closed = True
    out.pause(HELD)
    assert peer.transport.reading  # a transport that closes is not paused
