"""What replayed messages say of themselves, and which columns a condition could mean."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rookery.pipelines.builtin import replay
from rookery.sealed.schema import HEADERS

REPLAY = replay.Replay("r1", "stream", "orders", "", "queue", "again")
HEADER = st.tuples(st.sampled_from(["kind", "", "x-replay-id", "x-original-offset"]), st.none() | st.binary(max_size=3))


@given(st.lists(st.none() | st.lists(HEADER, max_size=4), max_size=8), st.integers(0, 3))
def test_replayed_messages_say_what_they_are(rows: list[list[tuple[str, bytes | None]] | None], skipped: int) -> None:
    """Headers stay as they were, in order; those of an earlier replay are replaced."""
    said = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    count = len(rows)
    batch = pa.record_batch(
        {
            "value": pa.array([b"%d" % n for n in range(count)], pa.binary()),
            "headers": pa.array(said, HEADERS),
            "original_partition": pa.array([n % 2 for n in range(count)], pa.int32()),
            "original_offset": pa.array([n * 10 for n in range(count)], pa.int64()),
        }
    ).slice(skipped)
    found = replay.labelled(batch, REPLAY)
    assert sorted(found.schema.names) == ["headers", "value"]
    assert found.column("value").to_pylist() == batch.column("value").to_pylist()
    for n, headers in enumerate(found.column("headers").to_pylist(), skipped):
        kept = [(key, value) for key, value in rows[n] or [] if key not in replay.TOLD]
        told = [b"r1", b"orders", b"%d" % (n % 2), b"%d" % (n * 10)]
        assert [(each["key"], each["value"]) for each in headers] == kept + list(zip(replay.TOLD, told, strict=True))


def test_columns_that_a_condition_could_mean_are_read() -> None:
    plain = replay._needed("")
    assert "value" in plain and "offset" in plain
    assert not {"tenant", "priority", "expiration"} & set(plain)
    found = replay._needed("PRIORITY > 3 AND `expiration` IS NULL AND headers[0].key = 'tenant'")
    assert {"priority", "expiration", "tenant"} <= set(found)
