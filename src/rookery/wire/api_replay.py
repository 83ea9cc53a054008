"""What was published once more: kept topics, looked at or handed to their subscribers of today, and records of
streams, handed to whoever their exchanges lead to.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rookery.core import keeping, rights, streams
from rookery.core.keeping import TOPICS
from rookery.core.stream import Partition
from rookery.wire.api import Api
from rookery.wire.api_handling import Handling, packed_content, wants_packed
from rookery.wire.api_receipts import Topic
from rookery.wire.api_records import LEASE_MS, PAGE_BYTES, PAGE_RECORDS
from rookery.wire.api_shapes import Leased, PartitionIndex
from rookery.wire.api_streams import Offset
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Router
from rookery.wire.rest_types import AtMost, Name

SHOWN_MAX: Final = 1_000
PACKED_MAX: Final = 100_000

Records = Annotated[int, msgspec.Meta(ge=1, le=PAGE_RECORDS)]


class KeptTopic(msgspec.Struct):
    """`queue` is where the messages of the topic are kept."""

    topic: str
    queue: str


class KeptMessages(msgspec.Struct):
    messages: list[Leased]


class ReplayTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A `limit` of 0 is all."""

    topic: Topic
    limit: AtMost = 0


class ReplayedTopic(msgspec.Struct):
    replayed: int


class ReplayStream(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """From an offset on, by default the oldest that is kept."""

    partition: PartitionIndex = 0
    from_: Offset | None = None
    limit: Records = PAGE_RECORDS


class ReplayedStream(msgspec.Struct):
    """How many somebody got; `next` is the offset to go on with, `end` the one after the last there is."""

    replayed: int
    next: int
    end: int


class Replays:
    """The routes."""

    def __init__(self, api: Api, messages: Handling) -> None:
        self._api = api
        self._rest = api.rest
        self._messages = messages

    def keep(self, call: Call, topic: Topic) -> KeptTopic:
        """Have what is published to a topic kept for a week from now on."""
        name = keeping.name_of(topic)
        rights.require(call.principal, "topic.keep", "queue", name)
        rights.require(call.principal, "topic.keep", "exchange", TOPICS)
        keeping.keep(self._rest.tenant(call), topic)
        call.lasting()
        return KeptTopic(topic, name)

    def look(self, call: Call, topic: Topic, limit: AtMost = 0) -> object:
        """The messages of a topic that are kept, oldest first; of a topic that is not, those in the queue of its
        name. A `limit` of 0 is all, of which JSON shows 1,000.
        """
        tenant = self._rest.tenant(call)
        queue = keeping.kept_in(tenant, topic)
        rights.require(call.principal, "topic.kept", "queue", keeping.name_of(topic) if queue is None else queue.name)
        if wants_packed(call):
            entries = keeping.recover(tenant, topic, min(limit or PACKED_MAX, PACKED_MAX))
            return packed_content([self._messages.pack(entry, int(entry.attempts)) for entry in entries])
        entries = keeping.recover(tenant, topic, min(limit or SHOWN_MAX, SHOWN_MAX))
        return KeptMessages([self._messages.show(entry, int(entry.attempts)) for entry in entries])

    def replay(self, call: Call, body: ReplayTopic) -> ReplayedTopic:
        """Hand what is kept of a topic to its subscribers of today, oldest first."""
        rights.require(call.principal, "topic.replay", "exchange", TOPICS)
        tenant = self._rest.tenant(call)
        queue = keeping.kept_in(tenant, body.topic)
        kept = keeping.name_of(body.topic) if queue is None else queue.name
        rights.require(call.principal, "topic.replay", "queue", kept)
        count = keeping.replay(tenant, body.topic, body.limit)
        call.lasting()
        return ReplayedTopic(count)

    def replay_stream(self, call: Call, name: Name, body: ReplayStream | None = None) -> object:
        """Hand records to whoever their exchanges lead to today, a page of up to 1,000; no stream gets them again."""
        wanted = body or ReplayStream()
        partition = self._api.stream(call, name, "read").partition(wanted.partition)
        start = int(partition.first) if wanted.from_ is None else wanted.from_
        partition.check(start)
        stop = min(int(partition.visible), start + wanted.limit)
        if start < min(stop, int(partition.tail)):
            return self._sealed(call, partition, start, stop)
        raws: list[bytes] = []
        size = 0
        while start + len(raws) < stop and size < PAGE_BYTES:
            raws.append(partition.record(start + len(raws)))
            size += len(raws[-1])
        return self._hand_out(call, partition, raws, start + len(raws))

    def _sealed(self, call: Call, partition: Partition, start: int, stop: int) -> object:
        file = partition.file_of(start)
        assert file is not None, "sealed offsets are in files"
        stop = min(stop, int(file.last) + 1)
        archive, path, plan = self._api.archive, file.path, f"replay-{self._api.random_text()}"
        archive.lease(plan, frozenset([path]), LEASE_MS)

        def then(raws: list[bytes]) -> object:
            archive.release(plan)
            return self._hand_out(call, partition, raws, stop)

        return self._api.later(call, lambda: archive.records(path, start, stop), then)

    def _hand_out(self, call: Call, partition: Partition, raws: list[bytes], following: int) -> ReplayedStream:
        tenant = partition.stream.tenant
        shard = tenant.shard
        found = [shard.message_of(raw) for raw in raws]
        chosen = [record for record in found if not 0 < int(record.expires_ms) <= int(shard.wall_ms)]
        for exchange in {streams.exchange_of(tenant, record).name for record in chosen}:
            rights.require(call.principal, "exchange.publish", "exchange", exchange)
        self._rest.check_room()
        count = sum(streams.replay(tenant, record) for record in chosen)
        call.lasting()
        return ReplayedStream(count, following, int(partition.visible))


def add_routes(router: Router, api: Api, messages: Handling) -> None:
    replays = Replays(api, messages)
    kept = "/api/v1/kept"
    router.add("PUT", kept, replays.keep, {200: KeptTopic}, "topic.keep", tag="topics")
    router.add("GET", kept, replays.look, {200: (KeptMessages, bytes)}, "topic.kept", tag="topics")
    router.add("POST", f"{kept}/replay", replays.replay, {200: ReplayedTopic}, "topic.replay", tag="topics")
    router.add(
        "POST",
        "/api/v1/streams/{name}/replay",
        replays.replay_stream,
        {200: ReplayedStream},
        "stream.replay",
        tag="streams",
    )
