"""The command line: every setting is a flag, mistakes are told, and nothing is imported before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rookery import Broker, __version__, _compiled
from rookery.cli import app
from rookery.config.settings import SETTINGS


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
    result = run("serve", "--host", "192.0.2.1", "--amqp-port", "0", "--http-port", "off", "--line-port", "off")
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
    assert f"The hot modules are {_compiled.speed()}." in result.output
    assert json.loads(run("doctor", "--json").output)["speed"] == _compiled.speed()


def test_doctor_finds_a_data_directory_that_cannot_be_written(here: Path) -> None:
    (here / "file").write_text("")
    result = run("doctor", "--data-dir", str(here / "file" / "data"))
    assert result.exit_code == 1
    assert "cannot be written" in result.output


# The journal


@pytest.fixture
def data(here: Path) -> Path:
    """A data directory with ten messages in several batches, and no broker on it."""
    directory = here / "data"
    with Broker(enable_persistence=True, persistence_path=str(directory)) as broker:
        for n in range(10):
            broker.queue("jobs").publish(b"message %d" % n)
    return directory


def damage(data: Path, text: bytes) -> tuple[Path, int]:
    """Spoil the batch that holds this text; the file, and where the batch begins."""
    path = data / "00000001.log"
    content = bytearray(path.read_bytes())
    at = content.index(text)
    content[at] ^= 1
    path.write_bytes(content)
    return path, content.rindex(b"RKB1", 0, at)


def bodies(data: Path) -> list[bytes]:
    with Broker(enable_persistence=True, persistence_path=str(data)) as broker:
        return [delivery.body for delivery in broker.queue("jobs").claim(100)]


def test_doctor_looks_at_a_sound_directory(data: Path) -> None:
    result = run("doctor", str(data))
    assert result.exit_code == 0
    assert "no damage" in result.output
    assert "1 segments" in result.output
    document = json.loads(run("doctor", "--json", str(data)).output)
    assert document["sound"] is True
    assert document["segments"][0]["batches"] == document["batches"] > 10


def test_doctor_names_file_and_offset_of_damage_and_changes_nothing(data: Path) -> None:
    path, offset = damage(data, b"message 4")
    before = {each.name: each.read_bytes() for each in data.iterdir()}
    result = run("doctor", str(data))
    assert result.exit_code == 1
    assert f"damage: {path} at {offset} (" in result.output
    assert f"rookery doctor --repair {data}" in result.output
    again = run("doctor", str(data), "--json")
    assert again.exit_code == 1
    found = json.loads(again.stdout)["damage"]
    assert [(each["file"], each["offset"], each["batches"]) for each in found] == [(str(path), offset, 1)]
    assert {each.name: each.read_bytes() for each in data.iterdir()} == before


def test_the_broker_refuses_damage_and_says_what_to_do(data: Path) -> None:
    path, offset = damage(data, b"message 4")
    result = run(
        "serve",
        "--data-dir",
        str(data),
        "--host",
        "127.0.0.1",
        "--amqp-port",
        "0",
        "--http-port",
        "off",
        "--line-port",
        "off",
    )
    assert result.exit_code == 1
    assert f"{path} is damaged at offset {offset}" in result.output
    assert f"rookery doctor --repair {data}" in result.output


def test_doctor_repairs_in_place(data: Path) -> None:
    damage(data, b"message 4")
    result = run("doctor", "--repair", str(data))
    assert result.exit_code == 0
    assert f"the damaged directory is kept as {data}.damaged-1" in result.output
    assert "1 of them are from damaged batches" in result.output
    assert (len(bodies(data)), run("doctor", str(data)).exit_code) == (10, 0)
    again = run("doctor", "--repair", "--data-dir", str(data))
    assert again.exit_code == 0
    assert "nothing to repair" in again.output
    assert not Path(f"{data}.damaged-2").exists()


def test_doctor_repairs_to_another_place(data: Path, here: Path) -> None:
    damage(data, b"message 4")
    result = run("doctor", "--repair", "--out", str(here / "new"), "--json", str(data))
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["out"], document["kept"], document["messages"]) == (str(here / "new"), None, 10)
    assert len(bodies(here / "new")) == 10
    assert run("doctor", str(data)).exit_code == 1
    taken = run("doctor", "--repair", "--out", str(here / "new"), str(data))
    assert taken.exit_code == 2
    assert "is there already" in taken.output
    assert run("doctor", "--out", str(here / "newer"), str(data)).exit_code == 2


def test_doctor_refuses_to_repair_under_a_broker(data: Path) -> None:
    with Broker(enable_persistence=True, persistence_path=str(data)):
        assert run("doctor", str(data)).exit_code == 0
        result = run("doctor", "--repair", str(data))
        assert result.exit_code == 2
        assert f"pid {os.getpid()}" in result.output
        assert "stop the broker first" in result.output
        as_json = run("doctor", "--repair", "--json", str(data))
        assert json.loads(as_json.stdout)["error"] == "store_locked"


@pytest.mark.parametrize("command", [["doctor"], ["doctor", "--repair"], ["backup", "--data-dir"]])
def test_what_is_no_data_directory_is_told(here: Path, command: list[str]) -> None:
    (here / "other").mkdir()
    (here / "other" / "letter.txt").write_text("")
    rest = [str(here / "copy")] if command[0] == "backup" else []
    for place, text in (("nowhere", "there is no directory"), ("other", "is no data directory")):
        result = run(*command, str(here / place), *rest)
        assert result.exit_code == 2
        assert text in result.output
    assert not (here / "copy").exists()


def test_backup_copies_what_can_be_started_on(data: Path, here: Path) -> None:
    result = run("backup", "--data-dir", str(data), str(here / "copy"))
    assert result.exit_code == 0
    assert f"rookery serve --data-dir {here / 'copy'}" in result.output
    assert len(bodies(here / "copy")) == 10
    taken = run("backup", "--data-dir", str(data), str(here / "copy"))
    assert taken.exit_code == 2
    assert "is not empty" in taken.output
    document = json.loads(run("backup", "--json", "--data-dir", str(data), str(here / "second")).stdout)
    assert document["target"] == str(here / "second")
    assert document["batches"] > 10


def test_backup_refuses_damage(data: Path, here: Path) -> None:
    path, offset = damage(data, b"message 4")
    result = run("backup", "--data-dir", str(data), str(here / "copy"))
    assert result.exit_code == 1
    assert f"{path} is damaged at offset {offset}" in result.output
    assert [each.name for each in here.iterdir()] == ["data"]


def test_doctor_as_json(here: Path) -> None:
    (here / ".env").write_text("API_KEY=very-secret\n")
    result = run("doctor", "--json", "--heartbeat-sec", "7")
    document = json.loads(result.stdout)
    assert document["version"] == __version__
    assert document["settings"]["ROOKERY_HEARTBEAT_SEC"] == {"value": "7", "source": "flag --heartbeat-sec"}
    assert document["problems"] == []
    assert document["packages"]["typer"]
    assert "very-secret" not in result.stdout


def test_help_needs_no_server() -> None:
    program = "import sys; from rookery.cli import app; print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for late in ("rookery.server.process", "rookery.wire.amqp.connection", "uvloop", "structlog"):
        assert f"'{late}'" not in modules
