"""The command-line clients of rabbitmq-c (Debian: amqp-tools) against a real server process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.interop.server import ServerProcess

PATIENCE_SEC = 20
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(server: ServerProcess, need_program: Callable[[str], str]) -> Run:
    def amqp(tool: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        where = ("--server=127.0.0.1", f"--port={server.amqp}")
        command = [need_program(f"amqp-{tool}"), *where, *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_SEC, check=False)

    return amqp


@pytest.fixture
def queue(run: Run) -> Iterator[str]:
    """A queue whose name the server chose."""
    name = run("declare-queue", "--queue=").stdout.strip()
    yield name
    assert run("delete-queue", f"--queue={name}").returncode == 0


def test_a_queue_gets_a_name(queue: str) -> None:
    assert queue.startswith("amq.gen-")


def test_publish_and_get(run: Run, queue: str) -> None:
    assert run("publish", f"--routing-key={queue}", "--body=hello").returncode == 0
    got = run("get", f"--queue={queue}")
    assert (got.returncode, got.stdout) == (0, "hello")


def test_get_from_an_empty_queue(run: Run, queue: str) -> None:
    got = run("get", f"--queue={queue}")
    assert (got.returncode, got.stdout) == (2, "")


def test_each_line_is_a_message_and_a_command_gets_each(run: Run, queue: str) -> None:
    numbers = "".join(f"{n}\n" for n in range(20))
    assert run("publish", f"--routing-key={queue}", "--line-buffered", text=numbers).returncode == 0
    got = run("consume", f"--queue={queue}", "--count=20", "--prefetch-count=3", "cat")
    assert (got.returncode, got.stdout.split()) == (0, [str(n) for n in range(20)])


def test_what_a_failed_command_got_is_returned(run: Run, queue: str) -> None:
    run("publish", f"--routing-key={queue}", "--body=work")
    failed = run("consume", f"--queue={queue}", "--count=1", "--", "sh", "-c", "cat; exit 1")
    assert failed.stdout == "work"
    assert run("get", f"--queue={queue}").stdout == "work"


def test_a_body_over_many_frames(run: Run, queue: str) -> None:
    body = "0123456789" * 50_000
    assert run("publish", f"--routing-key={queue}", text=body).returncode == 0
    assert run("get", f"--queue={queue}").stdout == body


def test_deleting_tells_how_many_messages_there_were(run: Run) -> None:
    assert run("declare-queue", "--queue=short-lived", "--durable").stdout.strip() == "short-lived"
    run("publish", "--routing-key=short-lived", "--persistent", "--body=lost")
    assert run("delete-queue", "--queue=short-lived").stdout.strip() == "1"


def test_a_missing_queue(run: Run) -> None:
    missing = run("get", "--queue=nowhere")
    assert missing.returncode == 1
    assert "NOT_FOUND - no queue 'nowhere' in vhost '/'" in missing.stderr


def test_a_wrong_password(run: Run) -> None:
    refused = run("get", "--queue=any", "--username=guest", "--password=wrong")
    assert refused.returncode == 1
    assert "ACCESS_REFUSED" in refused.stderr
