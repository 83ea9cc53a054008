"""Acknowledgements by id, transactions by id and the dead-letter topic of the embedded broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rookery
from rookery import errors
from rookery.embed import HIGH, Message
from tests.contract.faces import ALL_FACES, Face, embedded_only, faced

face = pytest.fixture(faced, params=ALL_FACES)


async def nothing_on(subscription: Any) -> bool:
    try:
        await subscription.get(0)
    except TimeoutError:
        return True
    return False


# Ack policies


@pytest.mark.row("S1-13", "S1-14")
async def test_a_message_without_ack_policy_is_not_tracked(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    given = await broker.publish("t", "x", ack="none")
    message = await subscription.get(0)
    assert message.ack_id is None
    with pytest.raises(errors.MessageNotAcked):
        await broker.ack("t", given)
    await face.advance(200_000)
    assert await nothing_on(subscription)


@pytest.mark.row("S1-13", "S1-14")
async def test_required_has_the_default_deadline_unless_one_is_given(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    for given, wait in ((None, 30_000), (70, 70)):
        await broker.publish("t", "x", ack="required", ack_id="a", ack_timeout_ms=given)
        message = await subscription.get(0)
        assert (message.ack_id, message.meta) == ("a", {})
        await face.advance(wait - 1)
        assert await nothing_on(subscription)
        await face.advance(1)
        assert (await subscription.get(0)).data == "x"
        await broker.ack("t", "a")


@pytest.mark.row("S1-13", "S1-14")
async def test_timeout_needs_its_deadline(face: Face) -> None:
    broker = face.make(enable_ack_support=True, ack_timeout_ms=123)
    subscription = await broker.subscribe("t")
    with pytest.raises(errors.InvalidConfig) as missing:
        await broker.publish("t", "x", ack="timeout")
    assert missing.value.argument == "ack_timeout_ms"
    await broker.publish("t", "x", ack="timeout", ack_timeout_ms=50)
    await subscription.get(0)
    await face.advance(50)
    assert (await subscription.get(0)).data == "x"


@pytest.mark.row("S1-15", "S1-14")
@pytest.mark.parametrize("policy", ["required", "timeout"])
async def test_without_an_ack_it_is_seen_1_plus_3_times_and_then_dead(face: Face, policy: str) -> None:
    broker = face.make(enable_ack_support=True, enable_dead_letter_queue=True, dead_letter_topic="dlq")
    subscription = await broker.subscribe("orders")
    dead = await broker.subscribe("dlq")
    await broker.publish("orders", Message("x", id="order-1"), ack=policy, ack_timeout_ms=50)
    for _ in range(1 + 3):
        assert (await subscription.get(0)).id == "order-1"
        assert await nothing_on(subscription)
        await face.advance(50)
    assert await nothing_on(subscription)
    letter = await dead.get(0)
    assert (letter.id, letter.data, letter.topic) == ("order-1", "x", "orders")
    assert letter.reason is not None
    assert "ack timeout after" in letter.reason
    with pytest.raises(errors.MessageNotAcked):
        await broker.ack("orders", "order-1")


@pytest.mark.row("S1-15")
async def test_the_same_in_real_time() -> None:
    async with rookery.AsyncBroker(
        enable_ack_support=True, enable_dead_letter_queue=True, dead_letter_topic="dlq"
    ) as broker:
        subscription = await broker.subscribe("orders")
        dead = await broker.subscribe("dlq")
        await broker.publish("orders", "x", ack="timeout", ack_timeout_ms=2)
        seen = [await subscription.get(5_000) for _ in range(4)]
        letter = await dead.get(5_000)
        assert {m.id for m in seen} == {letter.id}
        assert "ack timeout after" in str(letter.reason)


@pytest.mark.row("S1-16", "S1-45")
async def test_an_ack_id_is_made_of_the_message_id_and_pending_ones_are_taken(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    given = await broker.publish("t", "x", ack="required")
    assert (await subscription.get(0)).ack_id == given
    await broker.ack("t", given)
    await broker.publish("t", Message("y", id="mine"), ack="required")
    await broker.publish("t", "z", ack="required", ack_id="given")
    for again in (
        broker.publish("t", Message("again", id="mine"), ack="required"),
        broker.publish("t", "again", ack="required", ack_id="mine"),
        broker.publish("t", "again", ack="required", ack_id="given"),
    ):
        with pytest.raises(errors.MessageAcknowledged) as taken:
            await again
        assert taken.value.argument == "ack_id"
    # on another topic it is another message
    other = await broker.subscribe("u")
    await broker.publish("u", "elsewhere", ack="required", ack_id="mine")
    assert [(await subscription.get(0)).data for _ in range(2)] == ["y", "z"]
    await broker.ack("t", "mine")
    await broker.publish("t", "free again", ack="required", ack_id="mine")
    assert (await subscription.get(0)).data == "free again"
    assert (await other.get(0)).data == "elsewhere"


@pytest.mark.row("S1-17", "S1-45")
async def test_an_ack_stops_redelivery_and_is_taken_once(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", ack="required", ack_id="a")
    await subscription.get(0)
    await broker.ack("t", "a")
    for call in (broker.ack("t", "a"), broker.nack("t", "a"), broker.ack("t", "unknown"), broker.ack("u", "a")):
        with pytest.raises(errors.MessageNotAcked):
            await call
    await face.advance(200_000)
    assert await nothing_on(subscription)


@pytest.mark.row("S1-17")
async def test_a_late_ack_counts_while_the_message_waits_to_be_delivered_again(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", ack="timeout", ack_id="a", ack_timeout_ms=50)
    await subscription.get(0)
    await face.advance(50)
    assert (await subscription.stats())["queue_len"] == 1
    await broker.ack("t", "a")
    assert await nothing_on(subscription)
    assert (await subscription.stats())["received"] == 1


@pytest.mark.row("S1-17")
async def test_an_ack_is_for_all_who_got_it_and_takes_it_from_nobody(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    quick, slow = await broker.subscribe("t"), await broker.subscribe("t")
    await broker.publish("t", "x", ack="required", ack_id="a")
    assert (await quick.get(0)).data == "x"
    await broker.ack("t", "a")
    assert (await slow.get(0)).data == "x"
    await face.advance(200_000)
    assert await nothing_on(quick)
    assert await nothing_on(slow)


@pytest.mark.row("S1-18")
async def test_a_nack_means_redelivery_at_once_and_counts(face: Face) -> None:
    broker = face.make(enable_ack_support=True, enable_dead_letter_queue=True, dead_letter_topic="dlq")
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", ack="required", ack_id="a")
    with pytest.raises(errors.MessageNotAcked):
        await broker.nack("t", "a")
    for _ in range(3):
        assert (await subscription.get(0)).data == "x"
        await broker.nack("t", "a")
    assert (await subscription.get(0)).data == "x"
    await broker.nack("t", "a")
    assert await nothing_on(subscription)
    assert [m.reason for m in await broker.drain_dead_letters()] == ["negative acknowledgement"]
    for call in (broker.nack("t", "a"), broker.nack("t", "unknown")):
        with pytest.raises(errors.MessageNotAcked):
            await call


@pytest.mark.row("S1-18")
async def test_after_a_nack_the_deadline_goes_on(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", ack="timeout", ack_id="a", ack_timeout_ms=50)
    await subscription.get(0)
    await broker.nack("t", "a")
    await subscription.get(0)
    await face.advance(50)
    await subscription.get(0)
    await broker.ack("t", "a")
    await face.advance(50)
    assert await nothing_on(subscription)


@pytest.mark.row("S1-19", "S1-45")
@embedded_only
async def test_acks_are_refused_while_they_are_switched_off(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    for call in (
        broker.publish("t", "x", ack="required"),
        broker.publish("t", "x", ack="timeout", ack_timeout_ms=5),
        broker.ack("t", "a"),
        broker.nack("t", "a"),
    ):
        with pytest.raises(errors.InvalidConfig):
            await call
    assert await nothing_on(subscription)
    for bad in ({"ack": "sometimes"}, {"ack_id": "a"}, {"ack_timeout_ms": 5}):
        with pytest.raises(errors.InvalidConfig) as refused:
            await broker.publish("t", "x", **bad)
        assert refused.value.argument == "ack"


@pytest.mark.row("S1-43")
async def test_ack_priority_and_expiry_hold_at_once(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "plain")
    message = Message("x", priority=HIGH, ttl_ms=120)
    await broker.publish("t", message, ack="timeout", ack_id="a", ack_timeout_ms=50)
    assert (await subscription.get(0)).data == "x"
    assert (await subscription.get(0)).data == "plain"
    await face.advance(50)
    assert (await subscription.get(0)).data == "x"
    # it does not expire while somebody has it, but it does not come back after its time
    await face.advance(50)
    assert (await subscription.get(0)).data == "x"
    await face.advance(50)
    assert await nothing_on(subscription)
    with pytest.raises(errors.MessageNotAcked):
        await broker.ack("t", "a")


async def test_a_dedup_key_and_an_ack_id_go_together(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t")
    first = await broker.publish("t", Message("x", dedup_key="k"), ack="required")
    assert await broker.publish("t", Message("x", dedup_key="k"), ack="required") == first
    assert (await subscription.get(0)).ack_id == first
    assert await nothing_on(subscription)


@embedded_only
async def test_pending_ack_ids_are_forgotten_with_their_messages(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t", buffer_size=1)
    for _ in range(300):
        await broker.publish("t", "pushes the one before out", ack="required")
    assert len(getattr(broker, "inner", broker)._context.tenant.receipts) <= 70
    await subscription.cancel()


# Transactions by id


@pytest.mark.row("S1-25")
async def test_nothing_is_visible_before_commit_and_all_of_it_after_in_order(face: Face) -> None:
    broker = face.make(enable_transactions=True)
    a, b = await broker.subscribe("a"), await broker.subscribe("b")
    first = await broker.publish("a", 1, transaction="tx-1")
    await broker.publish("b", Message(2, id="mine"), transaction="tx-1")
    await broker.publish("a", Message(3, dedup_key="k"), transaction="tx-1")
    await broker.publish("a", Message(4, dedup_key="k"), transaction="tx-1")
    await broker.publish("a", "another", transaction="tx-2")
    assert await nothing_on(a)
    assert await nothing_on(b)
    await broker.commit("tx-1")
    received = [await a.get(0), await a.get(0)]
    assert [m.data for m in received] == [1, 3]
    assert received[0].id == first
    assert (await b.get(0)).id == "mine"
    assert await nothing_on(a)


@pytest.mark.row("S1-26")
async def test_what_is_rolled_back_is_never_delivered(face: Face) -> None:
    broker = face.make(enable_transactions=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", transaction="tx")
    await broker.rollback("tx")
    await face.advance(200_000)
    assert await nothing_on(subscription)


@pytest.mark.row("S1-27", "S1-44")
@embedded_only
async def test_a_transaction_that_timed_out_says_so(face: Face) -> None:
    broker = face.make(enable_transactions=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", transaction="tx")
    await face.advance(29_999)
    await broker.publish("t", "y", transaction="tx")
    await face.advance(1)
    for call in (broker.publish("t", "z", transaction="tx"), broker.commit("tx"), broker.rollback("tx")):
        with pytest.raises(errors.TransactionTimeout):
            await call
    assert await nothing_on(subscription)
    quick = face.make(enable_transactions=True, transaction_timeout_ms=100)
    await quick.publish("t", "x", transaction="tx")
    await face.advance(100)
    with pytest.raises(errors.TransactionTimeout):
        await quick.commit("tx")


@pytest.mark.row("S1-28", "S1-44")
async def test_an_unknown_transaction(face: Face) -> None:
    broker = face.make(enable_transactions=True)
    for call in (broker.commit("tx"), broker.rollback("tx")):
        with pytest.raises(errors.TransactionNotFound):
            await call


@pytest.mark.row("S1-29", "S1-45")
async def test_a_transaction_that_ended_says_how(face: Face) -> None:
    broker = face.make(enable_transactions=True)
    subscription = await broker.subscribe("t")
    for name, end, error in (
        ("done", broker.commit, errors.TransactionCommitted),
        ("undone", broker.rollback, errors.TransactionRolledBack),
    ):
        await broker.publish("t", "x", transaction=name)
        await end(name)
        for call in (broker.commit(name), broker.rollback(name), broker.publish("t", "late", transaction=name)):
            with pytest.raises(error):
                await call
    assert (await subscription.get(0)).data == "x"
    assert await nothing_on(subscription)


@embedded_only
@pytest.mark.row("S1-29", "S1-45")
async def test_transactions_are_refused_while_they_are_switched_off(face: Face) -> None:
    off = face.make()
    for call in (off.publish("t", "x", transaction="tx"), off.commit("tx"), off.rollback("tx")):
        with pytest.raises(errors.TransactionNotSupported):
            await call


async def test_an_invalid_member_leaves_the_transaction_as_it_was(face: Face) -> None:
    broker = face.make(enable_transactions=True, memory_bytes_max=2_000)
    subscription = await broker.subscribe("t")
    with pytest.raises(errors.InvalidConfig):
        await broker.publish("t", "x", transaction="tx", ack="required")
    with pytest.raises(errors.NilMessage):
        await broker.publish("t", None, transaction="tx")
    with pytest.raises(errors.TransactionNotFound):
        await broker.commit("tx")
    await broker.publish("t", "small", transaction="tx")
    await broker.publish("t", b"x" * 2_000, transaction="tx")
    with pytest.raises(errors.MemoryLimitExceeded):
        await broker.commit("tx")
    assert await nothing_on(subscription)
    await broker.update_config(memory_bytes_max=0)
    await broker.commit("tx")
    assert (await subscription.get(0)).data == "small"
    await broker.publish("nobody", "x", transaction="must", mandatory=True)
    with pytest.raises(errors.Unroutable):
        await broker.commit("must")


# The dead-letter topic


@pytest.mark.row("S1-31")
async def test_a_message_that_is_given_up_reaches_subscribers_of_the_dead_letter_topic(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    dead = await broker.subscribe("dlq")
    message = Message({"n": 1}, id="failed-1", meta={"by": "me"})
    assert await broker.publish_dead_letter("orders", message, "validation error") == "failed-1"
    letter = await dead.get(0)
    assert (letter.id, letter.data, letter.meta) == ("failed-1", {"n": 1}, {"by": "me"})
    assert (letter.topic, letter.reason) == ("orders", "validation error")
    assert letter.deaths[0]["queue"] == "orders"


@pytest.mark.row("S1-32")
async def test_dead_letter_stats(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    empty = {"enabled": True, "topic": "dlq", "total_messages": 0, "current_count": 0, "last_message_time": None}
    assert await broker.dead_letter_stats() == empty
    for n in range(3):
        await broker.publish_dead_letter("t", n, "why")
        await face.advance(1_000)
    await broker.drain_dead_letters(1)
    assert await broker.dead_letter_stats() == {
        "enabled": True,
        "topic": "dlq",
        "total_messages": 3,
        "current_count": 2,
        "last_message_time": face.clock.wall_ms() - 1_000,
    }
    assert await face.make().dead_letter_stats() == {**empty, "enabled": False, "topic": ""}


@pytest.mark.row("S1-33", "S1-44")
async def test_dead_letters_that_are_switched_off(face: Face) -> None:
    broker = face.make()
    for call in (
        broker.publish_dead_letter("t", "x", "why"),
        broker.drain_dead_letters(),
        broker.replay_dead_letters(),
    ):
        with pytest.raises(errors.DeadLetterNotSupported):
            await call
    with pytest.raises(errors.InvalidConfig) as missing:
        face.make(enable_dead_letter_queue=True)
    assert missing.value.argument == "dead_letter_topic"
    with pytest.raises(errors.InvalidConfig):
        await broker.update_config(enable_dead_letter_queue=True)


@pytest.mark.row("S1-34")
async def test_dead_letters_are_drained_or_replayed_to_their_topics(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    for n in range(5):
        await broker.publish_dead_letter("ab"[n % 2], n, "why")
    assert [m.data for m in await broker.drain_dead_letters(1)] == [0]
    # nobody subscribes yet: nothing is replayed, nothing is lost
    assert await broker.replay_dead_letters() == []
    a, b = await broker.subscribe("a"), await broker.subscribe("b")
    assert [m.data for m in await broker.replay_dead_letters(2)] == [1, 2]
    assert (await a.get(0)).data == 2
    received = await b.get(0)
    assert (received.data, received.topic, received.reason) == (1, "b", None)
    assert [m.data for m in await broker.drain_dead_letters()] == [3, 4]
    assert await broker.drain_dead_letters() == []
    assert (await broker.dead_letter_stats())["current_count"] == 0


async def test_queues_of_this_broker_die_into_the_dead_letter_topic_unless_they_say_otherwise(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    default, own = await broker.queue("default"), await broker.queue("own", dead_letter_queue="mine")
    for queue in (default, own):
        await queue.publish(Message(queue.name, ttl_ms=500))
        await queue.publish(queue.name)
        (first, second) = await queue.claim(2)
        await second.reject("unfit")
        await first.release()
    # what expires is dropped, unless a queue declares where it goes
    await face.advance(500)
    assert [m.data for m in await broker.drain_dead_letters()] == ["default"]
    assert [m.data for m in await (await broker.queue("mine")).peek(5)] == ["own", "own"]


@embedded_only
async def test_dead_letters_switched_on_later_count_for_what_exists(face: Face) -> None:
    broker = face.make()
    jobs = await broker.queue("jobs")
    await broker.update_config(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    await jobs.publish(1)
    await (await jobs.claim())[0].reject("a")
    await broker.update_config(enable_dead_letter_queue=False)
    await jobs.publish(2)
    await (await jobs.claim())[0].reject("b")
    await broker.update_config(enable_dead_letter_queue=True)
    assert [m.data for m in await broker.drain_dead_letters()] == [1]


@pytest.mark.row("S1-31")
async def test_dropped_messages_are_dropped_not_buried(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="dlq")
    subscription = await broker.subscribe("t", buffer_size=1)
    for n in range(5):
        await broker.publish("t", n)
    assert (await subscription.stats())["dropped"] == 4
    assert await broker.drain_dead_letters() == []


async def test_subscribers_of_the_dead_letter_topic_come_and_go(face: Face) -> None:
    broker = face.make(enable_dead_letter_queue=True, dead_letter_topic="alerts/dead")
    seen = asyncio.create_task((await broker.subscribe("alerts/dead")).get(10_000))
    await asyncio.sleep(0)
    await broker.publish_dead_letter("orders/new", "x", "why")
    letter = await seen
    assert letter.topic == "orders.new"
    assert [m.data for m in await broker.drain_dead_letters()] == ["x"]
