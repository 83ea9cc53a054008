"""The command line as a person meets it: on a terminal, in a shell; and as a script does: in pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.cli_world import KEY, Cli, until
from tests.interop.server import ServerProcess, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def cli(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(f"http://127.0.0.1:{server.http}", tmp_path)


def test_tables_have_colours_on_a_terminal_only(cli: Cli) -> None:
    cli.call("publish", "painted", "1")
    with cli.terminal("queues", "list") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[" in terminal.raw
        assert "painted" in terminal.text
        assert "─" in terminal.text
    piped = cli.pipe("queues", "list")
    assert b"\x1b" not in piped.stdout
    assert piped.stdout.isascii()
    with cli.terminal("queues", "list", "--json") as terminal:
        assert terminal.wait() == 0
        assert "painted" in [row["name"] for row in json.loads(terminal.text)]


def test_a_message_does_not_command_the_terminal(cli: Cli) -> None:
    cli.call("publish", "evil", "\x1b]0;owned\x07\x1b[2Jhello")
    with cli.terminal("peek", "evil") as terminal:
        assert terminal.wait() == 0
        assert "]0;owned" in terminal.text
        assert "\x07" not in terminal.raw
        assert "\x1b[2J" not in terminal.raw


def test_what_destroys_asks_first(cli: Cli) -> None:
    cli.call("publish", "dear", "1")
    with cli.terminal("queues", "delete", "dear") as terminal:
        terminal.until("Delete queue dear with everything in it? [y/N]")
        terminal.type("n\n")
        assert terminal.wait() == 1
        assert "nothing was done" in terminal.text
    assert cli.json("queues", "show", "dear")["stats"]["ready"] == 1
    with cli.terminal("queues", "delete", "dear") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.wait() == 0
    cli.refused(3, "queues", "show", "dear")


def test_a_password_is_asked_for_and_not_shown(cli: Cli) -> None:
    with cli.terminal("users", "set", "anna", "--admin") as terminal:
        terminal.until("Password")
        terminal.until_hidden()
        terminal.type("correct horse\n")
        terminal.until("Repeat")
        terminal.until_hidden()
        terminal.type("correct horse\n")
        assert terminal.wait() == 0
        assert "horse" not in terminal.text
    assert cli.json("users", "show", "anna")["admin"] is True


def test_stats_are_live_on_a_terminal(cli: Cli) -> None:
    cli.call("publish", "watched", "1")
    with cli.terminal("stats", "--prefix", "watched", "--interval", "100ms") as terminal:
        terminal.until("published/s")
        terminal.until("watched")
        cli.call("publish", "watched-too", "1")
        terminal.until("watched-too")
        terminal.type("\x03")
        assert terminal.wait() == 130


def test_export_and_import_show_progress_to_a_person_only(cli: Cli) -> None:
    cli.call("publish", "progress", input="1\n2\n")
    with cli.terminal("export", "some.jsonl", "--queue", "progress") as terminal:
        assert terminal.wait() == 0
        assert "exporting" in terminal.text
        assert "2 messages and 0 records written to some.jsonl" in terminal.text
    with cli.terminal("import", "some.jsonl") as terminal:
        assert terminal.wait() == 0
        assert "importing" in terminal.text
        assert "2 messages and 0 records imported" in terminal.text
    assert cli.json("queues", "show", "progress")["stats"]["ready"] == 4


def test_lines_are_published_as_they_are_typed(cli: Cli) -> None:
    with cli.terminal("publish", "typed") as terminal:
        terminal.type("first\n")
        until(lambda: [row for row in cli.json("queues", "list", "--prefix", "typed") if row["stats"]["ready"] == 1])
        terminal.type("second\n")
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert "2 messages published" in terminal.text
    assert [row["message"] for row in cli.lines("claim", "typed", "--max", "2")] == ["first", "second"]


def test_a_subscriber_goes_on_when_its_broker_is_back(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", KEY) as first:
        port = str(first.http)
        cli = Cli(f"http://127.0.0.1:{port}", tmp_path)
        cli.call("publish", "mail", "1")
        with cli.terminal("subscribe", "mail", "--body", "--max", "2") as terminal:
            terminal.until("1\r\n")
            until(lambda: cli.json("queues", "show", "mail")["stats"]["acked"])
            first.signal(signal.SIGKILL)
            first.wait()
            terminal.until("waiting for it")
            with serving(tmp_path, "--api-key", KEY, "--http-port", port):
                cli.call("publish", "mail", "2")
                terminal.until("the broker is back")
                assert terminal.wait() == 0
                assert "2\r\n" in terminal.text


def test_ctrl_c_ends_a_subscriber_quietly(cli: Cli) -> None:
    with cli.terminal("subscribe", "quiet") as terminal:
        until(lambda: cli.json("queues", "list", "--prefix", "quiet"))
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text


def test_a_reader_that_has_enough_ends_the_pipe(cli: Cli, need_program: Callable[[str], str]) -> None:
    cli.pipe("publish", "many", input=b"x\n" * 5_000)
    script = f"{sys.executable} -m rookery peek many --max 1000 --json | head -1; echo ${{PIPESTATUS[1]}}"
    ran = subprocess.run(
        [need_program("bash"), "-c", script], env=cli.environ, capture_output=True, text=True, timeout=60, check=False
    )
    first, code = ran.stdout.splitlines()
    assert json.loads(first)["message"] == "x"
    assert (code, ran.stderr) == ("0", "")


# Completion


def completed(cli: Cli, words: str) -> list[str]:
    environ = {**cli.environ, "_ROOKERY_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environ["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    ran = subprocess.run(
        [sys.executable, "-m", "rookery"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stdout.split()


def test_completion_of_commands_options_and_names(cli: Cli) -> None:
    cli.call("queues", "create", "long-name-of-a-queue")
    assert completed(cli, "rookery dead") == ["dead-letters"]
    assert completed(cli, "rookery queues show --ur") == ["--url"]
    assert completed(cli, "rookery queues show long-na") == ["long-name-of-a-queue"]
    cli.environ["ROOKERY_URL"] = "http://127.0.0.1:9"
    assert completed(cli, "rookery queues show long-na") == []


def test_completion_works_in_bash(cli: Cli, need_program: Callable[[str], str]) -> None:
    folder = cli.folder / "bin"
    folder.mkdir()
    program = folder / "rookery"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rookery "$@"\n')
    program.chmod(0o755)
    environ = {**cli.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    shown = {**environ, "_ROOKERY_COMPLETE": "source_bash"}
    script = subprocess.run([str(program)], env=shown, capture_output=True, text=True, timeout=60, check=True).stdout
    asking = "COMP_WORDS=(rookery dead-letters re); COMP_CWORD=2; _rookery_completion rookery; echo ${COMPREPLY[@]}"
    asking = f"{script}\n{asking}"
    ran = subprocess.run(
        [need_program("bash"), "-c", asking], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == ["redrive"]


# The tour


def test_the_tour_needs_no_server_and_leaves_nothing(tmp_path: Path) -> None:
    cli = Cli("http://127.0.0.1:9", tmp_path)
    ran = cli.pipe("tour", "--no-pause")
    assert (ran.returncode, ran.stderr) == (0, b"")
    text = ran.stdout.decode()
    for line in (
        "claimed {'task': 'resize', 'image': 7} attempt 1",
        "dead: {'task': 'resize', 'image': 'broken'} delivery_limit",
        "['a password reset', 'a newsletter', 'a receipt']",
        "audit got 2",
        "from offset 2:  ['/signup']",
        "after a restart: {'total': 12}",
    ):
        assert line in text.splitlines()
    assert list(tmp_path.iterdir()) == []
    steps = cli.json("tour")
    assert len(steps) == 6
    assert steps[3]["output"] == ["billing got 1", "audit got 2"]


def test_the_tour_waits_for_its_reader(tmp_path: Path) -> None:
    with Cli("http://127.0.0.1:9", tmp_path).terminal("tour") as terminal:
        terminal.until("1 of 6")
        terminal.until("Enter goes on")
        assert "2 of 6" not in terminal.text
        terminal.type("\n")
        terminal.until("2 of 6")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.text


# Build and run


WITHOUT_UNIX = textwrap.dedent("""
    import asyncio, importlib.abc, os, signal, sys

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name in {"resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog", "uvloop"}:
                raise ImportError(f"there is no {name} here")

    sys.meta_path.insert(0, Missing())
    del os.fchmod, os.register_at_fork, signal.SIGHUP

    def refused(*args):
        raise NotImplementedError

    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = refused
    from rookery.cli import main
    sys.argv = ["rookery", *sys.argv[1:]]
    main()
""")


@pytest.mark.row("S3-15")
def test_one_command_starts_it_where_unix_calls_are_missing(tmp_path: Path) -> None:
    """As on Windows: no resource limits, no signal handlers of the loop, no uvloop, no fchmod, no SIGHUP."""
    program = tmp_path / "run.py"
    program.write_text(WITHOUT_UNIX)
    cli = Cli("", tmp_path)
    del cli.environ["ROOKERY_URL"], cli.environ["ROOKERY_API_KEY"]
    ports = [word for face in ("http", "amqp", "line") for word in (f"--{face}-port", "0")]
    command = [sys.executable, str(program), "serve", "--host", "127.0.0.1", *ports]
    process = subprocess.Popen(command, cwd=tmp_path, env=cli.environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = next(line for line in map(json.loads, process.stderr) if line["event"] == "listening")
        cli.environ["APP_PORT"] = said["http"].rpartition(":")[2]
        sent = subprocess.run(
            [sys.executable, str(program), "publish", "jobs", "hello"],
            cwd=tmp_path,
            env=cli.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # the key is that of the file which a server without a terminal leaves beside its data
        assert sent.returncode == 0, sent.stderr
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.row("S4-31")
def test_the_log_is_also_in_a_file(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-dir", "logs") as server:
        path = tmp_path / "logs" / "raven-mq.log"
        assert json.loads(path.read_text().splitlines()[-1])["event"] == "listening"
        path.rename(tmp_path / "logs" / "old.log")
        server.signal(signal.SIGHUP)
        until(path.exists)
        assert server.stop() == 0
        assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-2:] == ["stopping", "stopped"]
    refused = Cli("", tmp_path).pipe("serve", "--log-dir", "/dev/null/logs")
    assert refused.returncode == 1
    assert b"raven-mq.log cannot be written: Not a directory" in refused.stderr


def test_lines_are_published_once_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", KEY) as first:
        port = str(first.http)
        cli = Cli(f"http://127.0.0.1:{port}", tmp_path)
        with cli.terminal("publish", "steady") as terminal:
            terminal.type("1\n")
            until(lambda: [row for row in cli.json("queues", "list") if row["stats"]["ready"] == 1])
            first.signal(signal.SIGKILL)
            first.wait()
            terminal.type("2\n")
            terminal.until("2\r\n")
            with serving(tmp_path, "--api-key", KEY, "--http-port", port):
                terminal.type("3\n\x04")
                assert terminal.wait() == 0, terminal.text
                assert "3 messages published" in terminal.text
                assert [row["message"] for row in cli.lines("claim", "steady", "--max", "9")] == [1, 2, 3]
