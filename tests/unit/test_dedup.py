"""Dedup keys: a repeat is confirmed with the first message's number and adds nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.dedup import KEYS_MAX, WINDOW_MS, Dedup, scope_of
from rookery.errors import MemoryLimitExceeded, QueueFull
from rookery.format.properties import EMPTY
from tests.unit.core_world import World, a_world, publish_once

world = pytest.fixture(a_world, name="world")


def once(world: World, dedup_key: str, key: str = "jobs", exchange: str = "") -> tuple[int, bool]:
    return publish_once(world.shard, world.tenant, exchange, key, dedup_key, EMPTY, b"x")


def test_defaults_are_a_day_and_a_million_keys(world: World) -> None:
    assert WINDOW_MS == 24 * 60 * 60 * 1_000
    assert KEYS_MAX == world.tenant.limits.dedup_keys_max == 1_000_000


def test_a_repeat_is_confirmed_with_the_first_number_and_adds_nothing(world: World) -> None:
    queue = world.queue()
    number, repeat = once(world, "k")
    assert not repeat
    assert once(world, "k") == (number, True)
    assert (queue.published, queue.ready, world.tenant.dedup.duplicates) == (1, 1, 1)


def test_a_repeat_is_known_after_the_message_was_acked(world: World) -> None:
    queue = world.queue()
    number, _ = once(world, "k")
    world.settle(world.one(queue))
    assert once(world, "k") == (number, True)
    assert queue.ready == 0


def test_keys_are_scoped_by_queue_or_exchange(world: World) -> None:
    jobs, other = world.queue("jobs"), world.queue("other")
    world.tenant.bind("amq.fanout", jobs, "")
    results = [once(world, "k"), once(world, "k", "other"), once(world, "k", "any", "amq.fanout")]
    assert [repeat for _, repeat in results] == [False, False, False]
    assert once(world, "k", "another key", "amq.fanout")[1]
    assert (jobs.ready, other.ready) == (2, 1)
    assert scope_of("", "amq.fanout") != scope_of("amq.fanout", "")


def test_tenants_share_no_keys(world: World) -> None:
    world.queue()
    other = world.shard.create_tenant("other")
    other.declare_queue("jobs", {}, "embedded")
    assert not once(world, "k")[1]
    assert not publish_once(world.shard, other, "", "jobs", "k", EMPTY, b"x")[1]


def test_the_window_ends_exactly(world: World) -> None:
    queue = world.queue(dedup_window_ms=1_000)
    once(world, "k")
    world.advance(999)
    assert once(world, "k")[1]
    world.advance(1)
    assert not once(world, "k")[1]
    assert queue.ready == 2


def test_a_repeat_does_not_lengthen_the_window(world: World) -> None:
    world.queue(dedup_window_ms=1_000)
    once(world, "k")
    world.advance(600)
    assert once(world, "k")[1]
    world.advance(400)
    assert not once(world, "k")[1]


def test_the_oldest_key_goes_first_and_is_counted(world: World) -> None:
    world.tenant.set_limits({"dedup_keys_max": 2})
    world.queue()
    for key in ("a", "b", "c"):
        once(world, key)
    assert len(world.tenant.dedup) == 2
    assert world.tenant.dedup.evicted == 1
    assert once(world, "c")[1]
    assert once(world, "b")[1]
    assert not once(world, "a")[1]


def test_keys_go_with_their_queue(world: World) -> None:
    world.queue()
    once(world, "k")
    world.tenant.delete_queue("jobs")
    assert len(world.tenant.dedup) == 0
    queue = world.queue()
    assert not once(world, "k")[1]
    assert queue.ready == 1


def test_keys_go_with_their_exchange(world: World) -> None:
    queue = world.queue()
    for _ in range(2):
        world.tenant.declare_exchange("e", "fanout")
        world.tenant.bind("e", queue, "")
        assert not once(world, "k", "", "e")[1]
        world.tenant.delete_exchange("e")
    assert queue.ready == 2


def test_a_refused_publish_uses_up_no_key(world: World) -> None:
    queue = world.queue(length_max=1, overflow="reject-publish")
    world.publish()
    with pytest.raises(QueueFull):
        once(world, "k")
    world.drain(queue)
    assert not once(world, "k")[1]
    assert queue.ready == 1
    world.tenant.set_limits({"memory_bytes_max": 1})
    with pytest.raises(MemoryLimitExceeded):
        once(world, "m")
    world.tenant.set_limits({"memory_bytes_max": 0})
    world.drain(queue)
    assert not once(world, "m")[1]
    assert queue.ready == 1


def test_an_unroutable_publish_uses_up_no_key(world: World) -> None:
    """Else the repeat would be confirmed while no queue ever had the message."""
    assert once(world, "k") == (1, False)
    queue = world.queue()
    _, repeat = once(world, "k")
    assert (repeat, queue.ready) == (False, 1)


def test_the_wall_clock_may_jump(world: World) -> None:
    queue = world.queue(dedup_window_ms=1_000)
    once(world, "k")
    world.jump_wall(-5_000)
    assert once(world, "k")[1]
    world.jump_wall(10_000)
    assert not once(world, "k")[1]
    assert queue.published == 2


def test_marks_tell_all_oldest_first() -> None:
    dedup = Dedup()
    dedup.remember("queue:a", "k", 1, 100, 50)
    dedup.remember("queue:a", "l", 2, 110, 50)
    dedup.remember("queue:a", "k", 3, 120, 50)
    assert dedup.marks() == [("queue:a", "l", 2, 160), ("queue:a", "k", 3, 170)]
    dedup.forget("queue:a", "l")
    assert dedup.marks() == [("queue:a", "k", 3, 170)]
    dedup.forget_scope("queue:a")
    dedup.forget_scope("queue:never heard of")
    assert dedup.marks() == []


keys = st.sampled_from("abcdef")


@given(st.lists(st.tuples(keys, st.integers(0, 40)), max_size=60), st.integers(1, 4))
def test_against_a_plain_list(steps: list[tuple[str, int]], keys_max: int) -> None:
    """The last `keys_max` first uses, each for 100 ms."""
    dedup = Dedup(keys_max)
    model: list[tuple[str, int, int]] = []
    now = 0
    for number, (key, pause) in enumerate(steps, 1):
        now += pause
        model = [row for row in model if row[2] > now]
        known = [row for row in model if row[0] == key]
        assert dedup.find("s", key, now) == (known[0][1] if known else 0)
        if not known:
            dedup.remember("s", key, number, now, 100)
            model = [*model, (key, number, now + 100)][-keys_max:]
        assert len(dedup) <= keys_max
