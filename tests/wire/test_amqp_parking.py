"""Publishers that are held: what is parked, what goes on, what the peer is told, and what comes of it."""

from __future__ import annotations

import pytest

from rookery.format.properties import Properties, encode
from rookery.wire.amqp.parking import REFUSED_BYTES
from rookery.wire.turn import HELD, PARKED_MAX_BYTES
from tests.wire.amqp_peer import (
    HEARTBEAT,
    Broker,
    Frame,
    Peer,
    bodies,
    closed,
    deliveries,
    header,
    longlong,
    method,
    octet,
    publish,
    short,
    short_string,
)

BIG = 20_000


@pytest.fixture
def broker() -> Broker:
    """Publishers are held above 100 kB of messages."""
    broker = Broker()
    broker.turn.hold_above(100_000)
    return broker


def another(broker: Broker, **capabilities: bool) -> Peer:
    return Peer(broker).handshake(**{"connection.blocked": True, **capabilities}).channel()


def names(received: list[Frame]) -> list[tuple[int, int]]:
    return [each.name for each in received if each.kind == 1]


def fill(broker: Broker) -> Peer:
    """Another connection's messages in the queue `full` are all that fits."""
    other = another(broker)
    other.declare("full")
    for _ in range(5):
        other.send(publish(1, "", "full", bytes(BIG)))
    broker.take_turn()
    assert broker.turn.held
    return other


def make_room(broker: Broker) -> None:
    broker.take_turn(lambda: broker.tenant.queues["full"].purge())
    broker.take_turn()
    broker.settle()


def test_a_peer_that_only_publishes_is_not_read_and_told_why(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.confirm()
    fill(broker)
    (told,) = peer.ask(publish(1, "", "q", b"1") + publish(1, "", "q", b"2"))
    assert (told.name, told.arguments) == ((10, 60), short_string("low on memory"))
    assert not peer.transport.reading
    assert broker.tenant.queues["q"].ready == 0
    assert broker.turn.parked_bytes > 0
    make_room(broker)
    assert sorted(names(peer.frames())) == [(10, 61), (60, 80)]
    assert peer.transport.reading
    assert [each.message.body for each in broker.tenant.queues["q"].ready_entries()] == [b"1", b"2"]
    assert broker.turn.parked_bytes == 0


def test_only_who_asked_is_told(broker: Broker) -> None:
    peer = Peer(broker).handshake().channel()
    peer.declare("q")
    fill(broker)
    assert peer.ask(publish(1, "", "q", b"1")) == []
    make_room(broker)
    assert peer.frames() == []
    assert broker.tenant.queues["q"].ready == 1


def test_a_consumer_is_read_and_its_acknowledgements_pass_what_is_parked(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.qos(1)
    peer.send(publish(1, "", "q", b"1") + publish(1, "", "q", b"2"))
    (first,) = deliveries(peer.consume("q"))
    fill(broker)
    declare = method(1, 50, 10, short(0) + short_string("later") + octet(0) + b"\x00\x00\x00\x00")
    ack = method(1, 60, 80, longlong(first.tag) + octet(0))
    received = peer.ask(publish(1, "", "q", b"3") + declare + ack + HEARTBEAT)
    # the acknowledgement freed the way for the next; the declaration came after a publish, and so it waits
    assert sorted(names(received)) == [(10, 60), (60, 60)]
    assert peer.transport.reading
    assert "later" not in broker.tenant.queues
    make_room(broker)
    assert sorted(names(peer.frames())) == [(10, 61), (50, 11)]
    assert broker.tenant.queues["q"].ready == 1


def test_other_channels_go_on(broker: Broker) -> None:
    peer = another(broker).channel(2)
    peer.declare("q")
    peer.consume("q")
    fill(broker)
    peer.send(publish(1, "", "q", b"1"))
    peer.frames()
    assert peer.declare("other", channel=2).name == (50, 11)


def test_a_message_under_way_is_finished(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.consume("q")
    peer.send(method(1, 60, 40, short(0) + short_string("") + short_string("q") + octet(0)) + header(1, 4))
    fill(broker)
    assert [each.body for each in deliveries(peer.ask(bodies(1, b"body")))] == [b"body"]


def test_in_a_transaction_acknowledgements_wait_too(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.send(publish(1, "", "q", b"1"))
    peer.call(1, 90, 10)
    peer.get("q")
    fill(broker)
    commit = method(1, 90, 20)
    ack = method(1, 60, 80, longlong(1) + octet(0))
    assert names(peer.ask(publish(1, "", "q", b"2") + commit + ack)) == [(10, 60)]
    make_room(broker)
    assert sorted(names(peer.frames())) == [(10, 61), (90, 21)]
    queue = broker.tenant.queues["q"]
    assert (queue.ready, queue.leased, queue.acked) == (1, 1, 0)


def test_who_says_goodbye_has_published(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    fill(broker)
    peer.send(publish(1, "", "q", b"1"))
    peer.frames()
    assert (10, 51) in names(peer.ask(method(0, 10, 50, short(200) + b"\x00" + short(0) * 2)))
    assert broker.tenant.queues["q"].ready == 1
    assert broker.turn.parked_bytes == 0


def test_what_a_lost_connection_had_parked_is_gone(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    fill(broker)
    peer.send(publish(1, "", "q", b"1"))
    peer.lose()
    assert broker.turn.parked_bytes == 0
    make_room(broker)
    assert broker.tenant.queues["q"].ready == 0


def test_room_that_does_not_last(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    fill(broker)
    for n in range(10):
        peer.send(publish(1, "", "q", bytes(BIG), encode(Properties(message_id=str(n)))))
    assert broker.tenant.queues["q"].ready == 0
    make_room(broker)
    for _ in range(20):
        broker.take_turn(lambda: broker.tenant.queues["q"].claim(1, 0))
        broker.take_turn()
        broker.settle()
    for lease in broker.tenant.queues["q"].leases():
        broker.tenant.queues["q"].ack(lease)
    for _ in range(5):
        broker.take_turn()
    queue = broker.tenant.queues["q"]
    assert queue.published == 10
    assert broker.turn.parked_bytes == 0
    assert peer.transport.reading


def test_a_consumer_that_does_not_heed_it_is_ended(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q")
    peer.consume("q")
    fill(broker)
    peer.frames()
    piece = publish(1, "", "q", bytes(100_000))
    sent = 0
    received: list[Frame] = []
    while (10, 50) not in names(received):
        assert sent <= REFUSED_BYTES
        received = peer.ask(piece)
        sent += len(piece)
    assert sent > PARKED_MAX_BYTES
    assert closed(received[-1], hard=True).code == 506
    assert broker.turn.parked_bytes == 0


def test_heartbeats_are_not_missed_of_who_is_not_read(broker: Broker) -> None:
    peer = Peer(broker).handshake(heartbeat=10).channel()
    peer.declare("q")
    fill(broker)
    peer.send(publish(1, "", "q", b"1"))
    assert peer.connection.out.paused & HELD
    broker.pass_time(60_000)
    assert not peer.transport.aborted
    make_room(broker)
    broker.pass_time(15_000)
    assert not peer.transport.aborted
    broker.pass_time(15_000)
    assert peer.transport.aborted
