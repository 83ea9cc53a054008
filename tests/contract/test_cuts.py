"""Cuts of queues: repeatable, durable, settled in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.entries import Lease
from rookery.errors import InvalidArgument, NotFound
from tests.contract.journal_world import SITES, MemorySite, Site, World


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = SITES[request.param](tmp_path)
    yield site
    site.stop()


def fill(world: World, count: int, **options: Any) -> None:
    world.queue()
    for n in range(count):
        world.publish(b"%d" % n, **options)
    world.write()


def cut(world: World, after: int, count: int, consumer: str = "spark") -> tuple[int, list[bytes]]:
    number, leases = world.shard.cuts.cut(world.queue(), consumer, after, count)
    return number, [lease.entry.message.body for lease in leases]


def bodies(leases: list[Lease]) -> list[bytes]:
    return [lease.entry.message.body for lease in leases]


def test_a_cut_is_the_same_whenever_it_is_asked_for(site: Site) -> None:
    world = site.start()
    fill(world, 10)
    assert cut(world, 0, 3) == (1, [b"0", b"1", b"2"])
    assert cut(world, 1, 2) == (2, [b"3", b"4"])
    assert cut(world, 0, 100) == (1, [b"0", b"1", b"2"])
    world.write()
    for _ in range(2):
        world = site.restart(world)
        assert cut(world, 0, 100) == (1, [b"0", b"1", b"2"])
        assert bodies(world.shard.cuts.read(world.queue(), "spark", 2)) == [b"3", b"4"]
        assert world.bodies() == [b"%d" % n for n in range(5, 10)]
        assert world.queue().leased == 5
        world.retire_all()


def test_acknowledging_settles_for_good(site: Site) -> None:
    world = site.start()
    fill(world, 6)
    cut(world, 0, 2)
    cut(world, 1, 2)
    assert world.shard.cuts.ack(world.queue(), "spark", 1) == 2
    assert world.shard.cuts.ack(world.queue(), "spark", 1) == 0
    world.write()
    world = site.restart(world)
    assert cut(world, 1, 9) == (2, [b"2", b"3"])
    with pytest.raises(InvalidArgument):
        cut(world, 0, 9)
    with pytest.raises(NotFound):
        world.shard.cuts.read(world.queue(), "spark", 1)
    world.shard.cuts.ack(world.queue(), "spark", 2)
    world.roll()
    world = site.restart(world)
    assert cut(world, 2, 9) == (3, [b"4", b"5"])
    assert cut(world, 3, 9) == (3, [])
    assert world.shard.cuts.describe(world.queue()) == [{"consumer": "spark", "acked": 2, "cuts": {3: 2}}]


def test_released_cuts_go_back_to_their_places_without_counting(site: Site) -> None:
    world = site.start()
    fill(world, 4)
    cut(world, 0, 2)
    cut(world, 1, 1)
    world.write()
    world = site.restart(world)
    assert world.shard.cuts.release(world.queue(), "spark") == 3
    world.write()
    assert world.bodies() == [b"0", b"1", b"2", b"3"]
    assert [int(entry.attempts) for entry in world.queue().ready_entries()] == [0, 0, 0, 0]
    world = site.restart(world)
    assert world.bodies() == [b"0", b"1", b"2", b"3"]
    with pytest.raises(NotFound):
        world.shard.cuts.ack(world.queue(), "spark", 0)


def test_several_consumers_share_a_queue(site: Site) -> None:
    world = site.start()
    fill(world, 4)
    assert cut(world, 0, 2, "a") == (1, [b"0", b"1"])
    assert cut(world, 0, 2, "b") == (1, [b"2", b"3"])
    world.write()
    world = site.restart(world)
    assert cut(world, 0, 2, "b") == (1, [b"2", b"3"])


def test_a_deleted_queue_has_no_cuts(site: Site) -> None:
    world = site.start()
    fill(world, 2)
    cut(world, 0, 1)
    world.write()
    world.tenant().delete_queue("q")
    fill(world, 1)
    assert world.shard.cuts.of(world.queue()) == {}
    world = site.restart(world)
    assert cut(world, 0, 5) == (1, [b"0"])


@pytest.mark.parametrize(("after", "count"), [(0, 0), (0, 100_001), (5, 1)])
def test_what_cannot_be_is_refused(site: Site, after: int, count: int) -> None:
    world = site.start()
    fill(world, 1)
    cut(world, 0, 1)
    with pytest.raises(InvalidArgument):
        cut(world, after, count)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["publish", "cut", "same", "ack", "claim", "roll", "retire", "crash"]), min_size=5, max_size=30
    )
)
def test_nothing_is_lost_or_read_twice(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    site = MemorySite(tmp_path_factory.mktemp("site"))
    world = site.start()
    world.queue()
    world.write()
    published = 0
    last = acked = 0
    cuts: dict[int, list[bytes]] = {}
    done: list[bytes] = []
    for step in steps:
        if step == "publish":
            for _ in range(3):
                world.publish(b"%d" % published)
                published += 1
            world.write()
        elif step == "cut":
            number, found = cut(world, last, 2)
            world.write()
            if found:
                last = number
                cuts[number] = found
        elif step == "same" and last > acked:
            assert cut(world, last - 1, 9)[1] == cuts[last]
        elif step == "ack" and last > acked:
            acked += 1
            world.shard.cuts.ack(world.queue(), "spark", acked)
            done += cuts.pop(acked)
            world.write()
        elif step == "claim":
            done += world.ack(1)
            # an ack of its own waits for the next batch
            world.shard.log.urgent = True
            world.write()
        elif step == "roll":
            world.roll()
        elif step == "retire":
            world.retire_all()
        elif step == "crash":
            site.kill(world)
            world = site.start()
        held = [body for found in cuts.values() for body in found]
        everything = world.bodies() + held + done
        assert sorted(everything, key=int) == [b"%d" % n for n in range(published)]
        assert world.queue().leased == len(held)
    site.stop()
