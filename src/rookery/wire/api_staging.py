"""Staged publishing: chunks of rows that wait, durable and invisible, for their producer's commit.

Rows come as JSON, lines of JSON or an Arrow IPC stream. They are read in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from rookery.core.staging import CHUNK_MS, NOBODY, Chunk, Row
from rookery.errors import ChunkNotFound
from rookery.wire import api_bodies
from rookery.wire.api import ARROW, Api, require_some
from rookery.wire.api_bodies import JSON, LINES, check_routing_key
from rookery.wire.api_shapes import Item
from rookery.wire.http_call import Call
from rookery.wire.http_routes import CHECKED, Router
from rookery.wire.packed import PACKED
from rookery.wire.rest_pulling import FACE
from rookery.wire.rest_types import CheckedName, CheckedShort, Name

ChunkName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$"), CHECKED]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Wait = Annotated[int, msgspec.Meta(ge=1_000, le=7 * 86_400_000)]

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
        call.principal.require("write", name, kind="exchange")
        self._api.tenant(call).exchange(name)
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

        def work() -> list[Row]:
            if kind == ARROW.decode():
                return archive.rows(body, key, names, now_ms)
            return [each.row(key, bool(stream)) for each in api_bodies.read(call, body, now_ms).all()]

        def then(rows: list[Row]) -> object:
            if fixed:
                for row in rows:
                    row.key = key
            tenant, staging = self._api.tenant(call), self._staging
            made = staging.stage(tenant, name, stream, exchange, rows, asked.owner(), asked.wait_ms)
            kept = (tenant.name, made.id) in staging.chunks
            return self._api.after(call, lambda: Staged(made.id, made.rows, made.bytes, made.due_ms, kept))

        return self._api.later(call, work, then)

    def commit(self, call: Call, producer: CheckedName, body: CommitStaged) -> object:
        """Let staged rows happen, once per epoch of the producer."""
        require_some(call.principal, "write")
        tenant = self._api.tenant(call)
        for name in body.chunks:
            chunk = self._staging.chunks.get((tenant.name, name))
            if chunk is not None:
                _check(call, chunk)
        last = self._staging.producers.get((tenant.name, producer))
        duplicate = last is not None and last["epoch"] == body.epoch
        result = self._staging.commit(tenant, producer, body.epoch, body.chunks)
        positions = [StagedPosition(**row) for row in result["positions"]]
        call.lasting()
        return CommittedStaged(producer, body.epoch, result["rows"], duplicate, positions)

    def producer(self, call: Call, producer: CheckedName) -> object:
        """The last epoch of a producer."""
        require_some(call.principal, "write")
        tenant = self._api.tenant(call)
        return self._api.after(call, lambda: self._last(tenant.name, producer))

    def _last(self, tenant: str, producer: str) -> ProducerShown:
        state = self._staging.producers.get((tenant, producer))
        return ProducerShown(producer, None if state is None else state["epoch"])

    def chunks(self, call: Call) -> ChunkList:
        """The chunks of the tenant that wait for their commit, and that the caller could commit."""
        require_some(call.principal, "write")
        tenant = self._api.tenant(call)
        found = self._staging.chunks.values()
        return ChunkList([_shown(each) for each in found if each.tenant is tenant and _may(call, each)])

    def drop(self, call: Call, chunk: ChunkName) -> ChunkDropped:
        """Throw a chunk away."""
        require_some(call.principal, "write")
        tenant = self._api.tenant(call)
        found = self._staging.chunks.get((tenant.name, chunk))
        if found is not None:
            _check(call, found)
        if not self._staging.drop(tenant, chunk):
            raise ChunkNotFound(f"no chunk {chunk!r} (any more)", argument="chunk")
        call.lasting()
        return ChunkDropped(chunk, "dropped")


def _shown(chunk: Chunk) -> ChunkShown:
    producer, epoch = chunk.owner
    last = None if chunk.owner == NOBODY else epoch
    return ChunkShown(chunk.id, chunk.stream, chunk.exchange, chunk.rows, chunk.bytes, chunk.due_ms, producer, last)


def _may(call: Call, chunk: Chunk) -> bool:
    # rows for a queue were checked when they were staged
    name = chunk.stream or chunk.exchange
    return not name or call.principal.may("write", name)


def _check(call: Call, chunk: Chunk) -> None:
    if not _may(call, chunk):
        call.principal.require("write", chunk.stream or chunk.exchange, kind="stream" if chunk.stream else "exchange")


def add_routes(router: Router, api: Api) -> None:
    routes = StagingRoutes(api)
    more: dict[str, Any] = {"tag": "staging", "accepts": ROWS}
    router.add("POST", "/api/v1/streams/{name}/stage", routes.stage_to_stream, {201: Staged}, **more)
    router.add("POST", "/api/v1/exchanges/{name}/stage", routes.stage_to_exchange, {201: Staged}, **more)
    router.add("POST", "/api/v1/queues/{name}/stage", routes.stage_to_queue, {201: Staged}, **more)
    router.add("POST", "/api/v1/producers/{producer}/commit", routes.commit, {200: CommittedStaged}, tag="staging")
    router.add("GET", "/api/v1/producers/{producer}", routes.producer, {200: ProducerShown}, tag="staging")
    router.add("GET", "/api/v1/chunks", routes.chunks, {200: ChunkList}, tag="staging")
    router.add("DELETE", "/api/v1/chunks/{chunk}", routes.drop, {200: ChunkDropped}, tag="staging")


__all__ = ["StagingRoutes", "add_routes"]
