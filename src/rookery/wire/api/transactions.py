"""Transactions: publishes and settles of one tenant that happen wholly or not at all, in one request or by id."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from rookery.core import rights
from rookery.core.publishing import Publish
from rookery.core.topology import Tenant
from rookery.core.transactions import OUTCOMES, TIMEOUT_MS, Settle, Transaction, apply
from rookery.errors import InvalidArgument, LeaseLost, RookeryError, TransactionTooLarge
from rookery.format.rendering import JSON
from rookery.wire import packed
from rookery.wire.api.bodies import of_packed, outgoing
from rookery.wire.api.broker import Api
from rookery.wire.api.handling import Handling
from rookery.wire.api.rest import FACE, refuse_internal
from rookery.wire.api.shapes import Item, Sent, SettleOne
from rookery.wire.api.types import Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import CHECKED, Router, decode_json
from rookery.wire.http.trace import trace_of
from rookery.wire.packed import PACKED, PackedWork

SCOPE: Final = "amq.topic"
TIMEOUT_MAX_MS: Final = 3_600_000
ID_MAX: Final = 255

TransactionId = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_MAX), CHECKED]
TimeoutMs = Annotated[int, msgspec.Meta(ge=1, le=TIMEOUT_MAX_MS)]


class PublishWithin(Item, kw_only=True):
    """A message to `queue`, or to `exchange` with its `routing_key`."""

    queue: Name | None = None
    exchange: Name | None = None
    mandatory: bool = False


class Work(msgspec.Struct, forbid_unknown_fields=True):
    """Done in this order: all settles, then all publishes."""

    publish: list[PublishWithin] = []
    settle: list[SettleOne] = []


class Beginning(msgspec.Struct, forbid_unknown_fields=True):
    timeout_ms: TimeoutMs = TIMEOUT_MS


class TransactionShown(msgspec.Struct, omit_defaults=True):
    """`messages` are those that a commit published."""

    transaction: str
    status: str
    operations: int
    messages: list[Sent] | None = None


class TransactionDone(msgspec.Struct):
    status: str
    settled: int
    messages: list[Sent]


_work = msgspec.json.Decoder(Work).decode


class TransactionRoutes:
    """The routes. A transaction by id belongs to the credential's user, in its tenant."""

    def __init__(self, api: Api, messages: Handling) -> None:
        self._api = api
        self._rest = api.rest
        self._shard = api.shard
        self._messages = messages

    def run(self, call: Call, body: bytes) -> TransactionDone:
        """Do all of this, or nothing. A repeated header `Idempotency-Key` does nothing more."""
        tenant = self._api.tenant(call)
        if call.header(b"content-type").partition(";")[0].strip().lower() == PACKED:
            work: PackedWork | Work = packed.read(packed.decode_work, body)
        else:
            work = decode_json(_work, body)
        # the scope of its key: the topic exchange is always there
        earlier = self._api.repeated(call, SCOPE, "")
        if earlier:
            return self._again(call, work, earlier)
        operations = (
            self._packed(call, tenant, work) if isinstance(work, PackedWork) else self._operations(call, tenant, work)
        )
        if not operations:
            raise InvalidArgument("there is nothing to do", argument="publish")
        most = tenant.limits.transaction_operations_max
        if most and len(operations) > most:
            raise TransactionTooLarge(f"a transaction has at most {most} operations", argument="publish")
        self._rest.check_room()
        last_id = int(self._shard.last_id)
        numbers = apply(self._shard, tenant, operations)
        self._api.remember(call, SCOPE, "", numbers[0] if numbers else max(1, last_id))
        call.lasting()
        publishes = [each for each in operations if isinstance(each, Publish)]
        return TransactionDone("committed", len(work.settle), self._messages.sent(publishes, numbers, last_id))

    def _again(self, call: Call, work: PackedWork | Work, first: int) -> TransactionDone:
        """The answer to a request that was made before, whose messages, unless they have keys, were numbered on."""
        call.lasting()
        uuid = self._shard.ids.uuid
        sent = [Sent(uuid(first + index), True) for index in range(len(work.publish))]
        return TransactionDone("committed", len(work.settle), sent)

    def _packed(self, call: Call, tenant: Tenant, work: PackedWork) -> list[Publish | Settle]:
        """What the core is to do, as Rookery's client says it."""
        operations: list[Publish | Settle] = []
        for index, each in enumerate(work.settle):
            if each.outcome not in OUTCOMES:
                raise InvalidArgument(f"{each.outcome[:50]!r} is no outcome", argument=f"settle[{index}].outcome")
            one = SettleOne(each.lease, "ack", None if each.delay_ms < 0 else each.delay_ms, each.reason)
            operation = self._settle(call, tenant, one, index)
            operation.outcome = each.outcome
            operations.append(operation)
        now_ms = int(self._shard.wall_ms)
        for p in work.publish:
            key = p.routing_key or ""
            if p.exchange:
                rights.require(call.principal, "transaction.run", "target", p.exchange, "exchange")
                refuse_internal(tenant.exchange(p.exchange))
            else:
                rights.require(call.principal, "transaction.run", "target", key)
                if key in tenant.queues:
                    tenant.check_owner(tenant.queues[key], None)
            operations.append(of_packed(p, now_ms).publish(p.exchange, key, p.mandatory))
        return operations

    def begin(self, call: Call, id: TransactionId, body: Beginning | None = None) -> TransactionShown:
        """Begin a transaction under an id of your own. It is rolled back when it is not ended in time."""
        transaction = self._shard.transactions.begin(
            self._api.tenant(call), id, (body or Beginning()).timeout_ms, owner_of(call)
        )
        return _shown(id, transaction, "open")

    def look(self, call: Call, id: TransactionId) -> TransactionShown:
        """How many operations an open transaction has."""
        return _shown(id, self._find(call, id), "open")

    def add(self, call: Call, id: TransactionId, body: Work) -> TransactionShown:
        """Have more done by its commit; nothing happens before."""
        tenant = self._api.tenant(call)
        transaction = self._find(call, id)
        operations = self._operations(call, tenant, body)
        before, size = len(transaction.operations), transaction.bytes
        try:
            for operation in operations:
                self._shard.transactions.add(transaction, operation)
        except RookeryError:
            del transaction.operations[before:]
            transaction.bytes = size
            raise
        return _shown(id, transaction, "open")

    def commit(self, call: Call, id: TransactionId) -> TransactionShown:
        """Do all of it. When that cannot be, nothing is done and the transaction stays open."""
        transaction = self._find(call, id)
        self._rest.check_room()
        last_id = int(self._shard.last_id)
        publishes = [each for each in transaction.operations if isinstance(each, Publish)]
        numbers = self._shard.transactions.commit(self._api.tenant(call), id, owner_of(call))
        call.lasting()
        shown = _shown(id, transaction, "committed")
        shown.messages = self._messages.sent(publishes, numbers, last_id)
        return shown

    def rollback(self, call: Call, id: TransactionId) -> TransactionShown:
        """Forget all of it; leases stay as they are."""
        transaction = self._find(call, id)
        self._shard.transactions.rollback(self._api.tenant(call), id, owner_of(call))
        return _shown(id, transaction, "rolled back")

    def _find(self, call: Call, id: str) -> Transaction:
        return self._shard.transactions.get(self._api.tenant(call), id, owner_of(call))

    def _operations(self, call: Call, tenant: Tenant, work: Work) -> list[Publish | Settle]:
        """What the core is to do; queues that are published to come into being."""
        settles = [self._settle(call, tenant, each, index) for index, each in enumerate(work.settle)]
        trace = trace_of(call)
        now_ms = int(self._shard.wall_ms)
        publishes = []
        for index, each in enumerate(work.publish):
            exchange, key = self._target(call, tenant, each, index)
            try:
                publishes.append(outgoing(each, now_ms, trace).publish(exchange, key, each.mandatory))
            except InvalidArgument as error:
                error.argument = f"publish[{index}].{error.argument}"
                raise
        for each in work.publish:
            if each.queue is not None and each.queue not in tenant.streams:
                self._rest.queue(call, each.queue, FACE, "write")
        return [*settles, *publishes]

    def _settle(self, call: Call, tenant: Tenant, one: SettleOne, index: int) -> Settle:
        rights.require(call.principal, "queue.settle", "queue", one.lease.rsplit("/", 3)[0])
        lease = self._shard.lease(tenant, one.lease)
        if lease is None or not lease.live:
            raise LeaseLost(f"lease {one.lease[:300]!r} has ended", argument=f"settle[{index}].lease")
        return Settle(lease, one.outcome, -1 if one.delay_ms is None else one.delay_ms, one.reason)

    def _target(self, call: Call, tenant: Tenant, p: PublishWithin, index: int) -> tuple[str, str]:
        if (p.queue is None) == (p.exchange is None):
            raise InvalidArgument("a publish names a queue or an exchange", argument=f"publish[{index}].queue")
        if p.queue is not None:
            if p.routing_key not in (None, p.queue):
                at = f"publish[{index}].routing_key"
                raise InvalidArgument("messages to a queue have its name as their routing key", argument=at)
            rights.require(call.principal, "transaction.run", "target", p.queue)
            return "", p.queue
        assert p.exchange is not None
        rights.require(call.principal, "transaction.run", "target", p.exchange, "exchange")
        refuse_internal(tenant.exchange(p.exchange))
        return p.exchange, p.routing_key or ""


def owner_of(call: Call) -> str:
    """Who a transaction belongs to: users of one tenant do not meet each other's. Never empty, as embedded ones are."""
    name: str = call.principal.name
    return ("\0" if call.principal.anonymous else "=") + name


def _shown(id: str, transaction: Transaction, status: str) -> TransactionShown:
    return TransactionShown(id, status, len(transaction.operations))


def add_routes(router: Router, api: Api, messages: Handling) -> None:
    routes = TransactionRoutes(api, messages)
    root = "/api/v1/transactions"
    more: dict[str, Any] = {"tag": "transactions"}
    router.add(
        "POST", root, routes.run, {200: TransactionDone}, "transaction.run", accepts={JSON: Work, PACKED: bytes}, **more
    )
    router.add("PUT", f"{root}/{{id}}", routes.begin, {201: TransactionShown}, "transaction.hold", **more)
    router.add("GET", f"{root}/{{id}}", routes.look, {200: TransactionShown}, "transaction.hold", **more)
    router.add("POST", f"{root}/{{id}}/add", routes.add, {200: TransactionShown}, "transaction.hold", **more)
    router.add("POST", f"{root}/{{id}}/commit", routes.commit, {200: TransactionShown}, "transaction.hold", **more)
    router.add("POST", f"{root}/{{id}}/rollback", routes.rollback, {200: TransactionShown}, "transaction.hold", **more)


__all__ = ["TransactionRoutes", "add_routes"]
