"""Every way to publish does the same: random publishes by each of them, the cases in which they once differed, and
seeded bugs which show that a way that differs would be noticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery.clock import ManualClock
from rookery.core import streams
from tests.wire.http_world import World
from tests.wire.publish_paths import EACH, SEEDS, TOGETHER, WAYS, WHOLE, Embedded, Send, Way, build, difference, sends

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rookery"
ALL: dict[str, type[Way]] = {"embedded": Embedded, **WAYS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("server"), ManualClock())
    yield made
    made.close()


@pytest.fixture
def way(request: pytest.FixtureRequest, world: World) -> Iterator[Way]:
    made = ALL[request.param](world)
    made.inside(lambda: made.shard.events.start(1_000_000, {}))
    yield made
    made.close()


def those_that(send: Send) -> Any:
    """The ways that can express a publish."""
    names = [name for name, kind in ALL.items() if kind.__new__(kind).can(send)]
    return pytest.mark.parametrize("way", names, indirect=True)


# Random publishes


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WAYS)
def test_every_way_leaves_the_same_behind(name: str, seed: int, world: World) -> None:
    assert difference(name, seed, world) == ""


@pytest.mark.parametrize("mode", [EACH, WHOLE, TOGETHER])
def test_the_random_publishes_meet_everything(mode: str) -> None:
    """Else the comparison would say less than it seems to."""
    told: set[bool] = set()
    meters = dict.fromkeys(("unroutable", "duplicates", "refused", "dropped", "delayed", "dead_lettered", "closed"), 0)
    for seed in SEEDS:
        one = Embedded(None)
        with one.engine:
            build(one.tenant, seed, mode)
        told |= {one.send(each) for each in sends(seed, mode)}
        queues = one.tenant.queues.values()
        meters["unroutable"] += sum(int(exchange.unroutable) for exchange in one.tenant.exchanges.values())
        meters["duplicates"] += one.tenant.dedup.duplicates
        meters["closed"] += "full-close" not in one.tenant.queues
        for name in ("refused", "dropped", "delayed", "dead_lettered"):
            meters[name] += sum(int(getattr(queue, name)) for queue in queues)
        assert one.tenant.stream("log").appended
        one.close()
    assert told == {True, False}
    assert all(meters.values()), meters


# The cases in which they once differed

KEYED = Send("exchange", "dedup", "k", b'"m"', {"x-deduplication-header": "same"})


@those_that(KEYED)
def test_the_same_id_twice_to_a_deduplicating_exchange_with_two_queues_leaves_one_in_each(way: Way) -> None:
    def build() -> None:
        way.tenant.declare_exchange("dedup", "fanout", arguments={"x-message-deduplication": True})
        for name in ("one", "two"):
            way.tenant.bind("dedup", way.tenant.declare_queue(name, {}, "embedded")[0], "")

    way.inside(build)
    assert [way.send(KEYED), way.send(KEYED)] == [True, True]
    assert [int(way.tenant.queues[name].ready) for name in ("one", "two")] == [1, 1]
    assert way.tenant.dedup.duplicates == 1
    exchange = way.tenant.exchange("dedup")
    assert (int(exchange.published), int(way.tenant.published)) == (1, 1)
    assert [note[0] for note in way.shard.events._notes if note[2] == way.tenant.name] == ["published"]


RECORD = Send("stream", "log", "log", b'"record"')


@those_that(RECORD)
def test_appending_to_a_stream_is_told_and_counted(way: Way) -> None:
    way.inside(lambda: streams.declare(way.tenant, "log", {}))
    assert way.send(RECORD)
    assert int(way.tenant.stream("log").appended) == int(way.tenant.published) == 1
    default = way.tenant.default
    assert (int(default.published), int(default.bytes)) == (1, len(RECORD.body))
    (note,) = [note for note in way.shard.events._notes if note[2] == way.tenant.name]
    kind, _, _, queue, message, _, reached, size, _, _ = note
    assert (kind, queue, message.route.key, reached, size or len(message.body)) == ("published", "", "log", 1, 8)


# What depends on the publisher by intention

TO_BOTH = Send("exchange", "both", "k", b'"m"')


@those_that(TO_BOTH)
def test_a_queue_that_rejects_and_one_with_room(way: Way) -> None:
    """AMQP and staged commits publish to each queue; for the others all take it or none; and together, no trace."""
    tenant = way.tenant

    def build() -> None:
        tenant.declare_exchange("both", "fanout")
        full = {"length_max": 0, "overflow": "reject-publish-dead-letter", "dead_letter_queue": "graves"}
        tenant.bind("both", tenant.declare_queue("full", full, "embedded")[0], "")
        tenant.bind("both", tenant.declare_queue("room", {}, "embedded")[0], "")
        tenant.declare_queue("graves", {}, "dead-letter")

    way.inside(build)
    staged = way.mode == EACH and way.send.__qualname__.startswith(("EmbeddedStaged", "NativeStaged"))
    assert way.send(TO_BOTH) is staged
    ready = {name: int(queue.ready) for name, queue in tenant.queues.items()}
    assert ready == {
        "full": 0,
        "room": int(way.mode == EACH),
        "graves": int(way.mode != TOGETHER),
    }
    assert int(tenant.queues["full"].refused) == int(way.mode != TOGETHER)
    assert int(tenant.exchange("both").published) == int(way.mode == EACH)


def test_a_mandatory_publish_to_nobody_refuses_all_of_its_transaction(world: World) -> None:
    way = ALL["native HTTP transaction"](world)
    way.inside(lambda: way.tenant.declare_queue("q", {}, "embedded"))
    lost = {"message": 2, "exchange": "amq.direct", "routing_key": "nobody", "mandatory": True}
    work = {"publish": [{"message": 1, "queue": "q"}, lost]}
    answer = way.client.post("/api/v1/transactions", json=work)  # type: ignore[attr-defined]
    assert (answer.status_code, answer.json()["code"]) == (422, "unroutable")
    assert int(way.tenant.queues["q"].ready) == int(way.tenant.published) == 0
    assert int(way.tenant.exchange("amq.direct").unroutable) == 0


# Seeded bugs


class Seeded(NamedTuple):
    """A change of the source after which a way differs from the others."""

    way: str
    file: str
    changes: tuple[tuple[str, str], ...]


BUGS = {
    "a batch has a priority": Seeded(
        "embedded batch",
        "core/publishing.py",
        (("body, number, 0, expires_ms, flags)", "body, number, 1, expires_ms, flags)"),),
    ),
    "a transaction forgets delays": Seeded(
        "embedded transaction",
        "core/publishing.py",
        (("message, p.due_ms, CHECKED)", "message, 0, CHECKED)"),),
    ),
    "a transaction forgets dedup by exchange": Seeded(
        "native HTTP transaction",
        "core/publishing.py",
        (
            ('return tenant.dedup.find("exchange:" + exchange.name, own, now)', "return 0"),
            (
                "if exchange.dedup:\n            dedup_key",
                "if exchange.dedup and mode != CHECKED:\n            dedup_key",
            ),
        ),
    ),
    "a row of an embedded producer forgets its delay": Seeded(
        "embedded staged",
        "embed/blocking/producers.py",
        (("p.expires_ms, p.due_ms, p.dedup_key)", "p.expires_ms, 0, p.dedup_key)"),),
    ),
    "a staged commit to an exchange is not told": Seeded(
        "native HTTP staged",
        "core/staging.py",
        (("flags: i32 = PERSISTENT | (message.flags & SAMPLED)", "flags: i32 = PERSISTENT"),),
    ),
    "a staged commit to a stream is not counted": Seeded(
        "embedded staged",
        "core/staging.py",
        (("publishing.count_appended(tenant, chunk.rows, chunk.body_bytes)", "pass"),),
    ),
    "the small queue API publishes transient messages": Seeded(
        "S0 HTTP",
        "wire/api/compat/handles.py",
        (
            (
                "        number, _ = self._rest.publish",
                "        p.persistent = False\n        number, _ = self._rest.publish",
            ),
        ),
    ),
    "the queue API forgets dedup keys": Seeded(
        "S2 HTTP",
        "wire/api/compat/pulling.py",
        (
            (
                "        number, repeat = rest.publish(",
                '        p.dedup_key = ""\n        number, repeat = rest.publish(',
            ),
        ),
    ),
    "the native API forgets delays": Seeded(
        "native HTTP",
        "wire/api/handling.py",
        (("        number, repeat = self._rest.", "        p.due_ms = 0\n        number, repeat = self._rest."),),
    ),
    "AMQP forgets priorities": Seeded(
        "AMQP",
        "wire/amqp/publish.py",
        (("        reached = post(", "        message.priority = 0\n        reached = post("),),
    ),
    "appending to a stream by its API is not told": Seeded(
        "AMQP",
        "core/publishing.py",
        (("    if flags & SAMPLED:\n        shard.events.published(tenant, message, 1)\n", ""),),
    ),
    "a transaction of AMQP is always persistent": Seeded(
        "AMQP transaction",
        "wire/amqp/publish.py",
        (("            persistent=self._props_flags != 0,\n", ""),),
    ),
    "a line is published to each queue by itself": Seeded(
        "line",
        "wire/line/connection.py",
        (("message, 0, publishing.WHOLE)", "message, 0, publishing.EACH)"),),
    ),
}


def test_every_way_has_a_seeded_bug() -> None:
    assert {bug.way for bug in BUGS.values()} == set(WAYS)


@pytest.mark.parametrize("name", BUGS)
def test_a_way_that_differs_is_noticed(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    source = (PACKAGE / bug.file).read_text()
    for old, new in bug.changes:
        assert source.count(old) == 1, f"the text of this bug occurs {source.count(old)} times in {bug.file}:\n{old}"
        source = source.replace(old, new)
    copy = tmp_path / "rookery"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__", "ui"))
    (copy / bug.file).write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "tests.wire.publish_paths", bug.way, *map(str, SEEDS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{bug.way}, seed "), "nobody noticed"
