"""Webhooks: subscriptions whose consumer is an HTTP endpoint, as they are defined. Who calls it is `rookery.webhooks`.

A webhook of a queue shares it with other consumers. One of a topic has a queue of its own, `<topic>.sub.<id>`; one of a
stream has a group of its own, `webhook.<id>`, which remembers how far it came. Definitions are durable and part of
exported documents, with the secret that calls are signed with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from rookery.errors import InvalidArgument, LimitExceeded, NotFound

if TYPE_CHECKING:
    from rookery.core.shard import Shard

WEBHOOKS_MAX: Final = 1_000
"""Of one tenant."""

ENDPOINT_MAX: Final = 2_048
CONCURRENCY_MAX: Final = 100
TIMEOUT_MAX_MS: Final = 60_000

Kind = Literal["queue", "topic", "stream"]
Format = Literal["raw", "cloudevents", "cloudevents-binary"]


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`private` says that an admin made it, who may name endpoints that are not public."""

    id: str
    kind: Kind
    target: str
    endpoint: str
    secret: str
    routing_key: str = "#"
    format: Format = "raw"
    concurrency: int = 8
    timeout_ms: int = 15_000
    private: bool = False

    def __post_init__(self) -> None:
        if not self.id or not self.id.isascii() or not self.id.replace("-", "").replace("_", "").isalnum():
            raise InvalidArgument("the id of a webhook is letters, digits, - and _", argument="id")
        if not self.secret:
            raise InvalidArgument("a webhook needs a secret", argument="secret")
        check_endpoint(self.endpoint)
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise InvalidArgument(f"concurrency is 1 to {CONCURRENCY_MAX}", argument="concurrency")
        if not 1 <= self.timeout_ms <= TIMEOUT_MAX_MS:
            raise InvalidArgument(f"timeout_ms is 1 to {TIMEOUT_MAX_MS}", argument="timeout_ms")

    def __repr__(self) -> str:
        return f"Webhook(id={self.id!r}, kind={self.kind!r}, target={self.target!r}, endpoint={self.endpoint!r})"

    @property
    def queue(self) -> str:
        """The queue that it consumes; of a stream, what its dead letters are named after."""
        return self.target if self.kind == "queue" else f"{self.target}.sub.{self.id}"

    @property
    def group(self) -> str:
        """The group of a stream that remembers how far it came."""
        return f"webhook.{self.id}"


def check_endpoint(endpoint: str) -> None:
    """Refuse what is no http or https URL, or holds a credential."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise InvalidArgument("endpoint is not a URL", argument="endpoint") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidArgument("endpoint must be an http or https URL", argument="endpoint")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("endpoint must not hold a credential", argument="endpoint")
    if len(endpoint) > ENDPOINT_MAX or not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        raise InvalidArgument(
            f"endpoint must be at most {ENDPOINT_MAX} printable ASCII characters", argument="endpoint"
        )


class Webhooks:
    """All webhooks of a shard. `version` grows with every change, and `on_change` is told, for whoever calls them."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._tenants: dict[str, dict[str, Webhook]] = {}
        self.version = 0
        self.on_change: Callable[[], None] | None = None

    def _changed(self) -> None:
        self.version += 1
        if self.on_change is not None:
            self.on_change()

    def of(self, tenant: str) -> Mapping[str, Webhook]:
        """The webhooks of a tenant by id."""
        return self._tenants.get(tenant, {})

    def all(self) -> list[tuple[str, Webhook]]:
        return [(tenant, hook) for tenant, hooks in self._tenants.items() for hook in hooks.values()]

    def get(self, tenant: str, id: str) -> Webhook:
        hook = self.of(tenant).get(id)
        if hook is None:
            raise NotFound(f"no webhook {id!r} in tenant {tenant!r}", argument="id")
        return hook

    def put(self, tenant: str, hook: Webhook) -> None:
        """Let this webhook be, in the place of one with the same id."""
        hooks = self._tenants.setdefault(tenant, {})
        if hooks.get(hook.id) == hook:
            return
        if hook.id not in hooks and len(hooks) >= WEBHOOKS_MAX:
            raise LimitExceeded(f"tenant {tenant!r} has its {WEBHOOKS_MAX} webhooks", argument="webhook")
        hooks[hook.id] = hook
        self._changed()
        self._shard.log.change("webhook", tenant, {"webhook": msgspec.to_builtins(hook)})

    def drop(self, tenant: str, id: str) -> None:
        """Forget a webhook, if there is one."""
        if self._tenants.get(tenant, {}).pop(id, None) is not None:
            self._changed()
            self._shard.log.change("drop-webhook", tenant, {"id": id})

    def forget_tenant(self, tenant: str) -> None:
        if self._tenants.pop(tenant, None):
            self._changed()

    def replay(self, row: Mapping[str, Any]) -> None:
        """Make one change again."""
        if row["op"] == "webhook":
            self.put(row["tenant"], msgspec.convert(row["webhook"], Webhook))
        else:
            self.drop(row["tenant"], row["id"])
