"""schemathesis asks every route of the OpenAPI document for what it allows and for what it does not.

It checks each answer: no 500, a status, content type, headers and content as the document says, nothing accepted that
it forbids, nothing done without a credential. What is allowed may still be refused, since no schema says that a queue
cannot be moved into itself: then the answer names the argument.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.wire.http_world import ADMIN, World, world

WITHOUT_END = ("/stream", "/consume")
"""Answers that go on for as long as the reader likes."""

WAIT_MAX_SEC = 0.01
EXAMPLES = 30 if os.environ.get("ROOKERY_LONG") else 2
AUTH = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # schemathesis shows wrong credentials, many times
    with world(
        tmp_path_factory.mktemp("schema"), login_failures_max="1000000", claim_wait_sec=str(WAIT_MAX_SEC)
    ) as made:
        yield made


def hurried(value: Any) -> Any:
    """A body that waits for nothing long. Whole numbers are written as such: JSON Schema takes 1.0 for one, too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [hurried(each) for each in value]
    if isinstance(value, dict):
        short = {name: 1 for name in ("wait_ms",) if isinstance(value.get(name), int | float) and value[name] > 1}
        return {name: hurried(each) for name, each in {**value, **short}.items()}
    return value


def test_every_route_does_what_the_document_says(web: World) -> None:
    schema = schemathesis.openapi.from_dict(web.client.get("/openapi.json").json())

    @schema.hook
    def map_body(_: Any, body: Any) -> Any:
        return hurried(body)

    @schema.hook
    def map_query(_: Any, query: Any) -> Any:
        if query and isinstance(query.get("wait"), int | float) and query["wait"] > WAIT_MAX_SEC:
            query["wait"] = WAIT_MAX_SEC
        return query

    asked = 0
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if not operation.path.endswith(WITHOUT_END):
                asked += 1
                _ask(operation, web.base, session)
    assert asked > 100
    assert not web.lines("defect")


def _ask(operation: Any, base: str, session: requests.Session) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        answer = case.call(base_url=base, session=session, headers=AUTH)
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
        if answer.status_code == 400 and not operation.path.startswith("/api/v1/") and "error" in answer.json():
            return
        if answer.status_code == 400:
            assert answer.json().get("argument") or answer.json()["code"] == "bad_request", answer.text

    ask()
