"""Secrets go in by every way there is, rightly and wrongly, and come out by none."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pika
import pika.exceptions
import pytest

import rookery
from tests.interop.server import ServerProcess, serving
from tests.wire.receiver import receiving

FIXED = "Kq-the-fixed-key-of-this-test-81"
SIGNING = "Zt-the-secret-that-tokens-are-signed-with-42"
PASSWORD = "Pw-of-ada-that-nobody-shall-see-17"
WRONG = "Wr-a-password-that-was-typed-wrong-93"
HOOK_SECRET = "Hk-secret-of-the-webhook-in-this-test-55"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Drive:
    """One server, everything that is shown to it, and everything that it answers."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.answers: list[str] = []
        self.base = f"http://127.0.0.1:{server.http}"

    def http(self, method: str, path: str, credential: str = "", **more: Any) -> httpx.Response:
        headers = {"Authorization": credential} if credential else {}
        with httpx.Client(base_url=self.base, trust_env=False, timeout=30) as client:
            answer = client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)
        self.answers.append(f"{answer.headers} {answer.text}")
        return answer

    def amqp(self, user: str, password: str) -> None:
        credentials = pika.PlainCredentials(user, password)
        parameters = pika.ConnectionParameters("127.0.0.1", self.server.amqp, credentials=credentials)
        try:
            pika.BlockingConnection(parameters).close()
        except pika.exceptions.AMQPError as error:
            self.answers.append(repr(error))

    def line(self, text: str) -> None:
        with socket.create_connection(("127.0.0.1", self.server.line), 30) as peer:
            peer.sendall(text.encode() + b"\nSTATS\n")
            self.answers.append(peer.makefile().readline())


def show_everything(drive: Drive, endpoint: str) -> set[str]:
    """Show secrets on every face, in good requests and bad ones; gives those that came into being."""
    admin = f"Bearer {FIXED}"
    made = drive.http("POST", "/keys", admin, json={"tenant": "shop"}).json()["api_key"]
    gone = drive.http("POST", "/keys", admin, json={"tenant": "shop"}).json()["api_key"]
    drive.answers.clear()  # whoever makes a key is shown it, once
    kid, secret = made.split(".")
    drive.http("DELETE", f"/keys/{gone.partition('.')[0]}", admin)
    user = {"password": PASSWORD, "tenants": {"default": {"configure": ".*", "write": ".*", "read": ".*"}}}
    assert drive.http("PUT", "/api/v1/users/ada", admin, json=user).status_code < 300
    token = jwt.encode({"sub": "ada", "tenant": "default"}, SIGNING, "HS256")
    forged = jwt.encode({"sub": "ada", "tenant": "default"}, WRONG, "HS256")
    hook = {"endpoint": endpoint, "secret": HOOK_SECRET}
    drive.http("POST", "/api/v1/queues/q/webhooks", admin, json=hook)
    drive.answers.clear()  # as above
    drive.http("POST", "/api/v1/queues/q/publish", admin, json={"message": 1})
    drive.http("GET", "/api/v1/webhooks", admin)
    shown = [made, gone, FIXED, token, forged, WRONG]
    for text in shown:
        for scheme in ("Bearer", "ApiKey", "bearer", "Token", ""):
            drive.http("GET", "/api/v1/stats", f"{scheme} {text}".strip())
    pairs = [(kid, secret), (kid, WRONG), ("ada", PASSWORD), ("ada", WRONG), ("API_KEY", FIXED), ("API_KEY", WRONG)]
    # a secret where the name should be
    pairs += [(text, "") for text in (made, FIXED, PASSWORD, WRONG)] + [(PASSWORD, "ada"), (secret, kid)]
    for name, password in pairs:
        drive.http("GET", "/api/v1/stats", basic(name, password))
        drive.amqp(name, password)
        drive.line(f"AUTH {name} {password}".strip())
    for text in (made, FIXED, token):
        drive.http("GET", f"/api/v1/stats?token={text}&api_key={text}")
        drive.http("GET", f"/api/v1/queues/q/stats?x={text}", admin)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": f"rookery.bearer.{text}"}
        with socket.create_connection(("127.0.0.1", drive.server.http), 30) as peer:
            lines = ["GET /api/v1/nowhere HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in upgrade.items())]
            peer.sendall("\r\n".join([*lines, "", ""]).encode())
            drive.answers.append(peer.recv(65_536).decode("latin-1"))
        drive.line(f"AUTH {text}")
        drive.line(text)
    drive.http("POST", "/api/v1/queues/q/publish", admin, content=b'{"message": ')
    drive.http("PUT", "/api/v1/users/bob", admin, json={"password": WRONG, "rights": 7})
    return {secret, gone.partition(".")[2], FIXED, SIGNING, PASSWORD, WRONG, token, forged, HOOK_SECRET}


def in_paths(drive: Drive, secrets: set[str]) -> None:
    """Whoever puts a secret into a path is told the path; the log must not keep it."""
    admin = f"Bearer {FIXED}"
    for text in secrets & {FIXED, SIGNING}:
        drive.http("GET", f"/api/v1/queues/{text}/stats")
        drive.http("DELETE", f"/keys/{text}", admin)
        drive.http("GET", f"/nowhere/{text}")


def doctor(folder: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROOKERY_")}
    environ |= {"PYTHONPATH": str(Path(rookery.__file__).parents[1]), "API_KEY": FIXED, "JWT_SECRET": SIGNING}
    command = [sys.executable, "-m", "rookery", "doctor", *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ["--log-level", "debug", "--api-key", FIXED, "--auth-mode", "bearer", "--jwt-secret", SIGNING]
    flags += ["--login-failures-max", "0", "--log-dir", str(tmp_path / "logs"), "--data-dir", str(tmp_path / "data")]
    with serving(tmp_path, *flags) as server:
        yield server


def test_no_secret_comes_out(running: ServerProcess, tmp_path: Path) -> None:
    drive = Drive(running)
    with receiving() as receiver:
        secrets = show_everything(drive, receiver.url)
        receiver.next()
    drive.http("GET", "/metrics", f"Bearer {FIXED}")
    drive.http("GET", "/metrics")
    for text in drive.answers:
        assert not [secret for secret in secrets if secret in text], text
    in_paths(drive, secrets)
    running.secrets |= secrets
    assert running.stop() == 0  # looks through everything that was logged
    logged = (tmp_path / "logs" / "raven-mq.log").read_text()
    assert len(logged.splitlines()) > 50
    assert '"event":"login_failed"' in logged
    # what must be known to sign calls is kept as it is; of everything else there is a digest at most
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert not [secret for secret in secrets - {HOOK_SECRET} if secret.encode() in kept]
    told = doctor(tmp_path, "--json") + doctor(tmp_path) + doctor(tmp_path, str(tmp_path / "data"))
    assert not [secret for secret in secrets if secret in told]


def test_the_check_would_notice(running: ServerProcess) -> None:
    running.secrets.add("listening")
    with pytest.raises(AssertionError, match="a secret is in the log"):
        running.stop()
    running.secrets.clear()
    running.output.append("AbCdEfGhI-_.0123456789abcdefghijKL\n")
    with pytest.raises(AssertionError, match="looks like a key"):
        running.check_secrets()
