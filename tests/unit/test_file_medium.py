"""The file medium: its files, its lock, its thread, and what it does when the disk fails or is full.

What it shares with every other medium is in tests/contract/test_media.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from unittest import mock

import pytest

from rookery.errors import (
    Fenced,
    InvalidArgument,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
)
from rookery.store import disk
from rookery.store.file import RESERVE_BYTES, SEGMENT_BYTES, FileMedium
from tests.contract.media import Answer, Owner, UnlockedMedium

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "data" / "shard-1"


@pytest.fixture
def open_medium(where: Path) -> Iterator[Callable[..., FileMedium]]:
    made: list[FileMedium] = []

    def open_it(**options: object) -> FileMedium:
        medium = FileMedium(where, **{"segment_bytes": 64 * KIB, "reserve_bytes": 0, **options})  # type: ignore[arg-type]
        made.append(medium)
        return medium

    yield open_it
    for medium in made:
        medium.close()


OpenMedium = Callable[..., FileMedium]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def descriptors(where: Path) -> list[str]:
    """What this process has open under the directory."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(where)):
            found.append(target)
    return sorted(found)


# Files


def test_the_layout(where: Path, open_medium: OpenMedium) -> None:
    old = os.umask(0)
    try:
        owner = Owner(open_medium(reserve_bytes=4 * KIB))
        assert owner.append(b"one") is None
        assert owner.append(b"two", roll=True) is None
    finally:
        os.umask(old)
    names = ["00000001.log", "00000002.log", "end", "epoch", "epoch.1.drawn", "lock", "reserve"]
    assert sorted(path.name for path in where.iterdir()) == names
    assert mode(where) == 0o700
    assert {mode(path) for path in where.iterdir()} == {0o600}
    assert (where / "epoch").read_text() == "1\n"
    assert (where / "end").read_text() == "2 1\n"
    assert (where / "lock").read_text().split()[0] == str(os.getpid())
    assert owner.medium.name(2) == str(where / "00000002.log")
    assert owner.medium.name(123_456_789) == str(where / "123456789.log")


def test_the_defaults() -> None:
    assert (SEGMENT_BYTES, RESERVE_BYTES) == (64 * MIB, 8 * MIB)


@pytest.mark.parametrize("argument", ["segment_bytes", "reserve_bytes"])
def test_sizes_cannot_be_negative(open_medium: OpenMedium, where: Path, argument: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        open_medium(**{argument: -1})
    assert raised.value.argument == argument
    assert not where.exists()


def test_nothing_is_made_before_acquire(where: Path, open_medium: OpenMedium) -> None:
    medium = open_medium()
    assert medium.segments() == []
    with pytest.raises(InvalidArgument):
        medium.read(1, 0, 1)
    with pytest.raises(StoreError):
        medium.free_bytes()
    medium.close()
    assert not where.exists()


def test_a_segment_is_laid_out_in_advance_and_trimmed_when_it_is_left(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium(segment_bytes=MIB))
    assert owner.append(b"one") is None
    assert owner.medium.segments() == [(1, MIB)]
    assert (where / "00000001.log").stat().st_blocks * 512 >= MIB
    assert owner.medium.read(1, 0, MIB) == b"one" + bytes(MIB - 3)
    assert owner.append(b"two", roll=True) is None
    assert owner.medium.segments() == [(1, 3), (2, MIB)]
    owner.medium.close()
    again = open_medium(segment_bytes=MIB)
    assert again.segments() == [(1, 3), (2, 3)]
    again.acquire()
    again.resume(2, 3, 2)
    assert again.segments() == [(1, 3), (2, 3)]
    assert (where / "00000003.log").stat().st_blocks * 512 >= MIB


def test_batches_may_outgrow_what_was_laid_out(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium(segment_bytes=4 * KIB))
    assert owner.append(b"x" * 10_000) is None
    assert owner.append(b"y" * 10_000) is None
    assert owner.medium.segments() == [(1, 20_000)]
    assert owner.medium.read(1, 9_999, 2) == b"xy"


def test_without_laying_out_files_grow(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium(segment_bytes=0))
    assert owner.append(b"one") is None
    assert owner.append(b"two") is None
    assert owner.medium.segments() == [(1, 6)]


def test_other_files_are_no_segments(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    for name in ("1.log", "000000002.log", "00000000.log", "00000002.log.bak", "x00000002.log", "notes.log"):
        (where / name).write_bytes(b"x")
    assert [number for number, _ in owner.medium.segments()] == [1]
    (where / "100000000.log").write_bytes(b"x")
    assert [number for number, _ in owner.medium.segments()] == [1, 100_000_000]


def test_the_directory_may_be_named_relative_to_where_the_process_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    medium = FileMedium("shard", segment_bytes=0, reserve_bytes=0)
    owner = Owner(medium)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert owner.append(b"one") is None
    medium.close()
    assert (tmp_path / "shard" / "00000001.log").read_bytes() == b"one"


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError) as raised:
            FileMedium(path).acquire()
        assert str(path) in str(raised.value)


def test_free_bytes_are_those_of_the_file_system(where: Path, open_medium: OpenMedium) -> None:
    medium = open_medium()
    medium.acquire()
    assert abs(medium.free_bytes() - shutil.disk_usage(where).free) < 1 << 30


def test_it_works_where_there_are_fewer_system_calls(monkeypatch: pytest.MonkeyPatch, open_medium: OpenMedium) -> None:
    for name in ("pread", "pwrite", "posix_fallocate", "fdatasync"):
        monkeypatch.delattr(os, name)
    owner = Owner(open_medium(reserve_bytes=3 * MIB + 5))
    for data in (b"one", b"two", b"three"):
        assert owner.append(data) is None
    assert owner.append(b"four", roll=True) is None
    assert owner.call(4, 2, b"four") is None
    assert owner.medium.segments() == [(1, 11), (2, 4)]
    assert owner.medium.read(1, 3, 5) == b"twoth"
    owner.medium.delete(1)
    owner.medium.close()
    again = Owner(open_medium(), (2, 4, 4))
    assert again.append(b"five") is None
    assert again.medium.read(2, 0, 100) == b"four"
    assert again.medium.read(3, 0, 100) == b"five"


# Links


def test_a_linked_segment_is_damage(where: Path, tmp_path: Path, open_medium: OpenMedium) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not touch")
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    link = where / "00000007.log"
    link.symlink_to(secret)
    with pytest.raises(StoreDamaged) as raised:
        owner.medium.segments()
    assert raised.value.file == str(link)
    with pytest.raises(StoreDamaged) as raised:
        owner.medium.read(7, 0, 3)
    assert (raised.value.file, raised.value.offset) == (str(link), 0)
    link.unlink()
    (where / "00000002.log").symlink_to(secret)
    assert isinstance(owner.append(b"two", roll=True), StoreFailed)
    assert secret.read_bytes() == b"do not touch"


@pytest.mark.parametrize("name", ["epoch.1.new", "end.2.new"])
def test_no_new_file_is_written_through_a_link(where: Path, tmp_path: Path, open_medium: OpenMedium, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not touch")
    where.mkdir(parents=True)
    (where / name).symlink_to(secret)
    with contextlib.suppress(StoreError):
        Owner(open_medium())
        Owner(open_medium())
    assert secret.read_bytes() == b"do not touch"


@pytest.mark.parametrize("name", ["lock", "epoch", "reserve"])
def test_no_file_is_reached_through_a_link(where: Path, tmp_path: Path, open_medium: OpenMedium, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"do not touch")
    where.mkdir(parents=True)
    (where / name).symlink_to(secret)
    with pytest.raises(StoreError):
        open_medium(reserve_bytes=KIB).acquire()
    assert secret.read_bytes() == b"do not touch"
    (where / name).unlink()
    assert open_medium(reserve_bytes=KIB).acquire() > 0


def test_a_directory_in_place_of_a_segment_is_damage(where: Path, open_medium: OpenMedium) -> None:
    medium = open_medium()
    medium.acquire()
    (where / "00000001.log").mkdir()
    with pytest.raises(StoreDamaged):
        medium.segments()


# The epoch


def test_an_unfinished_epoch_does_not_count(where: Path, open_medium: OpenMedium) -> None:
    medium = open_medium()
    medium.acquire()
    medium.close()
    (where / "epoch.new").write_text("99")
    assert open_medium().acquire() == 2


@pytest.mark.parametrize("text", ["", "1", "x\n", "-1\n", "1 2\n", "\0\0\n"])
def test_a_damaged_epoch_is_never_guessed(where: Path, open_medium: OpenMedium, text: str) -> None:
    medium = open_medium()
    medium.acquire()
    medium.close()
    (where / "epoch").write_text(text)
    for _ in range(2):
        with pytest.raises(StoreDamaged) as raised:
            open_medium().acquire()
        assert raised.value.file == str(where / "epoch")
    (where / "epoch").write_text("41\n")
    assert open_medium().acquire() == 42


def test_an_epoch_that_is_gone_while_segments_are_there_is_damage(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    owner.medium.close()
    (where / "epoch").unlink()
    with pytest.raises(StoreDamaged):
        open_medium().acquire()


# The lock

HOLDER = """
    import os, sys
    from rookery.store.file import FileMedium

    medium = FileMedium(sys.argv[1], segment_bytes=4096, reserve_bytes=0)
    print(medium.acquire(), flush=True)
"""


def spawn(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_two_in_one_process_exclude_each_other(where: Path, open_medium: OpenMedium) -> None:
    open_medium().acquire()
    with pytest.raises(StoreLocked) as raised:
        open_medium().acquire()
    assert f"this process, pid {os.getpid()}" in str(raised.value)
    assert str(where) in str(raised.value)
    assert (where / "epoch").read_text() == "1\n"


def test_a_second_process_is_refused_until_the_first_is_killed(where: Path, open_medium: OpenMedium) -> None:
    holder = spawn(HOLDER + "    sys.stdin.read()\n", where)
    try:
        assert line(holder.stdout) == "1"
        for _ in range(2):
            with pytest.raises(StoreLocked) as raised:
                open_medium().acquire()
            assert f"process {holder.pid}, since 20" in str(raised.value)
            assert str(where / "lock") in str(raised.value)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert (where / "lock").read_text().split()[0] == str(holder.pid)
        assert open_medium().acquire() == 2
        late = spawn(HOLDER, where)
        assert line(late.stdout) == ""
        late.communicate()
        assert late.returncode != 0
    finally:
        end(holder)


def test_a_lock_file_that_nobody_holds_is_no_obstacle(where: Path, open_medium: OpenMedium) -> None:
    where.mkdir(parents=True)
    (where / "lock").write_text(f"{os.getppid()} 2026-01-01T00:00:00+00:00\n")
    assert open_medium().acquire() == 1


def test_an_owner_whose_name_is_not_written_yet(where: Path, open_medium: OpenMedium) -> None:
    open_medium().acquire()
    (where / "lock").write_text("")
    with pytest.raises(StoreLocked, match="another process"):
        open_medium().acquire()


def test_a_forked_child_has_no_part_in_the_journal(where: Path, open_medium: OpenMedium) -> None:
    script = (
        HOLDER
        + """
    medium.resume(0, 0, 0)
    child = os.fork()
    if child == 0:
        try:
            medium.append(1, 1, 1, b"x", True, print)
        except Exception as error:
            os.write(1, type(error).__name__.encode() + b"\\n")
        medium.close()
    else:
        os.write(1, b"%d\\n" % child)
    sys.stdin.read()
    """
    )
    parent = spawn(script, where)
    try:
        assert line(parent.stdout) == "1"
        said = {line(parent.stdout), line(parent.stdout)}
        assert "StoreError" in said
        with pytest.raises(StoreLocked, match=str(parent.pid)):
            open_medium().acquire()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        (child,) = said - {"StoreError"}
        os.kill(int(child), 0)
        assert open_medium().acquire() == 2
    finally:
        end(parent)


@pytest.mark.skipif(sys.platform == "win32", reason="there, an open file cannot be removed")
def test_a_lock_file_that_is_removed_lets_nobody_in(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    (where / "lock").unlink()
    other = open_medium()
    with pytest.raises(StoreLocked, match="in use by another process"):
        other.acquire()
    assert owner.append(b"two") is None
    owner.medium.close()
    assert other.acquire() > owner.epoch


@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("sync", [False, True])
def test_an_owner_whose_epoch_was_raised_confirms_nothing_more(
    where: Path, open_medium: OpenMedium, roll: bool, sync: bool
) -> None:
    """However that came about: here a person wrote into the file, in place and as many bytes as before."""
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    (where / "epoch").write_text("2\n")
    error = owner.append(b"two", roll=roll, sync=sync)
    assert isinstance(error, Fenced)
    assert str(where) in str(error)
    (where / "epoch").write_text("1\n")
    assert isinstance(owner.append(b"three", sync=sync), Fenced)
    assert isinstance(owner.sync(), Fenced)
    end = (where / "end").read_text()
    owner.medium.close()
    assert (where / "end").read_text() == end


def test_an_owner_whose_directory_was_moved_away_confirms_nothing_more(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    where.rename(where.with_name("elsewhere"))
    assert isinstance(owner.append(b"two"), Fenced)
    owner.medium.close()


def test_an_epoch_that_is_written_anew_but_the_same_changes_nothing(where: Path, open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    (where / "copy").write_text((where / "epoch").read_text())
    (where / "copy").replace(where / "epoch")
    assert owner.append(b"one") is None


def test_those_who_start_at_the_same_moment_have_different_epochs(where: Path) -> None:
    """Also where locks keep nobody out."""
    media = [UnlockedMedium(where, segment_bytes=0, reserve_bytes=0) for _ in range(8)]
    start = threading.Barrier(len(media))

    def acquire(medium: FileMedium) -> int:
        start.wait(30)
        try:
            return medium.acquire()
        except StoreLocked:
            # a later one was faster
            return 0

    with mock.patch.object(disk, "try_lock", return_value=True), ThreadPoolExecutor(len(media)) as pool:
        epochs = [epoch for epoch in pool.map(acquire, media) if epoch]
    assert len(set(epochs)) == len(epochs) > 0
    current = int((where / "epoch").read_text())
    assert current in epochs
    for medium in media:
        medium.close()


def test_others_may_read_what_an_owner_writes(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    reader = open_medium()
    assert reader.segments() == owner.medium.segments()
    assert reader.read(1, 0, 3) == b"one"
    assert owner.append(b"two") is None
    assert reader.read(1, 0, 6) == b"onetwo"


# The thread


def test_one_thread_answers_everything(open_medium: OpenMedium) -> None:
    medium = open_medium()
    before = set(threading.enumerate())
    assert medium.acquire() == 1
    medium.resume(0, 0, 0)
    threads = set()
    for seq in (1, 2):
        answer = Answer()
        medium.append(1, seq, 1, b"x", True, answer)
        assert answer.wait() is None
        threads.add(answer.thread)
    answer = Answer()
    medium.sync(answer)
    assert answer.wait() is None
    threads.add(answer.thread)
    (thread,) = threads
    assert thread is not None
    assert (thread.name, thread.daemon) == ("rookery-journal", True)
    assert set(threading.enumerate()) - before == {thread}
    medium.close()
    assert not thread.is_alive()


def test_a_callback_that_raises_does_not_end_the_thread(
    open_medium: OpenMedium, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    owner = Owner(open_medium())

    def done(error: BaseException | None) -> None:
        raise ZeroDivisionError

    owner.medium.append(owner.epoch, 1, 1, b"one", True, done)
    assert owner.sync() is None
    assert raised == [ZeroDivisionError]
    assert owner.call(2, 1, b"two") is None


def test_a_callback_cannot_close_the_medium(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    outcome = Answer()

    def done(error: BaseException | None) -> None:
        try:
            owner.medium.close()
        except AssertionError as refused:
            outcome(refused)

    owner.medium.append(owner.epoch, 1, 1, b"one", True, done)
    assert isinstance(outcome.wait(), AssertionError)
    assert owner.call(2, 1, b"two") is None


@LINUX
def test_descriptors_are_bounded_private_and_given_back(where: Path, open_medium: OpenMedium) -> None:
    medium = open_medium(segment_bytes=0)
    owner = Owner(medium)
    last = disk.READERS_MAX + 20
    for number in range(1, last + 1):
        assert owner.append(b"%d" % number, roll=True, sync=False) is None
        assert owner.medium.read(number, 0, 9) == b"%d" % number
    assert owner.medium.read(1, 0, 9) == b"1"
    assert len(descriptors(where)) <= disk.READERS_MAX + 5
    for fd in Path("/proc/self/fd").iterdir():
        try:
            ours = str(fd.readlink()).startswith(str(where))
        except FileNotFoundError:
            continue
        assert not (ours and os.get_inheritable(int(fd.name)))
    owner.medium.delete(last - 1)
    assert owner.sync() is None
    for sweeper in medium._sweepers:
        sweeper.join()
    assert not [path for path in descriptors(where) if f"{last - 1:08d}" in path]
    owner.medium.close()
    assert descriptors(where) == []


@LINUX
def test_a_segment_is_deleted_also_where_no_thread_can_be_started(
    where: Path, open_medium: OpenMedium, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(open_medium())
    for data in (b"one", b"two"):
        assert owner.append(data, roll=True) is None

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        owner.medium.delete(1)
        assert owner.sync() is None
    assert not [path for path in descriptors(where) if "00000001" in path]
    assert [number for number, _ in owner.medium.segments()] == [2]


# Syncs, in their order


class Recorder:
    """What reached the disk: syncs by the file's name, and how much was written where."""

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.writes: list[tuple[str, int, int]] = []
        self.on_sync: Callable[[], None] = lambda: None

    def sync(self, fd: int) -> None:
        self.syncs.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        self.on_sync()
        disk.sync_data(fd)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self.writes.append((Path(f"/proc/self/fd/{fd}").readlink().name, offset, len(data)))
        return disk.write_at(fd, data, offset)


@LINUX
def test_when_syncs_happen(where: Path, open_medium: OpenMedium) -> None:
    record = Recorder()
    owner = Owner(open_medium(sync_file=record.sync))
    assert owner.append(b"one", sync=False) is None
    assert record.syncs == []
    assert owner.append(b"two") is None
    assert record.syncs == ["00000001.log"]
    assert owner.sync() is None
    assert len(record.syncs) == 1
    assert owner.append(b"three", sync=False) is None
    assert owner.call(3, 1, b"three") is None
    assert len(record.syncs) == 2
    assert owner.append(b"four", sync=False) is None
    # Before a segment is begun, the one before it is synced.
    there: list[bool] = []
    record.on_sync = lambda: there.append((where / "00000002.log").exists())
    assert owner.append(b"five", sync=False, roll=True) is None
    assert (record.syncs[2:], there) == (["00000001.log"], [False])
    # Before a segment goes, all that was appended before is synced: something of it may have been carried forward.
    record.on_sync = lambda: there.append((where / "00000001.log").exists())
    owner.medium.delete(1)
    assert owner.sync() is None
    assert (record.syncs[3:], there[1:]) == (["00000002.log"], [True])
    assert not (where / "00000001.log").exists()


# Failures


def test_a_write_that_makes_no_progress_fails(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium(write_file=lambda fd, data, offset: 0))
    assert isinstance(owner.append(b"one"), StoreFailed)


def test_many_short_writes_are_completed(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium(write_file=lambda fd, data, offset: disk.write_at(fd, data[:7], offset)))
    data = bytes(range(1, 251)) * 4
    assert owner.append(data) is None
    assert owner.append(b"end") is None
    assert owner.medium.read(1, 0, 1003) == data + b"end"


def test_a_failure_says_why(where: Path, open_medium: OpenMedium) -> None:
    def sync(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    owner = Owner(open_medium(sync_file=sync))
    for _ in range(2):
        error = owner.append(b"one")
        assert isinstance(error, StoreFailed)
        assert "the disk is gone" in str(error)
        assert str(where) in str(error)
    assert "the disk is gone" in (where / "failed").read_text()


def test_a_full_disk_whose_tail_cannot_be_restored_fails(
    open_medium: OpenMedium, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = False

    def write(fd: int, data: memoryview, offset: int) -> int:
        if broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return disk.write_at(fd, data, offset)

    def truncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    owner = Owner(open_medium(write_file=write))
    assert owner.append(b"one") is None
    broken = True
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", truncate)
        assert isinstance(owner.append(b"two"), StoreFailed)
    broken = False
    assert isinstance(owner.append(b"two"), StoreFailed)


def test_no_space_at_a_sync_is_a_failure(open_medium: OpenMedium) -> None:
    """What was written may be lost already: this is no clean point."""

    def sync(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner = Owner(open_medium(sync_file=sync))
    assert isinstance(owner.append(b"one"), StoreFailed)
    assert isinstance(owner.append(b"one", sync=False), StoreFailed)


def test_a_quota_is_a_full_disk(open_medium: OpenMedium) -> None:
    left = [errno.EDQUOT]

    def write(fd: int, data: memoryview, offset: int) -> int:
        if left:
            raise OSError(left.pop(), "quota")
        return disk.write_at(fd, data, offset)

    owner = Owner(open_medium(write_file=write))
    assert isinstance(owner.append(b"one"), StoreFull)
    assert owner.append(b"one") is None


def test_a_delete_that_fails_makes_the_medium_fail(open_medium: OpenMedium, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(open_medium())
    for data in (b"one", b"two", b"three"):
        assert owner.append(data, roll=True) is None

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        owner.medium.delete(1)
        assert isinstance(owner.sync(), StoreFailed)
    owner.medium.delete(2)
    assert isinstance(owner.append(b"four"), StoreFailed)
    owner.medium.close()
    assert [number for number, _ in open_medium().segments()] == [1, 2, 3]


def test_bytes_that_cannot_be_read_are_damage(open_medium: OpenMedium, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None

    def pread(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        with pytest.raises(StoreDamaged) as raised:
            owner.medium.read(1, 2, 1)
    assert (raised.value.file, raised.value.offset) == (owner.medium.name(1), 2)
    assert owner.medium.read(1, 2, 1) == b"e"


@LINUX
def test_without_a_free_descriptor_a_roll_is_refused_and_tried_again(open_medium: OpenMedium) -> None:
    owner = Owner(open_medium())
    assert owner.append(b"one") is None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1
    taken = [os.dup(0) for _ in range(used)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        assert isinstance(owner.append(b"two", roll=True), StoreFull)
        assert owner.append(b"two") is None
        # One is enough for all the steps of a roll.
        os.close(taken.pop())
        assert owner.append(b"three", roll=True) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert owner.medium.read(2, 0, 5) == b"three"


@LINUX
def test_after_a_failed_sync_the_next_owner_writes_the_last_segments_again(
    where: Path, open_medium: OpenMedium
) -> None:
    def sync(fd: int) -> None:
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    broken = False
    owner = Owner(open_medium(sync_file=sync))
    for data in (b"oldest", b"older", b"three"):
        assert owner.append(data, roll=True) is None
    broken = True
    assert isinstance(owner.append(b"four"), StoreFailed)
    owner.medium.close()

    record = Recorder()
    again = open_medium(sync_file=record.sync, write_file=record.write)
    again.acquire()
    again.resume(3, 9, 4)
    assert record.writes == [("00000002.log", 0, 5), ("00000003.log", 0, 9)]
    assert record.syncs[:2] == ["00000002.log", "00000003.log"]
    assert again.read(3, 0, 9) == b"threefour"
    assert not (where / "failed").exists()
    again.close()

    record = Recorder()
    third = open_medium(sync_file=record.sync, write_file=record.write)
    third.acquire()
    third.resume(3, 9, 4)
    assert record.writes == []
