"""All routes of the native API."""

from __future__ import annotations

from rookery.wire import (
    api_admin,
    api_consumers,
    api_cuts,
    api_groups,
    api_letters,
    api_messages,
    api_plans,
    api_queues,
    api_receipts,
    api_records,
    api_replay,
    api_staging,
    api_streams,
    api_transactions,
)
from rookery.wire.api import Api
from rookery.wire.http_routes import Router


def add_routes(router: Router, api: Api) -> None:
    api_queues.add_routes(router, api)
    messages = api_messages.add_routes(router, api)
    api_letters.add_routes(router, api, messages)
    api_transactions.add_routes(router, api, messages)
    api_receipts.add_routes(router, api)
    api_replay.add_routes(router, api, messages)
    streams = api_streams.add_routes(router, api)
    api_records.add_routes(router, api)
    api_groups.add_routes(router, api, streams)
    api_plans.add_routes(router, api)
    api_staging.add_routes(router, api)
    api_cuts.add_routes(router, api, messages)
    api_admin.add_routes(router, api)
    api_consumers.add_routes(router, api)
