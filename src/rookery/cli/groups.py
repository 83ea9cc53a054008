"""`rookery groups`: how far the consumer groups of streams have read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rookery.cli.commands import Yes, command, family, pairs
from rookery.cli.completing import stream_names
from rookery.cli.output import Columns, confirm
from rookery.cli.session import Session

app = family("Consumer groups of streams: their lag and offsets.")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", autocompletion=stream_names)]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Offsets = Annotated[list[str], typer.Argument(metavar="PARTITION=OFFSET...", help="The next offset to be read.")]


@command(app, "list", "rookery groups list", "rookery groups list clicks --json | jq '.[].lag'")
def list_(
    at: Session,
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="Without one: of all.", autocompletion=stream_names)
    ] = None,
) -> None:
    """The groups of a stream, or of all streams, with their lag."""
    names = [stream] if stream else [row["name"] for row in at.pages("/streams", "streams")]
    rows = [group for name in names for group in at.get("/streams/{}/groups", name)["groups"]]
    columns: Columns = {
        "stream": "stream",
        "group": "group",
        "lag": "lag",
        "members": lambda row: len(row["members"]),
        "generation": "generation",
    }
    at.out.table(rows, columns, empty="There are no groups.")


@command(app, "show", "rookery groups show clicks billing")
def show(at: Session, stream: Stream, group: Group) -> None:
    """How far a group has read, partition by partition, and who reads."""
    found = at.get("/streams/{}/groups/{}", stream, group)
    if at.out.as_json:
        at.out.json(found)
        return
    owners = {index: member for member, share in found["members"].items() for index in share}
    columns: Columns = {name: name for name in ("partition", "committed", "end", "lag")}
    at.out.table(found["partitions"], {**columns, "member": lambda row: owners.get(row["partition"])})
    print(f"lag {found['lag']}, generation {found['generation']}")


@command(app, "commit", "rookery groups commit clicks billing 0=120 1=98")
def commit(at: Session, stream: Stream, group: Group, offsets: Offsets) -> None:
    """Say how far a group has read. An earlier offset than before changes nothing."""
    done = at.post("/streams/{}/groups/{}/commit", stream, group, body={"offsets": pairs(offsets, "PARTITION=OFFSET")})
    at.out.done(f"group {group} has a lag of {done['lag']}", done)


@command(
    app,
    "reset",
    "rookery groups reset clicks billing --to first",
    "rookery groups reset clicks billing --to 1767225600000",
    "rookery groups reset clicks billing 0=0",
)
def reset(
    at: Session,
    stream: Stream,
    group: Group,
    offsets: Annotated[list[str], typer.Argument(metavar="PARTITION=OFFSET...", help="Only these.")] = [],  # noqa: B006
    to: Annotated[str | None, typer.Option("--to", help="first, last, next, or a time in ms since 1970.")] = None,
    yes: Yes = False,
) -> None:
    """Let a group without members go on elsewhere."""
    if not offsets and to is None:
        raise typer.BadParameter("say where: --to first, last, next or a time, or PARTITION=OFFSET.", param_hint="--to")
    confirm(f"Let group {group} go on elsewhere in {stream}?", yes)
    body: dict[str, Any] = {} if to is None else {"to": to}
    if offsets:
        body["offsets"] = pairs(offsets, "PARTITION=OFFSET")
    done = at.post("/streams/{}/groups/{}/reset", stream, group, body=body)
    at.out.done(f"group {group} has a lag of {done['lag']}", done)


@command(app, "delete", "rookery groups delete clicks billing --yes")
def delete(at: Session, stream: Stream, group: Group, yes: Yes = False) -> None:
    """Forget a group without members."""
    confirm(f"Forget group {group} of {stream}?", yes)
    at.out.done(f"group {group} deleted", at.delete("/streams/{}/groups/{}", stream, group))
