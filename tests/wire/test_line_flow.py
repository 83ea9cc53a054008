"""Line connections without sockets: back-pressure, the journal, long lines, logins, and whatever else may be sent."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.access import Principal, Rights
from rookery.errors import StoreFailed
from rookery.wire.line.commands import COMMANDS
from rookery.wire.line.connection import FIRST_LINE_MAX_BYTES, UNSENT_MAX_BYTES
from rookery.wire.turn import CORK_BYTES, FREE, FULL, PARKED_MAX_BYTES
from tests.wire.line_peer import ACK_WAIT_MS, DECLARED, GAP_MS, PUBLISHED, Broker, Peer, bodies, prepared


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return prepared(broker)


# Flow


def test_a_consumer_that_does_not_read_gets_no_more_and_nobody_else_notices(broker: Broker, peer: Peer) -> None:
    deaf = Peer(broker)
    deaf.consume(options=" ack=auto")
    deaf.connection.pause_writing()
    assert deaf.transport.reading
    broker.publish("q", b"1")
    assert deaf.lines() == []
    peer.consume(options=" ack=auto")
    assert peer.lines() == ["Consumed message: 1"]
    peer.ask("CANCEL q")
    broker.publish("q", b"2")
    deaf.connection.resume_writing()
    assert deaf.lines() == ["Consumed message: 2"]


def test_a_peer_that_does_not_read_its_answers_is_not_read(broker: Broker, peer: Peer) -> None:
    peer.connection.pause_writing()
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert peer.transport.reading


def test_a_peer_that_only_asks_is_dropped(broker: Broker, peer: Peer) -> None:
    peer.consume(options=" ack=auto")
    broker.tenant.set_limits({"message_bytes_max": 1000})
    peer.connection.pause_writing()
    peer.transport.unsent_bytes = UNSENT_MAX_BYTES + 2000
    peer.send("PING")
    assert peer.transport.aborted
    assert broker.log == [("connection_dropped", "it does not read what it asked for")]


def test_deliveries_of_one_turn_are_bounded(broker: Broker, peer: Peer) -> None:
    broker.publish("q", *[b"x" * 50_000] * 20)
    peer.ask("CONSUME q ack=auto")
    broker.woken = 0
    (timer,) = [timer for timer in broker.timers if not timer.over]
    timer.over = True
    broker.take_turn(timer.work)
    assert CORK_BYTES <= len(peer.received()) < CORK_BYTES + 60_000
    broker.settle()
    assert broker.queue("q").acked == 20


def test_answers_wait_for_the_journal_in_order_and_hold_nobody_else_up(broker: Broker, peer: Peer) -> None:
    broker.shard.log.active = True
    other = Peer(broker)
    assert peer.ask("DECLARE_QUEUE d", "BIND_QUEUE d x d", "PUBLISH x d 1", "PING") == []
    assert other.ask("PING") == ["PONG"]
    assert broker.turn.awaits_journal()
    broker.sync()
    assert peer.lines() == [*DECLARED[1:], PUBLISHED, "PONG"]
    other.ask("CONSUME d ack=manual")
    broker.pass_time(GAP_MS)
    assert other.lines() == ["Consumed message: 1"]
    # the answer of an ack waits until it is written, and the gap lies behind the answer
    assert other.ask("ACK d 1") == []
    assert broker.shard.log.urgent
    assert peer.ask("PING") == ["PONG"]
    broker.publish("d", b"2")
    broker.pass_time(10 * GAP_MS)
    assert other.lines() == []
    broker.sync()
    assert other.lines() == ["ACK successfully"]
    broker.pass_time(GAP_MS)
    assert other.lines() == ["Consumed message: 2"]


def test_when_the_journal_fails_nothing_is_said_to_have_happened(broker: Broker, peer: Peer) -> None:
    broker.shard.log.active = True
    peer.ask("DECLARE_QUEUE d")
    broker.shard.log.failure = StoreFailed("no disk")
    broker.shard.log.refuse(broker.shard.log.failure)
    broker.turn.progressed()
    broker.settle()
    assert peer.lines() == ["Error: no disk"]
    assert peer.transport.closed


LARGE = b"x" * (33 << 20)


def held(broker: Broker) -> None:
    """Have publishers held, by a message that takes memory."""
    broker.turn.hold_above(32 << 20)
    broker.publish("q", LARGE)
    broker.take_turn()
    assert broker.turn.held == FULL


def let_go(broker: Broker) -> None:
    broker.take_turn(lambda: broker.queue("q").purge())
    broker.settle()
    broker.take_turn()
    assert broker.turn.held == FREE


def test_a_publisher_is_not_read_while_publishers_are_held(broker: Broker, peer: Peer) -> None:
    held(broker)
    assert peer.ask("PING", "PUBLISH x k 1", "PING") == ["PONG"]
    assert not peer.transport.reading
    peer.send("PUBLISH x k 2")
    assert bodies(broker, "q") == [LARGE]
    let_go(broker)
    assert peer.lines() == [PUBLISHED, "PONG", PUBLISHED]
    assert peer.transport.reading
    assert bodies(broker, "q") == [b"1", b"2"]
    assert broker.face.partial_bytes == 0


def test_a_consumer_parks_its_publishes_and_its_acks_are_done(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE work")
    broker.publish("work", b"1")
    peer.consume("work", " ack=manual prefetch=2")
    held(broker)
    assert peer.lines() == ["Consumed message: 1"]
    assert peer.ask("PUBLISH x k kept", "ACK work 1", "PING") == []
    assert broker.queue("work").acked == 1
    assert peer.transport.reading
    assert broker.turn.parked_bytes > 0
    let_go(broker)
    assert peer.lines() == [PUBLISHED, "ACK successfully", "PONG"]
    assert bodies(broker, "q") == [b"kept"]
    assert broker.turn.parked_bytes == 0


def test_a_consumer_with_one_message_at_a_time_goes_on_while_its_publish_is_parked(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE work")
    broker.publish("work", b"1", b"2")
    peer.consume("work", " ack=manual")
    held(broker)
    peer.lines()
    assert peer.ask("PUBLISH x k kept", "ACK work 1") == []
    broker.pass_time(GAP_MS)
    assert peer.lines() == ["Consumed message: 2"]
    let_go(broker)
    assert peer.lines() == [PUBLISHED, "ACK successfully"]


def test_a_consumer_that_parks_too_much_is_told_so(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE work")
    peer.consume("work")
    held(broker)
    large = "y" * (PARKED_MAX_BYTES // 2)
    assert peer.ask(*[f"PUBLISH x k {large}"] * 2) == []
    let_go(broker)
    refused = "Error: publishers are held, and too much waits already; try again later"
    assert peer.lines() == [PUBLISHED, refused]
    peer.lose()
    assert broker.turn.parked_bytes == 0


def test_what_a_peer_parked_is_forgotten_with_it(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE work")
    peer.consume("work")
    held(broker)
    peer.ask("PUBLISH x k 1")
    peer.lose()
    assert broker.turn.parked_bytes == 0
    let_go(broker)
    assert bodies(broker, "q") == []


# Lines


def test_a_line_that_is_too_long_is_passed_over(broker: Broker, peer: Peer) -> None:
    broker.face.line_max_bytes = 1000
    peer.connection.data_received(b"PUBLISH x k " + b"a" * 2000 + b"\nPING\n")
    for _ in range(50):
        peer.connection.data_received(b"PUBLISH x k " + b"a" * 100)
    assert broker.face.partial_bytes <= 1000
    peer.connection.data_received(b"a\nPING\n")
    error = "Error: a line must not be longer than 1000 bytes"
    assert peer.lines() == [error, "PONG", error, "PONG"]
    assert broker.face.partial_bytes == 0


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("guest", [True, False])
def test_a_long_url_does_not_let_a_page_speak(broker: Broker, whole: bool, guest: bool) -> None:
    """The first line of its request is passed over; what follows must not be taken for commands."""
    broker.face.line_max_bytes = 10_000
    if not guest:
        broker.guest = None
    page = Peer(broker)
    head = b"POST /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = head + b"AUTH clerk guess\nDECLARE_QUEUE pages\nPING\n"
    for at in range(0, len(data), len(data) if whole else 3_000):
        page.connection.data_received(data[at : at + (len(data) if whole else 3_000)])
    (line,) = page.lines()
    assert line.startswith("Error: a line must not be longer than")
    assert page.transport.closed
    assert "pages" not in broker.tenant.queues
    assert broker.face.partial_bytes == 0


def test_the_start_of_a_large_line_counts_as_memory(broker: Broker, peer: Peer) -> None:
    broker.shard.memory_bytes_max = 100_000
    other = Peer(broker)
    other.connection.data_received(b"PUBLISH x k " + b"a" * 60_000)
    peer.connection.data_received(b"PUBLISH x k " + b"a" * 70_000)
    assert broker.face.partial_bytes < 61_000
    peer.connection.data_received(b"\nACK q x\n")
    assert peer.lines()[0].startswith("Error: The memory limit for messages is reached")
    assert len(peer.transport.sent) > 0
    other.lose()
    assert broker.face.partial_bytes == 0


def test_messages_beyond_the_tenants_limit_are_refused(broker: Broker, peer: Peer) -> None:
    broker.tenant.set_limits({"message_bytes_max": 10})
    (line,) = peer.ask("PUBLISH x k more than ten bytes")
    assert line.startswith("Error: message of ")


def test_who_sends_no_more_gets_the_answers_and_no_deliveries(broker: Broker, peer: Peer) -> None:
    broker.shard.log.active = True
    peer.send("DECLARE_QUEUE d", "BIND_QUEUE d x d", "PUBLISH x d 1", "CONSUME d")
    peer.connection.data_received(b"PUBLISH x d the start of")
    assert peer.connection.eof_received()
    assert not peer.transport.closed
    assert not broker.queue("d").roster.all
    broker.sync()
    assert peer.lines() == [*DECLARED[1:], PUBLISHED, "Consumer started"]
    assert peer.transport.closed
    assert bodies(broker, "d") == [b"1"]


# Logging in


LIMITED = Principal("clerk", "default", Rights(configure="^mine", write="^mine|amq.default", read="^mine"))


@pytest.mark.row("S4-41")
def test_without_a_guest_a_peer_must_log_in(broker: Broker) -> None:
    broker.guest = None
    broker.users = {("clerk", "pass word"): LIMITED, ("", "a.key"): LIMITED}
    peer = Peer(broker)
    refused = "Error: log in first: AUTH <user> <password> or AUTH <api_key>"
    commands = ["DECLARE_EXCHANGE x direct", "DECLARE_QUEUE q", "BIND_QUEUE q x k", "PUBLISH x k m", "CONSUME q"]
    commands += ["ACK q m", "CANCEL q"]
    assert peer.ask(*commands) == [refused] * len(commands)
    assert peer.ask("PING", "AUTH clerk wrong", "DECLARE_QUEUE mine") == [
        "PONG",
        "Error: invalid user name or password",
        refused,
    ]
    assert peer.ask("AUTH clerk pass word", "DECLARE_QUEUE mine") == ["Authenticated successfully", DECLARED[1]]
    other = Peer(broker)
    assert other.ask("AUTH a.key", "DECLARE_QUEUE mine2") == ["Authenticated successfully", DECLARED[1]]


@pytest.mark.row("S4-41")
def test_rights_are_per_user_and_name(broker: Broker, peer: Peer) -> None:
    broker.users = {("clerk", "secret"): LIMITED}
    clerk = Peer(broker)
    assert clerk.ask("AUTH clerk secret", "DECLARE_QUEUE mine", "DECLARE_EXCHANGE mine.x direct") == [
        "Authenticated successfully",
        DECLARED[1],
        DECLARED[0],
    ]
    where = "in tenant 'default' refused for user 'clerk'"
    assert clerk.ask(
        "DECLARE_QUEUE other", "BIND_QUEUE mine x k", "BIND_QUEUE q mine.x k", "PUBLISH x k m", "CONSUME q", "ACK q m"
    ) == [
        f"Error: configure access to queue 'other' {where}",
        f"Error: read access to exchange 'x' {where}",
        f"Error: write access to queue 'q' {where}",
        f"Error: write access to exchange 'x' {where}",
        f"Error: read access to queue 'q' {where}",
        f"Error: read access to queue 'q' {where}",
    ]
    assert clerk.ask("PUBLISH mine.x k m", "CONSUME mine") == [PUBLISHED, "Consumer started"]
    assert clerk.ask("AUTH clerk secret") == ["Error: AUTH comes before CONSUME"]


@pytest.mark.row("S4-41")
def test_who_fails_to_log_in_is_not_the_guest_either(broker: Broker, peer: Peer) -> None:
    assert peer.ask("AUTH guest wrong", "PUBLISH x k 1")[1].startswith("Error: log in first")
    assert bodies(broker, "q") == []


def test_lines_behind_a_slow_login_wait_for_it(broker: Broker, peer: Peer) -> None:
    broker.users = {("clerk", "secret"): LIMITED}
    broker.slow_logins = []
    assert peer.ask("AUTH clerk secret", "DECLARE_QUEUE mine", "PI") == []
    peer.connection.data_received(b"PING\n")
    assert not peer.transport.reading
    ((connection, user, password),) = broker.slow_logins
    peer.connection.eof_received()
    assert not peer.transport.closed
    broker.take_turn(lambda: broker.answer_login(connection, user, password))
    assert peer.lines() == ["Authenticated successfully", DECLARED[1], "Unknown command", "PONG"]
    assert peer.transport.closed


def test_a_peer_that_goes_during_its_login_leaves_nothing(broker: Broker, peer: Peer) -> None:
    broker.users = {("clerk", "secret"): LIMITED}
    broker.slow_logins = []
    peer.ask("AUTH clerk secret", "DECLARE_QUEUE mine")
    peer.lose()
    ((connection, user, password),) = broker.slow_logins
    broker.take_turn(lambda: broker.answer_login(connection, user, password))
    assert "mine" not in broker.tenant.queues
    assert broker.face.partial_bytes == 0


def test_a_peer_that_does_not_log_in_is_bounded_and_dropped(broker: Broker) -> None:
    broker.guest = None
    peer = Peer(broker)
    peer.connection.data_received(b"AUTH " + b"a" * FIRST_LINE_MAX_BYTES + b"\n")
    assert peer.lines() == [f"Error: a line must not be longer than {FIRST_LINE_MAX_BYTES} bytes"]
    broker.pass_time(9_000)
    assert not peer.transport.closed
    broker.pass_time(2_000)
    assert peer.lines() == ["Error: nobody logged in"]
    assert peer.transport.closed
    broker.slow_logins = []
    flood = Peer(broker)
    flood.send("AUTH clerk secret")
    for _ in range(100):
        flood.connection.data_received(b"PING\n" * 1000)
    assert broker.face.partial_bytes == 0
    assert flood.lines() == ["Error: too much was sent ahead"]


def test_a_guest_that_logs_in_late_has_the_time_for_it(broker: Broker, peer: Peer) -> None:
    broker.pass_time(60_000)
    assert peer.ask("AUTH clerk wrong") == ["Error: invalid user name or password"]
    broker.pass_time(9_000)
    assert not peer.transport.closed
    broker.pass_time(2_000)
    assert peer.transport.closed


def test_who_loses_its_rights_is_told_and_dropped(broker: Broker, peer: Peer) -> None:
    peer.consume()
    other = Peer(broker)
    broker.take_turn(lambda: broker.face.recheck(lambda _: False, False))
    assert peer.lines() == []
    broker.take_turn(lambda: broker.face.recheck(lambda _: False, True))
    assert peer.lines() == ["Consumer stopped", "Error: the access of 'guest' has ended"]
    assert other.transport.closed


def test_an_exclusive_queue_of_another_connection_is_locked(broker: Broker, peer: Peer) -> None:
    broker.tenant.declare_queue("theirs", {}, "amqp", owner=object())
    (line,) = peer.ask("CONSUME theirs")
    assert line == "Error: queue 'theirs' is exclusive to another connection"


def test_a_defect_costs_one_connection(broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "PING", COMMANDS["PUBLISH"])
    other = Peer(broker)
    peer.send("PING a b c")
    assert peer.lines() == ["Error: an internal error"]
    assert peer.transport.closed
    assert broker.log[0][0] == "connection_failed"
    assert other.ask("DECLARE_QUEUE q") == [DECLARED[1]]
    broker.face.explain = lambda error: type(error).__name__
    other.send("PING a b c")
    assert re.fullmatch(r"Error: an internal error: \w+Error", other.lines()[0])


# Anything at all

WORDS = st.sampled_from([*COMMANDS, "q", "x", "k", "", "direct", "ack=manual", "prefetch=2", "\r", "é", "HTTP/1.1"])
LINES = st.lists(WORDS, max_size=6).map(" ".join)


@given(
    st.lists(st.one_of(LINES.map(lambda line: line.encode() + b"\n"), st.binary(max_size=40)), max_size=30),
    st.data(),
)
def test_nothing_that_is_sent_breaks_or_fills_a_connection(parts: list[bytes], data: st.DataObject) -> None:
    broker = Broker()
    peer, consumer = Peer(broker), Peer(broker)
    peer.send("DECLARE_EXCHANGE x direct", "DECLARE_QUEUE q", "BIND_QUEUE q x k")
    consumer.send("CONSUME q ack=auto")
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if end > start:
            peer.connection.data_received(stream[start:end])
        broker.pass_time(data.draw(st.sampled_from([0, GAP_MS, ACK_WAIT_MS])))
    assert [line for line in broker.log if line[0] == "connection_failed"] == []
    if not peer.transport.closed:
        peer.connection.data_received(b"\n")
    for one in (peer, consumer):
        one.lose()
    assert broker.face.partial_bytes == 0
    assert broker.face.connections == {}
    assert broker.turn.parked_bytes == 0
    for queue in broker.tenant.queues.values():
        assert (queue.leased, len(queue.roster.all)) == (0, 0)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_pieces_do_not_change_what_is_answered(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Peer(Broker()), Peer(Broker())
    whole.connection.data_received(data)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        pieces.connection.data_received(data[start:end])
    assert whole.received() == pieces.received()
