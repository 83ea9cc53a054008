"""What a pipeline reads and writes, looked at before it runs: made where that is possible, and else told in words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.errors import BrokerUnreachable, NotFound
from rookery.pipelines.ends import make_ready
from rookery.pipelines.spec import load
from tests.interop.pipeline_world import publish, write
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


def names(world: World, kind: str) -> set[str]:
    return {row["name"] for row in world.call("GET", f"/{kind}")[kind]}


def test_streams_and_queues_that_rows_go_to_are_made(world: World, tmp_path: Path) -> None:
    world.stream("there", partitions=3)
    world.call("PUT", "/exchanges/routes", {"kind": "topic"})
    for sink in ("stream: made", "queue: waiting", "topic: news", "topic: routes", "stream: there", "table: t"):
        text = "source: {stream: there}\nexpect: [{name: x, check: 'true', on_fail: quarantine}]\n"
        path = write(tmp_path, world, f"{text}sink: {{{sink}}}\n", "orders")
        for _ in range(2):
            make_ready(load(path))
    assert {"made", "news", "orders.quarantine"} <= names(world, "streams")
    assert "waiting" in names(world, "queues")
    assert "t" not in names(world, "streams") | names(world, "queues")
    assert "routes" not in names(world, "streams")
    assert len(world.call("GET", "/streams/there")["partitions"]) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "source: {stream: absent}\nsink: {table: t}",
            "p.yaml:2: .*no stream 'absent': `rookery streams create absent`",
        ),
        ("source: {stream: [known, absent]}\nsink: {table: t}", "p.yaml:2: .*no stream 'absent'"),
        ("source: {assign: {absent: [0]}}\nsink: {table: t}", "p.yaml:2: .*no stream 'absent'"),
        ("sink: {table: t}\nsource:\n  queue: absent", "p.yaml:3: .*no queue 'absent': `rookery queues create absent`"),
        (
            "source: {stream: known}\nsink: {exchange: absent}",
            "p.yaml:3: .*no exchange 'absent': `rookery exchanges create",
        ),
    ],
)
def test_what_is_missing_is_told_with_its_line(world: World, tmp_path: Path, text: str, words: str) -> None:
    world.stream("known")
    with pytest.raises(NotFound, match=words):
        make_ready(load(write(tmp_path, world, text)))
    assert "absent" not in names(world, "streams") | names(world, "queues")


def test_what_may_not_be_made_is_told(world: World, tmp_path: Path) -> None:
    world.stream("known")
    rights = {"configure": "", "write": ".*", "read": ".*"}
    key = world.call("POST", "/keys", {"tenant": "default", "rights": rights})["api_key"]
    text = f"broker: {{endpoint: '{world.url}', token: {key}}}\nsource: {{stream: known}}\nsink: {{queue: elsewhere}}\n"
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(NotFound, match="no queue 'elsewhere', and it cannot be made: "):
        make_ready(load(tmp_path / "p.yaml"))


def test_a_broker_that_is_hidden_from_here_may_be_known_to_the_server_of_spark(tmp_path: Path) -> None:
    text = "broker: {endpoint: 'http://127.0.0.1:9', retries: 0}\nsource: {stream: a}\nsink: {stream: b}\n"
    (tmp_path / "p.yaml").write_text(text)
    pipeline = load(tmp_path / "p.yaml")
    with pytest.raises(BrokerUnreachable):
        make_ready(pipeline)
    make_ready(pipeline.at(master="sc://elsewhere"))


def test_an_error_is_told_in_words_and_spark_logs_into_a_file(world: World, tmp_path: Path) -> None:
    world.stream("orders")
    publish(world, "orders", [{"n": 1}])
    text = "source: {stream: orders, startingOffsets: earliest}\nsink: {stream: out}\nrestart: {retries: 0}\n"
    text += "transform: [{sql: \"SELECT CAST(raise_error('oh dear') AS STRING) AS value FROM {input}\"}]\n"
    path = write(tmp_path, world, text)
    command = [
        sys.executable,
        "-m",
        "rookery",
        "pipelines",
        "run",
        str(path),
        "--once",
        "--root",
        str(tmp_path / "root"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert "oh dear" in done.stderr
    assert f"what Spark logged is in {tmp_path / 'root' / 'spark.log'}" in done.stderr
    assert "\tat " not in done.stderr
    assert "\tat org.apache.spark" in (tmp_path / "root" / "spark.log").read_text()
