"""`rookery export` and `rookery import`: a tenant as JSON lines.

The first line holds the definitions, the last one says how much there was; between them each line is a message of a
queue, or a record of a stream, in the form in which the API takes it. So a file that ends without its last line is
known to be cut off. Bodies keep their bytes.
"""

from __future__ import annotations

import base64
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from rookery.cli.commands import command, single
from rookery.cli.output import note, progress
from rookery.cli.publishing import BATCH_BYTES, BATCH_MAX
from rookery.cli.session import NDJSON, PAGE, Session
from rookery.errors import InvalidArgument, RookeryError

export = single()
load = single()

VERSION: Final = 1
STATES: Final = ("ready", "delayed", "leased")
EVENTS: Final = "rookery.events"

_KEPT: Final = (
    "priority",
    "content_type",
    "headers",
    "correlation_id",
    "reply_to",
    "type",
    "timestamp_ms",
    "message_id",
)
_RECORD: Final = {
    "partition": "partition",
    "key": "key",
    "headers": "headers",
    "routing_key": "routing_key",
    "message_id": "message_id",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "content_type": "content_type",
    "priority": "priority",
    "producer_timestamp": "timestamp_ms",
}
"""What a record's columns are called where it is published."""


class _Messages(msgspec.Struct):
    """A page of messages, whose values are kept as they were written."""

    count: int
    messages: list[dict[str, msgspec.Raw]]
    next: str | None = None


class _Records(msgspec.Struct):
    next: int
    end: int
    records: list[dict[str, msgspec.Raw]]


@command(
    export,
    "export",
    "rookery export broker.jsonl",
    "rookery export --definitions-only > definitions.jsonl",
    "rookery export | gzip > broker.jsonl.gz",
    "rookery export --queue jobs --queue mail jobs.jsonl",
)
def export_(
    at: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - for stdout.")] = "-",
    queue: Annotated[list[str], typer.Option("--queue", help="Messages of this one only; repeatable.")] = [],  # noqa: B006
    stream: Annotated[list[str], typer.Option("--stream", help="Records of this one only; repeatable.")] = [],  # noqa: B006
    definitions_only: Annotated[bool, typer.Option("--definitions-only", help="No messages, no records.")] = False,
) -> None:
    """Write the key's tenant as JSON lines: definitions, messages, records of streams. Nothing is taken away.

    What is leased is written as if it were ready. Of a broker at work each queue is as it was when it was read;
    `rookery backup` copies one moment, and with it what JSON lines do not hold: attempts, deaths, offsets of groups.
    """
    definitions = at.get("/definitions")
    tenant = definitions["tenants"][0]
    chosen = bool(queue or stream)
    queues = queue if chosen else [row["name"] for row in tenant["queues"]]
    streams = stream if chosen else [row["name"] for row in tenant["streams"] if row["name"] != EVENTS]
    if definitions_only:
        queues, streams = [], []
    counts = {"messages": 0, "records": 0}
    with _writer(file) as out, progress("exporting") as more:
        _write(out, {"kind": "definitions", "rookery": VERSION, "definitions": definitions})
        for name in queues:
            for line in _messages(at, name):
                _write(out, line)
                counts["messages"] += 1
                more(1)
        for name in streams:
            for line in _records(at, name):
                _write(out, line)
                counts["records"] += 1
                more(1)
        _write(out, {"kind": "end", **counts})
    if file != "-":
        at.out.done(f"{counts['messages']} messages and {counts['records']} records written to {file}", counts)
    else:
        note(f"{counts['messages']} messages and {counts['records']} records written")


def _messages(at: Session, queue: str) -> Iterator[dict[str, Any]]:
    for state in STATES:
        after = ""
        while True:
            data = at.read("/queues/{}/messages", queue, state=state, limit=PAGE, after=after)
            page = msgspec.json.decode(data, type=_Messages)
            for message in page.messages:
                yield {"kind": "message", "queue": queue, **_sendable(message)}
            if page.next is None:
                break
            after = page.next


def _sendable(message: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """A message as the API takes it, its times as moments."""
    line: dict[str, Any] = {name: message[name] for name in _KEPT if name in message}
    line |= _body(message.get("message"), message.get("message_base64"), message.get("content_type"))
    for name, field in (("due_ms", "deliver_at"), ("expires_ms", "expires_ms")):
        if name in message:
            line[field] = message[name]
    return line


def _body(value: msgspec.Raw | None, coded: msgspec.Raw | None, kind: msgspec.Raw | None) -> dict[str, Any]:
    if coded is not None:
        return {"message_base64": coded}
    assert value is not None
    data = bytes(value)
    if kind is None and data.startswith(b'"'):
        # as text without a type; as `message` it would become JSON
        return {"message_base64": base64.b64encode(msgspec.json.decode(value, type=str).encode()).decode()}
    if b"\n" in data or b"\r" in data:
        # a line holds no line ends, and a body keeps its bytes
        return {"message_base64": base64.b64encode(data).decode()}
    return {"message": value}


def _records(at: Session, stream: str) -> Iterator[dict[str, Any]]:
    for partition in at.get("/streams/{}", stream)["partitions"]:
        offset, end = partition["first"], partition["end"]
        while offset < end:
            query = {"from": offset, "to": end, "partition": partition["partition"], "limit": PAGE}
            page = msgspec.json.decode(at.read("/streams/{}/records", stream, **query), type=_Records)
            for record in page.records:
                line = {field: record[name] for name, field in _RECORD.items() if name in record}
                if "key_base64" in record:
                    raise InvalidArgument(f"a key in stream {stream} is no text: JSON lines cannot hold it")
                line |= _body(record.get("value"), record.get("value_base64"), record.get("content_type"))
                yield {"kind": "record", "stream": stream, **line}
            offset = page.next


def _write(out: BinaryIO, line: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(line) + b"\n")


@contextmanager
def _writer(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with Path(file).open("wb") as out:
            yield out
    except OSError as error:
        if isinstance(error, RookeryError):
            raise
        raise InvalidArgument(f"{file} cannot be written: {error.strerror}", argument="FILE") from None


# Import


@command(
    load,
    "import",
    "rookery import broker.jsonl",
    "zcat broker.jsonl.gz | rookery import",
    "rookery export | rookery import --url http://other:8080 --key KEY",
)
def import_(
    at: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - for stdin.")] = "-",
    skip_definitions: Annotated[
        bool, typer.Option("--skip-definitions", help="Only messages and records, to what is there.")
    ] = False,
) -> None:
    """Bring in what `rookery export` wrote: definitions first, then messages and records, in their order.

    Messages come in addition to those that are there. What has expired meanwhile is left out.
    """
    at.get("/queues", limit=1)  # whoever is not let in, or reaches nobody, is told at once
    importer = _Importer(at, skip_definitions)
    try:
        with _reader(file) as stream, progress("importing") as more:
            for number, data in enumerate(stream, 1):
                if data.strip():
                    importer.take(number, data)
                    more(1)
            importer.flush()
    except RookeryError:
        note(f"rookery: stopped after {importer.messages} messages and {importer.records} records had been imported")
        raise
    if not importer.is_whole:
        raise InvalidArgument(f"{file} ends before its last line: it was cut off; what it holds was imported")
    done = {"messages": importer.messages, "records": importer.records, "expired": importer.expired}
    at.out.done(f"{importer.messages} messages and {importer.records} records imported", done)


class _Importer:
    """Collects lines for one queue or stream, and sends them when another follows or there are enough."""

    def __init__(self, at: Session, skip_definitions: bool) -> None:
        self._at = at
        self._skip = skip_definitions
        self._to = ("", "")
        self._batch: list[bytes] = []
        self._bytes = 0
        self._run = uuid.uuid4().hex
        self.messages = 0
        self.records = 0
        self.expired = 0
        self.is_whole = False

    def take(self, number: int, data: bytes) -> None:
        try:
            line = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            kind = msgspec.json.decode(line.pop("kind"), type=str)
            if kind == "definitions":
                self._define(line)
            elif kind == "message":
                self._message(line)
            elif kind == "record":
                self._add(("record", _text(line.pop("stream"))), line)
            elif kind == "end":
                self.is_whole = True
            else:
                raise InvalidArgument(f"line {number} is of kind {kind!r}, which is not known", argument="FILE")
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise InvalidArgument(f"line {number} is not what `export` writes: {error}", argument="FILE") from None

    def _define(self, line: dict[str, msgspec.Raw]) -> None:
        if msgspec.json.decode(line["rookery"]) != VERSION:
            raise InvalidArgument("this file was written by a later version of rookery", argument="FILE")
        if not self._skip:
            document = msgspec.json.decode(line["definitions"])
            own = self._at.get("/definitions")["tenants"][0]
            for tenant in document["tenants"]:
                # a tenant may be brought in under another name; its limits stay with whoever may change them
                tenant["name"] = own["name"]
                tenant["limits"] = {}
            self._at.post("/definitions", body=document)

    def _message(self, line: dict[str, Any]) -> None:
        to = ("message", _text(line.pop("queue")))
        expires = line.pop("expires_ms", None)
        if expires is not None:
            due_ms = int(msgspec.json.decode(line["deliver_at"])) if "deliver_at" in line else 0
            ttl_ms = int(msgspec.json.decode(expires)) - max(due_ms, round(time.time() * 1000))
            if ttl_ms <= 0:
                self.expired += 1
                return
            line["ttl_ms"] = ttl_ms
        self._add(to, line)

    def _add(self, to: tuple[str, str], line: dict[str, Any]) -> None:
        data = msgspec.json.encode(line)
        if to != self._to or len(self._batch) == BATCH_MAX or self._bytes + len(data) > BATCH_BYTES:
            self.flush()
        self._to = to
        self._batch.append(data)
        self._bytes += len(data)

    def flush(self) -> None:
        if not self._batch:
            return
        kind, name = self._to
        data = b"\n".join(self._batch)
        key = f"{self._run}-{self.messages}-{self.records}"
        if kind == "message":
            self._at.post("/queues/{}/messages", name, body=data, content_type=NDJSON, key=key, ids=False)
            self.messages += len(self._batch)
        else:
            self._at.post("/streams/{}/publish", name, body=data, content_type=NDJSON, key=key)
            self.records += len(self._batch)
        self._batch = []
        self._bytes = 0


def _text(raw: msgspec.Raw) -> str:
    return str(msgspec.json.decode(raw, type=str))


@contextmanager
def _reader(file: str) -> Iterator[Iterable[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as stream:
            yield stream
    except OSError as error:
        if isinstance(error, RookeryError):
            raise
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}", argument="FILE") from None
