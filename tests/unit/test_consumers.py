"""Who gets the next message: credit, fairness, priorities, single active consumers, keys and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.consumers import Credit, Mailbox
from rookery.errors import InvalidArgument, LimitExceeded
from tests.unit.core_world import Recorder, World, a_world, bodies

world = pytest.fixture(a_world, name="world")


# Delivery


@pytest.mark.row("S3-2")
def test_what_was_stored_is_delivered_to_who_subscribes_later(world: World) -> None:
    queue = world.queue()
    world.fill(3)
    mailbox = world.mailbox(queue)
    assert bodies(mailbox.take()) == [b"0", b"1", b"2"]
    assert world.shard.touched == [mailbox]


def test_a_publish_reaches_a_waiting_subscription_at_once(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue)
    world.publish(b"now")
    assert bodies(mailbox.take()) == [b"now"]
    assert mailbox.take() == []


def test_a_mailbox_is_touched_once_until_it_is_emptied(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue)
    world.fill(3)
    assert world.shard.touched == [mailbox]
    world.shard.touched.clear()
    mailbox.take()
    world.publish()
    assert world.shard.touched == [mailbox]


def test_a_mailbox_hands_out_only_live_leases(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=2, lease_ms=100)
    world.fill(2)
    first = mailbox.leases[0]
    queue.ack(first)
    assert bodies(mailbox.take()) == [b"1"]


def test_without_acknowledgement_a_delivery_is_final(world: World) -> None:
    queue = world.queue()
    recorder = Recorder(queue, limit=1, no_ack=True)
    queue.subscribe(recorder)
    world.fill(5)
    assert [entry.message.body for entry in recorder.entries] == [b"0", b"1", b"2", b"3", b"4"]
    assert recorder.leases == [None] * 5
    assert (queue.acked, queue.leased, queue.ready, recorder.inflight) == (5, 0, 0, 0)
    assert world.tenant.memory_bytes == 0


# Credit


def test_credit_is_the_number_of_unsettled_deliveries(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=2)
    world.fill(5)
    first = mailbox.take()
    assert bodies(first) == [b"0", b"1"]
    assert not mailbox.has_credit()
    world.settle(first[1])
    assert bodies(mailbox.take()) == [b"2"]
    assert (queue.ready, mailbox.inflight) == (2, 2)


@pytest.mark.parametrize("outcome", ["ack", "retry", "release", "reject"])
def test_every_outcome_gives_credit_back(world: World, outcome: str) -> None:
    queue = world.queue(face="http")
    mailbox = world.mailbox(queue, credit=1)
    world.fill(2)
    (lease,) = mailbox.take()
    world.settle(lease, outcome)
    assert bodies(mailbox.take()) == ([b"0"] if outcome == "release" else [b"1"])
    assert mailbox.inflight == 1


def test_a_lapse_gives_credit_back(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=1, lease_ms=100)
    world.publish()
    mailbox.take()
    world.advance(100)
    (again,) = mailbox.take()
    assert (again.attempt, mailbox.inflight) == (2, 1)
    assert (queue.delivered, queue.redelivered, mailbox.delivered) == (2, 1, 2)


def test_a_paused_subscription_takes_nothing(world: World) -> None:
    queue = world.queue()
    mailbox, other = world.mailbox(queue, credit=5), world.mailbox(queue, credit=1)
    mailbox.paused = True
    world.fill(3)
    assert (len(mailbox.take()), len(other.take())) == (0, 1)
    mailbox.paused = False
    queue.mark_dirty()
    world.shard.flush()
    assert bodies(mailbox.take()) == [b"1", b"2"]


def test_shared_credit_is_shared(world: World) -> None:
    queue = world.queue()
    credit = Credit(3)
    mailboxes = [Mailbox(queue, 2, 0, 0, world.shard.touched, False) for _ in range(2)]
    for mailbox in mailboxes:
        mailbox.shared = credit
        queue.subscribe(mailbox)
    world.fill(6)
    taken = [mailbox.take() for mailbox in mailboxes]
    assert sorted(len(leases) for leases in taken) == [1, 2]
    assert credit.inflight == 3
    world.settle(taken[0][0])
    assert credit.inflight == 3
    assert queue.ready == 2


def test_shared_credit_freed_on_one_queue_is_used_on_another(world: World) -> None:
    one, two = world.queue("one"), world.queue("two")
    credit = Credit(1)
    mailboxes = []
    for queue in (one, two):
        mailbox = Mailbox(queue, 0, 0, 0, world.shard.touched, False)
        mailbox.shared = credit
        queue.subscribe(mailbox)
        mailboxes.append(mailbox)
        world.publish(key=queue.name)
    (lease,) = mailboxes[0].take()
    assert two.ready == 1
    world.settle(lease)
    assert bodies(mailboxes[1].take()) == [b"x"]


def test_shared_credit_forgets_queues_that_are_gone(world: World) -> None:
    credit = Credit(1)
    for _ in range(3):
        queue = world.queue("temp")
        mailbox = Mailbox(queue, 0, 0, 0, world.shard.touched, False)
        mailbox.shared = credit
        queue.subscribe(mailbox)
        world.publish(key="temp")
        world.tenant.delete_queue("temp")
    assert (credit.members, credit.inflight) == ([], 0)


# The choice


def deal(world: World, mailboxes: list[Mailbox], count: int) -> list[int]:
    """Publish one by one, settling nothing; how many each got."""
    world.fill(count)
    return [len(mailbox.take()) for mailbox in mailboxes]


@pytest.mark.row("S3-13")
@given(st.integers(1, 6), st.integers(0, 60))
def test_round_robin_is_fair(consumers: int, count: int) -> None:
    world = World()
    queue = world.queue(distribution="round-robin")
    mailboxes = [world.mailbox(queue) for _ in range(consumers)]
    got = deal(world, mailboxes, count)
    assert sum(got) == count
    assert max(got) - min(got) <= 1


def test_round_robin_passes_over_the_busy(world: World) -> None:
    queue = world.queue()
    small, large = world.mailbox(queue, credit=1), world.mailbox(queue, credit=10)
    assert deal(world, [small, large], 8) == [1, 7]


@pytest.mark.row("S3-13")
def test_least_busy_goes_to_who_has_least_in_hand(world: World) -> None:
    queue = world.queue(distribution="least-busy")
    slow, quick = world.mailbox(queue), world.mailbox(queue)
    for _ in range(10):
        world.publish()
        for lease in quick.take():
            world.settle(lease)
    assert (slow.delivered, quick.delivered) == (1, 9)


def test_least_busy_is_fair_among_the_idle(world: World) -> None:
    queue = world.queue(distribution="least-busy")
    mailboxes = [world.mailbox(queue) for _ in range(3)]
    for _ in range(9):
        world.publish()
        for mailbox in mailboxes:
            for lease in mailbox.take():
                world.settle(lease)
    assert [mailbox.delivered for mailbox in mailboxes] == [3, 3, 3]


@pytest.mark.row("S3-13")
@pytest.mark.parametrize("distribution", ["round-robin", "priority", "least-busy"])
def test_higher_consumer_priority_first(world: World, distribution: str) -> None:
    queue = world.queue(distribution=distribution)
    low = world.mailbox(queue, credit=2, priority=-1)
    high = [world.mailbox(queue, credit=2, priority=5) for _ in range(2)]
    middle = world.mailbox(queue, credit=2, priority=1)
    world.fill(4)
    assert [len(m.take()) for m in (*high, middle, low)] == [2, 2, 0, 0]
    world.fill(3)
    assert [len(m.take()) for m in (*high, middle, low)] == [0, 0, 2, 1]


def test_equals_of_high_priority_take_turns(world: World) -> None:
    queue = world.queue()
    world.mailbox(queue, priority=0)
    high = [world.mailbox(queue, priority=1) for _ in range(3)]
    assert deal(world, high, 9) == [3, 3, 3]


# Single active consumer


def test_one_consumer_is_active_and_the_next_takes_over(world: World) -> None:
    queue = world.queue(single_active=True)
    first, second = world.mailbox(queue, credit=2), world.mailbox(queue, credit=9, priority=7)
    third = world.mailbox(queue, credit=9, priority=3)
    world.fill(4)
    held = first.take()
    assert bodies(held) == [b"0", b"1"]
    assert (second.take(), third.take()) == ([], [])
    queue.unsubscribe(first)
    for lease in held:
        queue.release(lease)
    world.shard.flush()
    # in one turn, so they are back before the next is asked
    assert bodies(second.take()) == [b"0", b"1", b"2", b"3"]
    assert third.take() == []


def test_a_settled_order_with_a_single_active_consumer(world: World) -> None:
    queue = world.queue(single_active=True)
    first, second = world.mailbox(queue, credit=1), world.mailbox(queue, credit=1)
    world.fill(3)
    queue.unsubscribe(second)
    seen = []
    for _ in range(3):
        (lease,) = first.take()
        seen.append(lease.entry.message.body)
        world.settle(lease)
    assert seen == [b"0", b"1", b"2"]


# Leases, lapses and the end


@pytest.mark.row("S3-12")
def test_the_redelivery_hook_tells_of_every_lapse(world: World) -> None:
    queue = world.queue()
    recorder = Recorder(queue, limit=1, lease_ms=1_000)
    queue.subscribe(recorder)
    world.publish()
    first = recorder.leases[0]
    world.advance(999)
    assert recorder.ran_out == []
    world.advance(1)
    assert recorder.ran_out == [first]
    assert first is not None
    assert not first.live
    assert len(recorder.leases) == 2
    world.advance(1_000)
    assert recorder.ran_out == recorder.leases[:2]
    last = recorder.leases[2]
    assert last is not None
    assert last.attempt == 3
    queue.ack(last)
    world.advance(5_000)
    assert len(recorder.ran_out) == 2
    assert queue.lapsed == 2


def test_ending_a_subscription_leaves_its_leases_alone(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=1)
    world.fill(2)
    (lease,) = mailbox.take()
    queue.unsubscribe(mailbox)
    queue.unsubscribe(mailbox)
    assert lease.live
    assert (queue.leased, queue.ready, queue.consumers()) == (1, 1, 0)
    assert world.settle(lease)
    assert mailbox.inflight == 0


@pytest.mark.parametrize("reason", ["deleted", "auto-delete"])
def test_subscriptions_are_told_why_they_ended(world: World, reason: str) -> None:
    queue = world.queue(auto_delete=reason == "auto-delete")
    mailbox = world.mailbox(queue)
    claim = world.shard.wait_claim(queue, 1, 1_000)
    if reason == "deleted":
        world.tenant.delete_queue("jobs")
        assert mailbox.ended == "deleted"
    else:
        queue.unsubscribe(mailbox)
        assert mailbox.ended == ""
    assert claim.ended == reason
    assert not claim.active
    assert claim in world.shard.touched


def test_a_waiting_claim_gets_up_to_its_count(world: World) -> None:
    queue = world.queue()
    claim = world.shard.wait_claim(queue, 2, 1_000)
    assert (queue.waiting_claims(), queue.consumers()) == (1, 0)
    world.fill(3)
    assert bodies(claim.take()) == [b"0", b"1"]
    queue.unsubscribe(claim)
    assert (queue.waiting_claims(), queue.ready) == (0, 1)
    assert not queue.deleted


def test_waiting_claims_are_served_in_turn(world: World) -> None:
    queue = world.queue()
    claims = [world.shard.wait_claim(queue, 1, 1_000) for _ in range(3)]
    world.fill(3)
    assert [bodies(claim.take()) for claim in claims] == [[b"0"], [b"1"], [b"2"]]


def test_a_delayed_message_wakes_a_waiting_claim_when_due(world: World) -> None:
    queue = world.queue()
    claim = world.shard.wait_claim(queue, 1, 1_000)
    world.publish(delay_ms=500)
    assert world.shard.next_due_ms() == 500
    world.advance(499)
    assert claim.take() == []
    world.advance(1)
    assert bodies(claim.take()) == [b"x"]


@pytest.mark.parametrize(
    ("count", "lease_ms", "argument"), [(0, 1, "count"), (-1, 1, "count"), (1, 0, "lease_ms"), (1, -1, "lease_ms")]
)
def test_a_claim_asks_for_something_and_for_some_time(world: World, count: int, lease_ms: int, argument: str) -> None:
    queue = world.queue()
    world.fill(3)
    for claim in (world.shard.claim, world.shard.wait_claim):
        with pytest.raises(InvalidArgument) as caught:
            claim(queue, count, lease_ms)
        assert caught.value.argument == argument
    assert (queue.ready, queue.leased, queue.waiting_claims()) == (3, 0, 0)


@pytest.mark.parametrize(("credit", "lease_ms", "argument"), [(-1, 0, "credit"), (1, -1, "lease_ms")])
def test_a_subscription_has_no_negative_credit_or_lease(
    world: World, credit: int, lease_ms: int, argument: str
) -> None:
    queue = world.queue()
    with pytest.raises(InvalidArgument) as caught:
        world.shard.subscribe(queue, credit, lease_ms)
    assert caught.value.argument == argument
    assert queue.consumers() == 0


def test_limits_on_waiting_claims_and_subscriptions(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    assert world.tenant.limits.waiting_claims_max == 1_000
    assert world.tenant.limits.queue_subscriptions_max == 0
    world.tenant.set_limits({"waiting_claims_max": 1, "queue_subscriptions_max": 1})
    claim = world.shard.wait_claim(queue, 1, 1_000)
    mailbox = world.mailbox(queue)
    with pytest.raises(LimitExceeded) as caught:
        world.shard.wait_claim(queue, 1, 1_000)
    assert caught.value.argument == "wait"
    with pytest.raises(LimitExceeded) as caught:
        world.mailbox(queue)
    assert caught.value.argument == "queue"
    world.mailbox(other)
    queue.unsubscribe(claim)
    queue.unsubscribe(mailbox)
    world.shard.wait_claim(queue, 1, 1_000)
    world.mailbox(queue)


def test_a_limit_on_the_subscriptions_of_a_tenant(world: World) -> None:
    one, two = world.queue("one"), world.queue("two")
    assert world.tenant.limits.subscriptions_max == 100_000
    world.tenant.set_limits({"subscriptions_max": 2})
    mailbox = world.mailbox(one)
    world.mailbox(two)
    with pytest.raises(LimitExceeded):
        world.mailbox(two)
    one.unsubscribe(mailbox)
    world.mailbox(two)
    world.tenant.delete_queue("two")
    world.mailbox(one)
    world.mailbox(one)
