"""What a webhook consumes: a queue, or a stream under a group of its own.

Deliveries come as leases in mailboxes, whichever it is. A stream's records are settled in any order, and the group's
offset moves on when all before it are: after a restart, what was not yet counted comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rookery.core.consumers import Credit, Mailbox
from rookery.core.entries import GONE
from rookery.core.feeds import OFFSET_HEADER, Feed
from rookery.core.groups import group_of
from rookery.core.policy import FACES, effective
from rookery.core.shard import check_subscriptions
from rookery.format import properties
from rookery.format.model import PERSISTENT

if TYPE_CHECKING:
    from rookery.core.entries import Lease
    from rookery.core.queue import Queue
    from rookery.core.stream import Stream
    from rookery.core.topology import Tenant
    from rookery.core.webhooks import Webhook

FACE: Final = "http"


class Told(Protocol):
    """Whoever is to be told that a mailbox has something."""

    def set(self) -> None: ...


class Source:
    """A queue. `mailboxes` collect its deliveries, together no more than the webhook may have out at a time."""

    def __init__(self, queues: list[Queue], hook: Webhook, told: Told) -> None:
        self._credit = Credit(hook.concurrency)
        self.mailboxes: list[Mailbox] = []
        for queue in queues:
            check_subscriptions(queue)
            mailbox = Mailbox(queue, 0, 0, 0, queue.shard.touched, False)
            mailbox.name = f"webhook.{hook.id}"
            mailbox.shared = self._credit
            mailbox.on_event = told
            self.mailboxes.append(mailbox)
            queue.subscribe(mailbox)

    def ended(self) -> bool:
        """Whether what it consumes is gone."""
        return any(mailbox.ended for mailbox in self.mailboxes)

    def take(self) -> list[Lease]:
        return [lease for mailbox in self.mailboxes for lease in mailbox.take()]

    def set_flow(self, paused: bool, credit: int) -> None:
        self._credit.limit = credit
        for mailbox in self.mailboxes:
            mailbox.paused = paused
            mailbox.queue.mark_dirty()

    def settled(self, lease: Lease) -> None:
        """A lease was settled, one way or another."""

    def tick(self) -> None:
        """About once a second."""

    def rest(self) -> None:
        """Take no more; what was not taken goes back to its place. What was taken may still be settled."""
        for mailbox in self.mailboxes:
            mailbox.paused = True
            mailbox.on_event = None
            for lease in mailbox.take():
                mailbox.queue.release(lease)

    def stop(self) -> None:
        """Consume no more."""
        self.rest()
        for mailbox in self.mailboxes:
            mailbox.queue.unsubscribe(mailbox)


class StreamSource(Source):
    """A stream, each partition fed into a queue with the retries and dead letters of an HTTP queue."""

    def __init__(self, stream: Stream, hook: Webhook, told: Told) -> None:
        begin(stream, hook)
        self._stream = stream
        self._group = group_of(stream, hook.group)
        self._told = told
        self._ended = False
        self._committed: list[int] = self._group.as_dict()["offsets"]
        # by partition: the offset after the last one taken, and those taken that are not dealt with
        self._top = list(self._committed)
        self._open: list[set[int]] = [set() for _ in self._top]
        self._feeds = [Feed(stream, {index: offset}) for index, offset in enumerate(self._top)]
        self._indexes = {id(feed.queue): index for index, feed in enumerate(self._feeds)}
        defaults = stream.tenant.face_defaults.get(FACE, FACES[FACE])
        for feed in self._feeds:
            feed.queue.configure(effective(hook.queue, FACE, defaults, None, {"durable": False, "ordered": False}))
            feed.on_end = self._on_end
        super().__init__([feed.queue for feed in self._feeds], hook, told)
        for feed in self._feeds:
            feed.fill()

    def _on_end(self, reason: str) -> None:
        self._ended = True
        self._told.set()

    def ended(self) -> bool:
        return self._ended

    def take(self) -> list[Lease]:
        leases = super().take()
        for lease in leases:
            # a record is durable, and so shall be what becomes of it
            lease.entry.message.flags |= PERSISTENT
            index, offset = self._place(lease)
            self._open[index].add(offset)
            self._top[index] = max(self._top[index], offset + 1)
        return leases

    def settled(self, lease: Lease) -> None:
        if lease.entry.state == GONE:
            index, offset = self._place(lease)
            self._open[index].discard(offset)

    def _place(self, lease: Lease) -> tuple[int, int]:
        offset = properties.header(lease.entry.message.props, OFFSET_HEADER)
        assert isinstance(offset, int)
        return self._indexes[id(lease.queue)], offset

    def tick(self) -> None:
        """Remember how far everything is dealt with."""
        if self._ended or self._stream.groups.get(self._group.name) is not self._group:
            return
        self._group.used_ms = int(self._stream.tenant.shard.wall_ms)
        now = [min(taken, default=top) for taken, top in zip(self._open, self._top, strict=True)]
        ahead = {index: offset for index, offset in enumerate(now) if offset > self._committed[index]}
        if ahead:
            self._group.commit(ahead)
            self._committed = now

    def stop(self) -> None:
        self.tick()
        super().stop()
        for feed in self._feeds:
            feed.close()


def begin(stream: Stream, hook: Webhook) -> None:
    """Let the webhook's group begin at the end of the stream, unless it has a place already."""
    group = group_of(stream, hook.group)
    known = group.as_dict()["offsets"]
    new = {i: int(partition.visible) for i, partition in enumerate(stream.partitions) if known[i] < 0}
    if new:
        group.commit(new)


def source_of(tenant: Tenant, hook: Webhook, told: Told) -> Source | None:
    """What the webhook consumes, None as long as that is not there."""
    if hook.kind == "stream":
        stream = tenant.streams.get(hook.target)
        return StreamSource(stream, hook, told) if stream is not None else None
    queue = tenant.queues.get(hook.queue)
    if queue is None or queue.owner is not None:
        return None
    return Source([queue], hook, told)
