"""What became of messages, over HTTP: the gold tables that the lifecycle pipeline keeps in the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rookery.core.access import Principal
from rookery.errors import AccessRefused
from rookery.lake.insights import GOLD, ROWS_MAX, gold_rows
from rookery.wire.api.broker import Api
from rookery.wire.api.types import Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

Rows = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
Grain = Literal["minute", "hour", "day"]


class InsightTables(msgspec.Struct):
    """The tables by name, and what is in each."""

    tables: dict[str, str]


class Insight(msgspec.Struct):
    table: str
    rows: list[dict[str, Any]]


class Insights:
    """The routes. Tables are read in threads."""

    def __init__(self, api: Api, root: Path) -> None:
        self._api = api
        self._root = root

    def tables(self, call: Call) -> InsightTables:
        """Which tables there are."""
        return InsightTables(dict(GOLD))

    def rows(
        self,
        call: Call,
        table: Name,
        tenant: str | None = None,
        queue: str | None = None,
        grain: Grain | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: Rows = 1_000,
    ) -> object:
        """Rows of a table, the newest first. Who is no admin sees those of his tenant, of queues that he may read."""
        principal: Principal = call.principal
        if not principal.admin:
            if tenant not in (None, principal.tenant):
                raise AccessRefused(f"only an admin sees what is of tenant '{tenant}'")
            tenant = principal.tenant

        def work() -> list[dict[str, Any]]:
            return gold_rows(
                self._root,
                table,
                tenant=tenant,
                queue=queue,
                grain=grain,
                since_ms=since_ms,
                until_ms=until_ms,
                limit=limit,
            )

        def shown(found: list[dict[str, Any]]) -> Insight:
            return Insight(table, [row for row in found if "queue" not in row or principal.may("read", row["queue"])])

        return self._api.later(call, work, shown)


def add_routes(router: Router, api: Api, root: Path) -> None:
    routes = Insights(api, root)
    more: dict[str, Any] = {"tag": "insights"}
    router.add("GET", "/api/v1/insights", routes.tables, {200: InsightTables}, "insights.tables", **more)
    router.add("GET", "/api/v1/insights/{table}", routes.rows, {200: Insight}, "insights.show", **more)
