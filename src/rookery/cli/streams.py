"""`rookery streams`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from rookery.cli.commands import Prefix, Yes, command, family, pairs
from rookery.cli.completing import stream_names
from rookery.cli.output import Columns, confirm, size
from rookery.cli.session import Session
from rookery.errors import InvalidArgument, NotFound

app = family("List, show, create, change, read, trim, seal and delete streams.")

Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", autocompletion=stream_names)]
Settings = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting, such as max_age_ms=604800000; repeatable."),
]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="Which partition.")]
PAGE: Final = 1_000


@command(app, "list", "rookery streams list", "rookery streams list --json | jq -r '.[].name'")
def list_(at: Session, prefix: Prefix = "") -> None:
    """The streams that the key may read, with their sizes and the lag of their groups."""
    columns: Columns = {
        "stream": "name",
        "partitions": lambda row: len(row["partitions"]),
        "records": "records",
        "size": lambda row: size(row["bytes"]),
        "appended": "appended",
        "lag by group": lambda row: ", ".join(f"{group} {lag}" for group, lag in row["groups"].items()) or "-",
    }
    at.out.table(at.pages("/streams", "streams", prefix=prefix), columns, empty="There are no streams yet.")


@command(app, "show", "rookery streams show clicks", "rookery streams show clicks --json | jq .partitions")
def show(at: Session, stream: Name) -> None:
    """A stream: its settings, its partitions, and the lag of its groups."""
    found = at.get("/streams/{}", stream)
    if at.out.as_json:
        at.out.json(found)
        return
    at.out.record({name: value for name, value in found.items() if name != "partitions"})
    columns: Columns = {name: name for name in ("partition", "first", "end", "sealed_before", "files")}
    print()
    at.out.table(found["partitions"], {**columns, "size": lambda row: size(row["bytes"])})


@command(
    app,
    "create",
    "rookery streams create clicks",
    "rookery streams create clicks --partitions 4 -s max_age_ms=604800000",
)
def create(
    at: Session,
    stream: Name,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=256, help="Cannot be changed.")] = 1,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Make a stream. The same again is fine; other settings are a conflict."""
    made = at.put("/streams/{}", stream, body={"partitions": partitions, **pairs(settings, "--set")})
    at.out.done(f"stream {stream} {'created' if made['created'] else 'is there, and agrees'}", made)


@command(app, "set", "rookery streams set clicks max_age_ms=86400000 until_committed=true")
def set_(
    at: Session,
    stream: Name,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as max_bytes=1000000000.")],
) -> None:
    """Change what a stream keeps, and when it is sealed."""
    at.out.done(f"stream {stream} changed", at.patch("/streams/{}", stream, body=pairs(settings, "NAME=VALUE")))


@command(app, "delete", "rookery streams delete clicks --yes")
def delete(
    at: Session,
    stream: Name,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if nobody reads it.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a stream with all its records."""
    confirm(f"Delete stream {stream} with all its records?", yes)
    gone = at.delete("/streams/{}", stream, if_unused=if_unused)
    at.out.done(f"stream {stream} deleted, with {gone.get('messages', 0)} records", gone)


@command(
    app,
    "read",
    "rookery streams read clicks",
    "rookery streams read clicks --from 1000 --max 10 | jq .value",
    "rookery streams read clicks -p 2 --from last",
)
def read(
    at: Session,
    stream: Name,
    partition: Partition = 0,
    start: Annotated[str, typer.Option("--from", help="An offset, first, last or next.")] = "first",
    max: Annotated[int, typer.Option("--max", "-n", min=0, help="At most so many; 0 for all there are.")] = 0,
    routing_key: Annotated[str, typer.Option("--routing-key", "-k", help="A pattern of routing keys.")] = "",
) -> None:
    """Records of a partition as JSON lines, up to the end of the stream. `rookery subscribe --to stream` goes on."""
    offset = _offset(at, stream, partition, start)
    for record in records(at, stream, partition, offset, max, routing_key):
        at.out.line(record)


@command(app, "offsets", "rookery streams offsets clicks", "rookery streams offsets clicks --at 1767225600000")
def offsets(
    at: Session,
    stream: Name,
    moment: Annotated[str, typer.Option("--at", help="first, last, next, or a time in ms since 1970.")] = "next",
) -> None:
    """The offsets of all partitions at a moment."""
    found = at.get("/streams/{}/offsets", stream, at=moment)["offsets"]
    at.out.table(found, {"partition": "partition", "offset": "offset"})


@command(app, "trim", "rookery streams trim clicks --before 100000")
def trim(
    at: Session,
    stream: Name,
    before: Annotated[int, typer.Option("--before", min=0, help="The first offset to keep.")],
    partition: Partition = 0,
    yes: Yes = False,
) -> None:
    """Let go of old records, as far as whole blocks and files allow."""
    confirm(f"Let go of the records of {stream} before offset {before}?", yes)
    done = at.post("/streams/{}/trim", stream, body={"offset": before, "partition": partition})
    at.out.done(f"partition {partition} begins at offset {done['first']}", done)


@command(app, "seal", "rookery streams seal clicks")
def seal(at: Session, stream: Name) -> None:
    """Write what there is into Parquet files now (needs rookery[streams] at the server)."""
    at.out.done(f"stream {stream} is sealed", at.post("/streams/{}/seal", stream))


def _offset(at: Session, stream: str, partition: int, start: str) -> int:
    if start.isdecimal():
        return int(start)
    if start not in ("first", "last", "next"):
        raise InvalidArgument(f"--from must be an offset, first, last or next, not {start!r}", argument="--from")
    return int(at.get("/streams/{}/offsets", stream, at=start, partition=partition)["offsets"][0]["offset"])


def records(
    at: Session, stream: str, partition: int, offset: int, count: int = 0, routing_key: str = ""
) -> Iterator[Any]:
    """Records from an offset up to the end that there is now."""
    partitions = at.get("/streams/{}", stream)["partitions"]
    if partition >= len(partitions):
        raise NotFound(f"stream {stream} has no partition {partition}", argument="--partition")
    end = partitions[partition]["end"]
    given = 0
    while offset < end:
        query = {"from": offset, "to": end, "partition": partition, "limit": PAGE, "routing_key": routing_key}
        page = at.get("/streams/{}/records", stream, **query)
        offset = page["next"]
        for record in page["records"]:
            yield record
            given += 1
            if given == count:
                return
