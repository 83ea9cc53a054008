"""Options of the Spark connector: what is understood, and what each mistake is told."""

from __future__ import annotations

import dataclasses

import pytest

from rookery.errors import InvalidArgument
from rookery.pipelines.spec import BROKER_OPTIONS, BROKER_TARGETS
from rookery.spark.options import (
    CONNECTION,
    SINK,
    SINK_OPTIONS,
    SinkOption,
    SinkOptions,
    sink_options,
    source_options,
)

HERE = {"endpoint": "http://localhost:8080"}
ORDERS = {**HERE, "subscribe": "orders"}


def test_the_least_that_must_be_said_and_what_follows_from_it() -> None:
    found = source_options({"endpoint": "http://a:1/, https://b", "subscribe": "orders, refunds,orders"})
    assert found.connection.endpoints == ("http://a:1", "https://b")
    assert found.streams == ("orders", "refunds")
    assert (found.starting, found.ending, found.group, found.fail_on_data_loss) == (None, None, "", True)
    assert (found.rows_per_trigger, found.bytes_per_trigger, found.rows_per_task) == (1_000_000, 256 << 20, 200_000)


def test_case_does_not_matter_and_what_spark_adds_is_passed_over() -> None:
    found = source_options({**ORDERS, "STARTINGoffsets": "Earliest", "path": "", "checkpointLocation": "/x"})
    assert found.starting == "earliest"


def test_the_options_of_a_table_of_sql_have_a_word_before_their_names_and_others_go_before_them() -> None:
    said = {"subscribe": "refunds", "provider": "rookery", "owner": "me", "option.routingKey": "a.*"}
    found = source_options({f"option.{name}": value for name, value in ORDERS.items()} | said)
    assert (found.connection.endpoints, found.streams, found.routing_key) == (
        ("http://localhost:8080",),
        ("refunds",),
        "a.*",
    )


@pytest.mark.parametrize(
    ("said", "argument", "words"),
    [
        ({"startingOffset": "earliest"}, "startingOffset", "did you mean startingOffsets?"),
        ({"zzz": "1"}, "zzz", "there are endpoint, token"),
        ({"queue": "q"}, "queue", "exclude each other"),
        ({"assign": "{}", "subscribe": None}, "assign", "such as"),
        ({"assign": '{"orders":[0,"x"]}', "subscribe": None}, "assign", "assign: "),
        ({"subscribe": None}, "subscribe", "one of subscribe, subscribePattern, assign, queue is needed"),
        ({"subscribe": "a,,b"}, "subscribe", "empty name"),
        ({"subscribe": " "}, "subscribe", "is empty"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern", "no regular expression"),
        ({"endpoint": None}, "endpoint", "needed"),
        ({"endpoint": "localhost:8080"}, "endpoint", "must be like http://host:8080"),
        ({"endpoint": "http://h/api"}, "endpoint", "must be like"),
        ({"token": "a", "tokenEnv": "B"}, "tokenEnv", "exclude each other"),
        ({"tokenEnv": "ROOKERY_NO_SUCH_VARIABLE"}, "tokenEnv", "is not set"),
        ({"startingOffsets": "first"}, "startingOffsets", "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"zero":1}}'}, "startingOffsets", "no offset of a partition"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets", "no offset of a partition"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp", "exclude each other"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "cannot end at the earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets", "cannot end at the earliest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "must be a time"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "must be a number from 1"),
        ({"maxOffsetsPerTrigger": "-5"}, "maxOffsetsPerTrigger", "must be a number from 1"),
        ({"minPartitions": "many"}, "minPartitions", "must be a number"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger", "from 1 to 5"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay", "needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay", "must be a time such as 30s"),
        ({"mode": "parquet"}, "mode", "must be auto or broker or segments"),
        ({"isolation": "read_uncommitted"}, "isolation", "shows nothing that is not committed"),
        ({"headerFilter": "region"}, "headerFilter", "such as region=eu"),
        ({"headerFilter": "=eu"}, "headerFilter", "such as region=eu"),
        ({"fetchBatchRows": "0"}, "fetchBatchRows", "must be a number from 1"),
        ({"includeValue": "1"}, "includeValue", "must be true or false"),
        ({"pushdown": "yes"}, "pushdown", "must be true or false"),
        ({"kafka.bootstrap.servers": "h:9092"}, "kafka.bootstrap.servers", "the broker is named by endpoint"),
        ({"tenant": "acme"}, "tenant", "the key in token or tokenEnv says"),
        ({"topic": "orders"}, "topic", "named by subscribe"),
        ({"subscribe": None, "queue": "q", "mode": "broker"}, "mode", "a queue has no mode"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss", "must be true or false"),
        ({"subscribe": None, "queue": "q", "routingKey": "a"}, "routingKey", "a queue has no routingKey"),
    ],
)
def test_a_mistake_is_named(said: dict[str, str | None], argument: str, words: str) -> None:
    given = {name: value for name, value in {**ORDERS, **said}.items() if value is not None}
    with pytest.raises(InvalidArgument) as failure:
        source_options(given)
    assert failure.value.argument == argument
    assert words in failure.value.message


def test_what_can_be_said_about_reading() -> None:
    found = source_options(
        {
            **ORDERS,
            "minOffsetsPerTrigger": "1k",
            "maxTriggerDelay": "2m",
            "headerFilter": "region = eu,kind=",
            "isolation": "READ_COMMITTED",
            "mode": "Segments",
            "segmentsRoot": "/mnt/streams",
            "includeValue": "false",
            "pushdown": "false",
            "fetchBatchRows": "500",
        }
    )
    assert (found.rows_min, found.delay_max_ms) == (1024, 120_000)
    assert found.headers == (("region", "eu"), ("kind", ""))
    assert (found.mode, found.segments_root, found.batch_rows) == ("segments", "/mnt/streams", 500)
    assert (found.include_value, found.pushdown) == (False, False)


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("4k", 4096), ("256m", 256 << 20), ("2 GB", 2 << 30), ("10MB", 10 << 20)]
)
def test_sizes_have_units(text: str, number: int) -> None:
    assert source_options({**ORDERS, "maxBytesPerTrigger": text}).bytes_per_trigger == number


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31T13:00:00.5+01:00", 1_769_860_800_500),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, time_ms: int) -> None:
    assert source_options({**ORDERS, "startingTimestamp": text}).starting_ms == time_ms


def test_offsets_of_each_partition() -> None:
    found = source_options({**ORDERS, "startingOffsets": '{"orders":{"1":-2,"0":23}}'})
    assert found.starting == {("orders", 1): -2, ("orders", 0): 23}


def test_a_token_comes_from_a_variable_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TOKEN", "s3cret")
    found = source_options({**ORDERS, "tokenEnv": "BROKER_TOKEN"})
    assert found.connection.token == "s3cret"
    assert "s3cret" not in repr(found)


def test_a_sink_has_one_target_and_one_name() -> None:
    found = sink_options({**HERE, "topic": "out", "jobId": "j1", "maxBatchBytes": "1m"})
    assert (found.target, found.job, found.batch_bytes) == (("topic", "out"), "j1", 1 << 20)
    with pytest.raises(InvalidArgument, match="exclude each other"):
        sink_options({**HERE, "topic": "a", "queue": "b"})
    with pytest.raises(InvalidArgument, match="exclude each other"):
        sink_options({**HERE, "producerId": "a", "jobId": "b"})
    with pytest.raises(InvalidArgument, match="unknown option 'subscribe'"):
        sink_options(ORDERS)


def test_names_of_batches_are_for_those_that_happen_once() -> None:
    found = sink_options({**HERE, "topic": "out", "exactlyOnce": "false", "onOversize": "DLQ"})
    assert (found.exactly_once, found.oversize) == (False, "dlq")
    for name, value in (("jobId", "j"), ("producerId", "p"), ("stagingTtlMs", "5000")):
        with pytest.raises(InvalidArgument, match=f"{name} is of use with exactlyOnce only"):
            sink_options({**HERE, "topic": "out", "exactlyOnce": "false", name: value})
    with pytest.raises(InvalidArgument, match="onOversize must be fail or dlq, not 'skip'"):
        sink_options({**HERE, "topic": "out", "onOversize": "skip"})


def test_what_spark_hands_on_by_itself_is_no_option_of_ours() -> None:
    said = {"checkpointLocation": "/c", "queryName": "copy", "path": "/p"}
    assert sink_options({**HERE, **said, "topic": "out"}) == sink_options({**HERE, "topic": "out"})
    assert source_options({**ORDERS, **said}) == source_options(ORDERS)


def test_the_table_of_sink_options_is_the_one_list() -> None:
    found = sink_options({**HERE, "topic": "out"})
    fields = {row.field: row.default for row in SINK_OPTIONS if row.kind != "target"}
    assert {each.name for each in dataclasses.fields(SinkOptions)} == fields.keys() | {"connection", "target"}
    assert {name: getattr(found, name) for name in fields} == fields
    assert found == SinkOptions(found.connection, ("topic", "out"))
    assert (*CONNECTION, *(row.name for row in SINK_OPTIONS)) == SINK
    assert (*BROKER_TARGETS, *BROKER_OPTIONS) == tuple(row.name for row in SINK_OPTIONS if row.in_pipelines)


@pytest.mark.parametrize("row", SINK_OPTIONS, ids=[row.name for row in SINK_OPTIONS])
def test_a_sink_option_is_read_as_its_row_says(row: SinkOption) -> None:
    beside = {"producerId": "p"} if row.name == "epoch" else {}
    bad: list[object] = []
    if row.kind == "target":
        assert sink_options({**HERE, row.name: "out"}).target == (row.name, "out")
        assert row.found_as
    elif row.kind == "number":
        for value in (row.smallest, row.largest):
            assert getattr(sink_options({**HERE, **beside, row.name: str(value)}), row.field) == value
        bad = [row.smallest - 1, row.largest + 1, "x"]
    elif row.kind == "choice":
        assert row.default == row.choices[0]
        for choice in row.choices:
            assert getattr(sink_options({**HERE, row.name: choice}), row.field) == choice
        bad = ["no-such"]
    elif row.kind == "flag":
        assert getattr(sink_options({**HERE, row.name: "false"}), row.field) is False
        bad = ["maybe"]
    else:
        assert getattr(sink_options({**HERE, row.name: "some"}), row.field) == "some"
        bad = [" "]
    for wrong in bad:
        with pytest.raises(InvalidArgument) as refused:
            sink_options({**HERE, **beside, row.name: str(wrong)})
        assert refused.value.argument == row.name
