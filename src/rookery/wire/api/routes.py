"""All routes of the native API."""

from __future__ import annotations

from rookery.wire.api import (
    bindings,
    connections,
    consumers,
    cuts,
    dead_letters,
    definitions,
    exchanges,
    groups,
    health,
    kept,
    messages,
    plans,
    policies,
    queues,
    receipts,
    records,
    staging,
    streams,
    tenants,
    transactions,
    users,
)
from rookery.wire.api.broker import Api
from rookery.wire.api.handling import Handling
from rookery.wire.http.routes import Router


def add_routes(router: Router, api: Api) -> None:
    handling = Handling(api)
    health.add_routes(router, api)
    queues.add_routes(router, api, handling)
    exchanges.add_routes(router, api)
    bindings.add_routes(router, api)
    policies.add_routes(router, api)
    messages.add_routes(router, api, handling)
    dead_letters.add_routes(router, api, handling)
    transactions.add_routes(router, api, handling)
    receipts.add_routes(router, api)
    kept.add_routes(router, api, handling)
    stream_routes = streams.add_routes(router, api)
    records.add_routes(router, api)
    groups.add_routes(router, api, stream_routes)
    plans.add_routes(router, api)
    staging.add_routes(router, api)
    cuts.add_routes(router, api, handling)
    tenants.add_routes(router, api)
    users.add_routes(router, api)
    definitions.add_routes(router, api)
    connections.add_routes(router, api)
    consumers.add_routes(router, api)
