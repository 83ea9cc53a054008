"""Publishing, pulling and settling under /api/v1, of queues and of the queues behind topics."""

from __future__ import annotations

from typing import Final

from rookery.core.dedup import scope_of
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.format import properties
from rookery.format.rendering import content_of, headers_of
from rookery.wire.api.bodies import check_dedup_key, pack
from rookery.wire.api.rest import FACE, Rest
from rookery.wire.api.types import Deliveries, Delivery, Nack, Nothing, Published, Sending, Settled, Tag
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer
from rookery.wire.http.trace import answer_trace, carry

ACK_KEY: Final = "\0ack "
"""Sets the keys of acks apart from those of publishes to the same queue, which do not begin so."""


def show(rest: Rest, entry: Entry, tag: str | None, retry: int) -> Delivery:
    message, coded = content_of(entry.message)
    stored = entry.message
    deaths = [death.as_dict() for death in stored.route.deaths]
    return Delivery(
        tag,
        message,
        retry,
        rest.message_id(stored),
        str(deaths[-1]["routing_key"]) if deaths else stored.route.key,
        entry.redelivered,
        int(stored.priority),
        coded,
        headers_of(stored),
        properties.correlation_id(stored.props) or None,
        properties.reply_to(stored.props) or None,
        deaths or None,
    )


class Pulling:
    """See the module's docstring."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest

    def publish(self, call: Call, name: str, said: Sending) -> Answer:
        rest = self.rest
        p = pack(said, "", name, int(rest.shard.wall_ms))
        carry(call, p)
        queue = rest.queue(call, name, FACE, "write")
        number, repeat = rest.publish(queue.tenant, p)
        call.lasting()
        return Answer(200 if repeat else 201, Published(rest.shard.ids.uuid(number), repeat))

    def pull(
        self, call: Call, queue: Queue, wait: float, max: int | None, auto_ack: bool, empty: str, lease_ms: int
    ) -> object:
        def done(leases: list[Lease]) -> object:
            shown = [self._delivered(lease, auto_ack) for lease in leases]
            if not shown and empty == "204":
                return Answer(204)
            if max is not None:
                return Deliveries(shown)
            return shown[0] if shown else Nothing()

        def handed_out(leases: list[Lease]) -> None:
            call.tag = leases[-1].token()
            if len(leases) == 1:
                answer_trace(call, leases[0].entry.message.props)
            if auto_ack:
                for lease in leases:
                    lease.queue.ack(lease)
                call.lasting()

        return self.rest.claim(call, queue, max or 1, lease_ms, int(wait * 1000), done, handed_out)

    def _delivered(self, lease: Lease, auto_ack: bool) -> Delivery:
        return show(self.rest, lease.entry, None if auto_ack else lease.token(), int(lease.attempt) - 1)

    def ack(self, call: Call, queue: str, tag: Tag) -> Settled:
        call.tag = tag.delivery_tag
        tenant = self.rest.tenant(call)
        key = tag.idempotency_key
        if key is not None:
            check_dedup_key(key)
            if tenant.dedup.find(scope_of("", queue), ACK_KEY + key, int(self.rest.shard.wall_ms)):
                call.lasting()
                return Settled("ok", True)
        lease = self.rest.lease(call, queue, tag.delivery_tag)
        number = int(lease.entry.message.public_id)
        lease.queue.ack(lease)
        if key is not None:
            tenant.remember("", queue, ACK_KEY + key, number)
        call.lasting()
        return Settled("ok")

    def nack(self, call: Call, queue: str, nack: Nack) -> Settled:
        call.tag = nack.delivery_tag
        delay_ms = -1 if nack.delay_ms is None else nack.delay_ms
        lease = self.rest.lease(call, queue, nack.delivery_tag)
        if nack.dead_letter:
            lease.queue.reject(lease, nack.reason[:255])
        elif nack.requeue:
            lease.queue.retry(lease, 0, nack.reason[:255])
        else:
            lease.queue.retry(lease, delay_ms, nack.reason[:255])
        call.lasting()
        return Settled("ok")
