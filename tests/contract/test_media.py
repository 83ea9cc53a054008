"""What every medium promises (rookery.store.medium), sentence by sentence, over every medium there is."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import (
    Fenced,
    InvalidArgument,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
)
from rookery.store.medium import Medium
from tests.contract.faulty import Fault
from tests.contract.media import PATIENCE_S, PLACES, Answer, Owner, Place

pytestmark = pytest.mark.row("S3-9")


@pytest.fixture(params=list(PLACES.values()), ids=list(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


@pytest.fixture
def medium(place: Place) -> Iterator[Medium]:
    made = place.open()
    yield made
    made.close()


@pytest.fixture
def owner(medium: Medium) -> Owner:
    return Owner(medium)


def content(medium: Medium, segment: int) -> bytes:
    """Everything in a segment but the zeros at its end; batches in these tests end in something else."""
    size = dict(medium.segments())[segment]
    return medium.read(segment, 0, size).rstrip(b"\0")


# Acquiring


def test_every_acquire_gives_a_higher_epoch(place: Place, medium: Medium) -> None:
    epochs = [medium.acquire(), medium.acquire()]
    medium.close()
    for _ in range(3):
        again = place.open()
        epochs.append(again.acquire())
        again.close()
    assert epochs[0] > 0
    assert all(a < b for a, b in pairwise(epochs))


def test_the_epoch_is_durable_when_acquire_returns(place: Place, medium: Medium) -> None:
    epoch = medium.acquire()
    place.crash(medium)
    again = place.open()
    assert again.acquire() > epoch
    again.close()


def test_a_second_owner_is_kept_out_or_fences_the_first_out(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    other = place.open()
    if place.exclusive:
        with pytest.raises(StoreLocked):
            other.acquire()
        assert owner.append(b"two") is None
        owner.medium.close()
        assert other.acquire() > owner.epoch
        assert content(other, 1) == b"onetwo"
    else:
        second = Owner(other, (1, 3, 1))
        assert second.epoch > owner.epoch
        assert isinstance(owner.append(b"late"), Fenced)
        assert second.append(b"two") is None
        assert content(other, 1) in (b"one", b"onelate")
        assert content(other, 2) == b"two"
    other.close()


def test_after_a_crash_the_next_owner_gets_in(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    place.crash(owner.medium)
    again = Owner(place.open(), (1, 3, 1))
    assert again.append(b"two") is None
    assert content(again.medium, 1) == b"one"
    assert content(again.medium, 2) == b"two"
    again.medium.close()


# Reading


def test_a_new_medium_is_empty(medium: Medium) -> None:
    assert medium.segments() == []
    medium.acquire()
    assert medium.segments() == []
    medium.resume(0, 0, 0)
    assert medium.segments() == []


def test_segments_are_listed_in_order_with_their_sizes(owner: Owner) -> None:
    for number in range(1, 13):
        assert owner.append(b"x" * number, roll=True) is None
    listed = owner.medium.segments()
    assert [number for number, _ in listed] == list(range(1, 13))
    for number, size in listed:
        assert size >= number
        assert content(owner.medium, number) == b"x" * number


def test_reads_are_short_only_where_the_segment_ends(owner: Owner) -> None:
    data = bytes(range(1, 256)) * 40
    assert owner.append(data) is None
    assert owner.append(b"end", roll=True) is None
    read = owner.medium.read
    for offset, size in ((0, 1), (0, 10_200), (17, 1000), (10_199, 1), (5, 0)):
        assert read(1, offset, size) == data[offset : offset + size]
    size = dict(owner.medium.segments())[1]
    assert read(1, 10_000, 1 << 20) == data[10_000:] + bytes(size - len(data))
    assert read(1, size, 10) == b""
    assert read(1, size + 10, 10) == b""


@pytest.mark.parametrize(("segment", "offset", "size", "argument"), [
    (9, 0, 1, "segment"), (1, -1, 1, "offset"), (1, 0, -1, "size"),
])  # fmt: skip
def test_reads_of_what_cannot_be(owner: Owner, segment: int, offset: int, size: int, argument: str) -> None:
    assert owner.append(b"one") is None
    with pytest.raises(InvalidArgument) as raised:
        owner.medium.read(segment, offset, size)
    assert raised.value.argument == argument


def test_any_thread_may_read_while_the_owner_appends_and_deletes(owner: Owner) -> None:
    batch = bytes(range(1, 101))
    assert owner.append(batch) is None
    assert owner.append(batch, roll=True) is None
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            got = owner.medium.read(2, 0, 100)
            if got != batch:
                wrong.append(got)
            try:
                got = owner.medium.read(1, 0, 100)
            except InvalidArgument:
                continue
            if got != batch:
                wrong.append(got)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        assert owner.append(batch, sync=False, roll=turn % 10 == 9) is None
        if turn == 30:
            owner.medium.delete(1)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []


def test_a_segment_has_a_name_of_its_own(owner: Owner) -> None:
    assert owner.medium.name(1) != owner.medium.name(2)
    assert "1" in owner.medium.name(1)


# Appending


def test_batches_follow_each_other(place: Place, owner: Owner) -> None:
    batches = [b"first", b"", b"x" * 5000, b"last"]
    for data in batches:
        assert owner.append(data) is None
    assert content(owner.medium, 1) == b"".join(batches)
    owner.medium.close()
    again = place.open()
    again.acquire()
    assert content(again, 1) == b"".join(batches)
    again.close()


@pytest.mark.parametrize("seq", [-1, 0, 1, 4, 100])
def test_a_batch_out_of_order_is_refused_and_leaves_nothing(owner: Owner, seq: int) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"two") is None
    error = owner.call(seq, 1, b"wrong")
    assert isinstance(error, StoreError)
    assert not isinstance(error, StoreFailed)
    assert content(owner.medium, 1) == b"onetwo"
    assert owner.append(b"three") is None
    assert content(owner.medium, 1) == b"onetwothree"


def test_an_epoch_that_is_not_current_is_fenced(owner: Owner) -> None:
    assert owner.append(b"one") is None
    old = owner.epoch
    owner.epoch = owner.medium.acquire()
    for epoch in (old, 0, owner.epoch + 1):
        assert isinstance(owner.call(2, 1, b"wrong", epoch=epoch), Fenced)
    assert isinstance(owner.call(1, 1, b"one", epoch=old), Fenced)
    assert content(owner.medium, 1) == b"one"
    assert owner.append(b"two") is None
    assert content(owner.medium, 1) == b"onetwo"


def test_repeating_the_last_append_is_success_and_writes_nothing(owner: Owner) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"two", sync=False) is None
    for sync in (False, True, True):
        assert owner.call(2, 1, b"two", sync=sync) is None
    assert content(owner.medium, 1) == b"onetwo"
    assert owner.append(b"three", roll=True) is None
    assert owner.call(3, 2, b"three") is None
    assert content(owner.medium, 2) == b"three"
    assert owner.append(b"four") is None
    assert content(owner.medium, 2) == b"threefour"


@pytest.mark.parametrize(("segment", "data"), [(1, b"TWO"), (1, b"wo"), (1, b"onetwo"), (1, b""), (2, b"two")])
def test_another_batch_under_an_accepted_number_is_refused(owner: Owner, segment: int, data: bytes) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"two") is None
    assert isinstance(owner.call(2, segment, data), StoreError)
    assert content(owner.medium, 1) == b"onetwo"
    assert [number for number, _ in owner.medium.segments()] == [1]


@pytest.mark.parametrize("segment", [0, 1, 4, -1])
def test_segments_are_begun_one_after_the_other(owner: Owner, segment: int) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"two", roll=True) is None
    assert isinstance(owner.call(3, segment, b"wrong"), StoreError)
    assert [number for number, _ in owner.medium.segments()] == [1, 2]
    assert content(owner.medium, 1) == b"one"
    assert owner.append(b"three", roll=True) is None
    assert content(owner.medium, 3) == b"three"


@pytest.mark.parametrize("segment", [0, 2])
def test_the_first_segment_is_1(owner: Owner, segment: int) -> None:
    assert isinstance(owner.call(1, segment, b"one"), StoreError)
    assert owner.medium.segments() == []
    assert owner.call(1, 1, b"one") is None


def test_every_append_is_answered_once(owner: Owner) -> None:
    answers = []
    for epoch, seq, data in ((owner.epoch, 1, b"one"), (owner.epoch, 1, b"one"), (owner.epoch, 7, b"x"), (0, 2, b"x")):
        answer = Answer()
        owner.medium.append(epoch, seq, 1, data, True, answer)
        answer.wait()
        answers.append(answer)
    last = Answer()
    owner.medium.sync(last)
    last.wait()
    owner.medium.close()
    assert [answer.waiting for answer in answers] == [0] * 4


def test_an_answer_may_start_the_next_append(owner: Owner) -> None:
    finished = Answer()

    def next_after(seq: int) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None) -> None:
            if error is not None or seq == 50:
                finished(error)
            else:
                owner.medium.append(owner.epoch, seq + 1, 1, b"%d," % (seq + 1), False, next_after(seq + 1))

        return done

    owner.medium.append(owner.epoch, 1, 1, b"1,", False, next_after(1))
    assert finished.wait() is None
    assert content(owner.medium, 1) == b"".join(b"%d," % n for n in range(1, 51))


def test_one_append_at_a_time(place: Place, owner: Owner) -> None:
    place.fail(owner.medium, Fault.SLOW)
    answer = Answer()
    owner.medium.append(owner.epoch, 1, 1, b"one", True, answer)
    with pytest.raises(AssertionError):
        owner.medium.append(owner.epoch, 2, 1, b"two", True, Answer())
    assert answer.waiting == 0
    place.release(owner.medium)
    assert answer.wait() is None
    assert owner.call(2, 1, b"two") is None


def test_sync(owner: Owner) -> None:
    assert owner.sync() is None
    assert owner.append(b"one", sync=False) is None
    assert owner.sync() is None
    assert owner.sync() is None
    assert content(owner.medium, 1) == b"one"


# Resuming


def test_what_lies_beyond_the_end_is_gone_before_the_first_append(place: Place, owner: Owner) -> None:
    for data in (b"whole", b"torn" * 2000):
        assert owner.append(data) is None
    place.crash(owner.medium)
    again = Owner(place.open(), (1, 5, 1))
    assert content(again.medium, 1) == b"whole"
    assert again.append(b"next") is None
    place.crash(again.medium)
    third = place.open()
    third.acquire()
    assert [content(third, number) for number, _ in third.segments()] == [b"whole", b"next"]
    third.close()


def test_a_segment_beyond_the_end_is_gone(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"torn", roll=True) is None
    assert owner.medium.read(2, 0, 4) == b"torn"
    place.crash(owner.medium)
    again = Owner(place.open(), (1, 3, 1))
    assert [number for number, _ in again.medium.segments()] == [1]
    assert again.append(b"two") is None
    # A number is never used twice.
    assert [(n, content(again.medium, n)) for n, _ in again.medium.segments()] == [(1, b"one"), (3, b"two")]
    again.medium.close()


def test_resuming_in_an_empty_segment(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"torn", roll=True) is None
    place.crash(owner.medium)
    again = Owner(place.open(), (2, 0, 1))
    assert content(again.medium, 2) == b""
    assert again.append(b"two") is None
    assert [content(again.medium, n) for n in (1, 2, 3)] == [b"one", b"", b"two"]
    again.medium.close()


def test_a_journal_of_which_nothing_is_whole_begins_again(place: Place, owner: Owner) -> None:
    assert owner.append(b"torn") is None
    place.crash(owner.medium)
    again = Owner(place.open())
    assert again.medium.segments() == []
    assert again.append(b"one") is None
    assert [(n, content(again.medium, n)) for n, _ in again.medium.segments()] == [(2, b"one")]
    again.medium.close()


def test_the_batch_resumed_at_cannot_be_repeated(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    owner.medium.close()
    again = Owner(place.open(), (1, 3, 1))
    assert isinstance(again.call(1, 1, b"one"), StoreError)
    assert content(again.medium, 1) == b"one"
    again.medium.close()


@pytest.mark.parametrize(("at", "argument"), [
    ((4, 0, 3), "segment"),
    ((-1, 0, 3), "segment"),
    ((3, 1 << 30, 3), "offset"),
    ((3, -1, 3), "offset"),
    ((3, 5, -1), "seq"),
])  # fmt: skip
def test_resuming_where_the_journal_cannot_end_changes_nothing(
    place: Place, owner: Owner, at: tuple[int, int, int], argument: str
) -> None:
    for data in (b"one", b"two", b"three"):
        assert owner.append(data, roll=True) is None
    owner.medium.close()
    medium = place.open()
    medium.acquire()
    with pytest.raises(InvalidArgument) as raised:
        medium.resume(*at)
    assert raised.value.argument == argument
    assert [content(medium, number) for number, _ in medium.segments()] == [b"one", b"two", b"three"]
    medium.resume(3, 5, 3)
    medium.close()


# Deleting


def test_deleted_segments_are_gone(place: Place, owner: Owner) -> None:
    for data in (b"one", b"two", b"three", b"four"):
        assert owner.append(data, roll=True) is None
    owner.medium.read(2, 0, 3)
    owner.medium.delete(2)
    assert [number for number, _ in owner.medium.segments()] == [1, 3, 4]
    owner.medium.delete(1)
    assert [number for number, _ in owner.medium.segments()] == [3, 4]
    assert owner.sync() is None
    for number in (1, 2):
        with pytest.raises(InvalidArgument):
            owner.medium.read(number, 0, 1)
    assert owner.append(b"five") is None
    owner.medium.close()
    again = Owner(place.open(), (4, 8, 5))
    assert [content(again.medium, number) for number, _ in again.medium.segments()] == [b"three", b"fourfive"]
    again.medium.close()


def test_deletes_before_resuming(place: Place, owner: Owner) -> None:
    for data in (b"one", b"two", b"three"):
        assert owner.append(data, roll=True) is None
    place.crash(owner.medium)
    medium = place.open()
    medium.acquire()
    for number in (1, 2):
        medium.delete(number)
    with pytest.raises(InvalidArgument):
        medium.delete(3)
    medium.resume(3, 5, 3)
    assert content(medium, 3) == b"three"
    assert [number for number, _ in medium.segments()] == [3]
    medium.close()


@pytest.mark.parametrize("segment", [0, 1, 3, 4])
def test_deleting_what_cannot_be_deleted(owner: Owner, segment: int) -> None:
    for data in (b"one", b"two", b"three"):
        assert owner.append(data, roll=True) is None
    owner.medium.delete(1)
    with pytest.raises(InvalidArgument) as raised:
        owner.medium.delete(segment)
    assert raised.value.argument == "segment"
    assert owner.sync() is None
    assert [number for number, _ in owner.medium.segments()] == [2, 3]


def test_a_delete_waits_for_the_append_before_it(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    assert owner.append(b"two", roll=True) is None
    place.fail(owner.medium, Fault.SLOW)
    answer, synced = Answer(), Answer()
    owner.medium.append(owner.epoch, 3, 2, b"three", True, answer)
    owner.medium.delete(1)
    owner.medium.sync(synced)
    assert (answer.waiting, synced.waiting) == (0, 0)
    assert owner.medium.read(1, 0, 3) == b"one"
    place.release(owner.medium)
    assert answer.wait() is None
    assert synced.wait() is None
    with pytest.raises(InvalidArgument):
        owner.medium.read(1, 0, 3)


# Failing


def test_a_short_write_is_completed(place: Place, owner: Owner) -> None:
    place.fail(owner.medium, Fault.SHORT_WRITE)
    assert owner.append(b"0123456789") is None
    assert owner.append(b"end") is None
    assert content(owner.medium, 1) == b"0123456789end"


@pytest.mark.parametrize("fault", [Fault.WRITE_ERROR, Fault.SYNC_ERROR])
def test_a_failed_write_or_sync_is_for_good(place: Place, owner: Owner, fault: Fault) -> None:
    assert owner.append(b"one") is None
    place.fail(owner.medium, fault)
    assert isinstance(owner.append(b"two!"), StoreFailed)
    for seq, data in ((2, b"two!"), (2, b"other"), (3, b"three"), (1, b"one")):
        assert isinstance(owner.call(seq, 1, data, sync=False), StoreFailed)
    assert isinstance(owner.sync(), StoreFailed)
    assert owner.medium.read(1, 0, 3) == b"one"
    owner.medium.close()
    again = Owner(place.open(), (1, 3, 1))
    assert again.append(b"two") is None
    assert [content(again.medium, n) for n in (1, 2)] == [b"one", b"two"]
    again.medium.close()


def test_a_sync_that_fails_by_itself_is_for_good(place: Place, owner: Owner) -> None:
    assert owner.append(b"one", sync=False) is None
    place.fail(owner.medium, Fault.SYNC_ERROR)
    assert isinstance(owner.sync(), StoreFailed)
    assert isinstance(owner.append(b"two", sync=False), StoreFailed)
    assert isinstance(owner.sync(), StoreFailed)


def test_a_full_disk_refuses_the_batch_and_goes_on_when_there_is_room(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    for _ in range(2):
        place.fail(owner.medium, Fault.NO_SPACE)
        assert isinstance(owner.append(b"a batch too much"), StoreFull)
        assert content(owner.medium, 1) == b"one"
    assert owner.append(b"two") is None
    assert content(owner.medium, 1) == b"onetwo"
    owner.medium.close()
    again = Owner(place.open(), (1, 6, 2))
    assert again.append(b"three") is None
    assert [content(again.medium, n) for n in (1, 2)] == [b"onetwo", b"three"]
    again.medium.close()


def test_a_full_disk_begins_no_segment(place: Place, owner: Owner) -> None:
    assert owner.append(b"one") is None
    place.fail(owner.medium, Fault.NO_SPACE)
    assert isinstance(owner.append(b"a batch too much", roll=True), StoreFull)
    assert [number for number, _ in owner.medium.segments()] == [1]
    assert owner.append(b"two") is None
    assert owner.append(b"three", roll=True) is None
    assert content(owner.medium, 1) == b"onetwo"
    assert content(owner.medium, 2) == b"three"


def test_free_bytes(owner: Owner) -> None:
    assert owner.medium.free_bytes() > 0
    assert owner.append(b"one") is None
    assert isinstance(owner.medium.free_bytes(), int)


# Closing


def test_close_waits_for_what_is_in_flight(place: Place, owner: Owner) -> None:
    place.fail(owner.medium, Fault.SLOW)
    answer = Answer()
    owner.medium.append(owner.epoch, 1, 1, b"one", True, answer)
    closing = threading.Thread(target=owner.medium.close)
    closing.start()
    place.release(owner.medium)
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert answer.waiting == 1
    assert answer.wait() is None
    again = Owner(place.open(), (1, 3, 1))
    assert content(again.medium, 1) == b"one"
    again.medium.close()


def test_a_closed_medium_refuses_everything(owner: Owner) -> None:
    medium = owner.medium
    assert owner.append(b"one") is None
    medium.close()
    medium.close()
    for call in (
        medium.acquire,
        medium.segments,
        lambda: medium.read(1, 0, 1),
        lambda: medium.resume(0, 0, 0),
        lambda: medium.append(owner.epoch, 2, 1, b"two", True, Answer()),
        lambda: medium.sync(Answer()),
        lambda: medium.delete(1),
    ):
        with pytest.raises(StoreError):
            call()


def test_what_no_owner_may_do_too_early(medium: Medium) -> None:
    medium.acquire()
    with pytest.raises(AssertionError):
        medium.append(1, 1, 1, b"one", True, Answer())


# All together

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9000), st.booleans(), st.booleans()),
        st.tuples(st.just("full"), st.booleans()),
        st.tuples(st.just("repeat")),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("reopen"), st.booleans(), st.integers(0, 50)),
    ),
    max_size=25,
)


class Model:
    """Segments as plain bytes, and what the medium must say."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.owner = Owner(place.open())
        self.segments: dict[int, bytes] = {}
        self.last = b""

    def append(self, size: int, roll: bool, sync: bool) -> None:
        self.last = bytes([1 + self.owner.seq % 255]) * size
        assert self.owner.append(self.last, roll=roll, sync=sync) is None
        self.segments[self.owner.segment] = self.segments.get(self.owner.segment, b"") + self.last

    def full(self, roll: bool) -> None:
        self.place.fail(self.owner.medium, Fault.NO_SPACE)
        assert isinstance(self.owner.append(b"too much", roll=roll), StoreFull)

    def repeat(self) -> None:
        if self.last:
            assert self.owner.call(self.owner.seq, self.owner.segment, self.last) is None

    def delete(self, which: int) -> None:
        older = sorted(self.segments)[:-1]
        if older:
            number = older[which % len(older)]
            self.owner.medium.delete(number)
            del self.segments[number]

    def reopen(self, crash: bool, cut: int) -> None:
        """Whatever was found, the owner may judge that the last bytes are no whole batch."""
        assert self.owner.sync() is None
        if crash:
            self.place.crash(self.owner.medium)
        else:
            self.owner.medium.close()
        number = max(self.segments, default=0)
        end = max(0, len(self.segments.get(number, b"")) - cut)
        if number:
            self.segments[number] = self.segments[number][:end]
        self.owner = Owner(self.place.open(), (number, end, self.owner.seq))
        self.last = b""

    def check(self) -> None:
        medium = self.owner.medium
        listed = dict(medium.segments())
        assert sorted(listed) == sorted(self.segments)
        for number, data in self.segments.items():
            assert medium.read(number, 0, listed[number]) == data + bytes(listed[number] - len(data))


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@given(steps=STEPS)
def test_a_medium_holds_what_a_dict_of_bytes_would(make: Callable[[Path], Place], steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as where:
        model = Model(make(Path(where)))
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
            model.check()
        model.owner.medium.close()
