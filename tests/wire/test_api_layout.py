"""A URL names the file of its handler: `/api/v1/queues/{name}/…` is `rookery/wire/api/queues.py`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rookery.wire.api
from rookery.wire.http.routes import Route
from tests.wire.http_world import World, world

BELOW = {
    "messages": "messages",
    "cuts": "cuts",
    "groups": "groups",
    "records": "records",
    "webhooks": "webhooks",
    "plan": "plans",
    "redrive": "dead_letters",
    "stage": "staging",
}
"""Segments below another resource that have a file of their own."""

TOGETHER = {"chunks": "staging", "producers": "staging"}
"""Resources that share a file, which has the name of neither."""

COMPAT = {
    "queues/{name}/publish": "s2",
    "queues/{name}/pull": "s2",
    "queues/{name}/ack": "s2",
    "queues/{name}/nack": "s2",
    "queues/{name}/peek": "s2",
    "queues/{name}/stats": "s2",
    "create_key": "s0",
    "claim": "s0",
    "ack": "s0",
    "extend": "s0",
    "dead_letters": "s0",
    "dead_letters/redrive": "s0",
    "publish": "legacy",
    "stats": "legacy",
    "create": "legacy",
    "consume": "legacy",
    "add_publisher": "legacy",
    "add_consumer": "legacy",
}
"""Paths that others documented, below `/api/v1` or at the root, and their modules in `compat`."""

BESIDE = {"openapi.json": "http.openapi", "docs": "http.openapi", "docs/{file}": "http.openapi"}
SHARED = {"bodies", "broker", "handling", "queue_options", "rest", "routes", "shapes", "types"}
"""What modules of resources share; none of them has a route."""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("layout"), log_level="error") as made:
        yield made


def named_by(template: str) -> str:
    """The module below `rookery.wire` that a path names."""
    native = template.startswith("/api/v1/")
    path = template.removeprefix("/api/v1").removeprefix("/")
    if path in BESIDE:
        return BESIDE[path]
    if path in COMPAT and native == path.startswith("queues/"):
        return f"api.compat.{COMPAT[path]}"
    first, *others = path.split("/")
    if others[-1:] == ["stream"]:
        return "push.readers"
    return "api." + next((BELOW[each] for each in others if each in BELOW), TOGETHER.get(first, first))


def module_of(route: Route) -> str:
    """The module below `rookery.wire` in which a handler is defined."""
    module: str = getattr(route.handler, "__func__", route.handler).__module__
    return module.removeprefix("rookery.wire.")


def test_a_url_names_the_file_of_its_handler(web: World) -> None:
    routes: list[Route] = web.web.router.routes
    wrong = [
        f"{route.method} {route.template} is in {module_of(route)}, not in {named_by(route.template)}"
        for route in routes
        if module_of(route) != named_by(route.template)
    ]
    assert not wrong, "\n".join(wrong)
    assert len(routes) > 100


def test_every_module_is_a_resource_or_shared(web: World) -> None:
    """A module that no URL names is one that the modules of resources share."""
    folder = Path(rookery.wire.api.__path__[0])
    modules = {each.name for each in pkgutil.iter_modules([str(folder)]) if not each.ispkg}
    named = {module_of(route).removeprefix("api.") for route in web.web.router.routes}
    assert modules - named == SHARED


def test_no_exception_is_left_over(web: World) -> None:
    """What the tables name is there."""
    paths = {route.template.removeprefix("/api/v1").removeprefix("/") for route in web.web.router.routes}
    segments = {segment for path in paths for segment in path.split("/")}
    assert set(COMPAT) | set(BESIDE) <= paths
    assert set(BELOW) | set(TOGETHER) <= segments
