"""Staged publishing: chunks of rows that wait, durable and invisible, for their producer's commit.

Rows come as JSON, lines of JSON or an Arrow IPC stream. They are read in a thread, Arrow in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from rookery.core import rights
from rookery.core.staging import CHUNK_MS, NOBODY, Chunk, Filling, Row
from rookery.errors import AccessRefused, ChunkNotFound
from rookery.format.rendering import JSON
from rookery.wire.api import bodies
from rookery.wire.api.bodies import LINES, check_routing_key
from rookery.wire.api.broker import ARROW, Api
from rookery.wire.api.rest import FACE, refuse_internal
from rookery.wire.api.shapes import Item
from rookery.wire.api.types import CheckedName, CheckedShort, Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import CHECKED, Router
from rookery.wire.packed import PACKED

ChunkName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$"), CHECKED]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Wait = Annotated[int, msgspec.Meta(ge=1_000, le=7 * 86_400_000)]

STEP_ROWS: Final = 2_000
"""So many rows are checked or written in one turn."""

ROWS: Final = {JSON: list[Item], LINES[0]: str, ARROW.decode(): bytes, PACKED: bytes}
"""What bodies of chunks may be, for the OpenAPI document."""


class Staged(msgspec.Struct):
    """`due_ms` is when the chunk is thrown away unless it is committed; `kept` is false when its epoch has happened."""

    chunk: str
    rows: int
    bytes: int
    due_ms: int
    kept: bool


class ChunkShown(msgspec.Struct):
    chunk: str
    stream: str
    exchange: str
    rows: int
    bytes: int
    due_ms: int
    producer: str
    epoch: int | None


class ChunkList(msgspec.Struct):
    chunks: list[ChunkShown]


class ChunkDropped(msgspec.Struct):
    chunk: str
    status: str


class CommitStaged(msgspec.Struct, forbid_unknown_fields=True):
    """All rows of these chunks happen in one step. The same epoch again succeeds and adds nothing."""

    epoch: Epoch
    chunks: Annotated[list[str], msgspec.Meta(max_length=10_000)]


class StagedPosition(msgspec.Struct):
    stream: str
    partition: int
    first: int
    last: int


class CommittedStaged(msgspec.Struct):
    """`positions` say where rows of streams are; `duplicate` that this epoch was committed before."""

    producer: str
    epoch: int
    rows: int
    duplicate: bool
    positions: list[StagedPosition]


class ProducerShown(msgspec.Struct):
    """The last epoch that was committed, null when there was none, or none for 30 days."""

    producer: str
    epoch: int | None


@dataclass(frozen=True)
class Asked:
    """Where rows go, under which name, for which epoch, and how long they wait for it."""

    chunk: str | None
    stream: str
    exchange: str
    key: str
    producer: str
    epoch: int | None
    wait_ms: int

    def owner(self) -> tuple[str, int]:
        return self.producer, -1 if self.epoch is None else self.epoch


class StagingRoutes:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._staging = api.shard.staging

    def stage_to_stream(
        self,
        call: Call,
        name: Name,
        body: bytes,
        chunk: ChunkName | None = None,
        producer: CheckedName = "",
        epoch: Epoch | None = None,
        wait_ms: Wait = CHUNK_MS,
    ) -> object:
        """Stage rows for a stream. Under a `chunk` name of one's own it may be repeated.

        Rows that are said to be for an epoch of a producer are dropped when it is committed without them.
        """
        self._api.stream(call, name, "write")
        self._check_producer(call, producer)
        return self._stage(call, body, Asked(chunk, name, "", name, producer, epoch, wait_ms))

    def stage_to_exchange(
        self,
        call: Call,
        name: Name,
        body: bytes,
        chunk: ChunkName | None = None,
        routing_key: CheckedShort = "",
        producer: CheckedName = "",
        epoch: Epoch | None = None,
        wait_ms: Wait = CHUNK_MS,
    ) -> object:
        """Stage rows for an exchange; those without a routing key have that of the query."""
        refuse_internal(self._api.tenant(call).exchange(name))
        self._check_producer(call, producer)
        check_routing_key(routing_key)
        return self._stage(call, body, Asked(chunk, "", name, routing_key, producer, epoch, wait_ms))

    def stage_to_queue(
        self,
        call: Call,
        name: Name,
        body: bytes,
        chunk: ChunkName | None = None,
        create: bool = True,
        producer: CheckedName = "",
        epoch: Epoch | None = None,
        wait_ms: Wait = CHUNK_MS,
    ) -> object:
        """Stage rows for a queue. Without `create`, one that is not there is an error."""
        self._check_producer(call, producer)
        if create:
            self._api.rest.queue(call, name, FACE, "write")
        else:
            self._api.rest.existing(call, name, "write")
        return self._stage(call, body, Asked(chunk, "", "", name, producer, epoch, wait_ms))

    def _stage(self, call: Call, body: bytes, asked: Asked) -> object:
        self._api.rest.check_room()
        stream, exchange, key = asked.stream, asked.exchange, asked.key
        name = asked.chunk or f"chunk-{self._api.random_text()}"
        now_ms = int(self._api.shard.wall_ms)
        kind = call.header(b"content-type").partition(";")[0].strip().lower()
        names = {"stream": stream, "exchange": exchange, "topic": stream or exchange, "queue": key}
        fixed = not stream and not exchange
        archive = self._api.archive
        tenant_name = self._api.tenant(call).name

        def decode() -> list[Row]:
            return keyed(archive.rows(body, key, names, now_ms))

        def keyed(rows: list[Row]) -> list[Row]:
            if fixed:
                for row in rows:
                    row.key = key
            return rows

        def start(work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
            archive.decode(tenant_name, len(body), work, done)

        def read() -> list[Row]:
            return keyed([each.row(key, bool(stream)) for each in bodies.read(call, body, now_ms).all()])

        def then(rows: list[Row]) -> object:
            tenant, staging = self._api.tenant(call), self._staging
            filling = staging.begin(tenant, name, stream, exchange, rows, asked.owner(), asked.wait_ms)
            # it has them, and lets go of them one by one
            rows.clear()
            return self._api.in_steps(call, _steps(filling), 1, lambda: answer(filling.chunk))

        def answer(made: Chunk) -> object:
            kept = (made.tenant.name, made.id) in self._staging.chunks
            return self._api.after(call, lambda: Staged(made.id, made.rows, made.bytes, made.due_ms, kept))

        if kind == ARROW.decode():
            return self._api.later(call, decode, then, start)
        return self._api.later(call, read, then)

    def commit(self, call: Call, producer: CheckedName, body: CommitStaged) -> object:
        """Let staged rows happen, once per epoch of the producer."""
        tenant = self._api.tenant(call)
        self._check_producer(call, producer)
        for name in body.chunks:
            chunk = self._staging.chunks.get((tenant.name, name))
            if chunk is not None:
                _check(call, chunk.target())
        last = self._staging.producers.get((tenant.name, producer))
        duplicate = last is not None and last["epoch"] == body.epoch
        result = self._staging.commit(tenant, producer, body.epoch, body.chunks)
        positions = [StagedPosition(**row) for row in result["positions"]]
        call.lasting()
        return CommittedStaged(producer, body.epoch, result["rows"], duplicate, positions)

    def producer(self, call: Call, producer: CheckedName) -> object:
        """The last epoch of a producer."""
        tenant = self._api.tenant(call)
        self._check_producer(call, producer)
        return self._api.after(call, lambda: self._last(tenant.name, producer))

    def _last(self, tenant: str, producer: str) -> ProducerShown:
        state = self._staging.producers.get((tenant, producer))
        return ProducerShown(producer, None if state is None else state["epoch"])

    def _check_producer(self, call: Call, producer: str) -> None:
        """Refuse whoever may not write all that a producer has written last and has staged: by its id alone, nobody
        ends its epochs or drops its rows.
        """
        for target in self._staging.claims(self._api.tenant(call), producer) if producer else ():
            _check(call, target)

    def chunks(self, call: Call) -> ChunkList:
        """The chunks of the tenant that wait for their commit, and that the caller could commit."""
        tenant = self._api.tenant(call)
        found = self._staging.chunks_of(tenant)
        return ChunkList([_shown(each) for each in found if _may(call, each.target())])

    def drop(self, call: Call, chunk: ChunkName) -> ChunkDropped:
        """Throw a chunk away."""
        tenant = self._api.tenant(call)
        found = self._staging.chunks.get((tenant.name, chunk))
        if found is not None:
            _check(call, found.target())
        if not self._staging.drop(tenant, chunk):
            raise ChunkNotFound(f"no chunk {chunk!r} (any more)", argument="chunk")
        call.lasting()
        return ChunkDropped(chunk, "dropped")


def _steps(filling: Filling) -> Iterator[None]:
    while not filling.step(STEP_ROWS):
        yield


def _shown(chunk: Chunk) -> ChunkShown:
    producer, epoch = chunk.owner
    last = None if chunk.owner == NOBODY else epoch
    return ChunkShown(chunk.id, chunk.stream, chunk.exchange, chunk.rows, chunk.bytes, chunk.due_ms, producer, last)


def _may(call: Call, target: str) -> bool:
    """Whether the caller may write what a chunk is for; rows for several queues need the right to write everything."""
    name = target.partition(" ")[2]
    return bool(call.principal.may("write", name) if name else call.principal.rights.write == ".*")


def _check(call: Call, target: str) -> None:
    if not _may(call, target):
        kind, _, name = target.partition(" ")
        rights.require(call.principal, "chunk.drop", "target", name, kind)
        raise AccessRefused(f"rows for several queues need the right to write everything: '{call.principal.name}'")


def add_routes(router: Router, api: Api) -> None:
    routes = StagingRoutes(api)
    more: dict[str, Any] = {"tag": "staging", "accepts": ROWS}
    router.add("POST", "/api/v1/streams/{name}/stage", routes.stage_to_stream, {201: Staged}, "stream.stage", **more)
    router.add(
        "POST", "/api/v1/exchanges/{name}/stage", routes.stage_to_exchange, {201: Staged}, "exchange.stage", **more
    )
    router.add("POST", "/api/v1/queues/{name}/stage", routes.stage_to_queue, {201: Staged}, "queue.stage", **more)
    router.add(
        "POST",
        "/api/v1/producers/{producer}/commit",
        routes.commit,
        {200: CommittedStaged},
        "producer.commit",
        tag="staging",
    )
    router.add(
        "GET", "/api/v1/producers/{producer}", routes.producer, {200: ProducerShown}, "producer.show", tag="staging"
    )
    router.add("GET", "/api/v1/chunks", routes.chunks, {200: ChunkList}, "chunk.list", tag="staging")
    router.add("DELETE", "/api/v1/chunks/{chunk}", routes.drop, {200: ChunkDropped}, "chunk.drop", tag="staging")


__all__ = ["StagingRoutes", "add_routes"]
