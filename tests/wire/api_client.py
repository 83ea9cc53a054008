"""What tests of the native API share."""

from __future__ import annotations

from typing import Any

import httpx

API = "/api/v1"
LINES = {"Content-Type": "application/x-ndjson"}
ARROW = "application/vnd.apache.arrow.stream"


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, argument: str | None = None) -> str:
    """The code of an error, which has that status and names that argument."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    if argument is not None:
        assert body["argument"] == argument, body
    return str(body["code"])


def claim(client: httpx.Client, queue: str, **more: Any) -> list[Any]:
    found: list[Any] = ok(client.post(f"{API}/queues/{queue}/claim", json={"max": 100, **more}))["deliveries"]
    return found


def publish(client: httpx.Client, queue: str, *values: object) -> list[str]:
    answer = ok(client.post(f"{API}/queues/{queue}/messages", json=[{"message": v} for v in values]), 201)
    assert answer["count"] == len(values)
    return [row["message_id"] for row in answer["messages"]]
