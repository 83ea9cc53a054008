"""The faults of the medium in memory: what is left after each, which the simulation builds on."""

from __future__ import annotations

import pytest

from rookery.errors import StoreError, StoreFailed, StoreFull, StoreUnavailable
from rookery.store.medium import Medium
from tests.contract.faulty import Fault, FaultyMedium
from tests.contract.media import Answer, Owner


def content(medium: Medium, segment: int) -> bytes:
    return medium.read(segment, 0, 1 << 20).rstrip(b"\0")


def written(*batches: tuple[bytes, bool]) -> FaultyMedium:
    medium = FaultyMedium(segment_bytes=64)
    owner = Owner(medium)
    for data, sync in batches:
        assert owner.append(data, sync=sync) is None
    return medium


def test_a_crash_of_the_machine_loses_what_was_not_synced() -> None:
    medium = written((b"one", True), (b"two", False), (b"three", False))
    found = medium.crash()
    assert content(found, 1) == b"one"
    assert dict(found.segments()) == {1: 64}
    assert found.acquire() == 2
    with pytest.raises(StoreError):
        medium.segments()


def test_a_crash_of_the_process_loses_nothing_that_was_written() -> None:
    found = written((b"one", True), (b"two", False)).crash(tail=lambda unsynced: unsynced)
    assert content(found, 1) == b"onetwo"
    assert content(found.crash(), 1) == b"one"
    found = found.crash(tail=lambda unsynced: unsynced)
    Owner(found, (1, 6, 2))
    assert content(found.crash(), 1) == b"onetwo"


def test_a_torn_write_leaves_a_part() -> None:
    medium = written((b"one", True), (b"two", False))
    assert content(medium.crash(tail=lambda unsynced: unsynced[:2]), 1) == b"onetw"
    assert medium.crash(tail=lambda unsynced: b"\0\0" + unsynced[2:]).read(1, 0, 64) == b"one\0\0o" + bytes(58)


def test_a_segment_is_synced_before_the_next_begins() -> None:
    medium = FaultyMedium(segment_bytes=16)
    owner = Owner(medium)
    assert owner.append(b"one", sync=False) is None
    assert owner.append(b"two", sync=False, roll=True) is None
    found = medium.crash()
    assert [content(found, number) for number, _ in found.segments()] == [b"one", b""]


def test_a_slow_append_is_written_but_not_answered() -> None:
    medium = FaultyMedium()
    owner = Owner(medium)
    medium.script(None, Fault.SLOW)
    assert owner.append(b"one") is None
    answer = Answer()
    medium.append(owner.epoch, 2, 1, b"two", True, answer)
    assert medium.held
    assert answer.waiting == 0
    assert content(medium.crash(), 1) == b"one"
    assert content(medium.crash(tail=lambda unsynced: unsynced), 1) == b"onetwo"


def test_a_slow_sync_may_fail_in_the_end() -> None:
    medium = FaultyMedium()
    owner = Owner(medium)
    medium.script(Fault.SLOW)
    answer = Answer()
    medium.append(owner.epoch, 1, 1, b"one", True, answer)
    medium.release(Fault.SYNC_ERROR)
    assert isinstance(answer.wait(), StoreFailed)
    assert isinstance(owner.append(b"one"), StoreFailed)


@pytest.mark.parametrize(("fault", "stored"), [(Fault.ANSWER_LOST, b"onetwo"), (Fault.REQUEST_LOST, b"one")])
def test_an_unknown_outcome_is_resolved_by_repeating(fault: Fault, stored: bytes) -> None:
    medium = FaultyMedium()
    owner = Owner(medium)
    assert owner.append(b"one") is None
    medium.script(fault)
    assert isinstance(owner.append(b"two"), StoreUnavailable)
    assert content(medium, 1) == stored
    assert owner.append(b"two") is None
    assert owner.append(b"three") is None
    assert content(medium, 1) == b"onetwothree"


def test_deletes_may_come_undone_last_first() -> None:
    medium = FaultyMedium()
    owner = Owner(medium)
    for data in (b"one", b"two", b"three"):
        assert owner.append(data, roll=True) is None
    assert owner.append(b"!", sync=False) is None
    medium.delete(1)
    medium.delete(2)
    for undelete, numbers in ((0, [3]), (1, [2, 3]), (2, [1, 2, 3])):
        found = medium.crash(undelete=undelete)
        assert [number for number, _ in found.segments()] == numbers
        assert content(found, 3) == b"three!"


def test_deletes_before_a_batch_stay_done() -> None:
    medium = FaultyMedium()
    owner = Owner(medium)
    for data in (b"one", b"two"):
        assert owner.append(data, roll=True) is None
    medium.delete(1)
    assert owner.append(b"!", sync=False) is None
    assert [number for number, _ in medium.crash(undelete=1).segments()] == [2]


def test_a_reserve_for_urgent_batches_on_a_disk_in_memory() -> None:
    medium = FaultyMedium(segment_bytes=100, reserve_bytes=50)
    owner = Owner(medium)
    assert owner.append(b"x" * 90) is None
    medium.disk.capacity_bytes = medium.disk.used_bytes()
    assert owner.append(b"y" * 10) is None
    assert isinstance(owner.append(b"z"), StoreFull)
    assert owner.append(b"u" * 30, urgent=True) is None
    assert isinstance(owner.append(b"z"), StoreFull)
    assert isinstance(owner.append(b"u" * 30, urgent=True), StoreFull)
    medium.disk.capacity_bytes += 49
    assert owner.append(b"z") is None
    assert medium.free_bytes() == 18
