"""A pipeline as its file describes it: sources, steps, expectations, a sink, a trigger, an engine.

Reading a file needs neither Spark nor a broker. What can be known from the file alone is checked here; what Spark must
be asked (SQL, columns, types) is checked by `plan`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rookery.errors import InvalidArgument, InvalidPipeline
from rookery.pipelines.cron import Cron
from rookery.pipelines.document import Value, read
from rookery.spark.options import CONNECTION, SINK_OPTIONS, TARGETS, sink_options, source_options

INPUT: Final = "input"
ENDPOINT: Final = "http://127.0.0.1:8080"
KEY_VARIABLE: Final = "ROOKERY_API_KEY"
SUFFIXES: Final = (".yaml", ".yml")

BROKER_TARGETS: Final = tuple(TARGETS)
FAILURES: Final = ("drop", "fail", "quarantine")
QUARANTINE: Final = ".quarantine"
"""What stands after the name of a pipeline in that of the stream for its quarantine, unless one is named."""
BROKER_MODES: Final = ("append", "update")
BROKER_OPTIONS: Final = tuple(row.name for row in SINK_OPTIONS if row.in_pipelines and row.kind != "target")
"""The options of Spark's sink that a sink may have."""
TABLE_FORMATS: Final = ("delta",)
TABLE_MODES: Final = ("append", "merge", "replace")

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_ENTRIES: Final = (
    "name",
    "description",
    "broker",
    "source",
    "sources",
    "transform",
    "expect",
    "quarantine",
    "sink",
    "trigger",
    "engine",
    "restart",
)


@dataclass(frozen=True)
class Source:
    """A stream or queue of the broker, by its options, or a lake table, which is read once at each start."""

    options: Mapping[str, str] = field(default_factory=dict)
    table: str = ""
    line: int = 0


@dataclass(frozen=True)
class Step:
    """SQL or a function of the user's own; what it makes is `{input}` of the next, and has its name if it has one."""

    sql: str = ""
    function: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    watermark: tuple[str, str] | None = None
    line: int = 0


@dataclass(frozen=True)
class Expectation:
    """What must be true of each row, and what becomes of rows of which it is not."""

    name: str
    check: str
    on_fail: str = "drop"
    line: int = 0


@dataclass(frozen=True)
class Sink:
    """Where rows go. `kind` is stream, topic, exchange, queue or table."""

    kind: str
    target: str
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    json: bool = False
    line: int = 0

    @property
    def output_mode(self) -> str:
        """Spark's name for which rows of an aggregate come out."""
        return {"merge": "update", "replace": "complete"}.get(self.mode, self.mode)


@dataclass(frozen=True)
class Trigger:
    """Micro-batches every so often, or all that is available and then an end, once or again by the clock."""

    interval_ms: int = 1_000
    available_now: bool = False
    every_ms: int = 0
    cron: Cron | None = None

    @property
    def repeats(self) -> bool:
        return bool(self.every_ms) or self.cron is not None


@dataclass(frozen=True)
class Engine:
    """Which Spark: its master or Connect address, and its settings."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Restart:
    """After a failure: how long to wait, longer each time, and after how many in a row to give up."""

    retries: int = 10
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000


@dataclass(frozen=True)
class Pipeline:
    """One file."""

    file: Path
    name: str
    sources: Mapping[str, Source]
    sink: Sink
    description: str = ""
    broker: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    quarantine: Sink | None = None
    trigger: Trigger = Trigger()
    engine: Engine = Engine()
    restart: Restart = Restart()

    @property
    def fingerprint(self) -> str:
        """Of what a checkpoint is tied to: another one of it needs another checkpoint."""
        sources = {
            name: {"options": {k: v for k, v in each.options.items() if k in _IDENTITY}, "table": each.table}
            for name, each in self.sources.items()
        }
        steps = [[step.sql, step.function, dict(step.params), step.watermark] for step in self.steps]
        stateful = steps if any(step.watermark for step in self.steps) or self.sink.mode != "append" else []
        text = json.dumps([sources, stateful, self.sink.output_mode], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def connection(self) -> dict[str, str]:
        """The options that name the broker, with the token that `tokenEnv` names: engines have other environments."""
        found = dict(self.broker)
        variable = found.pop("tokenEnv", "")
        if variable:
            token = os.environ.get(variable, "")
            if not token:
                raise InvalidPipeline(f"{self.file}: broker.tokenEnv: the variable {variable} is not set")
            found["token"] = token
        return found

    def at(self, *, endpoint: str = "", master: str = "", token_env: str = "") -> Pipeline:
        """The same pipeline on another broker or engine."""
        broker = dict(self.broker)
        if endpoint:
            broker["endpoint"] = endpoint
        if token_env:
            broker.pop("token", None)
            broker["tokenEnv"] = token_env
        engine = replace(self.engine, master=master) if master else self.engine
        return replace(self, broker=broker, engine=engine)


_IDENTITY: Final = ("subscribe", "subscribePattern", "assign", "queue")
"""The options of a source that say what it reads."""


def load(file: str | Path) -> Pipeline:
    """Read a file."""
    path = Path(file)
    document = read(path)
    found = document.fields(*_ENTRIES)
    if "sink" not in found:
        document.fail("sink is missing: say where rows go, such as `sink: {stream: enriched}`")
    broker = _broker(found.get("broker"))
    sources = _sources(document, found, broker)
    if "transform" not in found and len(sources) > 1:
        found["sources"].fail("with several sources a step has to put them together: add transform")
    steps = _steps(found.get("transform"), sources)
    expectations = _expectations(found.get("expect"))
    name = _name(found.get("name"), document, path)
    quarantine = None
    if "quarantine" in found:
        quarantine = _sink(found["quarantine"], broker, quarantine=True)
    elif any(each.on_fail == "quarantine" for each in expectations):
        quarantine = Sink("stream", f"{name}{QUARANTINE}", json=True)
    return Pipeline(
        file=path,
        name=name,
        description=found["description"].text() if "description" in found else "",
        broker=broker,
        sources=sources,
        steps=steps,
        expectations=expectations,
        quarantine=quarantine,
        sink=_sink(found["sink"], broker),
        trigger=_trigger(found.get("trigger")),
        engine=_engine(found.get("engine")),
        restart=_restart(found.get("restart")),
    )


def load_folder(folder: str | Path) -> tuple[list[Pipeline], list[InvalidPipeline]]:
    """Every file of a folder, and the mistakes of those that cannot be read."""
    place = Path(folder)
    if not place.is_dir():
        raise InvalidPipeline(f"{folder}: there is no such folder", argument="folder")
    good: dict[str, Pipeline] = {}
    bad: list[InvalidPipeline] = []
    for path in sorted(place.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith("."):
            continue
        try:
            each = load(path)
            if each.name in good:
                raise InvalidPipeline(f"{path}:1: {good[each.name].file} has the name {each.name} too: choose another")
            good[each.name] = each
        except InvalidPipeline as error:
            bad.append(error)
    return list(good.values()), bad


def _name(value: Value | None, document: Value, path: Path) -> str:
    name = value.text() if value is not None else path.stem
    if not _NAME.fullmatch(name):
        (value or document).fail(f"a name has small letters, digits, dots, dashes and underscores, not {name!r}")
    return name


# Sources and sinks


def _broker(value: Value | None) -> dict[str, str]:
    found = {name: each.text() for name, each in value.fields(*CONNECTION).items()} if value is not None else {}
    here = {"endpoint": os.environ.get("ROOKERY_URL") or ENDPOINT}
    if not {"endpoint", "token", "tokenEnv"} & set(found) and os.environ.get(KEY_VARIABLE):
        here["tokenEnv"] = KEY_VARIABLE
    return here | found


def _sources(document: Value, found: Mapping[str, Value], broker: Mapping[str, str]) -> dict[str, Source]:
    if ("source" in found) == ("sources" in found):
        document.fail("one of source and sources is needed, such as `source: {stream: orders}`")
    if "source" in found:
        return {INPUT: _source(found["source"], broker)}
    sources: dict[str, Source] = {}
    for name, value in found["sources"].fields().items():
        if not _COLUMN.fullmatch(name) or name == INPUT:
            value.fail(f"a source has a name such as orders, with which SQL calls it {{orders}}, not {name!r}")
        sources[name] = _source(value, broker)
    if not any(source.options for source in sources.values()):
        found["sources"].fail("at least one must be a stream or queue")
    return sources


def _source(value: Value, broker: Mapping[str, str]) -> Source:
    found = value.fields()
    if "table" in found:
        if len(found) > 1:
            value.fail("a table has no other entries: it is read as it is when the pipeline starts")
        return Source(table=found["table"].text(), line=value.line)
    options = {}
    for name, each in found.items():
        said = {"stream": "subscribe", "streams": "subscribe", "pattern": "subscribePattern"}.get(name, name)
        options[said] = ",".join(each.texts()) if each.is_list else _option(each)
    _checked(value, found, lambda: source_options({**_known(broker), **options}))
    if not {"subscribe", "subscribePattern", "assign", "queue"} & set(options):
        value.fail("say what is read: stream, pattern, assign, queue or table")
    for name in ("endingOffsets", "endingTimestamp"):
        if name in options:
            found[name].fail("a pipeline has no end: `rookery pipelines backfill` reads up to one")
    return Source(options=options, line=value.line)


def _option(value: Value) -> str:
    return json.dumps(value.plain()) if value.is_mapping else value.text()


def _known(broker: Mapping[str, str]) -> dict[str, str]:
    """What of the broker's options can be checked here: the variable of the token is that of whoever runs it."""
    return {name: value for name, value in broker.items() if name != "tokenEnv"}


def _checked(value: Value, found: Mapping[str, Value], check: Callable[[], object]) -> None:
    """Have the options of the connector read, and tell its complaint with the line of the option."""
    try:
        check()
    except InvalidArgument as error:
        names = {"subscribe": "stream", "subscribePattern": "pattern"}
        argument = error.argument or ""
        where = found.get(argument) or found.get(names.get(argument, "")) or value
        where.fail(str(error))


def _sink(value: Value, broker: Mapping[str, str], *, quarantine: bool = False) -> Sink:
    own = () if quarantine else ("mode", "format")
    found = value.fields(*BROKER_TARGETS, "table", *BROKER_OPTIONS, "keys", "partitionBy", *own)
    kinds = [name for name in (*BROKER_TARGETS, "table") if name in found]
    if len(kinds) != 1:
        value.fail(
            f"needs exactly one of {', '.join(BROKER_TARGETS)} and table; it has {' and '.join(kinds) or 'none'}"
        )
    kind = kinds[0]
    mode = "append"
    if "mode" in found:
        mode = found["mode"].choice(TABLE_MODES if kind == "table" else BROKER_MODES)
    keys = found["keys"].texts() if "keys" in found else ()
    if (mode == "merge") != bool(keys):
        value.fail("mode: merge and keys go together: rows that have the same keys are replaced")
    for name in BROKER_OPTIONS if kind == "table" else ("keys", "partitionBy"):
        if name in found:
            found[name].fail("is not for tables" if kind == "table" else "is for tables")
    formats = TABLE_FORMATS if kind == "table" else ("json", "columns")
    as_json = "format" in found and found["format"].choice(formats) == "json"
    options: dict[str, str] = {name: found[name].text() for name in BROKER_OPTIONS if name in found}
    target = found[kind].text()
    if kind != "table":
        _checked(value, found, lambda: sink_options({**_known(broker), **options, kind: target}))
    return Sink(
        kind=kind,
        target=target,
        mode=mode,
        options=options,
        keys=keys,
        partition_by=found["partitionBy"].texts() if "partitionBy" in found else (),
        json=as_json or quarantine,
        line=value.line,
    )


# Steps and expectations


def _steps(value: Value | None, sources: Mapping[str, Source]) -> tuple[Step, ...]:
    if value is None:
        return ()
    steps: list[Step] = []
    known = list(sources)
    for each in value.items():
        found = each.fields("sql", "python", "params", "name", "watermark")
        if ("sql" in found) == ("python" in found):
            each.fail("a step is either sql or python")
        input_there = bool(steps) or INPUT in sources
        if "sql" in found:
            _placeholders(found["sql"], [*known, *([INPUT] if input_there and INPUT not in known else [])])
        elif not input_there:
            each.fail(f"a function takes {{{INPUT}}}, and there is none yet: begin with sql over one of the sources")
        name = found["name"].text() if "name" in found else ""
        if "name" in found:
            if not _COLUMN.fullmatch(name) or name in (*known, INPUT):
                found["name"].fail(f"must be a name that is not taken yet, not {name!r}")
            known.append(name)
        if "params" in found and "python" not in found:
            found["params"].fail("only functions have them")
        steps.append(
            Step(
                sql=found["sql"].raw() if "sql" in found else "",
                function=_function(found["python"]) if "python" in found else "",
                params=found["params"].plain() if "params" in found else {},
                name=name,
                watermark=_watermark(found.get("watermark")),
                line=each.line,
            )
        )
    if not steps and len(sources) > 1:
        value.fail("with several sources a step has to put them together")
    return tuple(steps)


def _placeholders(value: Value, known: list[str]) -> None:
    """Check which tables a text of SQL names in braces."""
    text = value.raw()
    if not text.strip():
        value.fail("is empty")
    names = []
    try:
        for _, name, _, _ in string.Formatter().parse(text):
            if name is not None:
                names.append(name)
    except ValueError as error:
        value.fail(f"{error}: a brace that is meant as such is written twice")
    for name in names:
        if name not in known:
            line = value.text_line(text.find(f"{{{name}"))
            value.fail(
                f"there is no {{{name}}}; there are {', '.join(f'{{{each}}}' for each in known)} "
                "(a brace that is meant as such is written twice)",
                line,
            )
    if not names:
        value.fail(f"reads none of {', '.join(f'{{{each}}}' for each in known)}: name one of them, braces and all")


def _function(value: Value) -> str:
    text = value.text()
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        value.fail(f"must name a module and a function, such as my_package.steps:enrich, not {text!r}")
    return text


def _watermark(value: Value | None) -> tuple[str, str] | None:
    if value is None:
        return None
    found = value.fields("column", "delay")
    for name in ("column", "delay"):
        if name not in found:
            value.fail(f"{name} is missing, such as {{column: at, delay: 10 minutes}}")
    return found["column"].text(), f"{found['delay'].duration_ms()} milliseconds"


def _expectations(value: Value | None) -> tuple[Expectation, ...]:
    made: dict[str, Expectation] = {}
    for each in value.items() if value is not None else ():
        found = each.fields("name", "check", "on_fail")
        for name in ("name", "check"):
            if name not in found:
                each.fail(f"{name} is missing, such as {{name: has_id, check: id IS NOT NULL, on_fail: drop}}")
        name = found["name"].text()
        if not _COLUMN.fullmatch(name) or name in made:
            found["name"].fail(f"must be a name of its own such as has_id, not {name!r}")
        on_fail = found["on_fail"].choice(FAILURES) if "on_fail" in found else "drop"
        made[name] = Expectation(name, found["check"].raw(), on_fail, each.line)
    return tuple(made.values())


# How it runs


def _trigger(value: Value | None) -> Trigger:
    if value is None:
        return Trigger()
    found = value.fields("interval", "availableNow", "every", "cron")
    if "interval" in found and len(found) > 1:
        value.fail("interval is by itself: with availableNow say every or cron")
    if "interval" in found:
        return Trigger(interval_ms=found["interval"].duration_ms())
    if "availableNow" not in found or not found["availableNow"].flag():
        value.fail("say interval: 1s, or availableNow: true (with every: 10m or cron: … to run again)")
    if "every" in found and "cron" in found:
        found["cron"].fail("every and cron exclude each other")
    cron = None
    if "cron" in found:
        try:
            cron = Cron.parse(found["cron"].text())
        except InvalidArgument as error:
            found["cron"].fail(str(error))
    every_ms = found["every"].duration_ms() if "every" in found else 0
    return Trigger(available_now=True, every_ms=every_ms, cron=cron)


def _engine(value: Value | None) -> Engine:
    if value is None:
        return Engine()
    found = value.fields("master", "conf")
    conf = {}
    for name, each in found["conf"].fields().items() if "conf" in found else ():
        if not name.startswith("spark."):
            each.fail("settings of Spark begin with spark.")
        conf[name] = each.text()
    master = found["master"].text() if "master" in found else Engine.master
    if not re.match(r"local(-cluster)?(\[|$)|spark://|sc://|yarn$|k8s://", master):
        found["master"].fail(f"must be local[*], local-cluster[…], spark://…, sc://…, yarn or k8s://…, not {master!r}")
    return Engine(master, conf)


def _restart(value: Value | None) -> Restart:
    if value is None:
        return Restart()
    found = value.fields("retries", "backoff", "backoffMax")
    default = Restart()
    backoff_ms = found["backoff"].duration_ms() if "backoff" in found else default.backoff_ms
    longest = found["backoffMax"].duration_ms() if "backoffMax" in found else max(default.backoff_max_ms, backoff_ms)
    retries = found["retries"].number(0, 1_000_000) if "retries" in found else default.retries
    return Restart(retries, backoff_ms, longest)
