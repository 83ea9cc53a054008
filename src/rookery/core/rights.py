"""The one table of rights: which operation needs which right on which resource.

Every face checks from it. HTTP routes, AMQP methods and line commands name their operation; where a path, a method or a
line names the resource, the face asks `require` before anything else happens, and a handler that finds a resource only
later (the queue of a webhook, the target of a binding) asks with the same names. `docs/rights.md` is written from this
table (`tools/make_rights.py`), and `tests/wire/test_rights_matrix.py` compares every route, method and command with it.

To add an operation: add a line here, name it where the route is added, run `tools/make_rights.py`.

A resource has a *role* in an operation: `queue`, `stream` and so on, or what it is for (`source`, `target`). A role
with two rights needs both. An admin needs rights on queues, exchanges and streams too: the admin right is for operating
the broker.
"""

from __future__ import annotations

from typing import Final, Literal

from rookery.core.credentials import Action, Principal
from rookery.errors import AccessRefused

Who = Literal["public", "open", "credential", "some", "some write", "some read", "configure all", "full", "admin"]

WHO: Final[dict[str, str]] = {
    "public": "everyone; a credential is not looked at",
    "open": "everyone; see the note",
    "credential": "every valid credential",
    "some": "a credential that may write or read something",
    "some write": "a credential that may write something",
    "some read": "a credential that may read something",
    "configure all": "a credential that may configure everything in its tenant (`.*`), or an admin",
    "full": "a credential with all three rights on everything in its tenant (`.*`), or an admin; never `guest`",
    "admin": "an admin",
}

EVENTS: Final = "rookery.events"
"""The broker's own stream, which admins read whatever their rights are."""

NOTHING: Final = ("", "^$")

_KINDS: Final = {
    "source": "exchange",
    "destination": "exchange",
    "alternate": "exchange",
    "target": "queue",
    "subscription": "queue",
}


class Operation:
    """Who may ask for it at all, the rights by role, and what a table cannot say. `changes` is false of what only
    looks: a page of another site may cause a GET, so those that change something are guarded (`http_auth`).
    """

    def __init__(self, who: Who, needs: dict[str, str], note: str, changes: bool) -> None:
        self.who: str = who
        self.needs = {role: tuple(rights.split()) for role, rights in needs.items()}
        self.note = note
        self.changes = changes


def _op(who: Who = "credential", note: str = "", /, **needs: str) -> Operation:
    return Operation(who, needs, note, True)


def _look(who: Who = "credential", note: str = "", /, **needs: str) -> Operation:
    return Operation(who, needs, note, False)


_CREATES: Final = "A queue that does not exist yet is created, which also needs `configure`."
_TOPIC_CREATES: Final = "A topic that does not exist yet is created, which also needs `configure`."
_LISTED: Final = "Shows only what the credential may read."
_PRODUCER: Final = "A producer id also needs `write` on everything it last committed to and has staged."

OPERATIONS: Final[dict[str, Operation]] = {
    # The server
    "server.health": _look("public"),
    "server.document": _look("public"),
    "server.metrics": _look("open", "Totals are for everyone. Queues are listed by the rights of the credential."),
    "session": _op("credential", "Acts only on what this connection, channel or credential holds itself."),
    # Keys
    "key.create": _op(
        "open",
        "Decided by `ROOKERY_KEY_CREATION`. A key never has more rights than its maker, nor a later expiry.",
    ),
    "key.list": _look("full", "Only admins see admin keys, and keys of other tenants."),
    "key.revoke": _op(
        "credential",
        "A key may revoke itself. Other keys of the tenant need full rights, as for `key.list`; admin keys an admin.",
    ),
    # Queues
    "queue.list": _look("credential", _LISTED),
    "queue.show": _look(queue="read"),
    "queue.stats": _look("credential", f"{_CREATES} Without a queue: {_LISTED[0].lower()}{_LISTED[1:]}", queue="read"),
    "queue.declare": _op(queue="configure"),
    "queue.dead_letter": _op(
        "credential",
        "Also needed to declare a queue that names a dead-letter exchange or queue (`target`). A policy or a default "
        "that names one needs `read` on everything and `write` on what it names. The server's own default "
        "(`DLQ_SUFFIX`) needs no right.",
        queue="read",
        exchange="write",
        target="write",
    ),
    "queue.delete": _op(queue="configure"),
    "queue.bind": _op(queue="write", source="read"),
    "queue.purge": _op(queue="read"),
    "queue.publish": _op(
        "credential", f"{_CREATES} `/publish` with an exchange in its body is `exchange.publish`.", queue="write"
    ),
    "queue.claim": _op("credential", _CREATES, queue="read"),
    "queue.consume": _op("credential", "Over SSE and WebSocket: " + _CREATES, queue="read"),
    "queue.settle": _op("credential", "By lease, message id or cut, also those of others who read it.", queue="read"),
    "queue.peek": _look("credential", _CREATES, queue="read"),
    "queue.move": _op(queue="read", target="write"),
    "queue.redrive": _op(
        "credential", "Letters whose queue the credential may not write to stay where they are.", queue="read"
    ),
    "queue.cut": _op(queue="read"),
    "queue.webhook": _op(queue="configure read"),
    "dead_letters.list": _look("credential", "Of the dead-letter queue only what died in this queue.", queue="read"),
    "dead_letters.change": _op("credential", "Of the dead-letter queue only what died in this queue.", queue="write"),
    # Exchanges and bindings
    "exchange.list": _look("credential", _LISTED),
    "exchange.show": _look(exchange="read"),
    "exchange.declare": _op(exchange="configure"),
    "exchange.alternate": _op(
        "credential", "Also needed to declare an exchange that names an alternate.", exchange="read", alternate="write"
    ),
    "exchange.delete": _op(exchange="configure"),
    "exchange.bind": _op(source="read", destination="write"),
    "exchange.publish": _op(exchange="write"),
    "binding.list": _look("credential", _LISTED),
    "binding.change": _op(source="read", target="write"),
    "exchange.create_with_queue": _op(exchange="configure read", queue="configure write"),
    # Topics
    "topic.declare": _op(topic="configure"),
    "topic.publish": _op("credential", _TOPIC_CREATES, topic="write"),
    "topic.subscribe": _op("credential", _TOPIC_CREATES, topic="read", subscription="configure"),
    "topic.subscriptions": _look(topic="read"),
    "topic.unsubscribe": _op(subscription="configure"),
    "topic.pull": _op(topic="read", subscription="read"),
    "topic.settle": _op(subscription="read"),
    "topic.consume": _op(
        "credential",
        "An existing subscription needs `read` instead of `configure`.",
        topic="read",
        subscription="configure",
    ),
    "topic.stats": _look("credential", _TOPIC_CREATES, topic="read"),
    "topic.keep": _op(queue="configure", exchange="read"),
    "topic.kept": _look(queue="read"),
    "topic.replay": _op(queue="read", exchange="write"),
    "receipt.publish": _op("credential", "On the exchange `amq.topic`.", exchange="write"),
    "receipt.settle": _op("credential", "On the exchange `amq.topic`.", exchange="read"),
    # Streams
    "stream.list": _look("credential", _LISTED),
    "stream.show": _look("credential", "`rookery.events` is for admins.", stream="read"),
    "stream.declare": _op(stream="configure"),
    "stream.change": _op(stream="configure"),
    "stream.publish": _op(stream="write"),
    "stream.read": _look("credential", "`rookery.events` is for admins.", stream="read"),
    "stream.consume": _op("credential", "`rookery.events` is for admins.", stream="read"),
    "stream.group": _op("credential", "Also groups that others made.", stream="read"),
    "stream.plan": _op("credential", "A plan is held with `read` on its stream.", stream="read"),
    "stream.webhook": _op(stream="configure read"),
    "stream.replay": _op(
        "credential", "Also `write` on every exchange that the records were published to.", stream="read"
    ),
    # Staged publishing
    "stream.stage": _op("credential", _PRODUCER, stream="write"),
    "exchange.stage": _op("credential", _PRODUCER, exchange="write"),
    "queue.stage": _op("credential", f"{_CREATES} {_PRODUCER}", queue="write"),
    "producer.commit": _op("some write", f"`target` is what each chunk is for. {_PRODUCER}", target="write"),
    "producer.show": _look("some write", _PRODUCER, target="write"),
    "chunk.list": _look("some write", "Shows only chunks for what the credential may write."),
    "chunk.drop": _op("some write", "`target` is what the chunk is for.", target="write"),
    # Transactions
    "transaction.run": _op("some", "`read` on the queues of what is settled.", target="write"),
    "transaction.hold": _op(
        "some", "Only by the user or key that began it; what is added needs the same rights as in one request."
    ),
    # Webhooks and consumers
    "webhook.list": _look("credential", _LISTED),
    "webhook.show": _look("credential", "`queue` is what the webhook consumes, or its stream.", queue="read"),
    "webhook.change": _op("credential", "`queue` is what the webhook consumes, or its stream.", queue="configure"),
    "consumer.list": _look("credential", _LISTED),
    "consumer.cancel": _op("credential", "`queue` is what it consumes.", queue="configure"),
    # Operating a tenant
    "tenant.stats": _look("credential", _LISTED),
    "tenant.show": _look("configure all", "Other tenants need an admin."),
    "tenant.definitions": _look("configure all", "Other tenants, keys and users need an admin."),
    "tenant.load": _op(
        "configure all",
        "Without the admin right: only the own tenant; no keys, users, limits or private webhooks; and every "
        "dead-letter target, alternate exchange, binding and webhook needs what declaring it needs.",
    ),
    "policy.show": _look("configure all"),
    "policy.change": _op("configure all", "A policy with a dead-letter target: see `queue.dead_letter`."),
    "connection.list": _look("configure all", "Connections to other tenants need an admin."),
    "connection.close": _op("configure all", "Connections to other tenants need an admin."),
    "insights.tables": _look("credential"),
    "insights.show": _look("some read", "Rows of the own tenant and of queues that the credential may read."),
    # Operating the broker
    "tenant.list": _look("admin"),
    "tenant.change": _op("admin"),
    "user.show": _look("admin"),
    "user.change": _op("admin"),
    "pipeline.show": _look("admin"),
}

AMQP: Final[dict[str, tuple[str, ...]]] = {
    "connection.*": ("session",),
    "channel.*": ("session",),
    "access.*": ("session",),
    "exchange.declare": ("exchange.declare", "exchange.alternate"),
    "exchange.declare (passive)": ("session",),
    "exchange.delete": ("exchange.delete",),
    "exchange.bind": ("exchange.bind",),
    "exchange.unbind": ("exchange.bind",),
    "queue.declare": ("queue.declare", "queue.dead_letter"),
    "queue.declare (passive)": ("session",),
    "queue.bind": ("queue.bind",),
    "queue.unbind": ("queue.bind",),
    "queue.purge": ("queue.purge",),
    "queue.delete": ("queue.delete",),
    "basic.publish": ("exchange.publish",),
    "basic.consume": ("queue.consume",),
    "basic.get": ("queue.claim",),
    "basic.qos": ("session",),
    "basic.cancel": ("session",),
    "basic.ack": ("session",),
    "basic.nack": ("session",),
    "basic.reject": ("session",),
    "basic.recover": ("session",),
    "basic.recover-async": ("session",),
    "confirm.select": ("session",),
    "tx.*": ("session",),
}
"""The operations of each AMQP method; the rights are RabbitMQ's."""

LINE: Final[dict[str, tuple[str, ...]]] = {
    "DECLARE_EXCHANGE": ("exchange.declare",),
    "DECLARE_QUEUE": ("queue.declare", "queue.dead_letter"),
    "BIND_QUEUE": ("queue.bind",),
    "PUBLISH": ("exchange.publish",),
    "CONSUME": ("queue.consume",),
    "CANCEL": ("session",),
    "ACK": ("queue.settle",),
    "RETRY": ("queue.settle",),
    "RELEASE": ("queue.settle",),
    "REJECT": ("queue.settle",),
    "AUTH": ("server.health",),
    "TRACE": ("server.health",),
    "PING": ("server.health",),
    "HELP": ("server.health",),
    "QUIT": ("server.health",),
}
"""The operations of each command of the line protocol."""


def kind_of(role: str) -> str:
    """What the resource in that role is, for an error message."""
    return _KINDS.get(role, role)


def may(principal: Principal, operation: str, role: str, name: str) -> bool:
    """Whether the principal has the rights that the operation needs on this resource."""
    for right in OPERATIONS[operation].needs[role]:
        if not principal.rights.allow(_action(right), name):
            return False
    return True


def require(principal: Principal, operation: str, role: str, name: str, kind: str = "") -> None:
    """Raise AccessRefused unless the principal has the rights that the operation needs on this resource."""
    for right in OPERATIONS[operation].needs[role]:
        principal.require(_action(right), name, kind=kind or kind_of(role))


def require_who(principal: Principal, who: str) -> None:
    """Raise AccessRefused unless the principal is one of those who may ask for such an operation at all."""
    if who == "admin":
        principal.require_admin()
    elif who == "full":
        require_full(principal)
    elif who == "configure all":
        if not principal.admin and principal.rights.configure != ".*":
            raise AccessRefused(
                f"this needs the right to configure everything in tenant '{principal.tenant}', "
                f"which user '{principal.name}' has not"
            )
    elif who == "some write":
        _require_some(principal, "write")
    elif who == "some read":
        if not principal.admin:
            _require_some(principal, "read")
    elif who == "some" and principal.rights.write in NOTHING:
        _require_some(principal, "read")


def is_full(principal: Principal) -> bool:
    """Whether the principal stands for its tenant: a credential of its own, and all rights on everything."""
    rights = principal.rights
    return not principal.anonymous and rights.configure == rights.write == rights.read == ".*"


def require_full(principal: Principal) -> None:
    """Raise AccessRefused unless the principal is an admin or has all rights on everything in its tenant."""
    if not principal.admin and not is_full(principal):
        raise AccessRefused(
            f"this needs a credential with all rights on everything in tenant '{principal.tenant}', "
            f"which '{principal.name}' is not"
        )


def require_dead_letter(principal: Principal, queue: str, settings: dict[str, object]) -> None:
    """Raise AccessRefused unless the principal may let messages of a queue end where these settings say."""
    exchange = settings.get("dead_letter_exchange")
    target = settings.get("dead_letter_queue")
    if isinstance(exchange, str):
        require(principal, "queue.dead_letter", "queue", queue)
        require(principal, "queue.dead_letter", "exchange", exchange)
    if isinstance(target, str):
        require(principal, "queue.dead_letter", "queue", queue)
        require(principal, "queue.dead_letter", "target", target.replace("{queue}", queue))


def require_dead_letters(principal: Principal, settings: dict[str, object]) -> None:
    """The same for settings that hold for queues by a pattern or by default: they need `read` on everything."""
    exchange = settings.get("dead_letter_exchange")
    target = settings.get("dead_letter_queue")
    if principal.admin or not (isinstance(exchange, str) or isinstance(target, str)):
        return
    everything = isinstance(target, str) and "{queue}" in target
    if principal.rights.read != ".*" or (everything and principal.rights.write != ".*"):
        wanted = "read and write" if everything else "read"
        raise AccessRefused(
            f"a dead-letter target for more than one queue needs the right to {wanted} everything in tenant "
            f"'{principal.tenant}', which user '{principal.name}' has not"
        )
    if isinstance(exchange, str):
        require(principal, "queue.dead_letter", "exchange", exchange)
    elif isinstance(target, str) and not everything:
        require(principal, "queue.dead_letter", "target", target)


def _require_some(principal: Principal, action: Action) -> None:
    if getattr(principal.rights, action) in NOTHING:
        raise AccessRefused(f"{action} access refused for user '{principal.name}'")


def _action(right: str) -> Action:
    if right == "configure":
        return "configure"
    return "write" if right == "write" else "read"
