"""HTTP of a server in a process of its own: starting, stopping, restarting, and programs written for its API."""

from __future__ import annotations

import base64
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
import requests

from rookery.config.settings import Settings
from tests.interop.server import ServerProcess, serving

ROOT = Path(__file__).resolve().parents[2]

SNIPPET = """\
import os, requests
BASE = os.getenv("BASE", "http://localhost:8080/api/v1")
HEAD = {"Authorization": f"Bearer {os.getenv('API_KEY', 'supersecretkey')}"}

# Publish
r = requests.post(f"{BASE}/queues/payments/publish", json={
    "message": {"order_id": 42, "amount": 999},
    "idempotency_key": "ord-42"
}, headers=HEAD)
print(r.json())

# Pull
r = requests.post(f"{BASE}/queues/payments/pull", headers=HEAD)
msg = r.json()
# ... process ...
requests.post(f"{BASE}/queues/payments/ack", json={"delivery_tag": msg["delivery_tag"]}, headers=HEAD)
"""
"""The program that users of the documented API are shown, as it stands there."""


def url(server: ServerProcess, path: str) -> str:
    return f"http://127.0.0.1:{server.http}{path}"


def create_key(server: ServerProcess, tenant: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    key = requests.get(url(server, f"/create_key?tenant={tenant}"), headers=headers, timeout=30).json()["api_key"]
    return {"Authorization": f"ApiKey {key}"}


@pytest.mark.row("S0-12", "S0-6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_lets_requests_finish(tmp_path: Path, number: int) -> None:
    with serving(tmp_path, "--store-backend", "memory") as server:
        headers = create_key(server, "t")
        idle = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        got: list[tuple[int, float]] = []

        def claim() -> None:
            began = time.monotonic()
            answer = requests.get(url(server, "/claim?queue=q"), headers=headers, timeout=30)
            got.append((answer.status_code, time.monotonic() - began))

        waiting = threading.Thread(target=claim)
        waiting.start()
        while requests.get(url(server, "/metrics"), timeout=30).text.count("rookery_queues 1") == 0:
            pass
        server.signal(number)
        server.until("stopping")
        # an idle connection is closed, and no new one is taken
        assert idle.sock.recv(1) == b""
        idle.close()
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.http), 5) as late:
            assert late.recv(1) == b""
            raise OSError
        waiting.join(30)
        ((status, took),) = got
        assert status == 404
        assert took >= 4.9
        assert server.wait() == 0


@pytest.mark.row("S0-9")
def test_keys_survive_a_restart_and_their_secrets_are_not_on_disk(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        headers = create_key(server, "t")
        sent = requests.post(url(server, "/publish?queue=q"), data="kept", headers=headers, timeout=30)
        assert sent.status_code == 200
        server.process.kill()
        server.wait()
    secret = headers["Authorization"].partition(".")[2]
    forms = [secret.encode(), base64.urlsafe_b64decode(secret + "=="), base64.b64encode(secret.encode())]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"kept" in path.read_bytes() for path in files)
    for path in files:
        data = path.read_bytes()
        assert not any(form in data for form in forms), path
    with serving(tmp_path) as server:
        claimed = requests.get(url(server, "/claim?queue=q"), headers=headers, timeout=30)
        assert claimed.json() == {"message_id": sent.json()["message_id"], "payload": "kept"}
        params = {"queue": "q", "message_id": claimed.json()["message_id"]}
        assert requests.post(url(server, "/ack"), params=params, headers=headers, timeout=30).status_code == 200
        other = create_key(server, "t", headers)
        assert requests.delete(url(server, f"/keys/{_kid(headers)}"), headers=headers, timeout=30).status_code == 200
        server.process.kill()
        server.wait()
    with serving(tmp_path) as server:
        # an answered ack and an answered revocation survive the death of the process
        assert requests.get(url(server, "/stats?queue=q"), headers=headers, timeout=30).status_code == 401
        stats = requests.get(url(server, "/stats?queue=q"), headers=other, timeout=30).json()
        assert stats == {"Pending": 0, "InFlight": 0, "DeadLetter": 0}


def _kid(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("ApiKey ").partition(".")[0]


@pytest.mark.row("S2-42", "S2-7")
def test_an_idempotency_key_survives_a_kill(tmp_path: Path) -> None:
    body = {"message": 1, "idempotency_key": "abc-42"}
    headers = {"Authorization": "Bearer supersecretkey"}
    path = "/api/v1/queues/payments"
    with serving(tmp_path, "--api-key", "supersecretkey") as server:
        first = requests.post(url(server, f"{path}/publish"), json=body, headers=headers, timeout=30)
        tag = {"delivery_tag": "", "idempotency_key": "done"}
        tag["delivery_tag"] = requests.post(url(server, f"{path}/pull"), headers=headers, timeout=30).json()[
            "delivery_tag"
        ]
        assert requests.post(url(server, f"{path}/ack"), json=tag, headers=headers, timeout=30).status_code == 200
        server.process.kill()
        server.wait()
    with serving(tmp_path, "--api-key", "supersecretkey") as server:
        second = requests.post(url(server, f"{path}/publish"), json=body, headers=headers, timeout=30)
        assert second.json() == {"message_id": first.json()["message_id"], "duplicate": True}
        again = requests.post(url(server, f"{path}/ack"), json=tag, headers=headers, timeout=30)
        assert again.json() == {"status": "ok", "duplicate": True}
        assert requests.get(url(server, f"{path}/stats"), headers=headers, timeout=30).json()["ready"] == 0


@pytest.mark.row("S2-40")
def test_the_documented_program_runs_as_it_stands(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", "supersecretkey") as server:
        environment = {**os.environ, "BASE": url(server, "/api/v1")}
        environment.pop("API_KEY", None)
        run = subprocess.run(
            [sys.executable, "-c", SNIPPET], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert re.fullmatch(r"\{'message_id': '[0-9a-f-]{36}'\}\n", run.stdout)
        headers = {"Authorization": "Bearer supersecretkey"}
        stats = requests.get(url(server, "/api/v1/queues/payments/stats"), headers=headers, timeout=30).json()
        assert (stats["acked"], stats["ready"], stats["in_flight"]) == (1, 0, 0)


@pytest.mark.row("S2-39", "S2-37", "S2-30", "S2-31")
def test_a_copied_env_file_and_one_command_start_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = (ROOT / ".env.example").read_text()
    for line in (
        "APP_PORT=8080",
        "APP_ENV=production",
        "AUTH_MODE=apikey",
        "API_KEY=",
        "MAX_RETRIES=5",
        "DLQ_SUFFIX=.DLQ",
    ):
        assert line in example
    (tmp_path / ".env").write_text(example + "\nAPP_PORT=1\nAPI_KEY=from-the-file\n")
    # flags win over the environment, and the environment over the file
    monkeypatch.setenv("API_KEY", "from-the-environment")
    with serving(tmp_path) as server:
        for key, status in (("from-the-environment", 200), ("from-the-file", 401)):
            answer = requests.get(url(server, "/api/v1/stats"), headers={"Authorization": f"Bearer {key}"}, timeout=30)
            assert answer.status_code == status
        assert server.stop() == 0
    monkeypatch.delenv("API_KEY")
    with serving(tmp_path) as server:
        headers = {"Authorization": "Bearer from-the-file"}
        assert requests.get(url(server, "/api/v1/stats"), headers=headers, timeout=30).status_code == 200


@pytest.mark.row("S0-13", "S0-34", "S2-30", "S2-33", "S2-49")
def test_the_defaults_of_the_documented_servers(tmp_path: Path) -> None:
    settings = Settings.load({}, {}, tmp_path)
    assert (settings.ports["http"], settings.host, settings.env) == (8080, "0.0.0.0", "production")
    assert (settings.visibility_timeout_sec, settings.max_retries) == (30, 5)
    assert (settings.backoff_strategy, settings.backoff_base_ms, settings.dlq_suffix) == ("exponential", 500, ".DLQ")
    assert Settings.load({}, {"APP_PORT": "9090"}, tmp_path).ports["http"] == 9090
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert metadata["project"]["requires-python"] == ">=3.11"


@pytest.mark.row("S2-29", "S4-31")
def test_every_line_of_the_log_is_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-level", "debug", "--api-key", "supersecretkey") as server:
        headers = {"Authorization": "Bearer supersecretkey", "X-Request-ID": "trace-me"}
        requests.post(url(server, "/api/v1/queues/q/publish"), json={"message": 1}, headers=headers, timeout=30)
        pulled = requests.post(url(server, "/api/v1/queues/q/pull"), headers=headers, timeout=30)
        assert pulled.headers["X-Request-ID"] == "trace-me"
        assert server.stop() == 0
    lines = [line for line in server.log if line["event"] == "request"]
    assert [(line["request_id"], line["status"]) for line in lines] == [("trace-me", 201), ("trace-me", 200)]
    assert lines[1]["delivery_tag"] == pulled.json()["delivery_tag"]
    assert "supersecretkey" not in str(server.log)
