"""Lake tables: a batch goes in wholly and once, and everybody who knows Delta reads the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from rookery.errors import InvalidArgument, NotFound
from rookery.pipelines import lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = """id, cast(id AS string) AS s, timestamp_seconds(id) AS t,
    date_add(date'2026-01-31', cast(id % 2 AS int)) AS d,
    array(named_struct('key', 'k', 'value', cast('x' AS binary))) AS h, cast(id / 4 AS decimal(10, 2)) AS c,
    map('a', id) AS m, id > 3 AS b, cast(id AS double) AS f"""


def rows(frame: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in frame.collect())


def ids(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.id for row in lake.read(spark, table).collect())


def numbers(spark: SparkSession, *bounds: int) -> DataFrame:
    return spark.range(*bounds).selectExpr("id", "concat('p', id % 2) AS part", "id * 10 AS n")


def test_every_type_comes_back_and_a_batch_that_is_repeated_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    frame = spark.sql(f"SELECT {KINDS} FROM range(8)")
    assert lake.last_batch(table, "a") == -1
    assert lake.append(frame, table, "a", 0, partition_by=["d"])
    version = DeltaTable(str(table)).version()
    assert not lake.append(frame, table, "a", 0, partition_by=["d"])
    assert (DeltaTable(str(table)).version(), lake.last_batch(table, "a")) == (version, 0)
    back = lake.read(spark, table)
    assert back.columns == frame.columns
    assert dict(back.dtypes) == dict(frame.dtypes)
    assert rows(back.selectExpr("* EXCEPT (m)")) == rows(frame.selectExpr("* EXCEPT (m)"))
    # another application is another writer
    assert lake.append(frame, table, "b", 0, partition_by=["d"])
    assert len(ids(spark, table)) == 16
    assert list((table / lake.STAGE).iterdir()) == []


def test_other_readers_see_the_same(spark: SparkSession, tmp_path: Path) -> None:
    import duckdb

    table = tmp_path / "t"
    lake.append(numbers(spark, 100), table, "a", 0, partition_by=["part"])
    found = DeltaTable(str(table))
    assert found.to_pyarrow_table().num_rows == found.count() == len(found.to_pandas()) == 100
    arrow = found.to_pyarrow_table()  # noqa: F841  DuckDB reads it by its name
    with duckdb.connect() as database:
        summed = database.execute("SELECT sum(n) FROM arrow WHERE part = 'p1'").fetchall()
    assert summed == [(sum(range(1, 100, 2)) * 10,)]


def test_an_attempt_that_died_before_its_commit_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    lake.append(numbers(spark, 5), table, "a", 0)

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(lake, "_commit", die)
        with pytest.raises(RuntimeError, match="killed"):
            lake.append(numbers(spark, 5, 10), table, "a", 1)
    assert ids(spark, table) == list(range(5))
    assert lake.append(numbers(spark, 5, 10), table, "a", 1)
    assert ids(spark, table) == list(range(10))


def test_a_reader_keeps_its_version(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    lake.append(numbers(spark, 10), table, "a", 0)
    before = lake.read(spark, table)
    lake.replace(numbers(spark, 100, 103), table, "a", 1)
    assert sorted(row.id for row in before.collect()) == list(range(10))
    assert ids(spark, table) == [100, 101, 102]
    assert lake.replace(numbers(spark, 0), table, "a", 2)
    assert ids(spark, table) == []


def test_slices_are_replaced_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    odd = "concat('a:b %/', id % 3) AS part"
    lake.append(spark.range(9).selectExpr("id", odd), table, "a", 0, partition_by=["part"])
    again = spark.range(100, 102).selectExpr("id", "'a:b %/1' AS part")
    chosen = [{"part": "a:b %/1"}, {"part": "a:b %/2"}]
    assert lake.replace(again, table, "a", 1, slices=chosen, partition_by=["part"])
    assert ids(spark, table) == [0, 3, 6, 100, 101]
    with pytest.raises(InvalidArgument, match="none of the slices"):
        lake.replace(again, table, "a", 2, slices=[{"part": "a:b %/0"}], partition_by=["part"])
    with pytest.raises(InvalidArgument, match="a slice has values of part"):
        lake.replace(again, table, "a", 2, slices=[{"id": "1"}], partition_by=["part"])
    assert ids(spark, table) == [0, 3, 6, 100, 101]
    assert lake.last_batch(table, "a") == 1


def test_rows_are_merged_by_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    options: dict[str, Any] = {"keys": ["id"], "partition_by": ["part"]}
    assert lake.merge(numbers(spark, 6), table, "a", 0, **options)
    changed = numbers(spark, 4, 8).selectExpr("id", "part", "n + 1 AS n")
    assert lake.merge(changed, table, "a", 1, **options)
    assert not lake.merge(changed.selectExpr("id", "part", "n + 5 AS n"), table, "a", 1, **options)
    found = {row.id: row.n for row in lake.read(spark, table).collect()}
    assert found == {0: 0, 1: 10, 2: 20, 3: 30, 4: 41, 5: 51, 6: 61, 7: 71}
    with pytest.raises(InvalidArgument, match="the key id of a row is null"):
        lake.merge(numbers(spark, 2).selectExpr("nullif(id, 1) AS id", "part", "n"), table, "a", 2, **options)
    with pytest.raises(InvalidArgument, match="keys must be some of the columns id, part, n"):
        lake.merge(changed, table, "a", 2, keys=["x"], partition_by=["part"])


def test_columns_are_added_and_never_changed(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    lake.append(numbers(spark, 2), table, "a", 0)
    lake.append(numbers(spark, 2, 3).selectExpr("*", "'new' AS more"), table, "a", 1)
    assert [row.more for row in lake.read(spark, table).orderBy("id").collect()] == [None, None, "new"]
    lake.append(numbers(spark, 3, 4), table, "a", 2)
    with pytest.raises(InvalidArgument, match=r'the column n of the table .* is "long", not "string"'):
        lake.append(numbers(spark, 4, 5).selectExpr("id", "part", "cast(n AS string) AS n"), table, "a", 3)
    with pytest.raises(InvalidArgument, match="is partitioned by nothing"):
        lake.append(numbers(spark, 4, 5), table, "a", 3, partition_by=["part"])
    with pytest.raises(InvalidArgument, match="no column 'day'"):
        lake.append(numbers(spark, 4, 5), tmp_path / "u", "a", 0, partition_by=["day"])
    assert ids(spark, table) == [0, 1, 2, 3]
    assert not lake.exists(tmp_path / "u")


def test_files_are_passed_over_by_their_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    for batch in range(3):
        frame = spark.range(batch * 10, batch * 10 + 10, numPartitions=1)
        lake.append(frame.selectExpr("id", "timestamp_micros(id * 1000001) AS at"), table, "a", batch)
    found = DeltaTable(str(table))
    assert len(found.file_uris()) == 3
    assert len(found.file_uris(file_pruning_predicate="id >= 12 AND id < 15")) == 1
    actions = json.loads((table / "_delta_log" / "00000000000000000001.json").read_text().splitlines()[1])
    stats = json.loads(actions["add"]["stats"])
    assert (stats["numRecords"], stats["maxValues"]["at"]) == (10, "1970-01-01T00:00:09.000009Z")
    assert ids(spark, table) == list(range(30))
    assert [row.id for row in lake.read(spark, table, where="id >= 28").collect()] == [28, 29]


def test_what_is_no_table(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no lake table"):
        lake.read(spark, tmp_path / "none")
    with pytest.raises(InvalidArgument, match="a directory"):
        lake.append(numbers(spark, 1), "s3://bucket/t", "a", 0)
