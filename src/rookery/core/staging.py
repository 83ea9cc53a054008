"""Staged publishing: rows wait, durable and invisible, until their producer commits them all in one step.

A chunk is staged once and stands in the journal as records under a number of its own. A commit names a producer, its
epoch and chunks. Into a stream, the records are attached where they stand: the journal gets one line per chunk that
says where they begin (an alias), and all of them are shown when that is durable. Into an exchange, the same line
decides it, and the rows are enqueued in slices after it; how far that has come is written with each slice, so that a
crash neither loses nor repeats a row.

The invariant: an epoch of a producer happens once. The same epoch again succeeds and adds nothing; an older one, or a
chunk that is not there, is refused whole. Rows that are staged for an epoch are dropped when it is committed without
them, and are not kept when it was committed before: those whose attempts lost leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from rookery import properties
from rookery.core.stream import Partition, Stream, StreamSettings
from rookery.errors import ChunkNotFound, InvalidArgument, LimitExceeded, MessageTooLarge, StaleEpoch
from rookery.model import NEVER, PERSISTENT, Message, Route, check_numbers

if TYPE_CHECKING:
    from rookery.core.shard import Shard
    from rookery.core.topology import Tenant

CHUNK_MS: Final = 3_600_000
"""How long a chunk waits for its commit, unless it is said otherwise."""

CHUNKS_MAX: Final = 10_000
CHUNK_ROWS_MAX: Final = 1_000_000
STAGED_BYTES_MAX: Final = 4 << 30
"""Limits of each tenant."""

EPOCH_MS: Final = 30 * 86_400_000
"""How long the last epoch of a producer is remembered."""

PRODUCERS_MAX: Final = 100_000
SLICE_ROWS: Final = 1_000
"""How many rows of a commit to an exchange are enqueued in one turn."""


DUE_HEADER: Final = "x-deliver-at"
"""The header of a row for an exchange that says when its message is due, in milliseconds since 1970."""


NOBODY: Final = ("", -1)
"""The owner of a chunk that any epoch may take."""


class Row:
    """One message to be staged, for a partition of the stream if that is not negative."""

    def __init__(
        self, key: str, props: bytes, body: bytes, priority: int = 0, expires_ms: int = 0, partition: int = -1
    ) -> None:
        self.key = key
        self.props = props
        self.body = body
        self.priority = priority
        self.expires_ms = expires_ms
        self.partition = partition


class Chunk:
    """Rows that wait. Each part is a hidden partition, for one partition of the stream (-1: for an exchange)."""

    def __init__(
        self,
        id: str,
        tenant: Tenant,
        stream: str,
        exchange: str,
        due_ms: int,
        owner: tuple[str, int] = NOBODY,
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.stream = stream
        self.exchange = exchange
        self.due_ms = due_ms
        self.owner = owner
        self.rows = 0
        self.bytes = 0
        self.parts: list[tuple[int, Partition]] = []

    def is_durable(self) -> bool:
        return all(part.visible == part.end for _, part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tenant": self.tenant.name,
            "stream": self.stream,
            "exchange": self.exchange,
            "due_ms": self.due_ms,
            "owner": list(self.owner),
            "rows": self.rows,
            "bytes": self.bytes,
            "parts": [[index, int(part.number)] for index, part in self.parts],
        }


class Alias:
    """Records that stand in the journal under a chunk's number, and are records of a partition from `base` on."""

    def __init__(self, partition: int, base: int, count: int, stamp: int) -> None:
        self.partition = partition
        self.base = base
        self.count = count
        self.stamp = stamp


class Staging:
    """The chunks, producers and unfinished commits of a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.chunks: dict[tuple[str, str], Chunk] = {}
        self.producers: dict[tuple[str, str], dict[str, Any]] = {}
        self.aliases: dict[int, Alias] = {}
        # parts of commits to exchanges, in order: (tenant, part)
        self.spools: list[tuple[Tenant, Partition]] = []

    # Staging

    def stage(
        self,
        tenant: Tenant,
        id: str,
        stream: str,
        exchange: str,
        rows: Sequence[Row],
        owner: tuple[str, int] = NOBODY,
        wait_ms: int = CHUNK_MS,
    ) -> Chunk:
        """Write rows down for a stream, or for an exchange; a chunk that is there already is left as it is.

        The `owner` is the producer and the epoch that they are for. Of an epoch that has happened nothing is kept.
        """
        if not id:
            raise InvalidArgument("a chunk needs an id", argument="chunk")
        if self._has_happened(tenant, owner):
            done = Chunk(id, tenant, stream, exchange, int(self._shard.wall_ms), owner)
            done.rows = len(rows)
            return done
        known = self.chunks.get((tenant.name, id))
        if known is not None:
            if known.rows != len(rows) or (known.stream, known.exchange) != (stream, exchange):
                raise InvalidArgument(f"chunk {id!r} holds other rows already", argument="chunk")
            return known
        target = tenant.stream(stream) if stream else None
        if target is None:
            tenant.exchange(exchange)
        self._check(tenant, rows)
        for row in rows:
            if row.partition >= 0 and target is not None:
                target.partition(row.partition)
        chunk = Chunk(id, tenant, stream, exchange, int(self._shard.wall_ms) + wait_ms, owner)
        self._fill(chunk, target, rows)
        self.chunks[(tenant.name, id)] = chunk
        self._shard.log.change("chunk", tenant.name, chunk.as_dict())
        self._shard.streams_due_ms = min(int(self._shard.streams_due_ms), int(self._shard.mono_ms) + 1_000)
        return chunk

    def _fill(self, chunk: Chunk, target: Stream | None, rows: Sequence[Row]) -> None:
        """Write the rows down, each in the part for its partition."""
        shard = self._shard
        parts: dict[int, Partition] = {}
        routes: dict[str, Route] = {}
        loose: i64 = -1
        size: i64 = 0
        for row in rows:
            route = routes.get(row.key)
            if route is None:
                route = Route(chunk.exchange, row.key)
                routes[row.key] = route
            message = Message(route, row.props, row.body, shard.new_id(), row.priority, row.expires_ms, PERSISTENT)
            index: i64 = -1
            if target is not None:
                index = row.partition
                if index < 0:
                    index = target.keyed(message)
                if index < 0:
                    if loose < 0:
                        loose = target.next_in_turn()
                    index = loose
            part = parts.get(int(index))
            if part is None:
                part = self._new_part(chunk.tenant)
                parts[int(index)] = part
                chunk.parts.append((int(index), part))
            part.append(message)
            size += len(row.body) + len(row.props)
        chunk.rows = len(rows)
        chunk.bytes = int(size)

    def _has_happened(self, tenant: Tenant, owner: tuple[str, int]) -> bool:
        """Whether an epoch was the last to be committed; an older one is refused."""
        producer, epoch = owner
        if owner == NOBODY:
            return False
        if not producer or epoch < 0:
            raise InvalidArgument("a producer has epochs from 0 on, and an epoch a producer", argument="producer")
        last = self.producers.get((tenant.name, producer))
        if last is not None and epoch < last["epoch"]:
            raise _stale(producer, last["epoch"], epoch)
        return last is not None and epoch == last["epoch"]

    def _check(self, tenant: Tenant, rows: Sequence[Row]) -> None:
        mine = [chunk for chunk in self.chunks.values() if chunk.tenant is tenant]
        if len(mine) >= CHUNKS_MAX:
            raise LimitExceeded(f"tenant {tenant.name!r} has its {CHUNKS_MAX} chunks", argument="chunk")
        if not 0 < len(rows) <= CHUNK_ROWS_MAX:
            raise InvalidArgument(f"a chunk has 1 to {CHUNK_ROWS_MAX} rows", argument="rows")
        size = 0
        for row in rows:
            check_numbers(row.priority, row.expires_ms, 0)
            each = len(row.body) + len(row.props)
            if each > tenant.message_bytes_max:
                raise MessageTooLarge(f"row of {each} bytes; at most {tenant.message_bytes_max}", argument="rows")
            size += each
        if size + sum(chunk.bytes for chunk in mine) > STAGED_BYTES_MAX:
            raise LimitExceeded(f"tenant {tenant.name!r} has {STAGED_BYTES_MAX} bytes staged", argument="rows")
        self._shard.log.check()

    def _new_part(self, tenant: Tenant, number: int = 0) -> Partition:
        shard = self._shard
        if not number:
            shard.queue_numbers += 1
            number = int(shard.queue_numbers)
        hidden = Stream("", tenant, StreamSettings())
        hidden.hidden = True
        part = Partition(hidden, 0, number)
        hidden.partitions.append(part)
        shard.partitions[number] = part
        shard.queue_numbers = max(int(shard.queue_numbers), number)
        return part

    def drop(self, tenant: Tenant, id: str) -> bool:
        """Throw a chunk away; False when there is none."""
        chunk = self.chunks.pop((tenant.name, id), None)
        if chunk is None:
            return False
        for _, part in chunk.parts:
            self._forget(part)
        self._shard.log.change("drop-chunk", tenant.name, {"id": id})
        return True

    def _forget(self, part: Partition) -> None:
        self._shard.partitions.pop(int(part.number), None)
        part.stream.end("dropped")

    # Committing

    def commit(self, tenant: Tenant, producer: str, epoch: int, ids: Sequence[str]) -> dict[str, Any]:
        """Let all rows of these chunks happen; what became of them. Once per epoch."""
        if not producer or epoch < 0:
            raise InvalidArgument("a commit needs a producer, and an epoch that is not negative", argument="producer")
        shard = self._shard
        last = self.producers.get((tenant.name, producer))
        if last is not None and epoch <= last["epoch"]:
            if epoch < last["epoch"]:
                raise _stale(producer, last["epoch"], epoch)
            return dict(last["result"])
        chunks = self._wanted(tenant, ids)
        shard.log.check()
        shown: list[tuple[Partition, int]] = []
        attached: list[list[int]] = []
        spooled: list[int] = []
        positions: list[dict[str, Any]] = []
        for chunk in chunks:
            del self.chunks[(tenant.name, chunk.id)]
            for index, part in chunk.parts:
                if index < 0:
                    spooled.append(int(part.number))
                    self.spools.append((tenant, part))
                    continue
                partition = tenant.stream(chunk.stream).partition(index)
                rows = int(part.end)
                row = self._attach(partition, part)
                attached.append(row)
                shown.append((partition, row[2] + rows))
                positions.append(
                    {"stream": chunk.stream, "partition": index, "first": row[2], "last": row[2] + rows - 1}
                )
        result: dict[str, Any] = {"rows": sum(chunk.rows for chunk in chunks), "positions": positions}
        if len(self.producers) >= PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]
        state = {"epoch": epoch, "used_ms": int(shard.wall_ms), "result": result}
        self.producers.pop((tenant.name, producer), None)
        self.producers[(tenant.name, producer)] = state
        shard.log.change(
            "commit-staged",
            tenant.name,
            {
                "producer": producer,
                **state,
                "chunks": [chunk.id for chunk in chunks],
                "attached": attached,
                "spooled": spooled,
            },
        )
        self._drop_lost(tenant, producer, epoch)
        shard.log.when_durable(lambda: _show(shown))
        if spooled:
            shard.log.when_durable(self._go_on)
        return dict(result)

    def _drop_lost(self, tenant: Tenant, producer: str, epoch: int) -> None:
        """Drop what was staged for this epoch or older ones, and not committed."""
        for chunk in list(self.chunks.values()):
            if chunk.tenant is tenant and chunk.owner[0] == producer and 0 <= chunk.owner[1] <= epoch:
                self.drop(tenant, chunk.id)

    def _wanted(self, tenant: Tenant, ids: Sequence[str]) -> list[Chunk]:
        chunks = []
        for wanted in dict.fromkeys(ids):
            chunk = self.chunks.get((tenant.name, wanted))
            if chunk is None or not chunk.is_durable():
                raise ChunkNotFound(f"no chunk {wanted!r} (any more): nothing was committed", argument="chunks")
            if chunk.stream:
                tenant.stream(chunk.stream)
            else:
                tenant.exchange(chunk.exchange)
            chunks.append(chunk)
        return chunks

    def _attach(self, partition: Partition, part: Partition) -> list[int]:
        """Let the records of a part be records of a partition; the alias, as it is written."""
        shard = self._shard
        rows = int(part.end)
        base, stamp = partition.adopt(part)
        partition.stream.appended += rows
        shard.partitions.pop(int(part.number), None)
        alias = Alias(int(partition.number), int(base), rows, int(stamp))
        self.aliases[int(part.number)] = alias
        return [int(part.number), alias.partition, alias.base, alias.count, alias.stamp]

    # Going on

    def _go_on(self) -> None:
        self._shard.streams_due_ms = 0

    def tick(self) -> int:
        """Enqueue a slice of what was committed to exchanges; when there is more to do, on the monotonic clock."""
        if not self.spools:
            return int(NEVER)
        tenant, part = self.spools[0]
        shard = self._shard
        position = int(part.tail)
        stop = min(position + SLICE_ROWS, int(part.visible))
        for offset in range(position, stop):
            message = shard.message_of(part.record(offset))
            exchange = tenant.exchanges.get(message.route.exchange)
            if exchange is not None:
                way = tenant.way(exchange, message.route.key)
                fresh = Message(
                    way.route, message.props, message.body, message.id, message.priority, message.expires_ms, PERSISTENT
                )
                due = properties.header(message.props, DUE_HEADER)
                shard.post(tenant, way, fresh, due if isinstance(due, int) and due > 0 else 0)
        part.cut_tail(stop)
        done = stop >= part.visible
        if done:
            self.spools.pop(0)
            self._forget(part)
        shard.log.change("spool", tenant.name, {"number": int(part.number), "position": stop, "done": done})
        return int(shard.mono_ms) if self.spools else int(NEVER)

    def expire(self) -> None:
        """Throw away what nobody committed in time, aliases of records that are gone, and epochs long out of use."""
        now = int(self._shard.wall_ms)
        for chunk in [chunk for chunk in self.chunks.values() if chunk.due_ms <= now]:
            self.drop(chunk.tenant, chunk.id)
        for key in [key for key, state in self.producers.items() if state["used_ms"] + EPOCH_MS <= now]:
            del self.producers[key]
        partitions = self._shard.partitions
        for number, alias in list(self.aliases.items()):
            partition = partitions.get(alias.partition)
            if partition is None or partition.tail >= alias.base + alias.count:
                del self.aliases[number]

    def forget_tenant(self, tenant: Tenant) -> None:
        for chunk in [chunk for chunk in self.chunks.values() if chunk.tenant is tenant]:
            self.drop(tenant, chunk.id)
        for owner, part in self.spools:
            if owner is tenant:
                self._forget(part)
        self.spools = [spool for spool in self.spools if spool[0] is not tenant]
        for key in [key for key in self.producers if key[0] == tenant.name]:
            del self.producers[key]

    # Writing down and coming back

    def state(self) -> dict[str, Any]:
        return {
            "chunks": [chunk.as_dict() for chunk in self.chunks.values()],
            "producers": [[tenant, name, state] for (tenant, name), state in self.producers.items()],
            "aliases": [[n, a.partition, a.base, a.count, a.stamp] for n, a in self.aliases.items()],
            "spools": [[tenant.name, int(part.number), int(part.tail)] for tenant, part in self.spools],
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Let exactly this be there; the records are put back later."""
        self.chunks.clear()
        self.producers = {(tenant, name): state for tenant, name, state in document["producers"]}
        self.aliases = {row[0]: Alias(*row[1:]) for row in document["aliases"]}
        self.spools = []
        for row in document["chunks"]:
            self.replay("chunk", self._shard.tenants[row["tenant"]], row)
        for tenant, number, position in document["spools"]:
            part = self._new_part(self._shard.tenants[tenant], number)
            part.begin_at(position, position, position, 0)
            self.spools.append((self._shard.tenants[tenant], part))

    def replay(self, operation: str, tenant: Tenant, row: dict[str, Any]) -> None:
        """Make one change again."""
        if operation == "chunk":
            producer, epoch = row.get("owner", NOBODY)
            chunk = Chunk(row["id"], tenant, row["stream"], row["exchange"], row["due_ms"], (producer, epoch))
            chunk.rows, chunk.bytes = row["rows"], row["bytes"]
            chunk.parts = [(index, self._new_part(tenant, number)) for index, number in row["parts"]]
            self.chunks[(tenant.name, chunk.id)] = chunk
        elif operation == "drop-chunk":
            self._drop_parts(self.chunks.pop((tenant.name, row["id"]), None))
        elif operation == "commit-staged":
            self._replay_commit(tenant, row)
        else:
            for owner, part in list(self.spools):
                if part.number == row["number"]:
                    part.begin_at(row["position"], row["position"], row["position"], 0)
                    if row["done"]:
                        self.spools.remove((owner, part))
                        self._shard.partitions.pop(int(part.number), None)

    def _replay_commit(self, tenant: Tenant, row: dict[str, Any]) -> None:
        state = {key: row[key] for key in ("epoch", "used_ms", "result")}
        self.producers[(tenant.name, row["producer"])] = state
        for done in row["chunks"]:
            self.chunks.pop((tenant.name, done), None)
        for number, *alias in row["attached"]:
            self._shard.partitions.pop(number, None)
            self.aliases[number] = Alias(*alias)
        for number in row["spooled"]:
            self.spools.append((tenant, self._shard.partitions[number]))

    def _drop_parts(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            for _, part in chunk.parts:
                self._shard.partitions.pop(int(part.number), None)


def _stale(producer: str, last: int, epoch: int) -> StaleEpoch:
    return StaleEpoch(f"producer {producer!r} has committed epoch {last} already, not {epoch}", argument="epoch")


def _show(shown: list[tuple[Partition, int]]) -> None:
    for partition, upto in shown:
        partition.show(upto)
