"""`rookery replay`: records of a stream, or of the archive, published again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rookery.cli.commands import command, single
from rookery.cli.output import note, progress
from rookery.cli.session import Session
from rookery.errors import NotFound

app = single()


@command(
    app,
    "replay",
    "rookery replay orders --from stream --to orders.retry --dry-run",
    'rookery replay orders --from lake --where \'body:region = "eu" AND date > "2026-01-31"\' --to queue:eu',
    "rookery replay orders --from stream --to exchange:shop --rate 500",
    "rookery replay orders --from stream --to exchange:shop --id 4f1c9a60b2de",
)
def replay(
    at: Session,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream whose records are replayed.")],
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="A queue or exchange; queue:NAME, exchange:NAME, stream:NAME.")
    ],
    origin: Annotated[
        Literal["lake", "stream"], typer.Option("--from", help="The archive in the lake, or the stream itself.")
    ] = "stream",
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Only such records; `body` is the value as text.")
    ] = "",
    rate: Annotated[float, typer.Option("--rate", min=0, help="At most so many a second; 0 for no limit.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be replayed.")] = False,
    id: Annotated[str | None, typer.Option("--id", help="Go on with this replay, or name a new one.")] = None,
    root: Annotated[Path, typer.Option("--root", envvar="ROOKERY_PIPELINES_DIR", help="The root of pipelines.")] = Path(
        "rookery-pipelines"
    ),
    master: Annotated[str, typer.Option("--master", help="Which Spark chooses the records.")] = "local[*]",
) -> None:
    """Publish records of a stream again, each exactly once, at a rate.

    Spark chooses them and writes them down; then they are published. A replay that was interrupted goes on under the
    same --id. Replayed messages have the headers x-replay-id and x-original-stream, -partition and -offset.
    """
    from rookery.pipelines.builtin import replay as replays

    kind, target = _target(at, to)
    wanted = replays.Replay(
        id or replays.new_id(), origin, name, where, kind, target, chunk_rows=replays.chunk_rows(rate)
    )
    if dry_run:
        count, first = replays.look(_source(at, wanted, root, master), wanted)
        shown: dict[str, Any] = {"would_replay": count, "to": f"{kind}:{target}", "first": first}
        if at.out.as_json:
            at.out.json(shown)
            return
        at.out.table(first, {each: each for each in ("timestamp", "routing_key", "message_id", "body")})
        print(f"{count} records would be replayed to {kind} {target}")
        return
    folder, found = replays.begin(root.absolute(), wanted)
    if found.rows < 0:
        note(f"replay {found.id}: choosing records")
        found = replays.choose(_source(at, found, root, master), found, folder)
    began, already = time.monotonic(), found.rows_done
    note(
        f"replay {found.id}: {found.rows - already} of {found.rows} records to publish; --id {found.id} goes on with it"
    )
    with progress("records", found.rows - already) as advance:
        seen = [already]

        def heard(news: replays.Replay) -> None:
            advance(news.rows_done - seen[0])
            seen[0] = news.rows_done

        found = replays.publish(found, folder, _connection(at), rate=rate, heard=heard)
    took = time.monotonic() - began
    done = {"id": found.id, "rows": found.rows, "published_now": found.rows_done - already, "seconds": round(took, 3)}
    at.out.done(f"replay {found.id}: {found.rows_done} of {found.rows} records are in {kind} {target}", done)


def _target(at: Session, text: str) -> tuple[Any, str]:
    """What is meant by a name: what is said before it, or else the queue, exchange or stream that there is."""
    kind, colon, name = text.partition(":")
    if colon and kind in ("queue", "exchange", "stream") and name:
        return kind, name
    for kind in ("queue", "exchange", "stream"):
        try:
            at.get(f"/{kind}s/{{}}", text)
        except NotFound:
            continue
        return kind, text
    raise NotFound(f"there is no queue, exchange or stream {text!r}", argument="--to")


def _broker(at: Session) -> dict[str, str]:
    said = {"endpoint": at.where.url, "token": at.where.key or "", "tlsCaFile": at.where.ca_file}
    return {name: value for name, value in said.items() if value}


def _connection(at: Session) -> Any:
    from rookery.spark.options import sink_options

    return sink_options(_broker(at)).connection


def _source(at: Session, wanted: Any, root: Path, master: str) -> Any:
    from rookery.pipelines.builtin import replay as replays
    from rookery.pipelines.builtin.jobs import ENGINE
    from rookery.pipelines.worker import open_session

    spark = open_session(replace(ENGINE, master=master), root)
    return replays.source(spark, wanted, root.absolute(), _broker(at))
