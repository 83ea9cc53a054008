"""Topics whose messages are kept: looked at, or handed to their subscribers of today."""

from __future__ import annotations

import msgspec

from rookery.core import keeping, rights
from rookery.core.keeping import TOPICS
from rookery.wire.api.broker import Api
from rookery.wire.api.handling import Handling, packed_content, wants_packed
from rookery.wire.api.receipts import Topic
from rookery.wire.api.shapes import PACKED_MAX, SHOWN_MAX, Leased
from rookery.wire.api.types import AtMost
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router


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


class KeptRoutes:
    """The routes."""

    def __init__(self, api: Api, handling: Handling) -> None:
        self._rest = api.rest
        self._handling = handling

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
            return packed_content([self._handling.pack(entry, int(entry.attempts)) for entry in entries])
        entries = keeping.recover(tenant, topic, min(limit or SHOWN_MAX, SHOWN_MAX))
        return KeptMessages([self._handling.show(entry, int(entry.attempts)) for entry in entries])

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


def add_routes(router: Router, api: Api, handling: Handling) -> None:
    replays = KeptRoutes(api, handling)
    kept = "/api/v1/kept"
    router.add("PUT", kept, replays.keep, {200: KeptTopic}, "topic.keep", tag="topics")
    router.add("GET", kept, replays.look, {200: (KeptMessages, bytes)}, "topic.kept", tag="topics")
    router.add("POST", f"{kept}/replay", replays.replay, {200: ReplayedTopic}, "topic.replay", tag="topics")
