"""The workflow for n8n: its file is one, and its requests do what it says against a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.examples.n8n import Workflow
from tests.interop.server import serving
from tests.wire.receiver import Receiver

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "n8n" / "rookery.json"
KEY = "supersecretkey"


class N8n:
    def __init__(self, base: str, workflow: Workflow, receiver: Receiver) -> None:
        self.workflow = workflow
        self.receiver = receiver
        self._client = httpx.Client(
            base_url=f"{base}/api/v1", headers={"Authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def n8n(tmp_path: Path, need_program: Callable[[str], str]) -> Iterator[N8n]:
    node = need_program("node")
    receiver = Receiver()
    with serving(tmp_path, "--api-key", KEY) as server:
        base = f"http://127.0.0.1:{server.http}"
        addresses = {"http://localhost:8080": base, "http://localhost:5678/webhook/rookery": receiver.url}
        made = N8n(base, Workflow(FILE, node, addresses, f"Bearer {KEY}"), receiver)
        yield made
        made.close()
    receiver.close()


@pytest.mark.row("S2-41")
def test_the_file_is_a_workflow_that_n8n_can_import() -> None:
    workflow = json.loads(FILE.read_text(encoding="utf-8"))
    names = [node["name"] for node in workflow["nodes"]]
    assert len(set(names)) == len(names)
    assert len({node["id"] for node in workflow["nodes"]}) == len(names)
    for node in workflow["nodes"]:
        assert node["type"].startswith("n8n-nodes-base.")
        assert {"parameters", "typeVersion", "position"} <= node.keys()
    for source, outputs in workflow["connections"].items():
        assert source in names
        for link in (link for branch in outputs["main"] for link in branch):
            assert (link["node"] in names, link["type"]) == (True, "main")


@pytest.mark.row("S2-41")
def test_a_webhook_is_forwarded_to_a_topic_once(n8n: N8n) -> None:
    made = n8n.ask("POST", "/topics/orders/subscriptions", {"mode": "pull", "routing_key": "order.*"})
    order = {"id": 7, "status": "paid", "note": 'a "quote" and ä'}
    called = {"headers": {}, "params": {}, "query": {}, "body": order}
    (sent,) = n8n.workflow.execute("An order comes in", called)
    pull = f"/topics/orders/pull?subscription={made['subscription_id']}"
    found = n8n.ask("POST", pull)
    assert (found["message"], found["routing_key"], found["message_id"]) == (order, "order.paid", sent["message_id"])
    n8n.workflow.execute("An order comes in", {**called, "body": {"id": 8}})
    assert n8n.ask("POST", pull)["routing_key"] == "order.new"
    # a second try of the same execution
    n8n.workflow._executions -= 1
    (again,) = n8n.workflow.execute("An order comes in", {**called, "body": {"id": 8}})
    assert again["duplicate"] is True
    assert n8n.ask("POST", pull)["message"] is None


@pytest.mark.row("S2-41")
def test_jobs_are_pulled_and_acked(n8n: N8n) -> None:
    for job in range(12):
        n8n.ask("POST", "/queues/jobs/publish", {"message": {"job": job}})
    assert len(n8n.workflow.execute("Every minute", {})) == 10
    stats = n8n.ask("GET", "/queues/jobs/stats")
    assert (stats["acked"], stats["ready"], stats["in_flight"]) == (10, 2, 0)
    assert n8n.workflow.execute("Every minute", {}) == [{"status": "ok"}] * 2
    # nothing to do
    assert n8n.workflow.execute("Every minute", {}) == []
    assert n8n.ask("GET", "/queues/jobs/stats")["acked"] == 12


@pytest.mark.row("S2-41", "S2-17")
def test_the_broker_calls_the_workflow(n8n: N8n) -> None:
    (made,) = n8n.workflow.execute("Subscribe", {})
    assert made["endpoint"] == n8n.receiver.url
    n8n.workflow.execute("An order comes in", {"body": {"id": 1}})
    n8n.workflow.execute("An order comes in", {"body": {"id": 2, "status": "paid"}})
    call = n8n.receiver.calls.get(timeout=60)
    item = {"headers": call.headers, "body": json.loads(call.body)}
    (handled,) = n8n.workflow.execute("Rookery calls", item)
    assert handled["body"] == {"id": 2, "status": "paid"}
    assert handled["headers"]["x-rookery-routing-key"] == "order.paid"
    assert n8n.receiver.calls.empty()


def test_the_page_speaks_of_what_is_in_the_file() -> None:
    page = (ROOT / "docs" / "n8n.md").read_text(encoding="utf-8")
    names = {node["name"] for node in json.loads(FILE.read_text(encoding="utf-8"))["nodes"]}
    spoken = set(re.findall(r"\*\*(.+?)\*\*", page))
    assert spoken
    assert spoken <= names
