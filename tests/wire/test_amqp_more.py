"""What RabbitMQ's users rely on beyond the specification, over bytes: transactions, copies, direct replies, delays."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.format.fieldtables import Timestamp
from rookery.format.properties import Properties, decode, encode, headers
from tests.wire.amqp_peer import (
    NO_ARGUMENTS,
    Broker,
    Delivered,
    Frame,
    Peer,
    closed,
    deliveries,
    long_string,
    method,
    octet,
    publish,
    short,
    short_string,
    strings,
    table,
)

REPLY_TO = "amq.rabbitmq.reply-to"
COMMIT = method(1, 90, 20)
ROLLBACK = method(1, 90, 30)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def peer(broker: Broker) -> Peer:
    """A connection with channel 1 open."""
    return Peer(broker).handshake().channel()


def another(broker: Broker, **capabilities: bool) -> Peer:
    return Peer(broker).handshake(**capabilities).channel()


def names(received: list[Frame]) -> list[tuple[int, int]]:
    return [each.name for each in received if each.kind == 1]


def got(peer: Peer, queue: str, no_ack: bool = True) -> list[Delivered]:
    """Everything in a queue, taken one by one."""
    found: list[Delivered] = []
    while True:
        here = deliveries(peer.get(queue, no_ack=no_ack))
        if not here:
            return found
        found.extend(here)


def exchange(peer: Peer, name: str, kind: str, bits: int = 0, **arguments: object) -> Frame:
    words = short(0) + short_string(name) + short_string(kind) + octet(bits) + table(**arguments)
    return peer.call(1, 40, 10, words)


def bind(peer: Peer, queue: str, source: str, key: str, **arguments: object) -> Frame:
    words = short(0) + short_string(queue) + short_string(source) + short_string(key) + octet(0) + table(**arguments)
    return peer.call(1, 50, 20, words)


def deaths(letter: Delivered) -> list[dict[str, Any]]:
    rows: Any = headers(letter.props)["x-death"]
    return list(rows)


def props(**values: Any) -> bytes:
    return encode(Properties(**values))


# Transactions


@pytest.fixture
def tx(peer: Peer) -> Peer:
    peer.declare("q")
    assert peer.call(1, 90, 10).name == (90, 11)
    return peer


def test_publishes_happen_at_the_commit(tx: Peer) -> None:
    tx.send(publish(1, "", "q", b"1") + publish(1, "", "q", b"2"))
    assert tx.broker.tenant.queues["q"].ready == 0
    assert names(tx.ask(COMMIT)) == [(90, 21)]
    assert [each.body for each in got(tx, "q")] == [b"1", b"2"]


def test_a_rollback_forgets_publishes_and_gives_deliveries_back(tx: Peer) -> None:
    tx.ask(publish(1, "", "q", b"kept") + COMMIT)
    assert deliveries(tx.get("q"))[0].tag == 1
    assert tx.ask(publish(1, "", "q", b"gone")) == []
    assert tx.ack(1) == []
    assert tx.broker.tenant.queues["q"].leased == 1
    assert names(tx.ask(ROLLBACK)) == [(90, 31)]
    assert tx.broker.tenant.queues["q"].leased == 1
    assert tx.ack(1) == []
    assert names(tx.ask(COMMIT)) == [(90, 21)]
    queue = tx.broker.tenant.queues["q"]
    assert (queue.leased, queue.acked, queue.ready) == (0, 1, 0)


def test_a_delivery_is_settled_once_in_a_transaction(tx: Peer) -> None:
    tx.ask(publish(1, "", "q", b"1") + COMMIT)
    tx.get("q")
    tx.ack(1)
    (answer,) = tx.ack(1)
    assert closed(answer)[:2] == (406, "PRECONDITION_FAILED - unknown delivery tag 1")
    assert tx.broker.tenant.queues["q"].ready == 1


def test_multiple_and_refusals_wait_for_the_commit_too(tx: Peer) -> None:
    tx.ask(b"".join(publish(1, "", "q", b"%d" % i) for i in range(4)) + COMMIT)
    for _ in range(4):
        tx.get("q")
    tx.ack(2, multiple=True)
    tx.nack(3, requeue=True)
    tx.nack(4, requeue=False)
    queue = tx.broker.tenant.queues["q"]
    assert queue.leased == 4
    tx.ask(COMMIT)
    assert (queue.leased, queue.acked, queue.ready, queue.dropped) == (0, 2, 1, 1)


def test_the_end_of_a_channel_rolls_back(tx: Peer) -> None:
    tx.ask(publish(1, "", "q", b"1") + COMMIT)
    tx.get("q")
    tx.send(publish(1, "", "q", b"never"))
    tx.ack(1)
    tx.lose()
    queue = tx.broker.tenant.queues["q"]
    assert (queue.leased, queue.acked, queue.ready) == (0, 0, 1)


def test_mandatory_is_returned_at_the_commit(tx: Peer) -> None:
    assert tx.ask(publish(1, "", "nowhere", b"x", bits=1)) == []
    received = tx.ask(COMMIT)
    assert names(received) == [(60, 50), (90, 21)]
    assert deliveries(received)[0].key == "nowhere"


def test_a_commit_that_cannot_be_does_nothing_and_ends_the_channel(tx: Peer) -> None:
    tx.declare("full", x_max_length=1, x_overflow="reject-publish")
    tx.send(publish(1, "", "q", b"x") + publish(1, "", "full", b"1") + publish(1, "", "full", b"2"))
    (answer,) = tx.ask(COMMIT)
    assert closed(answer).code == 406
    assert [queue.ready for queue in tx.broker.tenant.queues.values()] == [0, 0]


def test_a_transaction_is_bounded(tx: Peer) -> None:
    tx.broker.tenant.set_limits({"transaction_operations_max": 2})
    assert tx.ask(publish(1, "", "q", b"x") * 2) == []
    (answer,) = tx.ask(publish(1, "", "q", b"x"))
    assert closed(answer).code == 506
    assert tx.broker.tenant.queues["q"].ready == 0


def test_times_to_live_begin_at_the_commit(tx: Peer) -> None:
    tx.send(publish(1, "", "q", b"x", props(expiration="1000")))
    tx.broker.pass_time(5_000)
    tx.ask(COMMIT)
    tx.broker.pass_time(999)
    assert tx.broker.tenant.queues["q"].ready == 1
    tx.broker.pass_time(1)
    assert tx.broker.tenant.queues["q"].ready == 0


def test_transactions_and_confirms_exclude_each_other(peer: Peer) -> None:
    peer.confirm()
    refusal = closed(peer.call(1, 90, 10))
    assert refusal == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", (90, 10))
    other = another(peer.broker)
    other.call(1, 90, 10)
    refusal = closed(other.call(1, 85, 10, b"\x00"))
    assert refusal == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", (85, 10))
    for number in (20, 30):
        refusal = closed(another(peer.broker).call(1, 90, number))
        assert refusal == (406, "PRECONDITION_FAILED - channel is not transactional", (90, number))


def test_commit_ok_waits_for_the_journal(broker: Broker) -> None:
    broker.shard.log.active = True
    broker.shard.log.open_segment(1)
    peer = another(broker)
    peer.send(method(1, 50, 10, short(0) + short_string("q") + octet(2) + NO_ARGUMENTS))
    broker.sync()
    peer.ask(method(1, 90, 10) + publish(1, "", "q", b"x", b"\x10\x00\x02"))
    broker.sync()
    assert peer.ask(COMMIT) == []
    broker.sync()
    assert names(peer.frames()) == [(90, 21)]


# Copies


def test_copies_reach_their_queues_and_hidden_ones_are_not_told(peer: Peer) -> None:
    for name in ("a", "b", "c"):
        peer.declare(name)
    sent = props(headers={"CC": ["b", "a"], "BCC": ["c"], "n": 1}, correlation_id="i")
    assert peer.ask(publish(1, "", "a", b"x", sent)) == []
    for name in ("a", "b", "c"):
        (one,) = got(peer, name)
        assert (one.key, one.exchange) == ("a", "")
        assert decode(one.props) == Properties(headers={"CC": ["b", "a"], "n": 1}, correlation_id="i")


def test_copies_of_one_exchange_and_those_that_reach_nobody(peer: Peer) -> None:
    peer.declare("q")
    bind(peer, "q", "amq.topic", "eu.#")
    peer.confirm()
    received = peer.ask(publish(1, "amq.topic", "us.new", b"x", props(headers={"CC": ["eu.new"]}), bits=1))
    assert names(received) == [(60, 80)]
    assert got(peer, "q")[0].key == "us.new"
    received = peer.ask(publish(1, "amq.topic", "us.new", b"x", props(headers={"BCC": ["asia"]}), bits=1))
    assert names(received) == [(60, 50), (60, 80)]
    assert headers(deliveries(received)[0].props) == {}


@pytest.mark.parametrize(("name", "value", "kind"), [("CC", "q", "longstr"), ("BCC", 5, "signedint")])
def test_copies_must_be_a_list(peer: Peer, name: str, value: object, kind: str) -> None:
    (answer,) = peer.ask(publish(1, "", "q", b"x", props(headers={name: value})))
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
    assert closed(answer) == (406, text, (60, 40))


def test_copies_in_a_transaction_and_of_a_dead_letter(tx: Peer) -> None:
    tx.declare("copy", x_dead_letter_exchange="amq.direct")
    tx.declare("dead")
    for key in ("q", "other"):
        bind(tx, "dead", "amq.direct", key)
    tx.ask(publish(1, "", "nowhere", b"x", props(headers={"CC": ["copy", "other"]})) + COMMIT)
    assert tx.broker.tenant.queues["copy"].ready == 1
    tx.get("copy")
    tx.nack(1, requeue=False)
    tx.ask(COMMIT)
    (one,) = got(tx, "dead")
    (death,) = deaths(one)
    assert death["routing-keys"] == ["nowhere", "copy", "other"]


# Direct reply-to


def test_a_question_and_its_answers(broker: Broker) -> None:
    asker, server = another(broker), another(broker)
    server.declare("questions")
    assert names(asker.consume(REPLY_TO, "replies", bits=2)) == [(60, 21)]
    asker.send(publish(1, "", "questions", b"?", props(reply_to=REPLY_TO, correlation_id="1")))
    (question,) = got(server, "questions")
    name = decode(question.props).reply_to
    assert name is not None
    assert name.startswith(REPLY_TO + ".")
    assert decode(question.props).correlation_id == "1"
    declared = server.declare(name, bits=1)
    assert (declared.name, declared.arguments[-4:]) == ((50, 11), b"\x00\x00\x00\x01")
    server.confirm()
    for body in (b"first", b"second"):
        assert names(server.ask(publish(1, "", name, body, props(correlation_id="1"), bits=1))) == [(60, 80)]
    first, second = deliveries(asker.frames())
    assert (first.consumer, first.exchange, first.key, first.redelivered) == ("replies", "", name, False)
    assert (first.body, second.body) == (b"first", b"second")
    assert strings(asker.call(1, 60, 30, short_string("replies") + b"\x00").arguments) == ["replies"]
    received = server.ask(publish(1, "", name, b"late", bits=1))
    assert names(received) == [(60, 50), (60, 80)]
    assert closed(server.declare(name, bits=1))[:2] == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
    assert not broker.face.replies


@pytest.mark.parametrize("how", ["channel", "connection", "lost"])
def test_answers_to_who_is_gone_reach_nobody(broker: Broker, how: str) -> None:
    asker = another(broker)
    asker.consume(REPLY_TO, "replies", bits=2)
    (name,) = broker.face.replies
    if how == "channel":
        asker.call(1, 20, 40, short(200) + b"\x00" + short(0) * 2)
    elif how == "connection":
        asker.call(0, 10, 50, short(200) + b"\x00" + short(0) * 2)
    else:
        asker.lose()
    assert not broker.face.replies
    assert names(another(broker).ask(publish(1, "", name, b"x", bits=1))) == [(60, 50)]


def test_direct_reply_to_used_wrongly(peer: Peer) -> None:
    (answer,) = peer.consume(REPLY_TO, "c")
    assert closed(answer) == (406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", (60, 20))
    other = another(peer.broker)
    (answer,) = other.ask(publish(1, "", "q", b"x", props(reply_to=REPLY_TO)))
    assert closed(answer) == (406, "PRECONDITION_FAILED - fast reply consumer does not exist", (60, 40))
    other = another(peer.broker)
    other.consume(REPLY_TO, "c", bits=2)
    (answer,) = other.consume(REPLY_TO, "d", bits=2)
    assert closed(answer) == (406, "PRECONDITION_FAILED - reply consumer already set", (60, 20))
    other = another(peer.broker)
    assert other.declare(REPLY_TO).arguments[-4:] == b"\x00\x00\x00\x01"
    (answer,) = other.get(REPLY_TO)
    assert closed(answer).code == 404


def test_an_answer_in_a_transaction(broker: Broker) -> None:
    asker, server = another(broker), another(broker)
    asker.consume(REPLY_TO, "replies", bits=2)
    (name,) = broker.face.replies
    server.call(1, 90, 10)
    server.send(publish(1, "", name, b"answer") + publish(1, "", REPLY_TO + ".nobody", b"x", bits=1))
    assert asker.frames() == []
    assert names(server.ask(COMMIT)) == [(60, 50), (90, 21)]
    assert [each.body for each in deliveries(asker.frames())] == [b"answer"]


# Delays


def test_a_delaying_exchange(peer: Peer) -> None:
    assert exchange(peer, "later", "x-delayed-message", x_delayed_type="topic").name == (40, 11)
    assert exchange(peer, "later", "x-delayed-message", x_delayed_type="topic").name == (40, 11)
    peer.declare("q")
    bind(peer, "q", "later", "a.*")
    month = 31 * 86_400_000
    for key, delay in (("a.long", month * 2), ("a.short", 50), ("b.none", 5)):
        peer.send(publish(1, "later", key, key.encode(), props(headers={"x-delay": delay}, expiration="1000")))
    peer.send(publish(1, "later", "a.now", b"now"))
    queue = peer.broker.tenant.queues["q"]
    assert (queue.ready, queue.delayed) == (1, 2)
    got(peer, "q")
    peer.broker.pass_time(50)
    (one,) = got(peer, "q")
    assert (one.body, headers(one.props)) == (b"a.short", {"x-delay": -50})
    peer.broker.pass_time(month * 2 - 51)
    assert got(peer, "q") == []
    peer.broker.pass_time(1)
    assert [each.body for each in got(peer, "q")] == [b"a.long"]


def test_without_a_delaying_exchange_the_header_means_nothing(peer: Peer) -> None:
    peer.declare("q")
    peer.send(publish(1, "", "q", b"x", props(headers={"x-delay": 5_000})))
    assert peer.broker.tenant.queues["q"].ready == 1


@pytest.mark.parametrize("inner", [None, "x-delayed-message", "nonsense", 5])
def test_a_delaying_exchange_needs_a_type(peer: Peer, inner: object) -> None:
    arguments: dict[str, Any] = {} if inner is None else {"x-delayed-type": inner}
    refusal = closed(exchange(peer, "later", "x-delayed-message", **arguments))
    text = "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"
    assert refusal == (406, text, (40, 10))


def test_a_letter_is_delayed_once(peer: Peer) -> None:
    exchange(peer, "later", "x-delayed-message", x_delayed_type="direct")
    peer.declare("work", x_dead_letter_exchange="later", x_dead_letter_routing_key="again")
    peer.declare("again")
    bind(peer, "again", "later", "again")
    peer.send(publish(1, "", "work", b"x", props(headers={"x-delay": 100})))
    peer.get("work")
    peer.nack(1, requeue=False)
    assert peer.broker.tenant.queues["again"].delayed == 1
    peer.broker.pass_time(100)
    assert [each.body for each in got(peer, "again")] == [b"x"]


# Dedup


def test_a_queue_that_asks_for_dedup_takes_a_message_once(peer: Peer) -> None:
    peer.declare("q", x_message_deduplication=True, x_deduplication_window=1_000)
    peer.declare("all")
    for queue in ("q", "all"):
        bind(peer, queue, "amq.fanout", "")
    peer.confirm()
    sent = [
        props(message_id="1"),
        props(message_id="2", headers={"x-deduplication-header": "1"}),
        props(message_id="2"),
    ]
    received = peer.ask(b"".join(publish(1, "amq.fanout", "", b"%d" % i, each) for i, each in enumerate(sent)))
    assert names(received) == [(60, 80)]
    assert [each.body for each in got(peer, "q")] == [b"0", b"2"]
    assert len(got(peer, "all")) == 3
    peer.broker.pass_time(1_000)
    peer.send(publish(1, "", "q", b"again", sent[0]))
    assert [each.body for each in got(peer, "q")] == [b"again"]


def test_an_exchange_that_asks_for_dedup_takes_a_message_once(peer: Peer) -> None:
    exchange(peer, "once", "fanout", x_message_deduplication=True)
    peer.declare("q")
    peer.confirm()
    # what reached nobody is not remembered
    assert names(peer.ask(publish(1, "once", "", b"0", props(message_id="1"), bits=1))) == [(60, 50), (60, 80)]
    bind(peer, "q", "once", "")
    for _ in range(2):
        assert names(peer.ask(publish(1, "once", "a", b"1", props(message_id="1"), bits=1))) == [(60, 80)]
    peer.send(publish(1, "once", "a", b"2", props(message_id="2")) + publish(1, "once", "a", b"3"))
    assert [each.body for each in got(peer, "q")] == [b"1", b"2", b"3"]


def test_dedup_in_a_transaction(tx: Peer) -> None:
    exchange(tx, "once", "fanout", x_message_deduplication=True)
    bind(tx, "q", "once", "")
    tx.ask(publish(1, "once", "", b"1", props(message_id="1")) * 2 + COMMIT)
    tx.ask(publish(1, "once", "", b"1", props(message_id="1")) + COMMIT)
    assert tx.broker.tenant.queues["q"].ready == 1


# Times to live, deaths


def test_a_time_to_live_of_nothing(peer: Peer) -> None:
    peer.declare("dead")
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    peer.declare("q", x_message_ttl=0, **arguments)
    peer.declare("plain", **arguments)
    peer.send(publish(1, "", "q", b"1") + publish(1, "", "plain", b"2", props(expiration="0")))
    assert [each.body for each in got(peer, "dead")] == [b"1", b"2"]
    peer.consume("q", "c", bits=2)
    assert [each.body for each in deliveries(peer.ask(publish(1, "", "q", b"3")))] == [b"3"]


def test_the_history_of_a_message_as_rabbitmq_writes_it(peer: Peer) -> None:
    chain: list[tuple[str, str, dict[str, Any]]] = [("one", "two", {"x-message-ttl": 30}), ("two", "three", {})]
    for name, target, extra in [*chain, ("three", "one", {})]:
        peer.declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key=target, **extra)
    sent = props(expiration="60000", headers={"CC": ["none"], "mine": 1})
    peer.send(publish(1, "", "one", b"x", sent))
    peer.broker.pass_time(30)
    tag = 0
    for queue in ("two", "three", "two"):
        if tag == 2:
            peer.broker.pass_time(1_000)
        (one,) = deliveries(peer.get(queue))
        tag = one.tag
        peer.nack(tag, requeue=False)
    (last,) = deliveries(peer.get("three"))
    told = headers(last.props)
    rows: Any = told["x-death"]
    assert [(row["queue"], row["reason"], row["count"]) for row in rows] == [
        ("two", "rejected", 2),
        ("three", "rejected", 1),
        ("one", "expired", 2),
    ]
    assert list(rows[0]) == ["count", "exchange", "queue", "reason", "routing-keys", "time"]
    assert list(rows[2]) == ["count", "exchange", "original-expiration", "queue", "reason", "routing-keys", "time"]
    assert rows[2]["original-expiration"] == "60000"
    assert rows[2]["routing-keys"] == ["one", "none"]
    assert rows[0]["routing-keys"] == ["two"]
    assert isinstance(rows[0]["time"], Timestamp)
    assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x02" in last.props
    assert {name: value for name, value in told.items() if name != "x-death"} == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": "one",
        "x-first-death-reason": "expired",
    }
    assert decode(last.props).expiration is None


def test_the_first_death_in_exact_bytes(peer: Peer) -> None:
    peer.declare("dead")
    peer.declare("q", x_dead_letter_exchange="amq.fanout")
    bind(peer, "dead", "amq.fanout", "")
    peer.send(publish(1, "", "q", b"m", props(expiration="60000", headers={"a": 1})))
    peer.get("q")
    peer.nack(1, requeue=False)
    (one,) = got(peer, "dead")
    seconds = (peer.broker.clock.wall_ms() // 1000).to_bytes(8, "big")
    row = (
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01\x06reasonS\x00\x00\x00\x08rejected\x05queueS\x00\x00\x00\x01q\x04timeT"
        + seconds
        + b"\x08exchangeS\x00\x00\x00\x00\x0crouting-keysA\x00\x00\x00\x06S\x00\x00\x00\x01q"
        + b"\x13original-expirationS\x00\x00\x00\x0560000"
    )
    told = (
        b"\x01aI\x00\x00\x00\x01\x07x-deathA"
        + long_string(b"F" + long_string(row))
        + b"\x16x-first-death-exchangeS\x00\x00\x00\x00\x13x-first-death-queueS\x00\x00\x00\x01q"
        + b"\x14x-first-death-reasonS\x00\x00\x00\x08rejected"
    )
    assert one.props == b"\x20\x00" + long_string(told)


def test_a_history_that_a_publisher_passes_on_is_continued(peer: Peer) -> None:
    peer.declare("dead")
    peer.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    row = {"count": 4, "reason": "rejected", "queue": "q", "time": Timestamp(9), "exchange": "x", "routing-keys": ["k"]}
    told = {"x-death": [row, "nonsense", {"queue": 5}], "x-first-death-queue": "older"}
    peer.send(publish(1, "", "q", b"m", props(headers=told)))
    peer.get("q")
    peer.nack(1, requeue=False)
    (one,) = got(peer, "dead")
    (death,) = deaths(one)
    assert (death["count"], death["exchange"], death["time"]) == (5, "x", 9)
    assert headers(one.props)["x-first-death-queue"] == "older"


def test_delayed_delivery_by_a_chain_of_queues(peer: Peer) -> None:
    """Celery's native delayed delivery: level n holds for 2**n units if bit n of the delay is set, else passes on."""
    levels, unit_ms = 4, 1_000
    names_ = [f"delay_{n}" for n in range(levels)]
    for name in ("delivery", *names_):
        exchange(peer, name, "topic", 2)
    for n in reversed(range(levels)):
        after = names_[n - 1] if n else "delivery"
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": after,
            "x-message-ttl": unit_ms << n,
        }
        assert peer.declare(names_[n], bits=2, **arguments).name == (50, 11)
        zeros = ".".join("*" * (levels - 1 - n))
        assert bind(peer, names_[n], names_[n], f"{zeros}.1.#".lstrip(".")).name == (50, 21)
        words = short(0) + short_string(after) + short_string(names_[n]) + short_string(f"{zeros}.0.#".lstrip("."))
        assert peer.call(1, 40, 30, words + octet(0) + NO_ARGUMENTS).name == (40, 31)
    peer.declare("tasks", bits=2)
    bind(peer, "tasks", "delivery", "#.tasks")
    for units in (5, 2, 0, 15):
        bits = ".".join(f"{units:04b}")
        peer.send(publish(1, names_[-1], f"{bits}.tasks", b"%d" % units))
    arrived: list[tuple[int, bytes]] = [(0, each.body) for each in got(peer, "tasks")]
    for second in range(1, 17):
        peer.broker.pass_time(unit_ms)
        arrived.extend((second, each.body) for each in got(peer, "tasks"))
    assert arrived == [(0, b"0"), (2, b"2"), (5, b"5"), (15, b"15")]


# Quorum queues, consumer timeouts


def test_a_quorum_queue_counts_deliveries_and_keeps_every_message(broker: Broker) -> None:
    broker.shard.log.active = True
    broker.shard.log.open_segment(1)
    peer = another(broker)
    peer.send(
        method(1, 50, 10, short(0) + short_string("q") + octet(2) + table(x_queue_type="quorum"))
        + method(1, 50, 10, short(0) + short_string("classic") + octet(2) + NO_ARGUMENTS)
    )
    for queue in ("q", "classic"):
        peer.send(
            method(
                1,
                50,
                20,
                short(0) + short_string(queue) + short_string("amq.fanout") + b"\x00\x00" + NO_ARGUMENTS,
            )
        )
    broker.sync()
    peer.frames()
    peer.send(method(1, 85, 10, b"\x00"))
    peer.frames()
    assert peer.ask(publish(1, "amq.fanout", "", b"transient")) == []
    broker.sync()
    assert names(peer.frames()) == [(60, 80)]
    for count in range(3):
        (one,) = deliveries(peer.get("q"))
        assert one.props.endswith(b"\x10x-delivery-countl" + count.to_bytes(8, "big"))
        assert one.redelivered == (count > 0)
        peer.nack(one.tag, requeue=True)
    assert deliveries(peer.get("classic"))[0].props == b"\x00\x00"


def test_a_delivery_that_takes_too_long_goes_to_another(broker: Broker) -> None:
    slow, other = another(broker), another(broker)
    slow.declare("q", x_consumer_timeout=1_000)
    slow.qos(1)
    slow.consume("q")
    (first,) = deliveries(slow.ask(publish(1, "", "q", b"1")))
    broker.pass_time(999)
    assert slow.frames() == []
    other.consume("q", "d")
    broker.pass_time(1)
    queue = broker.tenant.queues["q"]
    again = deliveries(slow.frames()) + deliveries(other.frames())
    assert [(each.body, each.redelivered) for each in again] == [(b"1", True)]
    assert queue.leased == 1
    # too late: ignored, once
    assert slow.ack(first.tag) == []
    assert queue.acked == 0
    (answer,) = slow.ack(first.tag)
    assert closed(answer)[:2] == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_lapsed_deliveries_do_not_pile_up(broker: Broker) -> None:
    peer = another(broker)
    peer.declare("q", x_consumer_timeout=10)
    peer.consume("q")
    peer.send(publish(1, "", "q", b"1"))
    for _ in range(50):
        broker.pass_time(10)
    channel = peer.connection.channels[1]
    assert len(channel.lapsed) == 50
    assert sum(lease is not None for lease in channel.unacked) + len(channel.old) == 1
    assert peer.ack(50, multiple=True) == []
    assert broker.tenant.queues["q"].leased == 1


# Secrets, mechanisms


@pytest.mark.parametrize("wrong", [b"wrong", b""])
def test_a_new_secret_is_verified(broker: Broker, wrong: bytes) -> None:
    peer = another(broker)
    principal = peer.connection.principal
    assert peer.call(0, 10, 70, long_string(b"guest") + short_string("renewed")).name == (10, 71)
    assert peer.connection.principal is not principal
    answer = peer.call(0, 10, 70, long_string(wrong) + short_string("oops"))
    refusal = closed(answer, hard=True)
    assert refusal.code == 530
    assert refusal.method == (10, 70)


def test_external_is_offered_to_who_has_a_certificate(broker: Broker) -> None:
    broker.users["device"] = ("", broker.users["guest"][1])
    plain = Peer(broker)
    certified = Peer(broker)
    certified.connection.certified = "device"
    for peer, offered in ((plain, b"PLAIN AMQPLAIN"), (certified, b"PLAIN AMQPLAIN EXTERNAL")):
        (start,) = peer.ask(b"AMQP\x00\x00\x09\x01")
        assert long_string(offered) in start.arguments
    words = table() + short_string("EXTERNAL") + long_string(b"") + short_string("en_US")
    (answer,) = plain.ask(method(0, 10, 11, words))
    assert closed(answer, hard=True).code == 504
    (answer,) = certified.ask(method(0, 10, 11, words))
    assert answer.name == (10, 30)
    assert certified.connection.user == "device"
