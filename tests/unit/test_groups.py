"""Order where it is asked for: keys that stay with one consumer, and groups with one message in work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.consumers import Mailbox, key_hash
from rookery.core.entries import Lease
from rookery.core.queue import Queue
from rookery.format.model import PRIORITY_MIN
from tests.unit.core_world import BROKEN_HEADERS, World, a_world, bodies, waiting

world = pytest.fixture(a_world, name="world")


# By key


def keys_of(leases: Sequence[Lease]) -> set[str]:
    return {lease.entry.message.route.key for lease in leases}


def keyed(world: World, **settings: Any) -> Queue:
    queue = world.queue(distribution="key-hash", **settings)
    world.tenant.bind("amq.topic", queue, "#")
    return queue


@pytest.mark.row("S3-13")
def test_a_key_stays_with_its_consumer(world: World) -> None:
    queue = keyed(world)
    mailboxes = [world.mailbox(queue, name=name) for name in ("a", "b", "c")]
    seen: list[set[str]] = [set(), set(), set()]
    for _ in range(3):
        for key in range(40):
            world.publish(b"", f"k{key}", "amq.topic")
        for mine, mailbox in zip(seen, mailboxes, strict=True):
            mine |= keys_of(mailbox.take())
    assert sum(len(mine) for mine in seen) == 40
    assert min(len(mine) for mine in seen) >= 5


def test_a_newcomer_takes_only_its_share(world: World) -> None:
    owners: dict[str, list[str]] = {}
    for names in (["a", "b"], ["a", "b", "c"]):
        small = World()
        queue = keyed(small)
        mailboxes = {name: small.mailbox(queue, name=name) for name in names}
        for i in range(60):
            small.publish(b"", f"k{i}", "amq.topic")
        for name, mailbox in mailboxes.items():
            for key in keys_of(mailbox.take()):
                owners.setdefault(key, []).append(name)
    moved = [pair for pair in owners.values() if pair[0] != pair[1]]
    assert moved
    assert all(pair[1] == "c" for pair in moved)


def test_unnamed_consumers_share_the_keys_too(world: World) -> None:
    queue = keyed(world)
    mailboxes = [world.mailbox(queue) for _ in range(2)]
    for key in range(40):
        world.publish(b"", f"k{key}", "amq.topic")
    assert all(mailbox.take() for mailbox in mailboxes)


def test_a_busy_owner_holds_up_only_its_own_keys(world: World) -> None:
    queue = keyed(world)
    mailboxes = [world.mailbox(queue, credit=1, name=name) for name in ("a", "b")]
    owner = {key: queue.roster.owner_of(key) for key in (f"k{i}" for i in range(20))}
    of_a = [key for key in owner if owner[key] is mailboxes[0]][:3]
    of_b = [key for key in owner if owner[key] is mailboxes[1]][:1]
    for key in (*of_a, *of_b):
        world.publish(key.encode(), key, "amq.topic")
    assert bodies(mailboxes[0].take()) == [of_a[0].encode()]
    assert bodies(mailboxes[1].take()) == [of_b[0].encode()]
    assert waiting(queue) == [key.encode() for key in of_a[1:]]


def work_off(world: World, mailbox: Mailbox) -> list[bytes]:
    """Take and ack until nothing more comes."""
    seen: list[bytes] = []
    while leases := mailbox.take():
        for lease in leases:
            seen.append(lease.entry.message.body)
            world.settle(lease)
    return seen


def test_messages_of_a_key_keep_their_order(world: World) -> None:
    queue = keyed(world)
    mailbox = world.mailbox(queue, credit=1, name="a")
    for i in range(5):
        world.publish(b"%d" % i, "k", "amq.topic")
    assert work_off(world, mailbox) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("outcome", ["release", "retry"])
def test_a_returned_message_goes_before_those_that_wait_for_its_owner(world: World, outcome: str) -> None:
    queue = keyed(world)
    mailbox = world.mailbox(queue, credit=1, name="a")
    for i in range(3):
        world.publish(b"%d" % i, "k", "amq.topic")
    (lease,) = mailbox.take()
    world.settle(lease, outcome)
    assert work_off(world, mailbox) == [b"0", b"1", b"2"]


def test_a_key_keeps_its_order_when_a_newcomer_takes_it_over(world: World) -> None:
    queue = keyed(world)
    old = world.mailbox(queue, credit=1, name="a")
    world.publish(b"busy", "other", "amq.topic")
    key = next(f"k{i}" for i in range(100) if key_hash(f"k{i}", "b") > key_hash(f"k{i}", "a"))
    world.publish(b"1", key, "amq.topic")
    world.publish(b"2", key, "amq.topic")
    new = world.mailbox(queue, credit=1, name="b")
    world.publish(b"3", key, "amq.topic")
    assert bodies(old.take()) == [b"busy"]
    assert work_off(world, new) == [b"1", b"2", b"3"]


def test_what_waited_for_a_consumer_that_left_goes_to_the_others(world: World) -> None:
    queue = keyed(world)
    gone, stays = world.mailbox(queue, credit=1, name="a"), world.mailbox(queue, name="b")
    for i in range(30):
        world.publish(b"%d" % i, f"k{i}", "amq.topic")
    held = gone.take()
    before = stays.take()
    queue.unsubscribe(gone)
    world.shard.flush()
    assert len(held) + len(before) + len(stays.take()) == 30
    assert queue.ready == 0


def test_waiting_claims_take_part_when_there_is_nobody_else(world: World) -> None:
    queue = keyed(world)
    claim = world.shard.wait_claim(queue, 1, 1_000)
    world.publish(b"1", "k", "amq.topic")
    assert bodies(claim.take()) == [b"1"]


def test_a_limit_holds_for_what_waits_for_its_owner(world: World) -> None:
    queue = keyed(world, length_max=2)
    world.mailbox(queue, credit=1, name="a")
    for i in range(6):
        world.publish(b"%d" % i, "k", "amq.topic")
    assert waiting(queue) == [b"4", b"5"]
    assert queue.dropped == 3


# Groups


def grouped(world: World, **settings: Any) -> Queue:
    return world.queue(grouped=True, **settings)


def send(world: World, *texts: str) -> None:
    """`a1` is body a1 in group a; `-1` has no group."""
    for text in texts:
        group = text[0]
        world.publish(text.encode(), headers={"x-group-id": group} if group != "-" else None)


def test_a_group_has_one_message_in_work(world: World) -> None:
    queue = grouped(world)
    send(world, "a1", "a2", "b1", "-1", "a3", "-2", "b2")
    first = world.claim(queue, 10)
    assert bodies(first) == [b"a1", b"b1", b"-1", b"-2"]
    assert world.claim(queue, 10) == []
    assert queue.ready == 3
    world.settle(first[0])
    assert bodies(world.claim(queue, 10)) == [b"a2"]


def test_groups_keep_their_order_with_parallel_consumers(world: World) -> None:
    queue = grouped(world)
    mailboxes = [world.mailbox(queue, credit=3) for _ in range(3)]
    send(world, *(f"{group}{i}" for i in range(6) for group in "abc"))
    done: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    while queue.ready or queue.leased:
        leases = [lease for mailbox in reversed(mailboxes) for lease in mailbox.take()]
        texts = [lease.entry.message.body.decode() for lease in leases]
        assert max(Counter(text[0] for text in texts).values()) == 1
        for text, lease in zip(texts, leases, strict=True):
            done[text[0]].append(int(text[1:]))
            world.settle(lease)
    assert done == {group: list(range(6)) for group in "abc"}


@pytest.mark.parametrize("outcome", ["retry", "release"])
def test_a_failed_message_blocks_its_group_until_it_is_settled(world: World, outcome: str) -> None:
    queue = grouped(world, face="http", backoff="fixed", backoff_base_ms=100)
    send(world, "a1", "a2", "b1")
    first = world.one(queue)
    world.settle(first, outcome)
    if outcome == "retry":
        assert bodies(world.claim(queue, 5)) == [b"b1"]
        world.advance(100)
        assert bodies(world.claim(queue, 5)) == [b"a1"]
    else:
        assert bodies(world.claim(queue, 5)) == [b"a1", b"b1"]
    assert queue.ready == 1


@pytest.mark.parametrize("way_out", ["ack", "reject", "attempts", "lapse", "expiry", "purge"])
def test_however_a_message_leaves_its_group_goes_on(world: World, way_out: str) -> None:
    queue = grouped(world, face="http", max_attempts=1, backoff_base_ms=0)
    world.publish(b"a1", headers={"x-group-id": "a"}, ttl_ms=500)
    send(world, "a2", "a3")
    lease = world.one(queue, 100)
    if way_out == "attempts":
        world.settle(lease, "retry")
    elif way_out == "lapse":
        world.advance(100)
    elif way_out == "expiry":
        world.settle(lease, "release")
        world.advance(500)
    elif way_out == "purge":
        world.settle(lease, "release")
        queue.purge()
        send(world, "a2")
    else:
        world.settle(lease, way_out)
    assert bodies(world.claim(queue, 5)) == [b"a2"]


def test_parked_messages_are_seen_at_their_place(world: World) -> None:
    queue = grouped(world)
    send(world, "a1", "a2", "b1", "a3")
    lease = world.one(queue)
    assert bodies(world.claim(queue, 5)) == [b"b1"]
    assert waiting(queue) == [b"a2", b"a3"]
    world.settle(lease, "release")
    assert waiting(queue) == [b"a1", b"a2", b"a3"]


def test_parked_messages_are_seen_at_their_place_with_priorities(world: World) -> None:
    """Priorities above the queue's highest count as the highest, in peeking as in delivering."""
    queue = grouped(world, priority_max=5)
    for body, group, priority in ((b"a1", "a", 9), (b"a2", "a", 9)):
        world.publish(body, headers={"x-group-id": group}, priority=priority)
    lease = world.one(queue)
    assert world.claim(queue) == []
    for body, priority in ((b"x", 7), (b"y", 9), (b"z", PRIORITY_MIN), (b"w", 0)):
        world.publish(body, priority=priority)
    assert waiting(queue) == [b"a2", b"x", b"y", b"w", b"z"]
    world.settle(lease)
    assert world.drain(queue) == [b"a2", b"x", b"y", b"w", b"z"]


def test_headers_that_cannot_be_read_name_no_group(world: World) -> None:
    queue = grouped(world)
    world.publish(b"a", props=BROKEN_HEADERS)
    mailbox = world.mailbox(queue, credit=1)
    world.publish(b"b", props=BROKEN_HEADERS)
    (lease,) = mailbox.take()
    world.settle(lease)
    assert bodies(mailbox.take()) == [b"b"]


def test_parked_messages_expire_in_time(world: World) -> None:
    queue = grouped(world, ttl_ms=100)
    send(world, "a1", "a2", "a3")
    lease = world.one(queue)
    assert world.claim(queue, 5) == []
    world.advance(100)
    assert (queue.ready, queue.expired, queue.leased) == (0, 2, 1)
    world.settle(lease)


def test_a_limit_holds_for_parked_messages(world: World) -> None:
    queue = grouped(world, length_max=2)
    send(world, "a1", "a2")
    world.one(queue)
    assert world.claim(queue) == []
    send(world, "a3", "a4")
    assert waiting(queue) == [b"a3", b"a4"]


def test_priority_decides_between_groups_not_within(world: World) -> None:
    queue = grouped(world)
    for body, group, priority in ((b"a1", "a", 0), (b"b1", "b", 5), (b"a2", "a", 9)):
        world.publish(body, headers={"x-group-id": group}, priority=priority)
    assert bodies(world.claim(queue, 5)) == [b"a2", b"b1"]


@given(st.text(max_size=20), st.text(max_size=20))
def test_key_hash_is_positive_and_fixed(key: str, name: str) -> None:
    assert 0 <= key_hash(key, name) < 1 << 63
    assert key_hash(key, name) == key_hash(key, name)


def test_key_hash_does_not_change_between_processes_or_builds() -> None:
    assert (key_hash("orders", "worker-1"), key_hash("", "")) == (
        8365304849179941770,
        637373120771174207,
    )
