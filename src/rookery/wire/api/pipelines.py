"""Pipelines on Spark, as their runners have left word of them below a root: how each is doing, and what went wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rookery.lake.pipelines import Place, Status, statuses
from rookery.wire.api.broker import Api
from rookery.wire.api.types import Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router


class PipelineList(msgspec.Struct):
    pipelines: list[Status]


class Pipelines:
    """The routes. Files are read in threads."""

    def __init__(self, api: Api, root: Path) -> None:
        self._api = api
        self._root = root

    def all(self, call: Call) -> object:
        """How all pipelines are doing (admin)."""
        return self._api.later(call, lambda: statuses(self._root), PipelineList)

    def one(self, call: Call, name: Name) -> object:
        """How a pipeline is doing, with its last batch and its last error (admin)."""
        return self._api.later(call, lambda: Place(self._root, name).status(), lambda found: found)


def add_routes(router: Router, api: Api, root: Path) -> None:
    routes = Pipelines(api, root)
    more: dict[str, Any] = {"tag": "pipelines"}
    router.add("GET", "/api/v1/pipelines", routes.all, {200: PipelineList}, "pipeline.show", **more)
    router.add("GET", "/api/v1/pipelines/{name}", routes.one, {200: Status}, "pipeline.show", **more)
