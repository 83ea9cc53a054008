"""Sealed streams: files that hold exactly what the tail held, and that outlive any crash on the way."""

from __future__ import annotations

import io
import os
import queue as waiting
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core import ranges, retention, streams
from rookery.core.shard import Shard
from rookery.core.stream import Partition, SealedFile, Stream
from rookery.errors import NotFound, StoreDamaged
from rookery.format.properties import Properties, encode
from rookery.sealed import history, layout
from rookery.sealed.history import History, Job
from tests.contract.journal_world import SITES, Site, World

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from rookery.format import records  # noqa: E402
from rookery.sealed import arrow, parquet, sealing  # noqa: E402
from rookery.sealed.schema import schema_of  # noqa: E402

PROPS = encode(
    Properties(
        content_type="text/plain",
        headers={"x-key": "k1", "n": 5, "flag": True, "text": "é"},
        message_id="m-1",
        correlation_id="c",
        reply_to="r",
        timestamp=1_700_000_001,
        delivery_mode=2,
    )
)


class Keeper:
    """A process with a journal and a history, driven by hand."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls: waiting.SimpleQueue[Callable[[], None]] = waiting.SimpleQueue()
        self.begin()

    def begin(self) -> None:
        self.world: World = self.site.start()
        self.history = History(self.world.shard, self.world.journal, self.site.where / "streams", self.calls.put)
        self.history.helper = lambda job: sealing.perform(io.BytesIO(job.input()))
        self.history.open()

    def stream(self, **said: object) -> Stream:
        return streams.declare(self.world.tenant(), "log", said)[0]

    @property
    def partition(self) -> Partition:
        return self.world.tenant().stream("log").partitions[0]

    def fill(self, count: int, props: bytes = PROPS) -> None:
        for _ in range(count):
            n = int(self.partition.end)
            self.world.shard.publish(self.world.tenant(), "", "log", props, b"body %d" % n)
        self.world.write()

    def seal(self) -> None:
        errors: list[BaseException | None] = []
        self.history.seal(self.partition, errors.append)
        while not errors:
            self.calls.get(timeout=60)()
        assert errors == [None]
        self.world.write()

    def settle(self) -> None:
        """Let the history do what is due now, to the end."""
        self.world.pass_ms(1_000)
        self.history.tick()
        while self.history._job is not None:
            self.calls.get(timeout=60)()
        self.world.write()

    def restart(self) -> None:
        self.history.close()
        if self.history._job is not None:
            self.calls.get(timeout=60)
        self.site.kill(self.world)
        self.begin()

    def files(self) -> list[str]:
        return sorted(p.relative_to(self.history.root).as_posix() for p in self.history.root.rglob("*.parquet"))

    def rows(self, start: int, stop: int, columns: list[str] | None = None, pattern: str = "") -> list[dict]:
        """What a range read gives."""
        schema = schema_of(columns or [])
        found = []
        for piece in ranges.plan(self.partition, start, stop):
            if isinstance(piece, ranges.FilePiece):
                same = {"tenant": "default", "stream": "log", "partition": 0}
                path = self.history.root / piece.path
                batches = parquet.batches(path, piece.start, piece.stop, schema, same, pattern)
            else:
                collected = arrow.collect(piece.places, piece.stamps, piece.start, self.read, schema, pattern)
                batches = (arrow.batch_of(c, schema, "default", "log", 0) for c in collected)
            for batch in batches:
                batch.validate(full=True)
                found += batch.to_pylist()
        return found

    def read(self, place: int, size: int) -> bytes:
        return self.world.medium.read(place >> 36, place & ((1 << 36) - 1), size)


@pytest.fixture(params=SITES)
def keeper(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Keeper]:
    """Over files, which the work reads itself, and over a medium without them, whose records are handed to it."""
    keeper = Keeper(SITES[request.param](tmp_path))
    yield keeper
    keeper.history.close()
    keeper.site.stop()


def test_a_sealed_file_holds_what_the_tail_held(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(100)
    before = keeper.rows(0, 100)
    keeper.seal()
    assert keeper.partition.tail == 100
    assert keeper.rows(0, 100) == before
    (path,) = keeper.files()
    assert path.startswith("tenant=default/stream=log/partition=0/date=2023-11-14/")
    assert path.endswith("/00000000000000000000-00000000000000000099.parquet")
    table = pq.read_table(keeper.history.root / path, partitioning=None)
    here = {"tenant": "default", "stream": "log", "partition": 0}
    assert [{**here, **row} for row in table.drop_columns(["envelope"]).to_pylist()] == before
    row = before[7]
    assert (row["tenant"], row["stream"], row["partition"], row["offset"]) == ("default", "log", 0, 7)
    assert (row["value"], row["key"], row["message_id"], row["content_type"]) == (b"body 7", b"k1", "m-1", "text/plain")
    assert row["headers"] == [
        {"key": "n", "value": b"5"},
        {"key": "flag", "value": b"true"},
        {"key": "text", "value": "é".encode()},
    ]
    assert (row["exchange"], row["routing_key"], row["priority"]) == ("", "log", 0)
    assert int(row["producer_timestamp"].timestamp()) == 1_700_000_001
    assert int(row["timestamp"].timestamp() * 1000) == keeper.world.wall_ms
    assert row["expiration"] is row["delivery_count"] is row["content_encoding"] is None


def test_records_come_back_from_a_file_as_they_were(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(20)
    before = [keeper.partition.record(o) for o in range(20)]
    keeper.seal()
    found = parquet.records_of(keeper.history.root / keeper.partition.files[0].path, 5, 9)
    assert [records.read_message(r, {}).body for r in found] == [b"body 5", b"body 6", b"body 7", b"body 8"]
    for old, new in zip(before[5:9], found, strict=True):
        # but for the number that the journal gives the partition
        assert old[9:] == new[9:]


def test_a_range_over_files_and_tail(keeper: Keeper) -> None:
    keeper.stream()
    for count in (10, 1, 20):
        keeper.fill(count)
        keeper.seal()
    keeper.fill(5)
    assert [row["offset"] for row in keeper.rows(0, 36)] == list(range(36))
    assert [row["value"] for row in keeper.rows(9, 33)] == [b"body %d" % n for n in range(9, 33)]
    assert keeper.rows(36, 36) == []


def test_columns_and_routing_keys_choose(keeper: Keeper) -> None:
    stream = keeper.stream()
    tenant = keeper.world.tenant()
    tenant.bind("amq.topic", stream, "#")
    for key in ("a.b", "a.c", "x.y", "a.b"):
        keeper.world.shard.publish(tenant, "amq.topic", key, b"\0\0", key.encode())
    keeper.world.write()
    for _ in range(2):
        rows = keeper.rows(0, 4, ["routing_key", "value"], "a.*")
        assert rows == [{"routing_key": k, "value": k.encode()} for k in ("a.b", "a.c", "a.b")]
        assert keeper.rows(0, 4, ["offset"], "x.#") == [{"offset": 2}]
        keeper.seal()


def test_sealed_records_leave_the_journal_and_survive_restarts(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(50)
    expected = keeper.rows(0, 50)
    keeper.seal()
    keeper.world.roll()
    keeper.world.settle()
    assert len(keeper.world.journal.segments) == 1
    keeper.restart()
    assert (keeper.partition.first, keeper.partition.tail, keeper.partition.visible) == (0, 50, 50)
    assert keeper.rows(0, 50) == expected
    keeper.fill(1)
    assert keeper.rows(50, 51)[0]["value"] == b"body 50"


def test_a_crash_before_the_file_counts_leaves_no_trace(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(10)
    keeper.seal()
    keeper.fill(10)
    # the file is there under its name, and nobody has heard of it
    stray = keeper.history.root / keeper.files()[0]
    shutil.copy(stray, stray.with_name(f"{10:020d}-{19:020d}.parquet"))
    stray.with_name("_sealing-1-x.parquet").write_bytes(b"half")
    keeper.restart()
    assert len(keeper.files()) == 1
    assert [row["offset"] for row in keeper.rows(0, 20)] == list(range(20))
    keeper.seal()
    assert [row["value"] for row in keeper.rows(0, 20)] == [b"body %d" % n for n in range(20)]


def test_a_missing_file_is_damage(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(10)
    keeper.seal()
    (keeper.history.root / keeper.files()[0]).unlink()
    with pytest.raises(StoreDamaged, match="is missing"):
        keeper.restart()


def test_age_and_size_make_sealing_due(keeper: Keeper) -> None:
    keeper.stream(seal_ms=60_000, seal_bytes=1 << 20)
    keeper.fill(10)
    keeper.settle()
    assert keeper.files() == []
    keeper.world.pass_ms(60_000)
    keeper.settle()
    assert len(keeper.files()) == 1
    keeper.world.shard.publish(keeper.world.tenant(), "", "log", b"\0\0", b"x" * (2 << 20))
    keeper.world.write()
    keeper.settle()
    assert len(keeper.files()) == 2


def test_a_file_is_of_one_day(keeper: Keeper) -> None:
    keeper.stream()
    for _ in range(3):
        keeper.fill(2)
        keeper.world.pass_ms(86_400_000)
    keeper.seal()
    assert [path.split("/")[3] for path in keeper.files()] == ["date=2023-11-14", "date=2023-11-15", "date=2023-11-16"]


def test_small_files_are_merged_and_the_old_ones_go(keeper: Keeper) -> None:
    keeper.stream()
    for _ in range(8):
        keeper.fill(3)
        keeper.seal()
    expected = keeper.rows(0, 24)
    keeper.settle()
    keeper.settle()
    (path,) = keeper.files()
    assert path.endswith(f"{0:020d}-{23:020d}.parquet")
    assert keeper.rows(0, 24) == expected
    keeper.restart()
    assert keeper.rows(0, 24) == expected


def test_a_large_file_among_small_ones_is_not_merged_over(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MERGE_FILES", 3)
    keeper.stream(seal_bytes=1 << 20)
    # what is leased is not merged meanwhile
    for n in range(7):
        if n == 3:
            body = random.Random(n).randbytes(700_000)
            keeper.world.shard.publish(keeper.world.tenant(), "", "log", PROPS, body)
            keeper.world.write()
        else:
            keeper.fill(2)
        keeper.history.lease("spark", frozenset(file.path for file in keeper.partition.files))
        keeper.seal()
    expected = keeper.rows(0, 13)
    keeper.history.release("spark")
    for _ in range(4):
        keeper.settle()
    assert [(int(file.first), int(file.last)) for file in keeper.partition.files] == [(0, 5), (6, 6), (7, 12)]
    assert keeper.rows(0, 13) == expected


def test_only_neighbours_are_merged(keeper: Keeper) -> None:
    """Whatever the sizes, the days and the leases: the files of a merge stand one behind the other."""
    keeper.stream(seal_bytes=1 << 20)
    most = 1 << 20
    chosen = 0
    for seed in range(300):
        rng = random.Random(seed)
        files = []
        for n in range(rng.randint(1, 60)):
            day = f"date=2023-11-{14 + n // rng.choice((15, 30)):02}"
            size = rng.choice((most // 50,) * 12 + (most // 20,) * 6 + (most // 2 + 1, most))
            row = {"path": f"{day}/{n}", "first": n, "last": n, "first_ms": 0, "last_ms": 0, "bytes": size}
            files.append(SealedFile(row))
        leased = {file.path for file in files if rng.random() < 0.05}
        keeper.partition.files = files
        run = keeper.history._mergeable(keeper.partition, leased)
        if run:
            chosen += 1
            at = files.index(run[0])
            assert run == files[at : at + len(run)]
            assert not leased & {file.path for file in run}
            assert sum(int(file.bytes) for file in run) <= most
            assert len({file.path.partition("/")[0] for file in run}) == 1
    assert chosen > 30


def test_what_does_not_follow_is_not_merged(keeper: Keeper) -> None:
    keeper.stream()
    for _ in range(3):
        keeper.fill(2)
        keeper.seal()
    first, _, third = [file.as_dict() for file in keeper.partition.files]
    with pytest.raises(StoreDamaged, match="does not follow"):
        sealing.merge(keeper.history.root, [first, third], os.getpid())
    assert len(keeper.files()) == 3


def test_what_is_planned_is_not_merged(keeper: Keeper) -> None:
    keeper.stream()
    for _ in range(8):
        keeper.fill(1)
        keeper.seal()
        # the merge that the eighth file makes due begins at once
        keeper.history.lease("spark", frozenset({keeper.partition.files[0].path}))
    keeper.settle()
    assert len(keeper.files()) == 8
    keeper.history.release("spark")
    keeper.settle()
    keeper.settle()
    assert len(keeper.files()) == 1


def test_retention_waits_for_the_grace_and_for_plans(keeper: Keeper) -> None:
    keeper.stream(max_age_ms=60_000)
    keeper.fill(5)
    keeper.seal()
    held = frozenset({keeper.partition.files[0].path})
    keeper.world.pass_ms(61_000)
    keeper.world.write()
    assert (keeper.partition.first, keeper.partition.files) == (5, [])
    assert len(keeper.files()) == 1
    keeper.restart()
    assert len(keeper.files()) == 1
    keeper.history.lease("spark", held, 10_000_000)
    keeper.world.pass_ms(retention.GRACE_MS)
    keeper.settle()
    assert len(keeper.files()) == 1
    keeper.history.release("spark")
    with pytest.raises(NotFound):
        keeper.history.renew("spark")
    keeper.settle()
    assert keeper.files() == []
    assert not any(keeper.history.root.iterdir())
    keeper.restart()
    assert keeper.world.shard.condemned == {}


def test_a_deleted_stream_takes_its_files_along(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(5)
    keeper.seal()
    streams.delete(keeper.world.tenant(), "log")
    keeper.world.write()
    keeper.settle()
    assert keeper.files() == []


def test_a_new_stream_waits_until_the_files_of_the_old_one_are_gone(keeper: Keeper) -> None:
    keeper.stream(seal_ms=1)
    keeper.fill(5)
    keeper.seal()
    keeper.history.lease("spark", frozenset(keeper.files()), 10_000)
    streams.delete(keeper.world.tenant(), "log")
    keeper.stream(seal_ms=1)
    keeper.fill(5, b"\0\0")
    keeper.settle()
    assert (len(keeper.files()), keeper.partition.files) == (1, [])
    keeper.history.release("spark")
    keeper.settle()
    keeper.settle()
    assert [file.path for file in keeper.partition.files] == keeper.files()
    assert len(keeper.files()) == 1
    keeper.restart()
    assert [row["key"] for row in keeper.rows(0, 5)] == [None] * 5


def test_a_work_that_ends_before_it_answers_leaves_nothing_to_be_seen(keeper: Keeper) -> None:
    keeper.stream()
    keeper.fill(5)

    def work(job: Job) -> dict:
        sealing.perform(io.BytesIO(job.input()))
        raise OSError("killed")

    keeper.history.helper = work
    errors: list[BaseException | None] = []
    keeper.history.seal(keeper.partition, errors.append)
    keeper.calls.get(timeout=60)()
    assert "killed" in str(errors[0])
    assert keeper.files() == []
    assert len(keeper.rows(0, 5)) == 5


def test_nothing_is_left_of_what_was_copied_for_the_work(keeper: Keeper) -> None:
    """Records larger than one read, small ones, and what a process that was killed has left."""
    left = keeper.history.root / "_sealing-1-1.records"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"")
    keeper.restart()
    assert not left.exists()
    keeper.stream()
    keeper.fill(3)
    big = bytes(3 * history.COPY_BYTES)
    for body in (big, b"small", big):
        keeper.world.shard.publish(keeper.world.tenant(), "", "log", PROPS, body)
    keeper.world.write()
    keeper.fill(2)
    before = keeper.rows(0, 8)
    keeper.seal()
    assert keeper.partition.tail == 8
    assert keeper.rows(0, 8) == before
    assert [path for path in keeper.history.root.rglob("*") if path.name.startswith("_")] == []


def test_a_file_that_was_let_go_of_while_it_was_merged_keeps_its_grace(keeper: Keeper) -> None:
    keeper.stream()
    for _ in range(8):
        keeper.fill(1)
        keeper.seal()
    # the eighth makes a merge due, which has begun
    assert keeper.history._job is not None
    oldest = keeper.partition.files[0].path
    retention.release(keeper.partition, 1)
    keeper.calls.get(timeout=60)()
    keeper.settle()
    assert len(keeper.partition.files) == 1
    assert oldest in keeper.files()
    assert [row["offset"] for row in keeper.rows(1, 8)] == list(range(1, 8))


def test_the_orphan_of_a_broker_gives_its_file_no_name(tmp_path: Path) -> None:
    temporary = tmp_path / "_sealing-1-x.parquet"
    temporary.write_bytes(b"")
    with pytest.raises(OSError, match="is gone"):
        sealing.publish(temporary, tmp_path / "x.parquet", 1 if os.getppid() != 1 else 2)
    assert not (tmp_path / "x.parquet").exists()


def test_a_process_of_its_own_does_the_work_and_its_failure_costs_nothing(keeper: Keeper) -> None:
    keeper.history.helper = None
    keeper.stream()
    keeper.fill(5)
    keeper.history.root.mkdir(parents=True, exist_ok=True)
    (keeper.history.root / "tenant=default").write_text("in the way")
    errors: list[BaseException | None] = []
    keeper.history.seal(keeper.partition, errors.append)
    keeper.calls.get(timeout=60)()
    assert "sealing failed" in str(errors[0])
    assert len(keeper.rows(0, 5)) == 5
    (keeper.history.root / "tenant=default").unlink()
    keeper.seal()
    assert len(keeper.rows(0, 5)) == 5


@pytest.mark.parametrize(
    "name",
    ["../../etc", "a/b", "..", ".hidden", "_x", "a=b", "ü\udcff", "con", "%2e%2e", "é" * 127, "/" * 255, "x" * 255],
)
def test_no_name_leads_out_of_the_directory(name: str) -> None:
    part = layout.escape(name)
    assert "/" not in part and "\\" not in part
    assert part not in (".", "..") and part[0] not in "._"
    assert "=" not in part
    assert len(part.encode()) <= layout.PART_BYTES_MAX
    if len(name) < 80:
        assert unquote_to_bytes(part) == name.encode("utf-8", "surrogateescape")


def test_long_names_that_begin_alike_have_directories_of_their_own() -> None:
    assert layout.escape("x" * 250 + "a") != layout.escape("x" * 250 + "b")


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=6),
    tail=st.integers(0, 7),
    floor=st.integers(0, 40),
    data=st.data(),
)
def test_a_plan_covers_each_offset_of_its_range_once(
    sizes: list[int], tail: int, floor: int, data: st.DataObject
) -> None:
    shard = Shard(b"", 1)
    stream = streams.declare(shard.create_tenant("t"), "log", {})[0]
    partition = stream.partitions[0]
    at = 0
    for size in sizes:
        row = {"path": f"{at}", "first": at, "last": at + size - 1, "first_ms": 1, "last_ms": 1, "bytes": 1}
        partition.files.append(SealedFile(row))
        at += size
    partition.begin_at(0, at, at, 1)
    for _ in range(tail):
        shard.publish(stream.tenant, "", "log", b"\0\0", b"x")
    partition.first = min(floor, at)
    start = data.draw(st.integers(int(partition.first), int(partition.visible)))
    stop = data.draw(st.integers(start, int(partition.visible)))
    covered: list[int] = []
    for piece in ranges.plan(partition, start, stop):
        assert piece.start < piece.stop
        if isinstance(piece, ranges.FilePiece):
            file = partition.file_of(piece.start)
            assert file is not None and file.path == piece.path and piece.stop - 1 <= file.last
        covered += range(piece.start, piece.stop)
    assert covered == list(range(start, stop))
