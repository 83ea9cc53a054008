"""The file medium on a real full disk, and in a process that is killed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.errors import StoreFull
from rookery.store import disk
from rookery.store.file import FileMedium
from tests.contract.media import Owner

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    at = tmp_path / "small"
    at.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(at)]
    else:
        image = tmp_path / "image"
        image.write_bytes(b"")
        os.truncate(image, 8 * MIB)
        mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if mkfs is None:
            pytest.skip("mkfs.ext4 is not installed")
        subprocess.run([mkfs, "-q", "-F", "-m", "0", str(image)], check=True, capture_output=True)
        command = ["mount", "-o", "loop", str(image), str(at)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"cannot mount a small file system: {error}")
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield at
    # Lazily, because a test that failed may have left files open.
    subprocess.run(["umount", "-l", str(at)], check=True, capture_output=True)


def fill(at: Path, name: str = "ballast") -> None:
    """Leave no room."""

    def pour(size: int) -> None:
        while file.write(b"x" * size):
            pass

    with (at / name).open("wb", buffering=0) as file:
        for size in (64 * KIB, KIB, 1):
            with pytest.raises(OSError) as raised:
                pour(size)
            assert raised.value.errno == errno.ENOSPC
        os.fsync(file.fileno())


def batch(number: int, size: int = 30 * KIB) -> bytes:
    return bytes([1 + number % 255]) * size


def test_a_disk_that_fills_up(small_disk: Path) -> None:
    medium = FileMedium(small_disk / "shard", segment_bytes=MIB, reserve_bytes=MIB)
    owner = Owner(medium)
    stored = 0
    # More than fits: at some point a segment can no longer be laid out, and at a later one nothing goes any more.
    for number in range(500):
        error = owner.append(batch(number), roll=number % 30 == 0)
        if error is not None:
            assert isinstance(error, StoreFull)
            break
        stored += 1
    assert 60 < stored < 300
    for _ in range(3):
        assert isinstance(owner.append(batch(stored)), StoreFull)
    # Settles go on from the reserve, ordinary batches do not take it from them.
    assert owner.append(batch(stored), urgent=True) is None
    stored += 1
    assert isinstance(owner.append(b"ordinary" * 100), StoreFull)
    assert owner.append(batch(stored), urgent=True, roll=True) is None
    stored += 1
    assert isinstance(owner.append(b"ordinary"), StoreFull)
    assert not (small_disk / "shard" / "failed").exists()
    # Room again: by itself everything is as before, the reserve too.
    medium.delete(1)
    medium.delete(2)
    assert owner.append(batch(stored)) is None
    stored += 1
    assert (small_disk / "shard" / "reserve").stat().st_blocks * 512 >= MIB
    medium.close()
    read_back(small_disk / "shard", range(60, stored), owner)


def read_back(where: Path, numbers: range, owner: Owner) -> None:
    """All of these batches are there, whole, and nothing else."""
    medium = FileMedium(where, segment_bytes=0, reserve_bytes=0)
    assert medium.acquire() > owner.epoch
    data = b"".join(medium.read(number, 0, size) for number, size in medium.segments())
    assert data == b"".join(batch(number) for number in numbers)
    medium.close()


def test_a_batch_that_fits_in_part_leaves_nothing(small_disk: Path) -> None:
    sizes: list[int] = []

    def write(fd: int, data: memoryview, offset: int) -> int:
        written = disk.write_at(fd, data, offset)
        sizes.append(written)
        return written

    medium = FileMedium(small_disk / "shard", segment_bytes=0, reserve_bytes=0, write_file=write)
    owner = Owner(medium)
    assert owner.append(b"one") is None
    (small_disk / "ballast").write_bytes(bytes(MIB))
    sizes.clear()
    assert isinstance(owner.append(b"x" * (16 * MIB)), StoreFull)
    # It was a short write indeed.
    assert 0 < sum(sizes) < 16 * MIB
    assert medium.segments() == [(1, 3)]
    assert isinstance(owner.append(b"x" * (16 * MIB), roll=True), StoreFull)
    assert medium.segments() == [(1, 3)]
    assert owner.append(b"two") is None
    assert medium.read(1, 0, 100) == b"onetwo"
    medium.close()


def test_what_is_laid_out_can_be_written_on_a_full_disk(small_disk: Path) -> None:
    medium = FileMedium(small_disk / "shard", segment_bytes=MIB, reserve_bytes=0)
    owner = Owner(medium)
    assert owner.append(b"one") is None
    fill(small_disk)
    assert owner.append(b"x" * (MIB - 3)) is None
    assert isinstance(owner.append(b"y" * 64 * KIB), StoreFull)
    (small_disk / "ballast").unlink()
    assert owner.append(b"y" * 64 * KIB) is None
    assert medium.read(1, MIB - 1, 2) == b"xy"
    medium.close()


def test_the_reserve_is_taken_again_as_soon_as_a_segment_goes(small_disk: Path) -> None:
    reserve = small_disk / "shard" / "reserve"
    medium = FileMedium(small_disk / "shard", segment_bytes=0, reserve_bytes=512 * KIB)
    owner = Owner(medium)
    assert owner.append(b"x" * MIB) is None
    assert owner.append(b"two", roll=True) is None
    fill(small_disk)
    assert owner.append(b"y" * 64 * KIB, urgent=True) is None
    assert not reserve.exists()
    medium.delete(1)
    assert owner.sync() is None
    assert reserve.stat().st_blocks * 512 >= 512 * KIB
    medium.close()


def test_a_broker_can_start_on_a_full_disk(small_disk: Path) -> None:
    where = small_disk / "shard"
    owner = Owner(FileMedium(where, segment_bytes=MIB, reserve_bytes=512 * KIB))
    assert owner.append(b"one") is None
    owner.medium.close()
    fill(small_disk)
    again = Owner(FileMedium(where, segment_bytes=MIB, reserve_bytes=512 * KIB), (1, 3, 1))
    assert again.epoch == 2
    fill(small_disk, "more")
    assert isinstance(again.append(b"x" * 64 * KIB), StoreFull)
    assert again.append(b"settled", urgent=True) is None
    (small_disk / "ballast").unlink()
    (small_disk / "more").unlink(missing_ok=True)
    assert again.append(b"two") is None
    assert again.medium.read(1, 0, 13) == b"one"
    assert again.medium.read(2, 0, 10) == b"settledtwo"
    again.medium.close()


def test_a_disk_too_full_to_start_says_so(small_disk: Path) -> None:
    where = small_disk / "shard"
    where.mkdir()
    fill(small_disk)
    medium = FileMedium(where, segment_bytes=MIB, reserve_bytes=MIB)
    with pytest.raises(StoreFull) as raised:
        medium.acquire()
    assert str(where) in str(raised.value)
    (small_disk / "ballast").unlink()
    assert medium.acquire() == 1
    medium.close()


WRITER = """
    import sys
    from queue import SimpleQueue
    from rookery.store.file import FileMedium

    where, segment, offset, seq = sys.argv[1], *map(int, sys.argv[2:])
    medium = FileMedium(where, segment_bytes=16384, reserve_bytes=0)
    epoch = medium.acquire()
    segment = medium.resume(segment, offset, seq)
    before = seq
    answers = SimpleQueue()
    while True:
        seq += 1
        if seq % 100 == 0 and seq > before + 1:
            segment += 1
        medium.append(epoch, seq, segment, b"%09d;" % seq * 9, seq % 3 == 0, answers.put)
        error = answers.get()
        if error is not None:
            raise error
        if seq % 100 == 50:
            # The oldest first, and those again whose delete an earlier writer did not live to see: as a journal does.
            for old in [number for number, _ in medium.segments() if number < segment][:-2]:
                medium.delete(old)
        sys.stdout.write(f"{segment} {seq}\\n")
        sys.stdout.flush()
"""


def test_a_writer_that_is_killed_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    where = tmp_path / "shard"
    at = (0, 0, 0)
    for round_ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(where), *map(str, at)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(150 + 37 * round_):
                assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read()
        answered = int(rest.split("\n")[-2].split()[1]) if rest.count("\n") else 0
        medium = FileMedium(where, segment_bytes=16384, reserve_bytes=0)
        assert medium.acquire() == 2 * round_ + 2
        found = medium.segments()
        expected, last = None, 0
        for number, size in found:
            data = medium.read(number, 0, size).rstrip(b"\0")
            whole = [data[i : i + 90] for i in range(0, len(data) // 90 * 90, 90)]
            for one in whole:
                seq = int(one[:9])
                assert one == b"%09d;" % seq * 9
                assert expected in (None, seq)
                expected, last = seq + 1, seq
            at = (number, 90 * len(whole), last)
        assert last >= answered
        medium.close()
