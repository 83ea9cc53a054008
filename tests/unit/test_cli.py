"""The command line: every setting is a flag, mistakes are told, and nothing is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rookery import __version__, _compiled
from rookery.cli import app
from rookery.config import SETTINGS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_version() -> None:
    assert run("--version").output == f"rookery {__version__}\n"


def test_every_setting_is_a_flag_of_serve() -> None:
    text = " ".join(run("serve", "--help").output.split())
    for setting in SETTINGS:
        assert setting.flag in text
        assert setting.variable in text
    assert "rookery serve --amqp-port 5673" in text


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_setting_that_cannot_be_used_stops_the_start(here: Path, command: str) -> None:
    result = run(command, "--amqp-port", "70000")
    assert result.exit_code == 2
    assert "ROOKERY_AMQP_PORT must be a port" in result.output
    assert "flag --amqp-port" in result.output
    assert run(command, "--no-such-flag").exit_code == 2


def test_an_address_that_cannot_be_had_is_told(here: Path) -> None:
    result = run("serve", "--host", "192.0.2.1", "--amqp-port", "0", "--http-port", "off")
    assert result.exit_code == 1
    assert "cannot listen" in result.output


def test_doctor_shows_settings_and_their_sources(here: Path) -> None:
    (here / ".env").write_text("LOG_LEVEL=debug\nAPI_KEY=very-secret\n")
    result = run("doctor", "--heartbeat-sec", "7")
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.startswith("  ")}
    assert result.exit_code == 0
    assert lines["LOG_LEVEL"].split()[1:] == ["debug", ".env", "line", "1"]
    assert lines["ROOKERY_HEARTBEAT_SEC"].split()[1:] == ["7", "flag", "--heartbeat-sec"]
    assert "very-secret" not in result.output
    for module, is_compiled in _compiled.report().items():
        assert ("compiled" in lines[module].split()) == is_compiled


def test_doctor_finds_a_data_directory_that_cannot_be_written(here: Path) -> None:
    (here / "file").write_text("")
    result = run("doctor", "--data-dir", str(here / "file" / "data"))
    assert result.exit_code == 1
    assert "cannot be written" in result.output


def test_help_needs_no_server() -> None:
    program = "import sys; from rookery.cli import app; print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for late in ("rookery.server", "rookery.wire.amqp", "uvloop", "structlog"):
        assert f"'{late}'" not in modules
