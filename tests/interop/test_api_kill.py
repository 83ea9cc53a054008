"""What the native API has answered is there after the death of the process, all of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx

from tests.interop.server import ServerProcess, serving
from tests.wire.api_client import API, claim, ok, publish


def connect(server: ServerProcess) -> httpx.Client:
    headers = {"Authorization": "Bearer admin-key"}
    return httpx.Client(base_url=f"http://127.0.0.1:{server.http}", headers=headers, timeout=30, verify=False)


def change_everything(client: httpx.Client) -> str:
    """One change of each kind; a chunk that waits for its commit."""
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    ok(client.put(f"{API}/policies/p", json={"pattern": "^q", "settings": {"max_attempts": 9}}))
    publish(client, "q", *range(6))
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "q", "key": "a"}), 201)
    one, two, three = claim(client, "q", max=3)
    settle: list[dict[str, Any]] = [{"lease": one["lease"]}, {"lease": two["lease"], "outcome": "reject"}]
    ok(client.post(f"{API}/queues/q/settle", json={"settle": settle}))
    ok(
        client.post(
            f"{API}/transactions",
            json={"publish": [{"queue": "r", "message": "tx"}], "settle": [{"lease": three["lease"]}]},
        )
    )
    ok(client.post(f"{API}/queues/q/cuts", json={"consumer": "c", "max": 2}))
    ok(client.put(f"{API}/streams/s", json={"partitions": 1}), 201)
    ok(client.post(f"{API}/streams/s/publish", json=[{"message": n} for n in range(3)]), 201)
    ok(client.post(f"{API}/streams/s/groups/g/commit", json={"offsets": {"0": 2}}))
    first = ok(client.post(f"{API}/streams/s/stage", json=[{"message": "first"}]), 201)["chunk"]
    waiting: str = ok(client.post(f"{API}/streams/s/stage", json=[{"message": "second"}]), 201)["chunk"]
    ok(client.post(f"{API}/producers/loader/commit", json={"epoch": 4, "chunks": [first]}))
    ok(client.put(f"{API}/tenants/shop", json={"limits": {"queues_max": 7}}), 201)
    rights = {"configure": "", "write": "", "read": ".*"}
    ok(client.put(f"{API}/users/anna", json={"password": "secret", "tenants": {"shop": rights}}), 201)
    return waiting


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    flags = ("--api-key", "admin-key")
    with serving(tmp_path, *flags) as server, connect(server) as client:
        waiting = change_everything(client)
        server.signal(signal.SIGKILL)
        server.wait()
    with serving(tmp_path, *flags) as server, connect(server) as client:
        shown = ok(client.get(f"{API}/queues/q"))
        assert (shown["policy"], shown["settings"]["max_attempts"]) == ("p", 9)
        assert (shown["stats"]["ready"], shown["stats"]["leased"], shown["stats"]["dead"]) == (1, 2, 1)
        cut = ok(client.get(f"{API}/queues/q/cuts/c/1"))
        assert [row["message"] for row in cut["messages"]] == [3, 4]
        assert [row["message"] for row in claim(client, "r")] == ["tx"]
        assert [row["key"] for row in ok(client.get(f"{API}/bindings?source=x"))["bindings"]] == ["a"]
        assert ok(client.get(f"{API}/streams/s/groups/g"))["lag"] == 2
        assert ok(client.get(f"{API}/producers/loader"))["epoch"] == 4
        done = ok(client.post(f"{API}/producers/loader/commit", json={"epoch": 5, "chunks": [waiting]}))
        assert done["rows"] == 1
        rows = ok(client.get(f"{API}/streams/s/records"))["records"]
        assert [row["value"] for row in rows] == [0, 1, 2, "first", "second"]
        assert ok(client.get(f"{API}/tenants/shop/limits"))["limits"]["queues_max"] == 7
        assert list(ok(client.get(f"{API}/users/anna"))["tenants"]) == ["shop"]
