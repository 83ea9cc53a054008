"""Staged publishing: rows wait, durable and invisible, until their producer commits them all in one step.

A chunk is staged once and stands in the journal as records under a number of its own. A commit names a producer, its
epoch and chunks. Into a stream, the records are attached where they stand: the journal gets one line per chunk that
says where they begin (an alias), and all of them are shown when that is durable. Into an exchange, the same line
decides it, and the rows are enqueued in slices after it; how far that has come is written with each slice, so that a
crash neither loses nor repeats a row.

Many rows are staged in steps (`Filling`), with other turns between them. Their chunk is there when all of them are
written; of one that never gets so far, the journal has records under a number that nothing names, and recovery leaves
them out and does not use the number again.

The invariant: an epoch of a producer happens once. The same epoch again succeeds and adds nothing; an older one, or a
chunk that is not there, is refused whole. Rows that are staged for an epoch are dropped when it is committed without
them, and are not kept when it was committed before: those whose attempts lost leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i32, i64

from rookery.core import publishing
from rookery.core.publishing import Append
from rookery.core.stream import Partition, Stream, StreamSettings
from rookery.errors import (
    ChunkNotFound,
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    StaleEpoch,
    StreamNotFound,
    TenantNotFound,
)
from rookery.format import properties
from rookery.format.model import NEVER, PERSISTENT, SAMPLED, Message, Route, check_numbers

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

SLICE_ROWS: Final = 1_000
"""How many rows of a commit to an exchange are enqueued in one turn."""


DUE_HEADER: Final = "x-deliver-at"
"""The header of a row for an exchange that says when its message is due, in milliseconds since 1970."""

DUE_MAX_MS: Final = 1 << 53
"""The latest time that this header may say; beyond it the row is due at once."""


SAMPLES_MAX: Final = 50_000
"""Staged messages that are told of (`core.events`) when they are committed; more than this are not."""

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


def row_of(record: Append, is_for_stream: bool) -> Row:
    """A record as a row: its commit writes it once, so it has no dedup key, and when it is due stands in a header."""
    props = record.props
    if record.dedup_key:
        raise InvalidArgument(
            "staged rows are written once by their commit, without keys of their own", argument="idempotency_key"
        )
    if record.due_ms:
        if is_for_stream:
            raise InvalidArgument("records of a stream have no delay", argument="delay_ms")
        props = properties.with_headers(props, {DUE_HEADER: record.due_ms})
    return Row(record.key, props, record.body, record.priority, record.expires_ms, record.partition)


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
        queue: str = "",
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.stream = stream
        self.exchange = exchange
        self.due_ms = due_ms
        self.owner = owner
        # of rows for the default exchange, the one queue that they are for; empty when they are for several
        self.queue = queue
        self.rows = 0
        self.bytes = 0
        self.body_bytes = 0
        self.parts: list[tuple[int, Partition]] = []
        # messages for a stream that are told of (`core.events`), without their bodies, and the sizes of those
        self.sampled: list[tuple[Message, int]] = []

    def target(self) -> str:
        """What the rows are for, as `target_of` says it."""
        return target_of(self.stream, self.exchange, self.queue)

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
            "queue": self.queue,
            "rows": self.rows,
            "bytes": self.bytes,
            "body_bytes": self.body_bytes,
            "parts": [[index, int(part.number)] for index, part in self.parts],
        }


class Filling:
    """Rows on their way into a chunk: call `step` until it returns True. They are all checked before the first of them
    is written. On an error, which `step` raises, nothing is left of them.
    """

    def __init__(self, staging: Staging, chunk: Chunk, rows: Sequence[Row]) -> None:
        self.chunk = chunk
        self.target: Stream | None = None
        self.done = False
        self._staging = staging
        self._shard = chunk.tenant.shard
        self._rows = list(rows)
        self._checked: i64 = 0
        self._filled: i64 = 0
        self._size: i64 = 0
        self._reserved = False
        self._one_key = True
        self._parts: dict[int, Partition] = {}
        self._routes: dict[str, Route] = {}
        self._loose: i64 = -1

    def step(self, count: i64) -> bool:
        """Go on with so many rows; whether the chunk is there."""
        if self.done:
            return True
        try:
            self._go_on(count)
        except BaseException:
            self._staging.abandon(self.chunk)
            self._end()
            raise
        return self.done

    def _go_on(self, count: i64) -> None:
        tenant = self.chunk.tenant
        self._shard.log.check()
        self._check_target()
        rows: i64 = len(self._rows)
        if self._checked < rows:
            upto = min(self._checked + count, rows)
            count -= upto - self._checked
            self._check(upto)
        if self._checked < rows:
            return
        if not self._reserved:
            self._staging.room_for(tenant, int(self._size))
            self._reserved = True
            self.chunk.bytes = int(self._size)
            if not self.chunk.stream and not self.chunk.exchange and self._one_key:
                self.chunk.queue = self._rows[0].key
        self._fill(min(self._filled + count, rows))
        if self._filled == rows:
            self.chunk = self._staging.finish(self.chunk)
            self._end()

    def _end(self) -> None:
        self.done = True
        if self._reserved:
            self._reserved = False
            self._staging.filled(self.chunk.tenant, int(self._size))
        self._rows = []

    def _check_target(self) -> None:
        """Raise when what the rows are for has gone."""
        chunk = self.chunk
        tenant = chunk.tenant
        if self._shard.tenants.get(tenant.name) is not tenant:
            raise TenantNotFound(f"no tenant {tenant.name!r}", argument="tenant")
        if self.target is None:
            tenant.exchange(chunk.exchange)
        elif tenant.stream(chunk.stream) is not self.target:
            raise StreamNotFound(f"stream {chunk.stream!r} was deleted", argument="stream")

    def _check(self, upto: i64) -> None:
        tenant = self.chunk.tenant
        most = tenant.message_bytes_max
        first = self._rows[0].key
        i = self._checked
        while i < upto:
            row = self._rows[i]
            check_numbers(row.priority, row.expires_ms, 0)
            each: i64 = len(row.body) + len(row.props)
            if each > most:
                raise MessageTooLarge(f"row of {each} bytes; at most {most}", argument="rows")
            if row.partition >= 0 and self.target is not None:
                self.target.partition(row.partition)
            if row.key != first:
                self._one_key = False
            self._size += each
            i += 1
        self._checked = upto

    def _fill(self, upto: i64) -> None:
        """Write rows down, each in the part for its partition."""
        shard = self._shard
        chunk = self.chunk
        target = self.target
        i = self._filled
        while i < upto:
            row = self._rows[i]
            # what was written need not be kept, and is let go of in steps too
            self._rows[i] = NO_ROW
            route = self._routes.get(row.key)
            if route is None:
                route = Route(chunk.exchange, row.key)
                self._routes[row.key] = route
            number = shard.new_id()
            flags: i32 = PERSISTENT
            if shard.events.on:
                flags |= shard.events.mark(number)
            message = Message(route, row.props, row.body, number, row.priority, row.expires_ms, flags)
            chunk.body_bytes += len(row.body)
            if flags & SAMPLED and target is not None:
                self._staging.sample(chunk, message)
            index: i64 = -1
            if target is not None:
                index = row.partition
                if index < 0:
                    index = target.keyed(message)
                if index < 0:
                    if self._loose < 0:
                        self._loose = target.next_in_turn()
                    index = self._loose
            part = self._parts.get(int(index))
            if part is None:
                part = self._staging.new_part(chunk.tenant)
                self._parts[int(index)] = part
                chunk.parts.append((int(index), part))
            part.append(message)
            i += 1
        self._filled = upto


NO_ROW: Final = Row("", b"", b"")


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
        # the chunks of each tenant by id, and what they hold; how many producers it has
        self._held: dict[str, dict[str, Chunk]] = {}
        self._held_bytes: dict[str, int] = {}
        self._filling_bytes: dict[str, int] = {}
        self._producing: dict[str, int] = {}
        self.aliases: dict[int, Alias] = {}
        # how many messages of chunks will be told of
        self._samples = 0
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
        filling = self.begin(tenant, id, stream, exchange, rows, owner, wait_ms)
        while not filling.step(2 * CHUNK_ROWS_MAX):
            pass
        return filling.chunk

    def begin(
        self,
        tenant: Tenant,
        id: str,
        stream: str,
        exchange: str,
        rows: Sequence[Row],
        owner: tuple[str, int] = NOBODY,
        wait_ms: int = CHUNK_MS,
    ) -> Filling:
        """The same in steps."""
        if not id:
            raise InvalidArgument("a chunk needs an id", argument="chunk")
        chunk = Chunk(id, tenant, stream, exchange, int(self._shard.wall_ms) + wait_ms, owner)
        chunk.rows = len(rows)
        filling = Filling(self, chunk, rows)
        if self._has_happened(tenant, owner):
            chunk.due_ms = int(self._shard.wall_ms)
            filling.done = True
            return filling
        known = self._known(chunk)
        if known is not None:
            filling.chunk = known
            filling.done = True
            return filling
        if stream:
            filling.target = tenant.stream(stream)
        else:
            tenant.exchange(exchange)
        self._check(tenant, len(rows))
        return filling

    def _known(self, chunk: Chunk) -> Chunk | None:
        """The chunk of that name that is there already, with as many rows for the same."""
        known = self.chunks.get((chunk.tenant.name, chunk.id))
        if known is not None and (
            known.rows != chunk.rows or (known.stream, known.exchange) != (chunk.stream, chunk.exchange)
        ):
            raise InvalidArgument(f"chunk {chunk.id!r} holds other rows already", argument="chunk")
        return known

    def room_for(self, tenant: Tenant, size: int) -> None:
        """Raise unless the tenant may stage so many bytes more, and count them until `filled`."""
        name = tenant.name
        if size + self._held_bytes.get(name, 0) + self._filling_bytes.get(name, 0) > STAGED_BYTES_MAX:
            raise LimitExceeded(
                f"tenant {name!r} reached its limit of {STAGED_BYTES_MAX} staged bytes", argument="rows"
            )
        self._filling_bytes[name] = self._filling_bytes.get(name, 0) + size

    def filled(self, tenant: Tenant, size: int) -> None:
        left = self._filling_bytes.pop(tenant.name) - size
        if left:
            self._filling_bytes[tenant.name] = left

    def finish(self, chunk: Chunk) -> Chunk:
        """All rows of a chunk are written: from now on it can be committed. Another of its name goes before it."""
        tenant = chunk.tenant
        if self._has_happened(tenant, chunk.owner):
            self.abandon(chunk)
            return chunk
        known = self._known(chunk)
        if known is not None:
            self.abandon(chunk)
            return known
        self._check(tenant, chunk.rows)
        self._put(chunk)
        self._shard.log.change("chunk", tenant.name, chunk.as_dict())
        self._shard.streams_due_ms = min(int(self._shard.streams_due_ms), int(self._shard.mono_ms) + 1_000)
        return chunk

    def abandon(self, chunk: Chunk) -> None:
        """Leave nothing of a chunk that is not there yet."""
        for _, part in chunk.parts:
            self._forget(part)
        self._forget_samples(chunk)
        chunk.parts = []
        chunk.bytes = 0
        chunk.due_ms = int(self._shard.wall_ms)

    def sample(self, chunk: Chunk, message: Message) -> None:
        """Tell of a message when it is committed, unless too many wait for that."""
        if self._samples >= SAMPLES_MAX:
            self._shard.events.dropped += 1
            return
        self._samples += 1
        flags: i32 = message.flags
        stub = Message(message.route, message.props, b"", message.id, message.priority, message.expires_ms, flags)
        chunk.sampled.append((stub, len(message.body)))

    def _forget_samples(self, chunk: Chunk) -> None:
        self._samples -= len(chunk.sampled)
        chunk.sampled = []

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

    def _check(self, tenant: Tenant, rows: int) -> None:
        if len(self._held.get(tenant.name, {})) >= CHUNKS_MAX:
            raise LimitExceeded(f"tenant {tenant.name!r} reached its limit of {CHUNKS_MAX} chunks", argument="chunk")
        if not 0 < rows <= CHUNK_ROWS_MAX:
            raise InvalidArgument(f"a chunk has 1 to {CHUNK_ROWS_MAX} rows", argument="rows")
        self._shard.log.check()

    def new_part(self, tenant: Tenant, number: int = 0) -> Partition:
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

    def _put(self, chunk: Chunk) -> None:
        tenant = chunk.tenant.name
        self._take(tenant, chunk.id)
        self.chunks[(tenant, chunk.id)] = chunk
        self._held.setdefault(tenant, {})[chunk.id] = chunk
        self._held_bytes[tenant] = self._held_bytes.get(tenant, 0) + chunk.bytes

    def _take(self, tenant: str, id: str) -> Chunk | None:
        chunk = self.chunks.pop((tenant, id), None)
        if chunk is not None:
            held = self._held[tenant]
            del held[id]
            self._held_bytes[tenant] -= chunk.bytes
            if not held:
                del self._held[tenant]
                del self._held_bytes[tenant]
        return chunk

    def _put_producer(self, tenant: str, producer: str, state: dict[str, Any]) -> None:
        """Remember the last epoch of a producer, as the one that was used last."""
        self._drop_producer(tenant, producer)
        self.producers[(tenant, producer)] = state
        self._producing[tenant] = self._producing.get(tenant, 0) + 1

    def _drop_producer(self, tenant: str, producer: str) -> None:
        if self.producers.pop((tenant, producer), None) is not None:
            self._producing[tenant] -= 1
            if not self._producing[tenant]:
                del self._producing[tenant]

    def drop(self, tenant: Tenant, id: str) -> bool:
        """Throw a chunk away; False when there is none."""
        chunk = self._take(tenant.name, id)
        if chunk is None:
            return False
        for _, part in chunk.parts:
            self._forget(part)
        self._forget_samples(chunk)
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
        most = tenant.limits.producers_max
        if last is None and most and self._producing.get(tenant.name, 0) >= most:
            raise tenant.too_many("producers", "producers_max", "producer")
        chunks = self._wanted(tenant, ids)
        shard.log.check()
        shown: list[tuple[Partition, int]] = []
        attached: list[list[int]] = []
        spooled: list[int] = []
        positions: list[dict[str, Any]] = []
        for chunk in chunks:
            self._take(tenant.name, chunk.id)
            if chunk.stream:
                publishing.count_appended(tenant, chunk.rows, chunk.body_bytes)
            for message, size in chunk.sampled:
                shard.events.appended(tenant, message, size)
            self._forget_samples(chunk)
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
        targets = sorted({chunk.target() for chunk in chunks}) or self.targets(tenant, producer)
        state = {"epoch": epoch, "used_ms": int(shard.wall_ms), "result": result, "targets": targets}
        self._put_producer(tenant.name, producer, state)
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

    def targets(self, tenant: Tenant, producer: str) -> list[str]:
        """What a producer's last commit of rows was for, as `target_of` says it."""
        state = self.producers.get((tenant.name, producer))
        if state is None:
            return []
        targets = state.get("targets")
        if targets is not None:
            return list(targets)
        # written before targets were
        found = sorted({target_of(row["stream"], "", "") for row in state["result"]["positions"]})
        return found if found or not state["result"]["rows"] else [target_of("", "", "")]

    def claims(self, tenant: Tenant, producer: str) -> list[str]:
        """What a producer's last commit was for and what is staged for it: to act for it takes a right on all that."""
        found = set(self.targets(tenant, producer))
        for chunk in self.chunks_of(tenant):
            if producer and chunk.owner[0] == producer:
                found.add(chunk.target())
        return sorted(found)

    def _drop_lost(self, tenant: Tenant, producer: str, epoch: int) -> None:
        """Drop what was staged for this epoch or older ones, and not committed."""
        for chunk in list(self._held.get(tenant.name, {}).values()):
            if chunk.owner[0] == producer and 0 <= chunk.owner[1] <= epoch:
                self.drop(tenant, chunk.id)

    def chunks_of(self, tenant: Tenant) -> list[Chunk]:
        """What waits for its commit in a tenant."""
        return list(self._held.get(tenant.name, {}).values())

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
                flags: i32 = PERSISTENT | (message.flags & SAMPLED)
                fresh = Message(
                    way.route, message.props, message.body, message.id, message.priority, message.expires_ms, flags
                )
                publishing.post(shard, tenant, way, fresh, _due_ms(message), publishing.EACH)
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
        for tenant, producer in [key for key, state in self.producers.items() if state["used_ms"] + EPOCH_MS <= now]:
            self._drop_producer(tenant, producer)
        partitions = self._shard.partitions
        for number, alias in list(self.aliases.items()):
            partition = partitions.get(alias.partition)
            if partition is None or partition.tail >= alias.base + alias.count:
                del self.aliases[number]

    def forget_tenant(self, tenant: Tenant) -> None:
        for chunk in list(self._held.get(tenant.name, {}).values()):
            self.drop(tenant, chunk.id)
        for owner, part in self.spools:
            if owner is tenant:
                self._forget(part)
        self.spools = [spool for spool in self.spools if spool[0] is not tenant]
        if tenant.name in self._producing:
            for key in [key for key in self.producers if key[0] == tenant.name]:
                self._drop_producer(*key)

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
        self._held.clear()
        self._held_bytes.clear()
        self.producers.clear()
        self._producing.clear()
        for tenant, name, state in document["producers"]:
            self._put_producer(tenant, name, state)
        self.aliases = {row[0]: Alias(*row[1:]) for row in document["aliases"]}
        self.spools = []
        for row in document["chunks"]:
            self.replay("chunk", self._shard.tenants[row["tenant"]], row)
        for tenant, number, position in document["spools"]:
            part = self.new_part(self._shard.tenants[tenant], number)
            part.begin_at(position, position, position, 0)
            self.spools.append((self._shard.tenants[tenant], part))

    def replay(self, operation: str, tenant: Tenant, row: dict[str, Any]) -> None:
        """Make one change again."""
        if operation == "chunk":
            producer, epoch = row.get("owner", NOBODY)
            queue = row.get("queue", "")
            chunk = Chunk(row["id"], tenant, row["stream"], row["exchange"], row["due_ms"], (producer, epoch), queue)
            chunk.rows, chunk.bytes = row["rows"], row["bytes"]
            # not in journals of earlier versions
            chunk.body_bytes = row.get("body_bytes", chunk.bytes)
            chunk.parts = [(index, self.new_part(tenant, number)) for index, number in row["parts"]]
            self._put(chunk)
        elif operation == "drop-chunk":
            self._drop_parts(self._take(tenant.name, row["id"]))
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
        state: dict[str, Any] = {"epoch": row["epoch"], "used_ms": row["used_ms"], "result": row["result"]}
        if "targets" in row:
            state["targets"] = row["targets"]
        self._put_producer(tenant.name, row["producer"], state)
        for done in row["chunks"]:
            self._take(tenant.name, done)
        for number, *alias in row["attached"]:
            self._shard.partitions.pop(number, None)
            self.aliases[number] = Alias(*alias)
        for number in row["spooled"]:
            self.spools.append((tenant, self._shard.partitions[number]))

    def _drop_parts(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            for _, part in chunk.parts:
                self._shard.partitions.pop(int(part.number), None)


def target_of(stream: str, exchange: str, queue: str) -> str:
    """What rows are for, in one text: its kind and its name. Of rows for several queues the name is empty."""
    if stream:
        return f"stream {stream}"
    return f"exchange {exchange}" if exchange else f"queue {queue}"


def _stale(producer: str, last: int, epoch: int) -> StaleEpoch:
    return StaleEpoch(f"producer {producer!r} has committed epoch {last} already, not {epoch}", argument="epoch")


def _show(shown: list[tuple[Partition, int]]) -> None:
    for partition, upto in shown:
        partition.show(upto)


def _due_ms(message: Message) -> int:
    """When a row is to be delivered, 0 for at once; publishers may have written anything into that header."""
    due = properties.header(message.props, DUE_HEADER)
    return due if isinstance(due, int) and 0 < due <= DUE_MAX_MS else 0
