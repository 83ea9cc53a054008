"""docs/limits.md lists every limit as it is, and a new one cannot be forgotten."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import rookery.core
import rookery.webhooks
import rookery.wire
from rookery.core.topology import LIMITS, Limits

SINGLE = (
    "rookery.server.archive",
    "rookery.format.fieldtables",
    "rookery.server.log_writer",
    "rookery.server.logins",
    "rookery.format.properties",
)
SOURCE = Path(rookery.core.__path__[0]).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "limits.md"

NOT_COUNTS = re.compile(
    r"_(MS|SEC|BYTES|CHARS)(_MAX)?$|^(NAME|KEY|ID|DEPTH|PRIORITY|WEIGHT|ENDPOINT|RATE|POWER|_TIME)_"
)
"""Limits on the size of one thing, or on a time, and not on how many things there are."""

ELSEWHERE = {
    "core.access.PASSWORDS_CACHED_MAX": "a cache of the server",
    "core.dedup.KEYS_MAX": "the default of dedup_keys_max",
    "core.events.NOTES_MAX": "events that wait within one second",
    "wire.amqp.channel.LAPSED_MAX": "delivery tags of a channel",
    "core.automata.CHARACTERS_MAX": "a cache of a pattern",
    "core.definitions.ARGUMENTS_DEPTH_MAX": "how deep one thing nests",
    "core.queue_settings.COUNT_MAX": "the largest value of a setting",
    "core.automata.EDGES_MAX": "a cache of a pattern",
    "core.pattern_syntax.CHARS_MAX": "a size",
    "format.properties.BYTES_MAX": "a size",
    "core.automata.WORK_MAX": "follows from STATES_MAX",
    "core.pattern_syntax._COUNT_MAX": "a repeat that stands for no limit",
    "core.patterns._LITERALS_MAX": "how many texts are compared before an automaton is cheaper",
    "format.properties.SOUND_MAX": "a cache of the server",
    "format.properties.TYPES_MAX": "a cache of the server",
    "wire.http.connection.PARTS_MAX": "pieces of one body that are kept apart",
    "wire.http.connection.HEADERS_MAX": "headers of one request",
    "wire.http.auth.LIMITED_MAX": "a cache of the server",
    "wire.http.heads.HEADS_MAX": "a cache of the server",
    "wire.http.routes.REQUEST_ID_MAX": "a size",
    "wire.line.connection.WAYS_MAX": "a cache of a connection",
    "wire.push.socket.ANSWERS_MAX": "answers of a connection that wait",
    "wire.websocket.PARTS_MAX": "parts of one message",
    "webhooks.calls.REDIRECTS_MAX": "redirects of one call",
    "webhooks.dispatcher.CALLS_MAX": "the default of ROOKERY_WEBHOOK_CALLS_MAX",
    "webhooks.dispatcher.FAILURES_MAX": "failures in a row of one webhook",
    "wire.http.answers.HEADERS_MAX": "headers of one answer",
    "webhooks.dispatcher.LOG_MAX": "calls of a webhook that are shown",
}
"""What is no collection of a tenant, and why."""


def constants() -> dict[str, int]:
    """Every `…_MAX…` of the core and the faces, by module and name, where it is defined."""
    found: dict[str, int] = {}
    packages = (rookery.core, rookery.wire, rookery.webhooks)
    names = [
        each.name
        for package in packages
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not each.ispkg
    ]
    for name in [*names, *SINGLE]:
        text = (SOURCE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        for constant in re.findall(r"^(_?[A-Z][A-Z_]*_MAX[A-Z_]*): Final", text, re.MULTILINE):
            value = getattr(importlib.import_module(name), constant)
            found[f"{name.removeprefix('rookery.')}.{constant}"] = int(value)
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_of_a_tenant_has_a_row(name: str) -> None:
    assert f"| `{name}` | {Limits().as_dict()[name]} |" in PAGE.read_text(encoding="utf-8")


def test_every_fixed_limit_has_a_row_or_a_reason_for_none() -> None:
    page = PAGE.read_text(encoding="utf-8")
    known = constants()
    assert len(known) > 50
    for name, value in known.items():
        if (name in ELSEWHERE or NOT_COUNTS.search(name.rpartition(".")[2])) and f"`{name}`" not in page:
            continue
        assert f"| `{name}` | {value} |" in page, f"docs/limits.md lacks a row for {name} = {value}"


def test_no_row_is_of_a_limit_that_is_gone() -> None:
    rows = re.findall(r"^\| `([a-z_.]+\.[A-Z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) <= set(constants())
    assert set(ELSEWHERE) <= set(constants())
