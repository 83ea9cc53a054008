"""Both ends of a pipeline at the broker, looked at before anything runs: what is missing is made, or told in words.

Streams and queues that rows go to are made when they are not there, as tables are. What is read must be there, and so
must an exchange, whose kind nobody has said. Spark would tell the same much later, and with a trace of Java for each
task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from rookery.errors import AccessRefused, BrokerUnreachable, NotFound
from rookery.pipelines.spec import Pipeline, Sink, Source
from rookery.spark.options import TARGETS

if TYPE_CHECKING:
    from rookery.spark.client import Client


def make_ready(pipeline: Pipeline) -> None:
    """See to it that rows can be read and written; raise NotFound, with the line, where they cannot."""
    from rookery.spark.client import Client
    from rookery.spark.options import sink_options

    with closing(Client(sink_options(pipeline.connection()).connection)) as client:
        try:
            for source in pipeline.sources.values():
                _check(client, pipeline, source)
            for sink in (pipeline.quarantine, pipeline.sink):
                if sink is not None and sink.kind != "table":
                    _make(client, pipeline, sink)
        except BrokerUnreachable:
            # a server of Spark Connect may well reach a broker that is hidden from here
            if not pipeline.engine.master.startswith("sc://"):
                raise


def _check(client: Client, pipeline: Pipeline, source: Source) -> None:
    for kind, name in _read(source):
        if not _is_there(client, kind, name):
            raise NotFound(
                f"{pipeline.file}:{source.line}: source: there is no {kind} {name!r}: "
                f"`rookery {kind}s create {name}` makes one",
                argument="source",
            )


def _read(source: Source) -> Iterator[tuple[str, str]]:
    """What a source reads, as far as it names it."""
    options = source.options
    for name in options.get("subscribe", "").split(","):
        if name.strip():
            yield "stream", name.strip()
    for name in json.loads(options.get("assign", "{}")):
        yield "stream", name
    if "queue" in options:
        yield "queue", options["queue"]


def _make(client: Client, pipeline: Pipeline, sink: Sink) -> None:
    kinds = TARGETS[sink.kind]
    if any(_is_there(client, kind, sink.target) for kind in kinds):
        return
    # a topic that nobody has made is better kept than routed to nobody
    kind = kinds[0]
    here = f"{pipeline.file}:{sink.line}: " if sink.line else f"{pipeline.file}: "
    if kind == "exchange":
        raise NotFound(
            f"{here}there is no exchange {sink.target!r}: `rookery exchanges create {sink.target} topic` makes one",
            argument="sink",
        )
    try:
        client.put(_path(kind, sink.target), {})
    except AccessRefused as error:
        raise NotFound(
            f"{here}there is no {kind} {sink.target!r}, and it cannot be made: {error}", argument="sink"
        ) from None


def _is_there(client: Client, kind: str, name: str) -> bool:
    try:
        client.get(_path(kind, name))
    except NotFound:
        return False
    except AccessRefused:
        # who may only write, or only read, may not look
        return True
    return True


def _path(kind: str, name: str) -> str:
    return f"/api/v1/{kind}s/{quote(name, safe='')}"
