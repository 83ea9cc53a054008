"""The options of `format("rookery")`: texts in, typed values out, or an error that names the option.

Names are those of Spark's Kafka source where the meaning is the same, and their case does not matter, as in Spark.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from rookery.errors import InvalidArgument
from rookery.spark.offsets import EARLIEST, LATEST, Positions, positions_of

CONNECTION: Final = ("endpoint", "token", "tokenEnv", "tlsCaFile", "fetchTimeoutMs", "retries")
SOURCE: Final = (
    *CONNECTION,
    "subscribe",
    "subscribePattern",
    "assign",
    "queue",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerTask",
    "failOnDataLoss",
    "includeHeaders",
    "includeValue",
    "columns",
    "routingKey",
    "headerFilter",
    "isolation",
    "consumerGroup",
    "pushdown",
    "mode",
    "segmentsRoot",
    "fetchBatchRows",
)
OF_STREAMS: Final = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "routingKey",
    "mode",
    "segmentsRoot",
)
"""What cannot be said of a queue."""


@dataclass(frozen=True, kw_only=True)
class SinkOption:
    """An option of the sink. This table is the one list of them: the reader of options, the sinks of pipelines and the
    table in `docs/spark.md` are made from it.
    """

    name: str
    kind: Literal["target", "text", "flag", "choice", "number"]
    help: str
    field: str = ""
    """What `SinkOptions` calls it; targets share one."""
    default: str | int | bool = ""
    shown: str = ""
    """How the documentation writes the default."""
    smallest: int = 0
    largest: int = 0
    choices: tuple[str, ...] = ()
    once: bool = False
    """It is of use with `exactlyOnce` only."""
    in_pipelines: bool = False
    """A sink of a pipeline may have it; others are given by the pipeline itself."""
    found_as: tuple[str, ...] = ()
    """What a target can be at the broker, in the order in which it is looked for."""


SINK_OPTIONS: Final[tuple[SinkOption, ...]] = (
    SinkOption(name="stream", kind="target", in_pipelines=True, found_as=("stream",), help="Stream to write to"),
    SinkOption(
        name="topic",
        kind="target",
        in_pipelines=True,
        found_as=("stream", "exchange"),
        help="The stream of that name, or else the exchange",
    ),
    SinkOption(
        name="exchange", kind="target", in_pipelines=True, found_as=("exchange",), help="Exchange to publish to"
    ),
    SinkOption(name="queue", kind="target", in_pipelines=True, found_as=("queue",), help="Queue to write to"),
    SinkOption(
        name="producerId",
        kind="text",
        field="producer",
        shown="the id of the query",
        once=True,
        help="Name under which the broker remembers batches; set it to keep the name when the checkpoint is lost",
    ),
    SinkOption(
        name="jobId",
        kind="text",
        field="job",
        shown="random",
        once=True,
        help="For `df.write`: a job that runs again under the same id adds nothing",
    ),
    SinkOption(
        name="epoch",
        kind="number",
        field="epoch",
        default=0,
        largest=1 << 53,
        once=True,
        help="For `df.write` with `producerId`, such as in `foreachBatch`: number of the batch; each number is written "
        "once, in order",
    ),
    SinkOption(
        name="exactlyOnce",
        kind="flag",
        field="exactly_once",
        default=True,
        in_pipelines=True,
        help="`false`: each task publishes its rows at once, before the batch has succeeded; a batch that runs again "
        "adds its rows again",
    ),
    SinkOption(
        name="onOversize",
        kind="choice",
        field="oversize",
        choices=("fail", "dlq"),
        default="fail",
        in_pipelines=True,
        help="What happens to a row that is too large for the broker. `dlq`: its first 4,096 bytes go to the queue "
        "`<target>.DLQ`, with its size in the header `x-oversize-bytes`",
    ),
    SinkOption(
        name="maxBatchBytes",
        kind="number",
        field="batch_bytes",
        default=4 << 20,
        shown="`4m`",
        smallest=1 << 10,
        largest=1 << 30,
        in_pipelines=True,
        help="Maximum size of one staging request; must be below `ROOKERY_HTTP_BODY_MAX_BYTES` of the broker",
    ),
    SinkOption(
        name="stagingTtlMs",
        kind="number",
        field="staging_ms",
        default=3_600_000,
        smallest=1_000,
        largest=7 * 86_400_000,
        once=True,
        in_pipelines=True,
        help="How long staged rows wait for their commit; must be longer than a micro-batch takes",
    ),
)

TARGETS: Final = {row.name: row.found_as for row in SINK_OPTIONS if row.kind == "target"}
"""Where rows go: one of these is an option, or a column that says it for each row."""

SINK: Final = (*CONNECTION, *(row.name for row in SINK_OPTIONS))

_DEFAULTS: Final[Mapping[str, Any]] = {row.field: row.default for row in SINK_OPTIONS if row.kind != "target"}

KNOWN: Final = tuple(dict.fromkeys((*SOURCE, *SINK)))
"""What a table of SQL can have: it is read and written."""

OF_SPARK: Final = frozenset(
    {
        "path",
        "checkpointlocation",
        "queryname",
        "serialization.format",
        # the properties that every table of SQL has
        "provider",
        "owner",
        "location",
        "external",
        "is_managed_location",
        "comment",
        "collation",
    }
)
"""What Spark itself hands on with the options of a source or sink."""

OF_TABLES: Final = "option."
"""What stands before the names of the options of a table of SQL."""

INSTEAD: Final = {
    "kafka.bootstrap.servers": "the broker is named by endpoint",
    "kafka.group.id": "progress is told to consumerGroup",
    "groupidprefix": "progress is told to consumerGroup",
    "startingoffsetsbytimestamp": "a time to begin at is startingTimestamp",
    "endingoffsetsbytimestamp": "a time to end at is endingTimestamp",
    "kafkaconsumer.polltimeoutms": "how long an answer may take is fetchTimeoutMs",
    "fetchoffset.numretries": "how often a request is repeated is retries",
    "tenant": "the key in token or tokenEnv says whose streams are read",
    "topic": "streams to read are named by subscribe, where to write to is topic",
    "stream": "streams to read are named by subscribe, the one to write to is stream",
    "cuttimeout": "cuts are held until they are acknowledged or released",
}
"""What to say to those who expect the options of another connector, in lower case."""

ROWS_PER_TRIGGER: Final = 1_000_000
BYTES_PER_TRIGGER: Final = 256 << 20
ROWS_PER_TASK: Final = 200_000
BATCH_ROWS: Final = 32_768
TRIGGER_DELAY_MS: Final = 15 * 60_000
MODES: Final = ("auto", "broker", "segments")
TIMEOUT_MS: Final = 30_000
RETRIES: Final = 5

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Connection:
    """Where the broker is, and what it is told about the caller."""

    endpoints: tuple[str, ...]
    token: str = field(default="", repr=False)
    ca_file: str = ""
    timeout_sec: float = TIMEOUT_MS / 1000
    retries: int = RETRIES


@dataclass(frozen=True)
class SourceOptions:
    """What is read, from where to where, and how much at once. Exactly one of the first four says what."""

    connection: Connection
    streams: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    queue: str = ""
    starting: str | Positions | None = None
    ending: str | Positions | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    rows_per_trigger: int = ROWS_PER_TRIGGER
    bytes_per_trigger: int = BYTES_PER_TRIGGER
    rows_min: int = 0
    delay_max_ms: int = TRIGGER_DELAY_MS
    tasks_min: int = 0
    rows_per_task: int = ROWS_PER_TASK
    fail_on_data_loss: bool = True
    include_headers: bool = True
    include_value: bool = True
    columns: tuple[str, ...] = ()
    routing_key: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    group: str = ""
    pushdown: bool = True
    mode: str = "auto"
    segments_root: str = ""
    batch_rows: int = BATCH_ROWS


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go: a kind and a name, which is empty when a column says it for each row."""

    connection: Connection
    target: tuple[str, str] = ("", "")
    producer: str = _DEFAULTS["producer"]
    job: str = _DEFAULTS["job"]
    epoch: int = _DEFAULTS["epoch"]
    exactly_once: bool = _DEFAULTS["exactly_once"]
    oversize: str = _DEFAULTS["oversize"]
    batch_bytes: int = _DEFAULTS["batch_bytes"]
    staging_ms: int = _DEFAULTS["staging_ms"]


class Given:
    """Options as they were given, each read once by its name."""

    def __init__(self, said: Mapping[str, str], known: tuple[str, ...]) -> None:
        lower = {name.lower(): name for name in known}
        self._said: dict[str, str] = {}
        for name, value in sorted(said.items(), key=lambda pair: not pair[0].startswith(OF_TABLES)):
            name = name.removeprefix(OF_TABLES)
            if name.lower() in OF_SPARK:
                continue
            if name.lower() not in lower:
                raise InvalidArgument(f"unknown option {name!r}; {_hint(name.lower(), lower)}", argument=name)
            self._said[lower[name.lower()]] = value

    @property
    def said(self) -> dict[str, str]:
        """What was given, under the names as they are written here."""
        return dict(self._said)

    def has(self, name: str) -> bool:
        return name in self._said

    def text(self, name: str, default: str = "") -> str:
        value = self._said.get(name)
        if value is None:
            return default
        if not value.strip():
            raise InvalidArgument(f"{name} is empty", argument=name)
        return value.strip()

    def texts(self, name: str) -> tuple[str, ...]:
        """Names divided by commas, each once."""
        if not self.has(name):
            return ()
        found = [part.strip() for part in self.text(name).split(",")]
        if not all(found):
            raise InvalidArgument(f"{name} has an empty name in it: {self._said[name]!r}", argument=name)
        return tuple(dict.fromkeys(found))

    def number(self, name: str, default: int, smallest: int, largest: int) -> int:
        if not self.has(name):
            return default
        found = re.fullmatch(r"(\d{1,18})\s*([kmg]?)b?", self.text(name).lower())
        value = int(found[1]) * _UNITS[found[2]] if found else -1
        if not smallest <= value <= largest:
            raise InvalidArgument(
                f"{name} must be a number from {smallest} to {largest}, not {self._said[name]!r}", argument=name
            )
        return value

    def time_ms(self, name: str, default: int) -> int:
        """How long something takes, such as 30s; a number alone is milliseconds."""
        if not self.has(name):
            return default
        found = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h)?", self.text(name).lower())
        if found is None:
            raise InvalidArgument(f"{name} must be a time such as 30s or 15m, not {self._said[name]!r}", argument=name)
        return int(found[1]) * _TIMES_MS[found[2] or "ms"]

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """One of some words, the first unless another is said."""
        value = self.text(name, known[0]).lower()
        if value not in known:
            raise InvalidArgument(f"{name} must be {' or '.join(known)}, not {value!r}", argument=name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidArgument(f"{name} must be true or false, not {value!r}", argument=name)
        return value == "true"

    def parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        """What `parse` makes of an option, None when it was not given."""
        if not self.has(name):
            return None
        try:
            return parse(self.text(name))
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"{name}: {error}", argument=name) from None

    def one_of(self, *names: str, needed: bool) -> None:
        said = [name for name in names if self.has(name)]
        if len(said) > 1:
            raise InvalidArgument(f"{' and '.join(said)} exclude each other", argument=said[1])
        if needed and not said:
            raise InvalidArgument(f"one of {', '.join(names)} is needed", argument=names[0])


def _hint(name: str, lower: Mapping[str, str]) -> str:
    if name in INSTEAD:
        return INSTEAD[name]
    near = difflib.get_close_matches(name, lower, 1, 0.6)
    return f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(lower.values())}"


def source_options(said: Mapping[str, str]) -> SourceOptions:
    """Read the options of a source."""
    given = Given(said, SOURCE)
    given.one_of("subscribe", "subscribePattern", "assign", "queue", needed=True)
    given.one_of("startingOffsets", "startingTimestamp", needed=False)
    given.one_of("endingOffsets", "endingTimestamp", needed=False)
    if given.has("queue"):
        for name in OF_STREAMS:
            if given.has(name):
                raise InvalidArgument(f"a queue has no {name}: it is read from its head", argument=name)
    if given.text("isolation", "read_committed").lower() != "read_committed":
        raise InvalidArgument(
            "isolation can only be read_committed: the broker shows nothing that is not committed", argument="isolation"
        )
    if given.has("maxTriggerDelay") and not given.has("minOffsetsPerTrigger"):
        raise InvalidArgument("maxTriggerDelay needs minOffsetsPerTrigger", argument="maxTriggerDelay")
    rows_max = given.number("maxOffsetsPerTrigger", ROWS_PER_TRIGGER, 1, 1 << 53)
    return SourceOptions(
        connection=_connection(given),
        streams=given.texts("subscribe"),
        pattern=given.parsed("subscribePattern", _pattern) or "",
        assigned=given.parsed("assign", _assigned) or {},
        queue=given.text("queue"),
        starting=given.parsed("startingOffsets", _offsets),
        ending=given.parsed("endingOffsets", _ending),
        starting_ms=given.parsed("startingTimestamp", _time_ms),
        ending_ms=given.parsed("endingTimestamp", _time_ms),
        rows_per_trigger=rows_max,
        bytes_per_trigger=given.number("maxBytesPerTrigger", BYTES_PER_TRIGGER, 1, 1 << 53),
        rows_min=given.number("minOffsetsPerTrigger", 0, 1, rows_max),
        delay_max_ms=given.time_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        tasks_min=given.number("minPartitions", 0, 1, 100_000),
        rows_per_task=given.number("maxRecordsPerTask", ROWS_PER_TASK, 1, 1 << 53),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", True),
        include_value=given.flag("includeValue", True),
        columns=given.texts("columns"),
        routing_key=given.text("routingKey"),
        headers=given.parsed("headerFilter", _headers) or (),
        group=given.text("consumerGroup"),
        pushdown=given.flag("pushdown", True),
        mode=given.choice("mode", MODES),
        segments_root=given.text("segmentsRoot"),
        batch_rows=given.number("fetchBatchRows", BATCH_ROWS, 1, 1 << 31),
    )


def sink_options(said: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink."""
    given = Given(said, SINK)
    given.one_of(*TARGETS, needed=False)
    given.one_of("producerId", "jobId", needed=False)
    if given.has("epoch") and not given.has("producerId"):
        raise InvalidArgument("epoch is the number of a batch of producerId, which is missing", argument="epoch")
    read: dict[str, Any] = {row.field: _read(given, row) for row in SINK_OPTIONS if row.kind != "target"}
    for row in SINK_OPTIONS:
        if row.once and given.has(row.name) and not read["exactly_once"]:
            raise InvalidArgument(f"{row.name} is of use with exactlyOnce only", argument=row.name)
    target = next(((kind, given.text(kind)) for kind in TARGETS if given.has(kind)), ("", ""))
    return SinkOptions(connection=_connection(given), target=target, **read)


def _read(given: Given, row: SinkOption) -> str | int | bool:
    if row.kind == "flag":
        return given.flag(row.name, bool(row.default))
    if row.kind == "choice":
        return given.choice(row.name, row.choices)
    if row.kind == "number":
        return given.number(row.name, int(row.default), row.smallest, row.largest)
    return given.text(row.name, str(row.default))


def _connection(given: Given) -> Connection:
    given.one_of("token", "tokenEnv", needed=False)
    given.one_of("endpoint", needed=True)
    endpoints = given.texts("endpoint")
    for endpoint in endpoints:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise InvalidArgument(f"endpoint must be like http://host:8080, not {endpoint!r}", argument="endpoint")
    token = given.text("token")
    if given.has("tokenEnv"):
        variable = given.text("tokenEnv")
        token = os.environ.get(variable, "")
        if not token:
            raise InvalidArgument(f"tokenEnv: the variable {variable} of the driver is not set", argument="tokenEnv")
    return Connection(
        tuple(endpoint.rstrip("/") for endpoint in endpoints),
        token,
        given.text("tlsCaFile"),
        given.number("fetchTimeoutMs", TIMEOUT_MS, 1, 86_400_000) / 1000,
        given.number("retries", RETRIES, 0, 1_000),
    )


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return value


def _headers(value: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError(f"name headers and their values, such as region=eu,kind=order, not {value!r}")
    return tuple((name.strip(), wanted.strip()) for name, _, wanted in pairs)


def _assigned(value: str) -> dict[str, tuple[int, ...]]:
    found = json.loads(value)
    if not isinstance(found, dict) or not found or not all(map(_are_partitions, found.values())):
        raise ValueError('name streams and their partitions, such as {"orders":[0,1]}')
    return {stream: tuple(dict.fromkeys(partitions)) for stream, partitions in found.items()}


def _are_partitions(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(type(each) is int for each in found)


def _offsets(value: str) -> str | Positions:
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(map(_are_offsets, found.values())):
        raise ValueError(
            f'must be earliest, latest or JSON such as {{"orders":{{"0":23,"1":-2}}}} '
            f"(-2 is earliest, -1 latest), not {value!r}"
        )
    return positions_of(found)


def _are_offsets(found: object) -> bool:
    return isinstance(found, dict) and all(type(each) is int for each in found.values())


def _ending(value: str) -> str | Positions:
    found = _offsets(value)
    if found == EARLIEST or (isinstance(found, dict) and -2 in found.values()):
        raise ValueError("a read cannot end at the earliest offset")
    return found


def _time_ms(value: str) -> int:
    if re.fullmatch(r"\d{1,16}", value):
        return int(value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"must be a time such as 2026-01-31T12:00:00Z or milliseconds, not {value!r}") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
