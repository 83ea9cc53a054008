"""Arrow bodies from anybody: what they say is believed only after it was checked, in a process that can be lost."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.arrow import decoder as arrow_decoder
from rookery.arrow.decoder import ArrowDecoder
from rookery.core.staging import Row
from rookery.errors import DecodingFailed, InvalidArgument, MessageTooLarge, RookeryError, UnsupportedMedia
from rookery.format import properties
from tests.wire import arrow_bodies
from tests.wire.arrow_bodies import ipc

BODY_MAX = 1 << 20
NAMES = dict.fromkeys(("stream", "exchange", "topic", "queue"), "out") | {"stream": ""}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def decoder() -> Iterator[ArrowDecoder]:
    made = ArrowDecoder(BODY_MAX)
    yield made
    made.close()


def rows(decoder: ArrowDecoder, body: bytes, key: str = "out") -> list[Row]:
    return decoder.rows(body, key, NAMES, 1_000)


# What attackers send

FALSE: dict[str, Callable[[], bytes]] = {
    "an offset far away": lambda: arrow_bodies.false_offset(1 << 30),
    "an offset nearby": lambda: arrow_bodies.false_offset(4_096),
    "an offset before": lambda: arrow_bodies.false_offset(-5),
    "a list too long": lambda: arrow_bodies.false_list(1 << 28),
    "an index far away": lambda: arrow_bodies.false_index(1 << 28),
    "an index before": lambda: arrow_bodies.false_index(-1),
    "a row too many": lambda: arrow_bodies.false_length(0x1235),
    "fewer rows than none": lambda: arrow_bodies.false_length(-3),
    "less than it holds": lambda: arrow_bodies.lying_bomb("zstd", 1 << 24, 1 << 10),
    "a negative length": lambda: arrow_bodies.lying_bomb("zstd", 1 << 20, -7),
    "runs": lambda: arrow_bodies.run_end_encoded(1_000),
    "no stream": lambda: b"ARROW1\0\0 is a file",
    "nothing": lambda: b"",
    "zeros": lambda: bytes(1_000),
}

LARGE: dict[str, Callable[[], bytes]] = {
    "zeros in zstd": lambda: arrow_bodies.bomb("zstd", 1 << 28),
    "zeros in lz4": lambda: arrow_bodies.bomb("lz4", 1 << 24),
    "many zeros": lambda: arrow_bodies.bomb("zstd", 1 << 20, 5),
    "more than it holds": lambda: arrow_bodies.lying_bomb("zstd", 1 << 20, 1 << 40),
    "one entry in many rows": lambda: arrow_bodies.repeated(1 << 18, 1_000),
    "one piece of memory in many rows": lambda: arrow_bodies.repeated_views(1 << 18, 1_000),
    "headers without end": lambda: arrow_bodies.endless_headers((1 << 31) - 1),
    "headers of nothing": lambda: arrow_bodies.endless_headers(1 << 19),
    "rows of nothing": lambda: ipc("zstd", value=pa.array([b""] * 1_000_001, pa.binary())),
    "rows that are only said": lambda: arrow_bodies.false_length(1 << 40),
}


@pytest.mark.parametrize("what", FALSE)
def test_what_is_false_is_refused(decoder: ArrowDecoder, what: str) -> None:
    with pytest.raises(InvalidArgument):
        rows(decoder, FALSE[what]())


@pytest.mark.parametrize("what", LARGE)
def test_what_grows_too_large_is_refused(decoder: ArrowDecoder, what: str) -> None:
    body = LARGE[what]()
    assert len(body) < BODY_MAX
    with pytest.raises(MessageTooLarge, match=r"more than \d+"):
        rows(decoder, body)
    assert decoder.failures == 0


def test_a_body_that_needs_too_much_memory_fails_alone(decoder: ArrowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    body = arrow_bodies.bomb("zstd", 3 << 20)
    assert len(rows(decoder, body)[0].body) == 3 << 20
    monkeypatch.setattr(arrow_decoder, "MEMORY_FACTOR", 0)
    monkeypatch.setattr(arrow_decoder, "MEMORY_BYTES", 1 << 20)
    with pytest.raises(MessageTooLarge, match="decoding the body needs more than"):
        rows(decoder, body)
    monkeypatch.undo()
    assert len(rows(decoder, body)) == 1


def test_a_body_that_takes_too_long_fails_alone(decoder: ArrowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "bytes_max", 1 << 30)
    monkeypatch.setattr(decoder, "cpu_sec", 1)
    before = decoder.failures
    with pytest.raises(MessageTooLarge, match="CPU time"):
        rows(decoder, arrow_bodies.toilsome(200, headers_each=40))
    assert decoder.failures == before + 1
    monkeypatch.undo()
    assert [row.body for row in rows(decoder, ipc(value=[b"1"]))] == [b"1"]


# What honest people send


def test_every_kind_of_column_that_rows_know(decoder: ArrowDecoder) -> None:
    texts = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    binaries = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()), pa.binary(3)]
    for kind in (*texts, *binaries):
        plain = pa.array(["abc", "def", "abc"], pa.string())
        column = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain
        column = column.cast(kind) if kind != column.type else column
        found = rows(decoder, ipc(value=column, routing_key=column, key=column))
        assert [(row.body, row.key) for row in found] == [(b"abc", "abc"), (b"def", "def"), (b"abc", "abc")], kind
    for kind in (pa.int8(), pa.uint64(), pa.float64(), pa.dictionary(pa.int8(), pa.int64())):
        numbers = pa.array([7, None], pa.int64())
        column = numbers.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else numbers.cast(kind)
        assert [row.priority for row in rows(decoder, ipc(value=[b"a", b"b"], priority=column))] == [7, 0], kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("value", pa.int64()),
        ("value", pa.null()),
        ("value", pa.list_(pa.binary())),
        ("routing_key", pa.int64()),
        ("priority", pa.string()),
        ("priority", pa.bool_()),
        ("timestamp", pa.string()),
        ("headers", pa.string()),
        ("headers", pa.list_view(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("headers", pa.list_(pa.struct([("key", pa.string())]))),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("key", pa.string()), ("value", pa.string())]))),
    ],
)
def test_other_kinds_of_columns_are_refused(decoder: ArrowDecoder, name: str, kind: pa.DataType) -> None:
    columns = {"value": pa.array([b"x"], pa.binary())} | {name: pa.array([None], kind)}
    with pytest.raises(InvalidArgument) as refused:
        rows(decoder, ipc(**columns))
    assert refused.value.argument == name


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_rows_of_many_batches_come_in_order(decoder: ArrowDecoder, compression: str | None) -> None:
    count = 20_000
    body = ipc(
        compression,
        rows=9_999,
        value=[b"%d" % i for i in range(count)],
        headers=pa.array([[("n", b"%d" % i)] * (i % 3) for i in range(count)], pa.map_(pa.string(), pa.binary())),
        priority=pa.array(range(count), pa.int32()),
    )
    found = rows(decoder, body)
    assert [(row.body, row.priority) for row in found] == [(b"%d" % i, i) for i in range(count)]


def test_many_headers_of_a_row_cost_no_more_than_their_number(decoder: ArrowDecoder) -> None:
    """Comparing each with all the others would take longer than a body may."""
    found = rows(decoder, arrow_bodies.endless_headers(1 << 17))
    assert properties.decode(found[0].props).headers == {"": None}


# Mutation: whatever is changed, either pyarrow finds the same rows or there is an error

SEEDS = [
    ipc(value=[b"one", b"", b"three"] * 3),
    ipc("zstd", value=[b"one" * 50, b"two" * 60], routing_key=["a", None]),
    ipc("lz4", value=[b"one" * 50, b"two" * 60], message_id=["a", "b"]),
    ipc(value=["x", "y"], headers=pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary()))),
    ipc(value=pa.array([b"abc", b"d", b"abc"]).dictionary_encode(), priority=pa.array([1, None, -3], pa.int16())),
    ipc(value=pa.array([b"a view that is long enough", b"short"], pa.binary_view()), key=[b"k", None]),
    ipc(rows=1, value=pa.array([b"12", b"34"], pa.binary(2)), timestamp=pa.array([0, 5], pa.timestamp("us"))),
    ipc(value=pa.array([b"large"] * 3, pa.large_binary()), delay_ms=pa.array([None, 1, 2], pa.uint8())),
]
WILD = st.sampled_from([0, 1, -1, 3, 7, 127, 255, 4_096, 1 << 16, 1 << 30, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 62])
CHANGE = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([1, 2, 4, 8]), WILD)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SEEDS), st.lists(CHANGE, min_size=1, max_size=4), st.none() | st.floats(0, 1))
def test_a_changed_body_is_refused_or_read_as_pyarrow_reads_it(
    decoder: ArrowDecoder, seed: bytes, changes: list[tuple[float, int, int]], cut: float | None
) -> None:
    data = bytearray(seed)
    for place, width, number in changes:
        at = int(place * len(data)) // width * width
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    body = bytes(data if cut is None else data[: int(cut * len(data))])
    try:
        found = rows(decoder, body)
    except (InvalidArgument, MessageTooLarge):
        return
    table = pa.ipc.open_stream(body).read_all()
    table.validate(full=True)
    plain = table.column("value")
    kind = plain.type.value_type if pa.types.is_dictionary(plain.type) else plain.type
    assert [row.body for row in found] == plain.cast(kind).cast(pa.binary()).to_pylist()


# The process


def misbehaving(monkeypatch: pytest.MonkeyPatch) -> ArrowDecoder:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    return ArrowDecoder(BODY_MAX, module="tests.wire.arrow_misbehaving")


@pytest.fixture(scope="module")
def bad() -> Iterator[ArrowDecoder]:
    with pytest.MonkeyPatch.context() as patch:
        made = misbehaving(patch)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (f"signal {int(signal.SIGSEGV)}", InvalidArgument),
        (f"signal {int(signal.SIGABRT)}", InvalidArgument),
        (f"signal {int(signal.SIGKILL)}", DecodingFailed),
        ("exit 3", DecodingFailed),
        ("half", InvalidArgument),
        *((lie, InvalidArgument) for lie in ("noise", "nothing", "types", "nested", "numbers", "uneven", "columns")),
        *((lie, InvalidArgument) for lie in ("long", "wide", "props", "fewer", "key", "words", "endless")),
    ],
)
def test_a_child_that_dies_or_lies_fails_its_own_request(
    bad: ArrowDecoder, what: str, error: type[RookeryError]
) -> None:
    before, pid = bad.failures, bad.pid
    with pytest.raises(error) as raised:
        rows(bad, b"body", what)
    assert type(raised.value) is error
    assert bad.failures == before + 1
    assert bad.pid == pid or pid is None


def test_an_error_with_a_code_that_nobody_knows_is_about_the_body(bad: ArrowDecoder) -> None:
    with pytest.raises(InvalidArgument, match="words"):
        rows(bad, b"body", "error")


def test_a_child_that_hangs_is_ended(bad: ArrowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad, "cpu_sec", 1)
    with pytest.raises(MessageTooLarge, match="more than 1 s of CPU time"):
        rows(bad, b"body", "spin")
    monkeypatch.setattr(bad, "wall_sec", 1)
    with pytest.raises(DecodingFailed, match="took longer than 1 s"):
        rows(bad, b"body", "sleep")
    until(lambda: not children(bad.pid))


def test_a_process_that_is_killed_is_replaced(bad: ArrowDecoder) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            rows(bad, b"body", "sleep")
        except RookeryError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: bool(children(bad.pid)))
    pid = bad.pid
    assert pid is not None
    (child,) = children(pid)
    os.kill(child, signal.SIGKILL)
    thread.join(60)
    assert [type(error) for error in failed] == [DecodingFailed]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DecodingFailed):
        rows(bad, b"body", "exit 3")
    with pytest.raises(InvalidArgument):
        rows(bad, b"body", "noise")
    assert bad.pid != pid


def test_a_body_whose_process_ends_before_its_child_begins_is_decoded_by_the_next(decoder: ArrowDecoder) -> None:
    rows(decoder, ipc(value=[b"first"]))
    pid, failures = decoder.pid, decoder.failures
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rows, decoder, ipc(value=[b"second"]))
        time.sleep(0.2)  # until it waits; later would do too
        os.kill(pid, signal.SIGKILL)
        assert [row.body for row in waiting.result(60)] == [b"second"]
    assert decoder.pid != pid
    assert decoder.failures <= failures + 1


def test_bodies_at_the_same_time_get_their_own_rows(decoder: ArrowDecoder) -> None:
    """File descriptors of children that ended are used again for those that begin."""

    def one(i: int) -> object:
        if i % 3:
            return [row.body for row in rows(decoder, ipc(value=[b"%d" % i]))]
        with pytest.raises(InvalidArgument):
            rows(decoder, arrow_bodies.false_offset(i + 4))
        return None

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(200)))
    assert found == [[b"%d" % i] if i % 3 else None for i in range(200)]


def test_children_inherit_neither_secrets_nor_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_API_KEY", "a secret")
    other = misbehaving(monkeypatch)
    try:
        told = rows(other, b"body", "environment")[0].body.decode()
    finally:
        other.close()
    environ, files = ast.literal_eval(told)
    assert "ROOKERY_API_KEY" not in environ
    # standard output and error, the socket of the job, and the directory that is being listed
    assert len(files) <= 4, files


def test_a_system_that_cannot_fork_refuses_arrow(decoder: ArrowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(UnsupportedMedia, match="send lines of JSON"):
        rows(decoder, ipc(value=[b"1"]))


def test_the_process_that_forks_has_one_thread(decoder: ArrowDecoder) -> None:
    rows(decoder, ipc(value=[b"1"]))
    assert len(list(Path(f"/proc/{decoder.pid}/task").iterdir())) == 1


def test_a_process_that_nobody_needs_ends(decoder: ArrowDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(decoder, ipc(value=[b"1"]))
    pid = decoder.pid
    assert pid is not None
    decoder.tick()
    assert decoder.pid == pid
    monkeypatch.setattr(arrow_decoder, "IDLE_SEC", -1)
    decoder.tick()
    assert decoder.pid is None
    assert not Path(f"/proc/{pid}").exists()
    assert len(rows(decoder, ipc(value=[b"1"]))) == 1


def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, threading, time\n"
        "from rookery.arrow.decoder import ArrowDecoder\n"
        f"decoder = ArrowDecoder(1 << 20, module='tests.wire.arrow_misbehaving')\n"
        f"work = lambda: decoder.rows(b'body', 'sleep', {NAMES!r}, 0)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "while decoder.pid is None: time.sleep(0.01)\n"
        "print(decoder.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environ, cwd=tmp_path)
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
    until(lambda: bool(children(pid)))
    everybody = [pid, *children(pid)]
    owner.kill()
    owner.wait()
    until(lambda: not any(is_running(each) for each in everybody))


def children(pid: int | None) -> list[int]:
    """The processes that a process started and that run still."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            state = stat(int(path.name))
            if state and int(state[1]) == pid and state[0] != "Z":
                found.append(int(path.name))
    return found


def stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    state = stat(pid)
    return bool(state) and state[0] != "Z"


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
