"""Messages to topics that come again until somebody acks them by an id, which need not be who received them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rookery.core import rights
from rookery.core.keeping import TOPICS
from rookery.core.receipts import ACK_ID_HEADER, ACK_TIMEOUT_HEADER, TIMEOUT_MS
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.wire.api import bodies
from rookery.wire.api.broker import Api
from rookery.wire.api.messages import ACCEPTED
from rookery.wire.api.shapes import Sent
from rookery.wire.http.call import Call
from rookery.wire.http.routes import CHECKED, Answer, Router
from rookery.wire.packed import TIME_MAX_MS

Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=255), CHECKED]
AckId = Annotated[str, msgspec.Meta(max_length=255), CHECKED]
Timeout = Annotated[int, msgspec.Meta(ge=1, le=TIME_MAX_MS)]


class SettleReceipt(msgspec.Struct, forbid_unknown_fields=True):
    """`ack` ends it for all who got the message; after `retry` they all get it again now."""

    topic: Topic
    ack_id: AckId
    outcome: Literal["ack", "retry"] = "ack"


class SettledReceipt(msgspec.Struct):
    status: str


class ReceiptRoutes:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rest = api.rest

    def publish(
        self,
        call: Call,
        body: bytes,
        topic: Topic,
        ack_id: AckId = "",
        timeout_ms: Timeout = TIMEOUT_MS,
        mandatory: bool = False,
    ) -> Answer:
        """Publish one message to a topic. Everybody who claims it with `ack` from the queue of a subscription gets it
        again after `timeout_ms`, until it is settled by `ack_id`, which without one is the message's id.
        """
        rights.require(call.principal, "receipt.publish", "exchange", TOPICS)
        tenant = self._rest.tenant(call)
        found = bodies.read(call, body, int(self._rest.shard.wall_ms)).all()
        if len(found) != 1:
            raise InvalidArgument("a receipt is of one message", argument="body")
        p = found[0].publish(TOPICS, topic, mandatory)
        p.props = properties.with_headers(p.props, {ACK_ID_HEADER: ack_id, ACK_TIMEOUT_HEADER: timeout_ms})
        self._rest.check_room()
        number = self._api.repeated(call, TOPICS, topic)
        repeat = number > 0
        if not repeat:
            number, repeat = tenant.receipts.publish(tenant, p, ack_id)
            self._api.remember(call, TOPICS, topic, number)
        call.lasting()
        given = None if repeat and p.dedup_key else properties.message_id(p.props)
        return Answer(200 if repeat else 201, Sent(given or self._rest.shard.ids.uuid(number), repeat))

    def settle(self, call: Call, body: SettleReceipt) -> SettledReceipt:
        """Settle a message by its ack id: all who got it are done with it, or get it again."""
        rights.require(call.principal, "receipt.settle", "exchange", TOPICS)
        if not self._api.repeated(call, TOPICS, body.topic):
            receipts = self._rest.tenant(call).receipts
            if body.outcome == "ack":
                receipts.ack(body.topic, body.ack_id)
            else:
                receipts.nack(body.topic, body.ack_id)
            self._api.remember_here(call, TOPICS, body.topic)
        call.lasting()
        return SettledReceipt("ok")


def add_routes(router: Router, api: Api) -> None:
    routes = ReceiptRoutes(api)
    tag = "topics"
    router.add(
        "POST", "/api/v1/receipts", routes.publish, {201: Sent, 200: Sent}, "receipt.publish", tag=tag, accepts=ACCEPTED
    )
    router.add("POST", "/api/v1/receipts/settle", routes.settle, {200: SettledReceipt}, "receipt.settle", tag=tag)
