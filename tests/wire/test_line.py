"""Line connections without sockets: conversations to the letter, whole and in pieces, and what they do to the core."""

from __future__ import annotations

import re

import pytest

from rookery.wire.line.commands import COMMANDS
from tests.wire.line_peer import ACK_WAIT_MS, DECLARED, GAP_MS, PUBLISHED, Broker, Peer, bodies, prepared


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return prepared(broker)


# Conversations: (rows, what is sent, what comes back). Fed whole, byte by byte, with CR LF, and with a tail.

SETUP = "DECLARE_EXCHANGE x direct\nDECLARE_QUEUE q\nBIND_QUEUE q x k\n"
SET_UP = "".join(f"{line}\n" for line in DECLARED)

CONVERSATIONS: list[tuple[tuple[str, ...], str, str]] = [
    (("S4-2", "S4-4", "S4-5"), SETUP, SET_UP),
    (("S4-2", "S4-4", "S4-5"), SETUP + SETUP, SET_UP + SET_UP),
    (("S4-2",), "DECLARE_EXCHANGE x direct\nDECLARE_EXCHANGE x fanout\n", (DECLARED[0] + "\n") * 2),
    (("S4-2",), "DECLARE_EXCHANGE t topic\nDECLARE_EXCHANGE f fanout\n", (DECLARED[0] + "\n") * 2),
    (("S4-3",), "DECLARE_EXCHANGE x quantum\n", "Error: unsupported exchange type: quantum\n"),
    (("S4-3",), "DECLARE_EXCHANGE x headers\n", "Error: unsupported exchange type: headers\n"),
    (
        ("S4-6",),
        SETUP + "BIND_QUEUE q nowhere k\nBIND_QUEUE nobody x k\nBIND_QUEUE nobody nowhere k\n",
        SET_UP
        + "Error: Exchange nowhere does not exist\nError: Queue nobody does not exist\n"
        + "Error: Exchange nowhere does not exist\n",
    ),
    (("S4-7",), SETUP + "PUBLISH x k hello\n", SET_UP + "Message published successfully\n"),
    (
        ("S4-8", "S4-19"),
        SETUP + "PUBLISH nowhere k hello\nPUBLISH x other hello\nDECLARE_EXCHANGE f fanout\nPUBLISH f any hello\n",
        SET_UP
        + "Error: Exchange nowhere does not exist\nMessage published successfully\n"
        + "Exchange declared successfully\nMessage published successfully\n",
    ),
    (("S4-10",), "CONSUME nobody\n", "Queue nobody does not exist\n"),
    (
        ("S4-12",),
        SETUP + "ACK q never seen\nACK nobody hello\n",
        SET_UP + "ACK successfully\nError: Queue nobody does not exist\n",
    ),
    (
        ("S4-14",),
        (
            "DECLARE_EXCHANGE\nDECLARE_EXCHANGE x\nDECLARE_EXCHANGE x direct more\nDECLARE_QUEUE\n"
            "DECLARE_QUEUE q more\nBIND_QUEUE q x\nBIND_QUEUE q x k more\nPUBLISH\nPUBLISH x\nPUBLISH x k\n"
            "PUBLISH x k \nCONSUME\nCONSUME q more\nACK\nACK q\nACK q \nAUTH\nCANCEL\nCANCEL q more\n"
        ),
        "Usage: DECLARE_EXCHANGE <exchange_name> <type>\n" * 3
        + "Usage: DECLARE_QUEUE <queue_name>\n" * 2
        + "Usage: BIND_QUEUE <queue_name> <exchange_name> <routing_key>\n" * 2
        + "Usage: PUBLISH <exchange_name> <routing_key> <message>\n" * 4
        + "Usage: CONSUME <queue_name>\n" * 2
        + "Usage: ACK <queue_name> <message>\n" * 3
        + "Usage: AUTH <user> <password>\n"
        + "Usage: CANCEL <queue_name>\n" * 2,
    ),
    (("S4-15",), "FROBNICATE q\nPING\n", "Unknown command\nPONG\n"),
    ((), "ping\n\n  Ping\ndeclare_queue q\n", "PONG\nPONG\nQueue declared successfully\n"),
    ((), "DECLARE_QUEUE q \nBIND_QUEUE q amq.direct k \n", f"{DECLARED[1]}\n{DECLARED[2]}\n"),
    (
        (),
        "DECLARE_QUEUE amq.mine\nDECLARE_EXCHANGE amq.mine direct\nDECLARE_EXCHANGE amq.topic topic\n",
        "Error: names that begin with amq. are reserved\n" * 2 + "Exchange declared successfully\n",
    ),
    ((), "DECLARE_QUEUE q colour=red\n", "Error: unknown option colour; there are ...\n"),
    ((), "DECLARE_QUEUE q length_max=few\n", "Error: length_max must be a number, not few\n"),
    ((), "DECLARE_QUEUE q length_max=-1\n", "Error: length_max must be at least 0, not -1\n"),
    ((), "DECLARE_QUEUE q durable=perhaps\n", "Error: durable must be one of true, false, not perhaps\n"),
    ((), "DECLARE_QUEUE q distribution=fair\n", "Error: distribution must be one of round-robin, ...\n"),
    (
        (),
        "DECLARE_QUEUE q ttl_ms=5 backoff_jitter=0.5\nDECLARE_QUEUE q\nDECLARE_QUEUE q ttl_ms=6\n",
        "Queue declared successfully\n" * 2 + "Error: queue 'q' exists with ttl_ms=5, not 6\n",
    ),
    (
        (),
        (
            "DECLARE_QUEUE q\nCONSUME q ack=maybe\nCONSUME q prefetch=0\nCONSUME q prefetch=-\n"
            "CONSUME q ack=auto prefetch=2\nCONSUME q name=\nCONSUME q speed=9\n"
        ),
        (
            "Queue declared successfully\nError: ack must be one of auto, manual, not maybe\n"
            "Error: prefetch must be a whole number from 1 to 100000, not 0\n"
            "Error: prefetch must be a whole number from 1 to 100000, not -\n"
            "Error: prefetch and lease_ms are for consumers with ack=manual\n"
            "Error: name must be a text of 1 to 255 characters\n"
            "Error: unknown option speed; there are ack, prefetch, priority, name, lease_ms, trace\n"
        ),
    ),
    (
        (),
        "DECLARE_QUEUE q\nCONSUME q\nCONSUME q\nCANCEL q\nCANCEL q\nQUIT\nPING\n",
        (
            "Queue declared successfully\nConsumer started\nError: this connection consumes q already\n"
            "Consumer stopped\nError: this connection does not consume q\nGoodbye\n"
        ),
    ),
    ((), "HELP ack\nHELP nonsense\n", "ACK <queue_name> <message>\n    done with ...\nUnknown command\n"),
    ((), "GET / HTTP/1.1\nPING\n", "Error: this is not HTTP\n"),
]


def rows(*cases: tuple[tuple[str, ...], str, str]) -> list[object]:
    return [
        pytest.param(sent, expected, id=f"{n}-{sent.split()[0]}", marks=[pytest.mark.row(row) for row in marked])
        for n, (marked, sent, expected) in enumerate(cases)
    ]


def says(received: bytes, expected: str) -> bool:
    return re.fullmatch(re.escape(expected).replace(r"\.\.\.", ".*"), received.decode()) is not None


@pytest.mark.parametrize(("sent", "expected"), rows(*CONVERSATIONS))
def test_conversations_whole_and_in_pieces(sent: str, expected: str) -> None:
    data = sent.encode()
    for pieces in (
        [data],
        [data[at : at + 1] for at in range(len(data))],
        [data.replace(b"\n", b"\r\n")],
        [data + b"PUBLISH x k the start of a li"],
    ):
        peer = Peer(Broker())
        for piece in pieces:
            peer.connection.data_received(piece)
        received = peer.received()
        assert says(received, expected), received


@pytest.mark.row("S4-14")
def test_help_lists_every_command_with_its_usage(peer: Peer) -> None:
    lines = peer.ask("HELP")
    assert [line.split()[0] for line in lines[:-1]] == list(COMMANDS)
    assert lines[3].startswith("PUBLISH <exchange_name> <routing_key> <message> ")
    for verb in COMMANDS:
        assert len(peer.ask(f"HELP {verb}")) == 2


# Routing


@pytest.mark.row("S4-7")
def test_a_message_is_the_rest_of_the_line_as_it_is(broker: Broker, peer: Peer) -> None:
    peer.connection.data_received(b"PUBLISH x k  two  words \nPUBLISH x k \xff\x00\\n\r\nPUBLISH x k a\rb\n")
    assert peer.lines() == [PUBLISHED] * 3
    assert bodies(broker, "q") == [b" two  words ", b"\xff\x00\\n", b"a\rb"]


@pytest.mark.row("S4-18")
@pytest.mark.row("S4-19")
@pytest.mark.row("S4-20")
def test_direct_fanout_and_topic_exchanges_route_as_their_names_say(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE r", "DECLARE_EXCHANGE f fanout", "DECLARE_EXCHANGE t topic")
    peer.ask("BIND_QUEUE q f", "BIND_QUEUE q f ignored", "BIND_QUEUE r f ")
    peer.ask("BIND_QUEUE q t orders.*.paid", "BIND_QUEUE r t orders.#")
    assert (
        peer.ask("PUBLISH x k direct", "PUBLISH x k.k missed", "PUBLISH f any fanout", "PUBLISH f  keyless")
        == [PUBLISHED] * 4
    )
    peer.ask("PUBLISH t orders.eu.paid both", "PUBLISH t orders one", "PUBLISH t order none")
    assert bodies(broker, "q") == [b"direct", b"fanout", b"keyless", b"both"]
    assert bodies(broker, "r") == [b"fanout", b"keyless", b"both", b"one"]
    assert peer.ask("PUBLISH amq.default q to the queue itself") == [PUBLISHED]
    assert bodies(broker, "q")[-1] == b"to the queue itself"


@pytest.mark.row("S4-5")
def test_a_binding_made_twice_brings_a_message_once(broker: Broker, peer: Peer) -> None:
    peer.ask("BIND_QUEUE q x k", "PUBLISH x k once")
    assert bodies(broker, "q") == [b"once"]


@pytest.mark.row("S4-21")
def test_a_queue_is_unbounded_unless_declared_otherwise_and_says_when_it_is_full(broker: Broker, peer: Peer) -> None:
    peer.ask(*[f"PUBLISH x k {n}" for n in range(250)])
    assert broker.queue("q").ready == 250
    peer.ask("DECLARE_QUEUE small length_max=1 overflow=reject-publish", "BIND_QUEUE small x s")
    assert peer.ask("PUBLISH x s 1", "PUBLISH x s 2") == [PUBLISHED, "Error: Queue small is full"]
    peer.ask("BIND_QUEUE q x s")
    assert peer.ask("PUBLISH x s both or none")[0].startswith("Error: ")
    assert broker.queue("q").ready == 250
    peer.ask("DECLARE_QUEUE last length_max=2 overflow=drop-head", "BIND_QUEUE last x l")
    assert peer.ask(*[f"PUBLISH x l {n}" for n in range(4)]) == [PUBLISHED] * 4
    assert bodies(broker, "last") == [b"2", b"3"]


def test_queues_have_the_defaults_of_the_face(broker: Broker, peer: Peer) -> None:
    settings = broker.queue("q").settings
    assert (settings.max_attempts, settings.backoff_base_ms, settings.ordered) == (6, 30_000, False)
    assert (settings.dead_letter_queue, settings.durable) == ("q.DLQ", True)
    broker.face.dlq_suffix = ".dead"
    peer.ask("DECLARE_QUEUE other", "DECLARE_QUEUE other.dead")
    assert broker.queue("other").settings.dead_letter_queue == "other.dead"
    assert broker.queue("other.dead").settings.dead_letter_queue is None
    assert broker.queue("other.dead").settings.max_attempts == 0


# Consuming: what the client does tells which generation it is


@pytest.mark.row("S4-9")
@pytest.mark.row("S4-11")
def test_a_gap_lies_between_consumer_started_and_the_first_delivery(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"1", b"2")
    assert peer.ask("CONSUME q") == ["Consumer started"]
    broker.pass_time(GAP_MS - 1)
    assert peer.lines() == []
    broker.pass_time(1)
    assert peer.lines() == ["Consumed message: 1"]


@pytest.mark.row("S4-13")
def test_a_client_that_sends_no_ack_gets_the_rest_without_acks(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"1", b"2", b"3")
    peer.consume()
    assert peer.lines() == ["Consumed message: 1"]
    broker.pass_time(ACK_WAIT_MS - 1)
    assert peer.lines() == []
    assert broker.queue("q").leased == 1
    broker.pass_time(1)
    assert peer.lines() == ["Consumed message: 2", "Consumed message: 3"]
    broker.publish("q", b"4")
    assert peer.lines() == ["Consumed message: 4"]
    assert (broker.queue("q").acked, broker.queue("q").leased) == (4, 0)


@pytest.mark.row("S4-12")
@pytest.mark.row("S4-13")
@pytest.mark.row("S4-11")
def test_a_client_that_acks_gets_one_message_at_a_time_each_after_a_gap(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"1", b"2", b"3")
    peer.consume()
    assert peer.lines() == ["Consumed message: 1"]
    for n in (2, 3):
        broker.pass_time(ACK_WAIT_MS // 2)
        assert peer.ask(f"ACK q {n - 1}") == ["ACK successfully"]
        broker.pass_time(GAP_MS - 1)
        assert peer.lines() == []
        broker.pass_time(1)
        assert peer.lines() == [f"Consumed message: {n}"]
    broker.pass_time(100 * ACK_WAIT_MS)
    assert peer.lines() == []
    assert (broker.queue("q").acked, broker.queue("q").leased) == (2, 1)
    assert peer.ask("ACK q 3") == ["ACK successfully"]
    assert broker.queue("q").acked == 3


@pytest.mark.row("S4-13")
def test_an_ack_that_comes_late_makes_the_connection_manual_after_all(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"1", b"2")
    peer.consume()
    broker.pass_time(ACK_WAIT_MS)
    assert peer.ask("ACK q 1", "ACK q 2") == ["ACK successfully"] * 2
    broker.publish("q", b"3", b"4")
    broker.pass_time(GAP_MS)
    assert peer.lines() == ["Consumed message: 3"]


@pytest.mark.row("S4-13")
def test_a_client_may_say_how_it_acknowledges(broker: Broker, peer: Peer) -> None:
    broker.publish("q", *[b"%d" % n for n in range(6)])
    other = Peer(broker)
    other.consume(options=" ack=manual prefetch=2")
    assert other.lines() == ["Consumed message: 0", "Consumed message: 1"]
    broker.pass_time(10 * ACK_WAIT_MS)
    assert other.lines() == []
    # out of order, and without a gap: who has several in flight reads answers and deliveries from one buffer
    assert other.ask("ACK q 1") == ["ACK successfully", "Consumed message: 2"]
    peer.consume(options=" ack=auto")
    assert peer.lines() == ["Consumed message: 3", "Consumed message: 4", "Consumed message: 5"]
    assert other.ask("ACK q 0", "ACK q 2") == ["ACK successfully"] * 2
    assert broker.queue("q").acked == 6


def test_the_ack_of_equal_messages_takes_one_and_spaces_may_be_trimmed(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"same", b"same", b" same ")
    peer.consume(options=" prefetch=9")
    assert peer.lines() == ["Consumed message: same", "Consumed message: same", "Consumed message:  same "]
    assert peer.ask("ACK q  same ") == ["ACK successfully"]
    assert (broker.queue("q").acked, broker.queue("q").leased_bytes) == (1, 8)
    peer.ask("ACK q same", "ACK q same", "ACK q same")
    assert (broker.queue("q").acked, broker.queue("q").leased) == (3, 0)
    broker.publish("q", b"\tpadded")
    peer.ask("ACK q padded")
    assert broker.queue("q").acked == 4


def test_an_ack_settles_nothing_of_another_connection(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"same")
    peer.consume(options=" ack=manual")
    assert Peer(broker).ask("ACK q same") == ["ACK successfully"]
    assert (broker.queue("q").acked, broker.queue("q").leased) == (0, 1)


def test_retry_release_and_reject_are_outcomes_too(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"a", b"b", b"c")
    peer.consume(options=" prefetch=3")
    assert peer.ask("RETRY q a", "REJECT q b", "RELEASE q c") == [
        "RETRY successfully",
        "REJECT successfully",
        "RELEASE successfully",
        "Consumed message: c",
    ]
    queue = broker.queue("q")
    assert (queue.delayed, queue.retried, queue.rejected, queue.released) == (1, 1, 1, 1)
    assert bodies(broker, "q.DLQ") == [b"b"]
    broker.pass_time(30_000)
    assert peer.lines() == ["Consumed message: a"]


@pytest.mark.row("S4-30")
def test_with_a_lease_an_unacked_message_is_sent_again_and_at_last_dead_lettered(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE lazy backoff_base_ms=0")
    broker.publish("lazy", b"1")
    peer.consume("lazy", " lease_ms=30000")
    for _ in range(6):
        assert peer.lines() == ["Consumed message: 1"]
        broker.pass_time(30_000)
    assert peer.lines() == []
    assert bodies(broker, "lazy.DLQ") == [b"1"]
    assert peer.ask("ACK lazy 1") == ["ACK successfully"]
    assert broker.queue("lazy").acked == 0


@pytest.mark.row("S4-17")
def test_line_breaks_in_a_body_are_escaped_and_the_ack_takes_the_line_as_it_came(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"one\ntwo\\n\r", b"plain\\n")
    peer.consume(options=" prefetch=2")
    assert peer.received() == b"Consumed message: one\\ntwo\\\\n\\r\nConsumed message: plain\\n\n"
    peer.connection.data_received(b"ACK q one\\ntwo\\\\n\\r\nACK q plain\\n\n")
    assert broker.queue("q").acked == 2


@pytest.mark.row("S4-17")
def test_a_line_that_some_clients_cannot_read_is_logged_once(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"a" * 65_000, b"b" * 66_000, b"c" * 66_000)
    peer.consume(options=" ack=auto")
    assert peer.received().count(b"Consumed message: ") == 3
    assert broker.log == [("long_line", "queue 'q' holds messages that some clients cannot read")]


@pytest.mark.row("S4-16")
def test_consumer_stopped_at_the_end_of_the_queue_and_of_the_server(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"1")
    peer.consume(options=" ack=manual")
    peer.lines()
    broker.take_turn(lambda: broker.tenant.delete_queue("q"))
    assert peer.lines() == ["Consumer stopped"]
    assert broker.shard.memory_bytes == 0
    assert peer.ask("ACK q 1", "DECLARE_QUEUE q", "PING") == ["Error: Queue q does not exist", DECLARED[1], "PONG"]
    broker.publish("q", b"2")
    peer.consume(options=" ack=manual")
    idle = Peer(broker)
    peer.lines()
    broker.take_turn(lambda: broker.face.close_all("shutdown"))
    assert peer.lines() == ["Consumer stopped"]
    assert idle.lines() == []
    assert peer.transport.closed
    assert idle.transport.closed
    assert not peer.transport.aborted
    assert (broker.queue("q").ready, broker.queue("q").released) == (1, 1)


def test_what_a_lost_peer_held_is_a_failed_attempt_and_goes_to_another_at_once(broker: Broker, peer: Peer) -> None:
    broker.publish("q", b"poison")
    for _ in range(6):
        victim = Peer(broker)
        victim.consume()
        assert victim.lines() == ["Consumed message: poison"]
        victim.lose()
    assert broker.queue("q").ready == 0
    assert bodies(broker, "q.DLQ") == [b"poison"]
    peer.consume("q.DLQ", " ack=manual")
    peer.lose()
    assert broker.queue("q.DLQ").ready == 1
    assert broker.face.connections == {}
    assert not broker.queue("q").roster.all


# Several consumers


@pytest.mark.row("S4-22")
@pytest.mark.row("S4-34")
def test_several_consumers_of_a_queue_take_turns(broker: Broker, peer: Peer) -> None:
    others = [Peer(broker) for _ in range(3)]
    for other in others:
        other.consume(options=" ack=auto")
    peer.ask(*[f"PUBLISH x k {n}" for n in range(9)])
    assert [len(other.lines()) for other in others] == [3, 3, 3]


@pytest.mark.row("S4-34")
def test_the_least_busy_consumer_goes_first(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE b distribution=least-busy", "BIND_QUEUE b x b")
    slow, quick = Peer(broker), Peer(broker)
    slow.consume("b", " prefetch=9")
    quick.consume("b", " prefetch=9")
    for n in range(6):
        peer.ask(f"PUBLISH x b {n}")
        for line in quick.lines():
            quick.ask(f"ACK b {line.removeprefix('Consumed message: ')}")
    assert len(slow.lines()) == 1
    assert broker.queue("b").acked == 5


@pytest.mark.row("S4-34")
def test_a_consumer_of_higher_priority_goes_first_as_long_as_it_has_credit(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE p distribution=priority", "BIND_QUEUE p x p")
    low, high = Peer(broker), Peer(broker)
    low.consume("p", " ack=manual prefetch=9 priority=-1")
    high.consume("p", " ack=manual prefetch=2 priority=5")
    peer.ask(*[f"PUBLISH x p {n}" for n in range(3)])
    assert high.lines() == ["Consumed message: 0", "Consumed message: 1"]
    assert low.lines() == ["Consumed message: 2"]


@pytest.mark.row("S4-34")
def test_messages_of_one_key_go_to_one_consumer(broker: Broker, peer: Peer) -> None:
    peer.ask("DECLARE_QUEUE h distribution=key-hash", "DECLARE_EXCHANGE t topic", "BIND_QUEUE h t #")
    others = [Peer(broker) for _ in range(3)]
    for n, other in enumerate(others):
        other.consume("h", f" ack=auto name=worker-{n}")
    peer.ask(*[f"PUBLISH t key{n % 20} key{n % 20}" for n in range(100)])
    seen = [set(other.lines()) for other in others]
    assert sum(len(keys) for keys in seen) == len(set().union(*seen)) == 20
    assert all(seen)
