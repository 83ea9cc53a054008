"""Files of pipelines: what they mean, and that every mistake is told with its line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.errors import InvalidPipeline
from rookery.pipelines.spec import Pipeline, load, load_folder
from rookery.pipelines.template import new_file

FULL = """\
name: orders-eu
description: Orders of Europe.
broker: {endpoint: "http://broker:8080", tokenEnv: MY_KEY}
sources:
  orders: {stream: orders, startingOffsets: earliest, maxOffsetsPerTrigger: 1000}
  customers: {table: lake.customers}
transform:
  - name: parsed
    sql: |
      SELECT * FROM {orders}
    watermark: {column: timestamp, delay: 10 minutes}
  - python: my_steps:enrich
    params: {limit: 3, names: [a, b]}
  - sql: SELECT p.*, '{{}}' AS braces FROM {input} p JOIN {customers} c ON p.key = c.id
expect:
  - {name: has_id, check: id IS NOT NULL, on_fail: quarantine}
  - {name: positive, check: "amount > 0"}
quarantine: {queue: held}
sink: {table: orders_eu, mode: merge, keys: [id], partitionBy: [date]}
trigger: {availableNow: true, cron: "*/10 * * * *"}
engine: {master: "spark://host:7077", conf: {spark.executor.memory: 2g}}
restart: {retries: 3, backoff: 2s}
"""


def read(folder: Path, text: str, name: str = "p") -> Pipeline:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load(path)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROOKERY_URL", "ROOKERY_API_KEY", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_file_with_everything(tmp_path: Path) -> None:
    found = read(tmp_path, FULL)
    assert (found.name, found.description) == ("orders-eu", "Orders of Europe.")
    assert found.sources["orders"].options == {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
    }
    assert found.sources["customers"].table == "lake.customers"
    assert found.steps[0].watermark == ("timestamp", "600000 milliseconds")
    assert (found.steps[1].function, found.steps[1].params) == ("my_steps:enrich", {"limit": 3, "names": ["a", "b"]})
    assert [(each.name, each.on_fail) for each in found.expectations] == [
        ("has_id", "quarantine"),
        ("positive", "drop"),
    ]
    assert found.quarantine is not None
    assert (found.quarantine.kind, found.quarantine.target) == ("queue", "held")
    assert (found.sink.mode, found.sink.output_mode, found.sink.keys) == ("merge", "update", ("id",))
    assert found.trigger.available_now
    assert found.trigger.repeats
    assert (found.engine.master, found.engine.conf) == ("spark://host:7077", {"spark.executor.memory": "2g"})
    assert (found.restart.retries, found.restart.backoff_ms, found.restart.backoff_max_ms) == (3, 2_000, 60_000)


def test_the_smallest_file_has_the_name_of_its_file_and_the_broker_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "source: {stream: a}\nsink: {stream: b}\n"
    found = read(tmp_path, text, "copy")
    assert (found.name, found.broker, found.trigger.interval_ms) == (
        "copy",
        {"endpoint": "http://127.0.0.1:8080"},
        1_000,
    )
    monkeypatch.setenv("ROOKERY_URL", "http://other:1")
    monkeypatch.setenv("ROOKERY_API_KEY", "k")
    found = read(tmp_path, text, "copy")
    assert found.connection() == {"endpoint": "http://other:1", "token": "k"}
    assert found.at(endpoint="http://x:2", master="local[1]").broker["endpoint"] == "http://x:2"


def test_sinks_take_options_of_the_connector_and_tables_their_format(tmp_path: Path) -> None:
    told = "sink: {topic: b, exactlyOnce: false, onOversize: dlq, maxBatchBytes: 4096}"
    assert read(tmp_path, f"source: {{stream: a}}\n{told}").sink.options == {
        "exactlyOnce": "false",
        "onOversize": "dlq",
        "maxBatchBytes": "4096",
    }
    sink = read(tmp_path, "source: {stream: a}\nsink: {table: lake.b, format: delta, partitionBy: [date]}").sink
    assert (sink.target, sink.json, sink.partition_by) == ("lake.b", False, ("date",))


def test_a_quarantine_that_nobody_names_is_a_stream_of_the_pipeline(tmp_path: Path) -> None:
    text = "source: {stream: a}\nsink: {stream: b}\nexpect: [{name: x, check: 'true', on_fail: quarantine}]\n"
    held = read(tmp_path, text, "orders").quarantine
    assert held is not None
    assert (held.kind, held.target, held.json) == ("stream", "orders.quarantine", True)
    assert read(tmp_path, text.replace("quarantine", "drop")).quarantine is None


def test_what_new_writes_is_valid(tmp_path: Path) -> None:
    found = read(tmp_path, new_file("my-orders", "orders"))
    assert (found.name, found.sink.target) == ("my-orders", "my_orders")


def test_a_token_is_taken_from_the_environment_of_whoever_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(tmp_path, FULL)
    with pytest.raises(InvalidPipeline, match="MY_KEY is not set"):
        found.connection()
    monkeypatch.setenv("MY_KEY", "secret")
    assert found.connection() == {"endpoint": "http://broker:8080", "token": "secret"}


def test_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "source: {stream: '${WHAT}'}\nsink: {stream: '${WHERE:-there}'}\n"
    with pytest.raises(InvalidPipeline, match=r"p.yaml:1: source.stream: the variable WHAT is not set"):
        read(tmp_path, text)
    monkeypatch.setenv("WHAT", "orders")
    found = read(tmp_path, text)
    assert (found.sources["input"].options["subscribe"], found.sink.target) == ("orders", "there")


def test_what_a_checkpoint_is_tied_to(tmp_path: Path) -> None:
    plain = "source: {stream: a}\ntransform:\n  - sql: SELECT value FROM {input}\nsink: {stream: b}\n"
    one = read(tmp_path, plain).fingerprint
    # what runs differently but reads the same goes on where it was
    assert read(tmp_path, plain.replace("value", "key AS value")).fingerprint == one
    assert read(tmp_path, plain + "trigger: {interval: 5s}\n").fingerprint == one
    assert read(tmp_path, plain.replace("stream: a", "stream: c")).fingerprint != one
    stateful = FULL.replace("delay: 10 minutes", "delay: 20 minutes")
    assert read(tmp_path, FULL).fingerprint != read(tmp_path, stateful).fingerprint


MISTAKES = {
    "unknown entry": ("sinc: {}\nsource: {stream: a}", 1, "sinc: there is no such entry; did you mean sink?"),
    "no sink": ("source: {stream: a}", 1, "sink is missing"),
    "no source": ("sink: {stream: b}", 1, "one of source and sources is needed"),
    "bad option": (
        "source:\n  stream: a\n  startingOfsets: latest\nsink: {stream: b}",
        3,
        "did you mean startingOffsets?",
    ),
    "bad value": (
        "source: {stream: a, startingOffsets: soon}\nsink: {stream: b}",
        1,
        "must be earliest, latest or JSON",
    ),
    "two targets": ("source: {stream: a}\nsink: {stream: b, queue: c}", 2, "exactly one of stream, topic"),
    "placeholder": (
        "source: {stream: a}\ntransform:\n  - sql: |\n      SELECT *\n      FROM {orders}\nsink: {stream: b}",
        5,
        r"there is no \{orders\}; there are \{input\}",
    ),
    "no placeholder": ("source: {stream: a}\ntransform: [{sql: SELECT 1}]\nsink: {stream: b}", 2, "reads none of"),
    "brace": (
        "source: {stream: a}\ntransform:\n  - sql: \"SELECT '}' FROM {input}\"\nsink: {stream: b}",
        3,
        "written twice",
    ),
    "neither": ("source: {stream: a}\ntransform:\n  - {name: x}\nsink: {stream: b}", 3, "either sql or python"),
    "function": (
        "source: {stream: a}\ntransform:\n  - python: enrich\nsink: {stream: b}",
        3,
        "my_package.steps:enrich",
    ),
    "on_fail": (
        "source: {stream: a}\nexpect: [{name: x, check: 'true', on_fail: dropp}]\nsink: {stream: b}",
        2,
        "did you mean drop?",
    ),
    "format of a table": ("source: {stream: a}\nsink:\n  table: b\n  format: json", 4, "must be delta, not 'json'"),
    "not for tables": ("source: {stream: a}\nsink:\n  table: b\n  exactlyOnce: true", 4, "is not for tables"),
    "option of a sink": ("source: {stream: a}\nsink:\n  queue: b\n  onOversize: cry", 4, "must be fail or dlq"),
    "keys": ("source: {stream: a}\nsink: {table: b, mode: merge}", 2, "merge and keys go together"),
    "for tables": ("source: {stream: a}\nsink:\n  stream: b\n  partitionBy: [x]", 4, "is for tables"),
    "cron": (
        "source: {stream: a}\nsink: {stream: b}\ntrigger: {availableNow: true, cron: 61 * * * *}",
        3,
        "minute is from 0 to 59",
    ),
    "interval": ("source: {stream: a}\nsink: {stream: b}\ntrigger: {interval: fast}", 3, "500ms, 10s or 5 minutes"),
    "master": ("source: {stream: a}\nsink: {stream: b}\nengine: {master: mesos}", 3, "must be local"),
    "twice": ("source: {stream: a}\nsink: {stream: b}\nsink: {stream: c}", 3, "is there twice"),
    "yaml": ("source: {stream: a\nsink: {stream: b}", 2, "this is no YAML"),
    "list": ("source: {stream: a}\ntransform: {sql: x}\nsink: {stream: b}", 2, "must be a list"),
    "name": ("name: Orders EU\nsource: {stream: a}\nsink: {stream: b}", 1, "small letters"),
    "end": ("source: {stream: a, endingOffsets: latest}\nsink: {stream: b}", 1, "backfill"),
    "two sources": ("sources: {a: {stream: a}, b: {stream: b}}\nsink: {stream: c}", 1, "put them together"),
    "only tables": ("sources: {a: {table: a}}\nsink: {stream: c}", 1, "at least one must be a stream"),
    "empty": ("", 1, "the file is empty"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_with_its_line(case: str, tmp_path: Path) -> None:
    text, line, words = MISTAKES[case]
    with pytest.raises(InvalidPipeline, match=rf"p\.yaml:{line}: (.|\n)*{words}"):
        read(tmp_path, text)


def test_a_folder_tells_good_files_from_bad(tmp_path: Path) -> None:
    for name, text in {
        "a": "source: {stream: a}\nsink: {stream: b}",
        "b": "sink: {}",
        "c": "name: a\nsource: {stream: a}\nsink: {stream: b}",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "notes.txt").write_text("not a pipeline")
    good, bad = load_folder(tmp_path)
    assert [each.name for each in good] == ["a"]
    assert ["b.yaml" in str(bad[0]), "has the name a too" in str(bad[1])] == [True, True]
    with pytest.raises(InvalidPipeline, match="no such folder"):
        load_folder(tmp_path / "nowhere")
