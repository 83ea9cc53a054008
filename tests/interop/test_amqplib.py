"""amqplib, the AMQP client of Node, against a real server process. Its programs are in one file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.server import ServerProcess

CLIENT = Path(__file__).with_name("amqplib_client.js")
PATIENCE_SEC = 30

Scenario = Callable[[str], Any]


@pytest.fixture
def run(server: ServerProcess, amqplib: Path, need_program: Callable[[str], str]) -> Scenario:
    def scenario(name: str) -> Any:
        url = f"amqp://guest:guest@127.0.0.1:{server.amqp}/"
        done = subprocess.run(
            [need_program("node"), str(CLIENT), url, name],
            env=os.environ | {"NODE_PATH": str(amqplib)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SEC,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return scenario


def test_publish_consume_and_ack(run: Scenario) -> None:
    seen = run("publish_and_consume")
    assert seen["bodies"] == [str(number) for number in range(100)]
    assert seen["last"] == {"n": 99, "half": 49.5, "list": [99]}
    assert seen["messageCount"] == 0


def test_confirms(run: Scenario) -> None:
    assert run("confirms") == ["ack", "ack", "ack", "nack", "nack"]


def test_an_unroutable_message_comes_back(run: Scenario) -> None:
    assert run("returns") == [312, "NO_ROUTE", "lost"]


def test_dead_letters(run: Scenario) -> None:
    assert run("dead_letters") == [["expired", "expired"], ["refused", "rejected"]]


def test_priorities(run: Scenario) -> None:
    assert run("priorities") == ["9", "5", "1"]


def test_exchanges(run: Scenario) -> None:
    assert run("exchanges") == {"got": ["1", "4"], "left": 0}


def test_a_large_body(run: Scenario) -> None:
    assert run("large_body") is True


def test_what_is_returned_is_redelivered(run: Scenario) -> None:
    assert run("requeue") == [False, True, True]


def test_a_deleted_queue_cancels_its_consumers(run: Scenario) -> None:
    assert run("cancelled") is None


def test_an_error_closes_its_channel_and_no_other(run: Scenario) -> None:
    seen = run("channel_error")
    assert (seen["code"], seen["alive"]) == (404, True)
    assert "NOT_FOUND - no queue 'nowhere' in vhost '/'" in seen["message"]
