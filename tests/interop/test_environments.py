"""`APP_ENV` at a real server process: what the log looks like, and what is told about an internal error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.interop.server import ServerProcess

KEY = "a-key-that-nobody-guesses-4711"

BROKEN = f"""
from rookery.cli import main
from rookery.server import web

make = web.Web.__init__

def fail(*_):
    raise RuntimeError("broken with {KEY}")

def make_broken(self, *given):
    make(self, *given)
    for route in self.router.routes:
        if route.template == "/api/v1/queues/{{name}}/publish":
            route.handler = fail

web.Web.__init__ = make_broken
main()
"""


class Broken(ServerProcess):
    """A server that cannot publish over HTTP."""

    program = ("-c", BROKEN)


class BrokenInDevelopment(Broken):
    development = True


def publish(server: ServerProcess) -> httpx.Response:
    url = f"http://127.0.0.1:{server.http}/api/v1/queues/q/publish"
    return httpx.post(url, json={"message": 1}, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False)


@pytest.mark.row("S2-30")
@pytest.mark.parametrize("flags", [(), ("--env", "production")])
def test_production_logs_json_and_says_little(tmp_path: Path, flags: tuple[str, ...]) -> None:
    server = Broken(tmp_path, "--api-key", KEY, "--store-backend", "memory", *flags)
    answer = publish(server)
    assert answer.status_code == 500
    assert answer.json() == {
        "code": "error",
        "message": "the server met a defect of its own; the log has it under this request id",
        "request_id": answer.headers["X-Request-ID"],
    }
    assert server.stop() == 0
    assert [line["event"] for line in server.log if line["level"] == "error"] == ["defect", "request"]
    assert all(json.loads(line)["timestamp"] for line in server.output)


@pytest.mark.row("S2-30")
def test_development_logs_for_people_and_shows_what_went_wrong(tmp_path: Path) -> None:
    server = BrokenInDevelopment(tmp_path, "--api-key", KEY, "--store-backend", "memory", "--env", "development")
    answer = publish(server)
    assert answer.status_code == 500
    told = answer.json()
    assert told["message"].endswith("under this request id: RuntimeError: broken with ***")
    assert told["detail"].startswith("Traceback (most recent call last):\n")
    assert told["detail"].endswith("RuntimeError: broken with ***\n")
    assert server.stop() == 0
    # programs find the ports as ever
    assert [line["event"] for line in server.log] == ["listening"]
    (at,) = [at for at, line in enumerate(server.output) if " error    defect " in line]
    assert re.match(r"\d\d:\d\d:\d\d error    defect request_id=\S+ error=RuntimeError$", server.output[at])
    assert server.output[at + 1 : at + 3] == ["    trace:\n", "    Traceback (most recent call last):\n"]
    assert any(re.match(r"\d\d:\d\d:\d\d info     stopped how=\"in order\"$", line) for line in server.output)
