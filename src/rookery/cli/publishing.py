"""`rookery publish`: a message from the command line or a file, or one from each line of stdin."""

from __future__ import annotations

import base64
import mimetypes
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import msgspec
import typer

from rookery.cli.commands import command, pairs, single, time_option
from rookery.cli.completing import queue_names
from rookery.cli.output import note, progress
from rookery.cli.session import NDJSON, Session
from rookery.errors import InvalidArgument, RookeryError

app = single()

Target = Literal["queue", "exchange", "stream"]
PATHS: Final = {"queue": "/queues/{}/messages", "exchange": "/exchanges/{}/messages", "stream": "/streams/{}/publish"}
BATCH_MAX: Final = 1_000
BATCH_BYTES: Final = 4 << 20
"""What a request holds when lines come faster than they are sent."""

READ_BYTES: Final = 1 << 18


@command(
    app,
    "publish",
    """rookery publish jobs '{"task": "resize"}' --priority 5""",
    """rookery publish orders --to exchange -k order.created '{"id": 42}'""",
    "rookery publish pictures --file logo.png --header name=logo",
    "seq 1000 | rookery publish jobs",
    "rookery publish clicks --to stream --record-key user-7 /home",
    """echo '{"message": 1, "delay_ms": 5000}' | rookery publish jobs --envelopes""",
)
def publish(
    at: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A queue (or see --to).", autocompletion=queue_names)],
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="Without one, lines of stdin.")] = None,
    to: Annotated[Target, typer.Option("--to", help="What NAME is.")] = "queue",
    routing_key: Annotated[str | None, typer.Option("--routing-key", "-k", help="For exchanges.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="The body, as it is; - for stdin.")] = None,
    envelopes: Annotated[
        bool, typer.Option("--envelopes", help="A line of stdin is a message with all that is said of it, as JSON.")
    ] = False,
    content_type: Annotated[str | None, typer.Option("--content-type", "-t", help="Of the body.")] = None,
    header: Annotated[list[str], typer.Option("--header", "-H", metavar="NAME=VALUE", help="Repeatable.")] = [],  # noqa: B006
    priority: Annotated[int | None, typer.Option("--priority", help="Higher comes first.")] = None,
    delay: Annotated[int | None, time_option("--delay", "Not before, such as 10s.")] = None,
    ttl: Annotated[int | None, time_option("--ttl", "Not after, such as 5m.")] = None,
    dedup_key: Annotated[str | None, typer.Option("--dedup-key", help="Publish once under this key.")] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="An id of your own.")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id")] = None,
    reply_to: Annotated[str | None, typer.Option("--reply-to")] = None,
    type: Annotated[str | None, typer.Option("--type", help="What kind of message it is.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="One message of a group at a time.")] = None,
    record_key: Annotated[
        str | None, typer.Option("--record-key", help="For streams: keeps the order of its records.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="For streams.")] = None,
    mandatory: Annotated[bool, typer.Option("--mandatory", help="For exchanges: refuse what nobody gets.")] = False,
    transient: Annotated[bool, typer.Option("--transient", help="Need not survive a restart.")] = False,
) -> None:
    """Publish to a queue, an exchange or a stream: BODY, a file, or each line of stdin.

    A body that is JSON is sent as JSON, any other as text; a file as the bytes it holds. The command ends when the
    broker has confirmed: then the messages are as durable as their queue promises. A queue comes into being when it is
    first used.
    """
    common = {
        "routing_key": routing_key,
        "headers": pairs(header, "--header") or None,
        "priority": priority,
        "delay_ms": delay,
        "ttl_ms": ttl,
        "idempotency_key": dedup_key,
        "message_id": message_id,
        "correlation_id": correlation_id,
        "reply_to": reply_to,
        "type": type,
        "group": group,
        "key": record_key,
        "partition": partition,
        "persistent": False if transient else None,
    }
    said = {name: value for name, value in common.items() if value is not None}
    query = {"mandatory": True} if mandatory else {}
    if file is not None:
        if body is not None:
            raise InvalidArgument("give BODY or --file, not both", argument="--file")
        _one(at, to, name, {**said, **_file(file, content_type)}, query)
    elif body is not None:
        _one(at, to, name, {**said, **_text(body, content_type)}, query)
    elif envelopes:
        _many(at, to, name, sys.stdin.buffer, lambda line: {**said, **_envelope(line)}, query)
    else:
        _many(at, to, name, sys.stdin.buffer, lambda line: {**said, **_text(_decoded(line), content_type)}, query)


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _envelope(line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = _decoded(line)[:60]
        raise InvalidArgument(f"{text!r} is no JSON object: {error}", argument="stdin") from None
    return found


def _text(text: str, content_type: str | None) -> dict[str, Any]:
    if content_type is None:
        try:
            data = text.encode()
            msgspec.json.decode(data)
            return {"message": msgspec.Raw(data)}
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            content_type = "text/plain"
    data = text.encode("utf-8", "surrogateescape")
    return {"message_base64": base64.b64encode(data).decode(), "content_type": content_type}


def _file(path: str, content_type: str | None) -> dict[str, Any]:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}", argument="--file") from None
    kind = content_type or mimetypes.guess_type(path)[0] or "application/octet-stream"
    return {"message_base64": base64.b64encode(data).decode(), "content_type": kind}


def _one(at: Session, to: Target, name: str, message: dict[str, Any], query: dict[str, Any]) -> None:
    sent = at.post(PATHS[to], name, body=message, **query)
    text = str(sent["message_id"]) if "message_id" in sent else f"partition {sent['partition']} offset {sent['offset']}"
    at.out.done("published before, under the same key" if sent.get("duplicate") else text, sent)


def _many(
    at: Session,
    to: Target,
    name: str,
    stream: BinaryIO,
    message: Callable[[bytes], dict[str, Any]],
    query: dict[str, Any],
) -> None:
    """A message from each line, as soon as it is there: what has come meanwhile goes in one request."""
    count = 0
    run = uuid.uuid4().hex
    if to != "stream":
        query = {**query, "ids": False}
    with progress("publishing") as more:
        try:
            for batch in batches(stream):
                data = b"\n".join(msgspec.json.encode(message(line)) for line in batch)
                # the first shows that the broker is there; then it may go away for a while
                key = f"{run}-{count}" if count else ""
                at.post(PATHS[to], name, body=data, content_type=NDJSON, key=key, **query)
                count += len(batch)
                more(len(batch))
        except RookeryError as error:
            if count:
                note(f"rookery: the first {count} lines were published, those after them were not")
            place = re.fullmatch(r"\$?\[([0-9]+)\](.*)", error.argument or "")
            if place is not None:
                error.argument = f"line {count + int(place[1]) + 1}{place[2]}"
            raise
    at.out.done(f"{count} messages published", {"published": count})


def batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines that are not blank, without their ends, as many at a time as have come and a request may hold."""
    rest = b""
    while True:
        data = stream.read1(READ_BYTES)  # type: ignore[attr-defined]
        found = (rest + data).split(b"\n")
        rest = found.pop() if data else b""
        batch: list[bytes] = []
        held = 0
        for line in found:
            line = line.removesuffix(b"\r")
            if not line.strip():
                continue
            if batch and (len(batch) == BATCH_MAX or held + len(line) > BATCH_BYTES):
                yield batch
                batch, held = [], 0
            batch.append(line)
            held += len(line)
        if batch:
            yield batch
        if not data:
            return
