"""What all commands share: families, help with examples, options, output, where the broker is, exit codes."""

from __future__ import annotations

import inspect
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rookery import errors
from rookery.cli import app
from rookery.cli.commands import EXAMPLES, duration_ms, pairs
from rookery.cli.families import FAMILIES, load
from rookery.cli.output import ADVICE, Output, exit_code, flat, refuse, shown
from rookery.cli.publishing import BATCH_MAX, batches
from rookery.cli.where import Where, find
from rookery.errors import BrokerUnreachable, InvalidArgument, RookeryError

COMMANDS = (
    "serve publish claim settle subscribe peek queues exchanges bindings policies streams groups dead-letters keys "
    "users tenants definitions export import stats doctor backup bench webhooks connections consumers tour "
    "pipelines insights replay"
)


def leaves() -> list[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    found = []
    for family in FAMILIES:
        command = load(family.name)
        inner = getattr(command, "commands", None)
        if inner:
            found += [(f"{family.name} {name}", each) for name, each in inner.items()]
        else:
            found.append((family.name, command))
    return found


LEAVES = dict(leaves())


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


# Help


def test_every_family_is_there() -> None:
    assert {family.name for family in FAMILIES} == set(COMMANDS.split())
    code, text = run("--help")
    assert code == 0
    for family in FAMILIES:
        assert re.search(rf"^  {family.name} +\S", text, re.MULTILINE), family.name


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_help_with_examples_and_speaks_json(name: str) -> None:
    code, text = run(*name.split(), "--help")
    assert code == 0
    assert "Examples:\n    " in text
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0]
    assert f"rookery {name}" in examples
    if name != "serve":
        assert "--json" in text


@pytest.mark.parametrize("place", EXAMPLES)
def test_examples_are_understood(place: str) -> None:
    """Each call of `rookery` in an example is parsed, and not run."""
    for example in EXAMPLES[place]:
        calls = re.findall(r"rookery ((?:[^|<>()']|'[^']*')+)", example)
        assert calls, example
        for call in calls:
            words = shlex.split(call.partition(" #")[0].strip())
            name = words[0] if words[0] in LEAVES else " ".join(words[:2])
            rest = words[1:] if words[0] in LEAVES else words[2:]
            if "xargs" in example and call in example.partition("xargs")[2]:
                rest.append("LEASE")
            LEAVES[name].make_context(name, rest)


def test_a_functions_examples_are_of_its_own_module() -> None:
    assert len(EXAMPLES) >= len(LEAVES) - 3
    assert all(place.startswith("rookery.cli.") for place in EXAMPLES)


def test_help_and_completion_import_no_family() -> None:
    for words in (["--help"], []):
        program = f"import sys; from rookery.cli import app\ntry: app({words!r})\nfinally: print(sorted(sys.modules))"
        modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stdout
        assert "rookery.cli.families" in modules
        for late in (
            "rookery.embed",
            "rookery.config.settings",
            "rookery.client",
            "rookery.cli.queues",
            "rich.table",
            "asyncio",
        ):
            assert f"'{late}'" not in modules, late


# Mistakes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["no-such"], "No such command 'no-such'"),
        (["queues", "lst"], "No such command 'lst'"),
        (["queues", "show"], "Missing argument 'QUEUE'"),
        (["publish", "jobs", "x", "--no-such"], "No such option"),
        (["publish", "jobs", "x", "--delay", "5x"], "'5x' is no time"),
        (["publish", "jobs", "x", "--to", "nowhere"], "nowhere"),
        (["queues", "create", "jobs", "-s", "nix", "--url", "http://127.0.0.1:9"], "'nix' is not NAME=VALUE"),
        (["groups", "reset", "s", "g", "--url", "http://127.0.0.1:9"], "say where"),
        (["dead-letters", "redrive", "q", "--url", "nowhere"], "url must be like"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_code_2(words: list[str], text: str) -> None:
    code, output = run(*words)
    assert code == 2
    (line,) = output.splitlines()
    assert line.startswith("rookery: ")
    assert text in line


def test_a_group_alone_shows_its_help() -> None:
    code, output = run("queues")
    assert code == 2
    assert "Usage: rookery queues" in output


# Values


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("10s", 10_000), ("1.5s", 1_500), ("5m", 300_000), ("2h", 7_200_000), ("7", 7_000)]
)
def test_times(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "x", "-1s", "1 week", "1e3s", "١s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no time"):
        duration_ms(text)


def test_pairs_are_json_where_they_can_be() -> None:
    assert pairs(["a=1", "b=true", "c=x=y", 'd="1"', "e="], "--set") == {
        "a": 1,
        "b": True,
        "c": "x=y",
        "d": "1",
        "e": "",
    }
    with pytest.raises(typer.BadParameter, match="not NAME=VALUE"):
        pairs(["=1"], "--set")


def test_lines_come_in_batches_as_they_come() -> None:
    def split(data: bytes) -> list[list[bytes]]:
        return list(batches(io.BytesIO(data)))

    assert split(b"") == []
    assert split(b"one\r\n\n  \ntwo") == [[b"one"], [b"two"]]
    found = split(b"x\n" * (2 * BATCH_MAX + 1))
    assert [len(each) for each in found] == [BATCH_MAX, BATCH_MAX, 1]
    large = b"y" * (3 << 20)
    assert b"".join(line for batch in split(large + b"\n" + large) for line in batch) == large * 2


class Slow(io.RawIOBase):
    """A pipe whose writer is slow: each read gives one piece."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int = -1) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def test_a_line_that_is_there_is_not_held_back_for_the_next() -> None:
    pieces = Slow(b"one\ntw", b"o\n", b"three")
    assert list(batches(pieces)) == [[b"one"], [b"two"], [b"three"]]  # type: ignore[arg-type]


# Output


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "jobs", "n": 1, "on": True}, {"name": "[red]mail\x1b[2J", "n": 20, "on": None}]
    Output().table(rows, {"queue": "name", "count": "n", "on": "on"})
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["queue", "count", "on"]
    assert [line.split() for line in lines] == [["jobs", "1", "yes"], ["[red]mail\\x1b[2J", "20", "-"]]
    long = "x" * 500
    Output().table([{"name": long}], {"queue": "name"})
    assert long in capsys.readouterr().out.splitlines()


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    out.table([{"a": 1}], {"x": "a"})
    out.record({"a": {"b": 2}})
    out.done("words", {"c": 3})
    assert capsys.readouterr().out.splitlines() == ['[{"a":1}]', '{"a":{"b":2}}', '{"c":3}']


def test_nested_values_are_shown_by_their_path() -> None:
    assert dict(flat({"a": {"b": 1, "c": {}}, "d": None, "e": [1]})) == {"a.b": 1, "e": [1]}
    assert shown({"a": 1}) == '{"a":1}'


# Exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RookeryError("x"), 1),
        (InvalidArgument("x"), 2),
        (errors.QueueNotFound("x"), 3),
        (errors.Unauthenticated("x"), 4),
        (errors.AccessRefused("x"), 4),
        (errors.Conflict("x"), 5),
        (BrokerUnreachable("x"), 6),
        (errors.MemoryLimitExceeded("x"), 6),
    ],
)
def test_exit_codes(error: RookeryError, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert refuse(errors.QueueNotFound("no queue 'x'.", argument="queue"), as_json=False) == 3
    assert capsys.readouterr().err == "rookery: no queue 'x' (`rookery queues list` shows those there are)\n"
    refuse(InvalidArgument("Expected `int`", argument="settings.max_attempts"), as_json=True)
    out, err = capsys.readouterr()
    assert err == "rookery: settings.max_attempts: Expected `int`\n"
    assert out == '{"error":"invalid_argument","message":"Expected `int`","argument":"settings.max_attempts"}\n'


def test_there_is_advice_for_codes_that_exist() -> None:
    codes = {kind.code for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RookeryError)}
    assert set(ADVICE) <= codes


def test_a_broker_that_is_not_there_is_code_6() -> None:
    result = CliRunner().invoke(app, ["queues", "list", "--url", "http://127.0.0.1:9", "--json"])
    assert result.exit_code == 6
    assert json.loads(result.stdout)["error"] == "broker_unreachable"
    (line,) = result.stderr.splitlines()
    assert line.startswith("rookery: no broker answers at http://127.0.0.1:9: connection refused (start one with")


# Where the broker is


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ROOKERY_URL", "ROOKERY_API_KEY", "ROOKERY_CA_FILE", "APP_PORT", "API_KEY", "ROOKERY_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_flags_come_before_the_environment_and_that_before_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find() == Where("http://127.0.0.1:8080", None, "")
    (here / "rookery.toml").write_text("[client]\nurl = 'http://toml'\nkey = 'k-toml'\nca_file = 'toml.pem'\n")
    assert find() == Where("http://toml", "k-toml", "toml.pem")
    (here / ".env").write_text("ROOKERY_URL=http://file\n")
    assert find() == Where("http://file", "k-toml", "toml.pem")
    monkeypatch.setenv("ROOKERY_URL", "http://variable")
    monkeypatch.setenv("ROOKERY_API_KEY", "k-variable")
    assert find() == Where("http://variable", "k-variable", "toml.pem")
    assert find("http://flag", "k-flag", "flag.pem") == Where("http://flag", "k-flag", "flag.pem")


def test_without_a_url_it_is_the_server_of_this_directory(here: Path) -> None:
    (here / ".env").write_text("APP_PORT=9090\nAPI_KEY=admin\n")
    assert find() == Where("http://127.0.0.1:9090", "admin", "")
    assert find("http://localhost:1") == Where("http://localhost:1", "admin", "")


def test_the_servers_own_key_is_sent_to_this_machine_only(here: Path) -> None:
    (here / "rookery-data.admin-key").write_text("first\n")
    assert find().key == "first"
    assert find("http://example.org").key is None
    assert find("http://user:password@127.0.0.1").key is None
    (here / ".env").write_text("API_KEY=admin\n")
    assert find("https://example.org").key is None
    assert find().key == "admin"


def test_another_programs_env_file_is_no_matter(here: Path) -> None:
    (here / ".env").write_text("this is = 'not\nwhat rookery reads\n")
    assert find().url == "http://127.0.0.1:8080"
