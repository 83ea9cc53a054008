"""The laws of a queue, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.dead_letters import move
from rookery.core.policy import Policy
from rookery.core.queue import ACCEPTED, DISCARDED, REFUSED
from rookery.format.model import PRIORITY_MAX, PRIORITY_MIN, Message, Route
from tests.unit.core_world import World, a_world, bodies, waiting

world = pytest.fixture(a_world, name="world")

YEAR_MS = 365 * 86_400_000


# Order (law 3)


@pytest.mark.row("S3-18")
def test_first_in_first_out(world: World) -> None:
    queue = world.queue()
    assert world.claim(queue) == []
    world.fill(5)
    assert queue.ready == 5
    assert world.drain(queue) == [b"0", b"1", b"2", b"3", b"4"]
    assert queue.ready == 0
    assert world.claim(queue, 10) == []


@given(st.lists(st.integers(PRIORITY_MIN, PRIORITY_MAX) | st.integers(-2, 2), max_size=100))
def test_priority_then_sequence(priorities: list[int]) -> None:
    world = World()
    queue = world.queue()
    for seq, priority in enumerate(priorities):
        world.publish(b"%d" % seq, priority=priority)
    expected = [b"%d" % seq for seq in sorted(range(len(priorities)), key=lambda seq: (-priorities[seq], seq))]
    assert waiting(queue) == expected
    assert world.drain(queue) == expected
    world.check()


def test_the_whole_range_of_priorities(world: World) -> None:
    queue = world.queue()
    low = [PRIORITY_MIN, PRIORITY_MIN + 1, -(1 << 62) - 1, -(1 << 62), -1]
    for priority in (*low, 0, *(-1 - priority for priority in reversed(low))):
        world.publish(str(priority).encode(), priority=priority)
    order = [int(body) for body in world.drain(queue)]
    assert order == sorted(order, reverse=True)
    assert (order[0], order[-1]) == (PRIORITY_MAX, PRIORITY_MIN)


def test_a_hundred_priorities_at_once_and_over_again(world: World) -> None:
    queue = world.queue()
    for _ in range(3):
        for priority in range(-50, 50):
            world.publish(str(priority).encode(), priority=priority)
        assert [int(body) for body in world.drain(queue)] == list(range(49, -51, -1))
        assert queue.ready == 0


def test_priorities_count_only_where_a_queue_is_ordered(world: World) -> None:
    queue = world.queue(face="amqp")
    ordered = world.queue("ordered", "amqp", ordered=True, priority_max=5)
    for body, priority in ((b"1", 3), (b"2", 9), (b"3", 5), (b"4", 200)):
        for key in ("jobs", "ordered"):
            world.publish(body, key, priority=priority)
    assert world.drain(queue) == [b"1", b"2", b"3", b"4"]
    assert waiting(ordered) == [b"2", b"3", b"4", b"1"]
    assert world.drain(ordered) == [b"2", b"3", b"4", b"1"]


@pytest.mark.parametrize("outcome", ["release", "retry", "lapse"])
def test_a_returned_message_keeps_its_place(world: World, outcome: str) -> None:
    queue = world.queue()
    world.fill(4)
    leases = world.claim(queue, 3, 1_000)
    world.publish(b"urgent", priority=1)
    if outcome == "lapse":
        world.advance(1_000)
    else:
        for lease in (leases[2], leases[0], leases[1]):
            world.settle(lease, outcome)
    assert waiting(queue) == [b"urgent", b"0", b"1", b"2", b"3"]
    assert all(entry.redelivered == (entry.seq <= 3) for entry in queue.ready_entries())
    assert world.drain(queue) == [b"urgent", b"0", b"1", b"2", b"3"]


# Leases (law 2)


@pytest.mark.row("S3-7")
def test_no_ack_in_time_means_redelivery(world: World) -> None:
    queue = world.queue()
    world.publish()
    first = world.one(queue, 5_000)
    assert (first.attempt, first.entry.redelivered) == (1, False)
    world.advance(4_999)
    assert world.claim(queue) == []
    world.advance(1)
    second = world.one(queue, 5_000)
    assert (second.attempt, second.entry.redelivered, queue.redelivered) == (2, True, 1)
    assert (queue.lapsed, queue.retried, queue.delivered) == (1, 1, 2)


@pytest.mark.row("S3-8")
@pytest.mark.parametrize("outcome", ["retry", "release"])
def test_a_negative_ack_means_redelivery(world: World, outcome: str) -> None:
    queue = world.queue()
    world.publish()
    world.settle(world.one(queue), outcome)
    again = world.one(queue)
    assert again.entry.redelivered
    assert again.attempt == (2 if outcome == "retry" else 1)


@pytest.mark.parametrize("late", ["ack", "retry", "release", "reject"])
@pytest.mark.parametrize("ended_by", ["lapse", "ack", "retry", "release", "reject"])
def test_a_lease_that_ended_settles_nothing(world: World, ended_by: str, late: str) -> None:
    queue = world.queue(face="http")
    world.publish()
    lease = world.one(queue, 1_000)
    if ended_by == "lapse":
        world.advance(1_000)
        world.one(queue)
    else:
        world.settle(lease, ended_by)
    before = (queue.ready, queue.delayed, queue.leased, queue.acked, queue.dead_lettered, queue.retried)
    assert not world.settle(lease, late)
    assert not queue.extend(lease, 1_000)
    assert (queue.ready, queue.delayed, queue.leased, queue.acked, queue.dead_lettered, queue.retried) == before


def test_a_lease_can_be_extended(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue, 1_000)
    world.advance(900)
    assert queue.extend(lease, 1_000)
    world.advance(999)
    assert lease.live
    world.advance(1)
    assert not lease.live
    assert queue.lapsed == 1


def test_a_lease_can_be_shortened(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue, 60_000)
    assert queue.extend(lease, 10)
    assert world.shard.next_due_ms() == 10
    world.advance(10)
    assert not lease.live
    world.one(queue, 60_000)
    world.advance(59_999)
    assert queue.leased == 1


def test_extending_over_and_over_takes_no_more_room(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue, 1_000)
    for _ in range(10_000):
        queue.extend(lease, 1_000)
    assert len(queue.timing._lapses) < 5_000
    world.advance(1_000)
    assert (queue.lapsed, queue.ready) == (1, 1)


def test_leases_run_on_the_monotonic_clock(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue, 1_000)
    world.jump_wall(10 * YEAR_MS)
    assert lease.live
    world.jump_wall(-20 * YEAR_MS)
    world.advance(1_000)
    assert not lease.live


def test_many_leases_lapse_each_in_its_time(world: World) -> None:
    queue = world.queue(max_attempts=0)
    world.fill(3_000)
    leases = world.claim(queue, 3_000, 5_000)
    for lease in leases[:2_900]:
        queue.ack(lease)
    assert len(queue.timing._lapses) < 2_000
    for i, lease in enumerate(leases[2_900:]):
        queue.extend(lease, 5_000 + i)
    world.advance(5_049)
    assert queue.lapsed == 50
    world.advance(50)
    assert (queue.lapsed, queue.ready) == (100, 100)


# Delay and expiry (law 4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_delays_are_exact_and_do_not_wait_for_each_other(delays: list[int]) -> None:
    world = World()
    queue = world.queue()
    for i, delay in enumerate(delays):
        world.publish(b"%d" % i, delay_ms=delay)
    for now in range(1, 51):
        world.advance(1)
        assert set(waiting(queue)) == {b"%d" % i for i, delay in enumerate(delays) if delay <= now}
    world.check()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_expiry_is_exact_and_does_not_wait_for_consumers(ttls: list[int]) -> None:
    world = World()
    queue = world.queue()
    for i, ttl in enumerate(ttls):
        world.publish(b"%d" % i, ttl_ms=ttl)
    for now in range(1, 51):
        world.advance(1)
        assert waiting(queue) == [b"%d" % i for i, ttl in enumerate(ttls) if ttl > now]
        assert queue.expired == sum(1 for ttl in ttls if ttl <= now)
    assert queue.bytes == 0
    world.check()


def test_delays_and_expiries_of_years(world: World) -> None:
    queue = world.queue()
    world.publish(b"delayed", delay_ms=1_000 * YEAR_MS)
    world.publish(b"expiring", ttl_ms=1_000 * YEAR_MS)
    world.advance(1_000 * YEAR_MS - 1)
    assert waiting(queue) == [b"expiring"]
    world.advance(1)
    assert waiting(queue) == [b"delayed"]


def test_the_shorter_of_two_times_to_live_counts(world: World) -> None:
    queue = world.queue(ttl_ms=100)
    world.publish(b"own", ttl_ms=50)
    world.publish(b"queue's", ttl_ms=500)
    world.publish(b"none")
    world.advance(50)
    assert waiting(queue) == [b"queue's", b"none"]
    world.advance(50)
    assert queue.ready == 0


def test_the_queues_time_to_live_begins_when_a_delay_ends(world: World) -> None:
    queue = world.queue(ttl_ms=100)
    world.publish(delay_ms=1_000)
    world.advance(1_099)
    assert queue.ready == 1
    world.advance(1)
    assert queue.expired == 1


def test_a_message_that_expires_before_it_is_due_is_never_seen(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue)
    world.publish(delay_ms=100, ttl_ms=100)
    world.publish(delay_ms=100, ttl_ms=50)
    world.advance(50)
    assert queue.expired == 1
    world.advance(1_000)
    assert mailbox.take() == []
    assert queue.expired == 2


@pytest.mark.parametrize("outcome", ["release", "retry", "lapse"])
def test_leased_messages_do_not_expire_until_they_return(world: World, outcome: str) -> None:
    queue = world.queue(ttl_ms=100)
    world.publish()
    lease = world.one(queue, 1_000)
    world.advance(500)
    assert (queue.leased, queue.expired) == (1, 0)
    if outcome == "lapse":
        world.advance(500)
    else:
        world.settle(lease, outcome)
    assert (queue.leased, queue.ready, queue.expired) == (0, 0, 1)


def test_a_returned_message_still_expires_in_time(world: World) -> None:
    queue = world.queue(ttl_ms=100)
    world.publish()
    lease = world.one(queue)
    world.advance(50)
    world.settle(lease, "release")
    world.advance(49)
    assert queue.ready == 1
    world.advance(1)
    assert queue.expired == 1


@pytest.mark.parametrize("meanwhile", ["a policy", "a jump"])
def test_a_returned_message_still_expires_whatever_happened_meanwhile(world: World, meanwhile: str) -> None:
    queue = world.queue()
    world.publish(ttl_ms=100 if meanwhile == "a jump" else 0)
    lease = world.one(queue)
    if meanwhile == "a jump":
        world.jump_wall(1_000)
        world.jump_wall(-1_000)
    else:
        world.tenant.set_policy(Policy("p", "jobs", {"ttl_ms": 100}))
    world.advance(50)
    world.settle(lease, "release")
    world.advance(49)
    assert queue.ready == 1
    world.advance(1)
    assert queue.expired == 1


def test_an_acked_message_did_not_expire(world: World) -> None:
    queue = world.queue(ttl_ms=100)
    world.publish()
    lease = world.one(queue)
    world.advance(500)
    assert world.settle(lease)
    assert (queue.acked, queue.expired) == (1, 0)


def test_a_wall_clock_that_jumps_back_revives_nothing(world: World) -> None:
    queue = world.queue()
    world.publish(b"expired", ttl_ms=100)
    world.publish(b"due", delay_ms=100)
    world.publish(b"waiting", delay_ms=200)
    world.advance(100)
    world.jump_wall(-1_000_000)
    assert waiting(queue) == [b"due"]
    assert (queue.expired, queue.delayed, queue.oldest_age_ms()) == (1, 1, 0)
    world.jump_wall(1_000_000)
    assert waiting(queue) == [b"due"]
    world.advance(100)
    assert waiting(queue) == [b"due", b"waiting"]


def test_a_wall_clock_that_jumps_ahead_makes_due_what_is_due(world: World) -> None:
    queue = world.queue()
    world.publish(b"delayed", delay_ms=1_000)
    world.publish(b"brief", ttl_ms=1_000)
    world.jump_wall(1_000)
    assert waiting(queue) == [b"delayed"]


# Attempts and outcomes (law 5)


def test_an_attempt_is_counted_at_delivery_and_release_takes_it_back(world: World) -> None:
    queue = world.queue(max_attempts=2)
    world.publish()
    for _ in range(5):
        lease = world.one(queue)
        assert lease.attempt == 1
        world.settle(lease, "release")
    world.settle(world.one(queue), "retry")
    lease = world.one(queue)
    assert lease.attempt == 2
    world.settle(lease, "retry")
    assert (queue.dropped, queue.released, queue.retried) == (1, 5, 1)


def test_no_limit_on_attempts(world: World) -> None:
    queue = world.queue(face="amqp")
    world.publish()
    for attempt in range(1, 200):
        lease = world.one(queue)
        assert lease.attempt == attempt
        world.settle(lease, "retry")
    assert queue.ready == 1


def test_a_retry_may_name_its_own_delay(world: World) -> None:
    queue = world.queue(face="http")
    world.publish()
    lease = world.one(queue)
    assert queue.retry(lease, 70, "")
    world.advance(69)
    assert queue.delayed == 1
    world.advance(1)
    assert queue.ready == 1
    lease = world.one(queue)
    assert queue.retry(lease, 0, "")
    assert queue.ready == 1


@pytest.mark.row("S4-30")
def test_the_line_faces_defaults(world: World) -> None:
    """Every 30 s again, at most 5 times, then a dead letter."""
    queue = world.queue(face="line")
    world.publish()
    deliveries = 0
    while not queue.dead_lettered:
        lease = world.one(queue)
        deliveries += 1
        world.settle(lease, "retry")
        if queue.delayed:
            world.advance(29_999)
            assert queue.ready == 0
            world.advance(1)
            assert queue.ready == 1
    assert deliveries == 1 + 5
    assert world.tenant.queue("jobs.DLQ").ready == 1


# Limits of a queue (law 8)


def test_drop_head(world: World) -> None:
    queue = world.queue(length_max=3)
    world.fill(5)
    assert waiting(queue) == [b"2", b"3", b"4"]
    assert (queue.dropped, queue.published) == (2, 5)


def test_drop_head_by_bytes(world: World) -> None:
    queue = world.queue(bytes_max=10)
    for body in (b"1234", b"5678", b"90"):
        world.publish(body)
    assert queue.bytes == 10
    world.publish(b"x")
    assert waiting(queue) == [b"5678", b"90", b"x"]
    world.publish(b"y" * 11)
    assert (queue.ready, queue.bytes) == (0, 0)


def test_delayed_messages_count_and_go_last(world: World) -> None:
    queue = world.queue(length_max=2)
    world.publish(b"later", delay_ms=100)
    world.publish(b"sooner", delay_ms=50)
    world.publish(b"now")
    assert (waiting(queue), queue.delayed) == ([], 2)
    world.publish(b"latest", delay_ms=200)
    assert [entry.message.body for entry in queue.delayed_entries()] == [b"later", b"latest"]


def test_leased_messages_do_not_count(world: World) -> None:
    queue = world.queue(length_max=2, overflow="reject-publish")
    world.fill(2)
    assert world.reach()[1] == REFUSED
    leases = world.claim(queue, 2)
    world.fill(2)
    for lease in leases:
        world.settle(lease, "release")
    assert queue.ready == 4


def test_a_queue_without_length_hands_over_at_once_or_not_at_all(world: World) -> None:
    for overflow in ("drop-head", "reject-publish"):
        queue = world.queue(overflow, length_max=0, overflow=overflow)
        world.publish(key=overflow)
        assert queue.ready == 0
        mailbox = world.mailbox(queue, credit=1)
        world.publish(b"1", overflow)
        world.publish(b"2", overflow)
        assert bodies(mailbox.take()) == [b"1"]
        assert queue.ready == 0


@pytest.mark.parametrize(
    ("overflow", "answer", "published", "dropped"),
    [
        ("reject-publish", REFUSED, 1, 0),
        ("reject-publish-dead-letter", REFUSED, 2, 0),
        ("drop-new", 1, 2, 1),
    ],
)
def test_a_full_queue_says_what_it_does(world: World, overflow: str, answer: int, published: int, dropped: int) -> None:
    queue = world.queue(length_max=1, overflow=overflow, dead_letter_queue="graves")
    world.publish(b"first")
    assert world.reach(b"second")[1] == answer
    assert waiting(queue) == [b"first"]
    assert (queue.refused, queue.published, queue.dropped) == (1, published, dropped)
    if overflow == "reject-publish-dead-letter":
        assert waiting(world.tenant.queue("graves")) == [b"second"]
        assert queue.dead_lettered == 1


def test_a_queue_may_close_when_it_is_full(world: World) -> None:
    queue = world.queue(length_max=1, overflow="close")
    mailbox = world.mailbox(queue, credit=1)
    world.fill(2)
    assert not queue.deleted
    assert world.reach()[1] == 1
    assert queue.deleted
    assert mailbox.ended == "overflow"
    assert world.reach()[1] == 0


def test_offer_answers(world: World) -> None:
    queue = world.queue(length_max=1, overflow="drop-new")
    message = Message(Route("", "jobs"), b"", b"x", 1, 0, 0, 0)
    assert queue.offer(message, 0) == ACCEPTED
    assert queue.offer(message, 0) == DISCARDED


# Conservation (law 9), and the counts


def test_each_exit_is_counted_once(world: World) -> None:
    queue, other = world.queue(face="http", length_max=20, max_attempts=1), world.queue("other")
    world.fill(20)
    world.publish(b"brief", ttl_ms=10)
    world.advance(10)
    leases = world.claim(queue, 6)
    for lease, outcome in zip(leases, ["ack", "ack", "reject", "retry", "release"], strict=False):
        world.settle(lease, outcome)
    assert move(world.tenant, queue, other, limit=3) == 3
    assert (queue.published, queue.acked, queue.dead_lettered, queue.expired) == (21, 2, 2, 1)
    assert (queue.dropped, queue.moved_out, queue.leased, queue.ready) == (1, 3, 1, 11)
    assert queue.purge() == 11
    assert queue.purged == 11


def test_purge_takes_what_is_ready(world: World) -> None:
    queue = world.queue()
    world.fill(6)
    world.publish(b"later", delay_ms=100)
    world.publish(b"high", priority=5)
    world.one(queue)
    lease = world.one(queue)
    world.settle(lease, "release")
    assert queue.purge() == 6
    assert (queue.ready, queue.delayed, queue.leased, queue.purged) == (0, 1, 1, 6)
    assert queue.purge() == 0
    world.publish(b"new")
    world.advance(100)
    assert waiting(queue) == [b"later", b"new"]


def test_a_returned_message_may_be_purged(world: World) -> None:
    queue = world.queue()
    world.fill(200)
    for lease in world.claim(queue, 150):
        world.settle(lease, "release")
    for entry in queue.ready_entries()[:140]:
        queue.remove(entry)
        queue.purged += 1
    assert world.drain(queue) == [b"%d" % i for i in range(140, 200)]


# Peek (law 10)


def test_a_peek_changes_nothing(world: World) -> None:
    queue = world.queue()
    for i in range(6):
        world.publish(b"%d" % i, priority=i % 2)
    world.publish(b"d2", delay_ms=200)
    world.publish(b"d1", delay_ms=100)
    world.settle(world.claim(queue, 2)[1], "release")
    before = [(e.seq, e.attempts, e.state, e.redelivered) for e in queue.waiting_entries()]
    assert waiting(queue) == [b"3", b"5", b"0", b"2", b"4"]
    assert [e.message.body for e in queue.delayed_entries()] == [b"d1", b"d2"]
    assert [(e.seq, e.attempts, e.state, e.redelivered) for e in queue.waiting_entries()] == before
    assert world.drain(queue) == [b"3", b"5", b"0", b"2", b"4"]


# Meters


def test_waiting_and_working_times_are_recorded(world: World) -> None:
    queue = world.queue()
    world.fill(2)
    world.advance(100)
    leases = world.claim(queue, 2)
    world.advance(1_000)
    for lease in leases:
        world.settle(lease)
    assert (queue.wait_ms.count, queue.wait_ms.total_ms) == (2, 200)
    assert (queue.work_ms.count, queue.work_ms.total_ms) == (2, 2_000)


def test_the_oldest_age(world: World) -> None:
    queue = world.queue()
    assert queue.oldest_age_ms() == 0
    world.publish(b"old", priority=-3)
    world.advance(100)
    world.publish(b"young", priority=3)
    world.publish(b"delayed", delay_ms=1_000)
    world.advance(50)
    assert queue.oldest_age_ms() == 150
    world.settle(world.claim(queue, 2)[1], "release")
    assert queue.oldest_age_ms() == 150
    queue.purge()
    assert queue.oldest_age_ms() == 0


def test_the_age_of_messages_that_wait_for_their_group(world: World) -> None:
    queue = world.queue(grouped=True)
    for _ in range(3):
        world.publish(headers={"x-group-id": "g"})
    world.one(queue)
    assert world.claim(queue) == []
    world.advance(100)
    assert queue.oldest_age_ms() == 100


# After a restart


def test_entries_come_back_as_they_were(world: World) -> None:
    queue = world.queue(ttl_ms=1_000)
    now = world.shard.wall_ms
    route = Route("", "jobs")
    table = [(3, 0, 0, 0, 0), (4, 5, 0, 2, 0), (7, 0, now + 50, 1, 0), (8, 0, 0, 0, now - 1), (9, 0, now - 5, 0, 0)]
    for seq, priority, due, attempts, expires in table:
        message = Message(route, b"", b"%d" % seq, 100 + seq, priority, expires, 0)
        queue.restore(message, seq, now - 900, due, attempts, attempts > 0)
    assert (queue.restored, queue.ready, queue.delayed) == (5, 4, 1)
    world.turn()
    assert waiting(queue) == [b"4", b"3", b"9"]
    lease = world.one(queue)
    assert (lease.attempt, lease.entry.redelivered) == (3, True)
    world.publish(b"new")
    world.advance(50)
    assert waiting(queue) == [b"3", b"7", b"9", b"new"]
    assert queue.seq == 10
    world.advance(50)
    assert waiting(queue) == [b"new"]


def test_an_entry_is_found_wherever_it_is(world: World) -> None:
    queue = world.queue(grouped=True)
    queue.journaled = True
    for i in range(6):
        world.publish(b"%d" % i, headers={"x-group-id": "g"} if i in (0, 3) else None, priority=i % 2)
    world.publish(b"6", delay_ms=50)
    held = {lease.entry.seq: lease for lease in world.claim(queue, 6)}
    parked = next(seq for seq in (1, 4) if seq not in held)
    world.settle(held[2], "release")
    world.settle(held[5])
    for seq in range(1, 8):
        found = queue.find(seq)
        assert (found is None) == (seq == 5)
        assert found is None or found.seq == seq
    assert queue.find(99) is None
    assert parked in (1, 4)
    assert queue.ready == 2


def test_an_entry_that_is_lined_up_again_is_found_by_its_sequence(world: World) -> None:
    queue = world.queue()
    world.fill(3)
    queue.journaled = True
    entry = queue.next()
    assert entry is not None
    queue.line_up(entry)
    assert queue.find(entry.seq) is entry
    lease = world.one(queue)
    assert lease.entry is queue.find(entry.seq) is entry
    assert queue.release(lease)
    assert queue.find(entry.seq) is entry
    assert world.drain(queue) == [b"0", b"1", b"2"]
    assert queue.find(entry.seq) is None
