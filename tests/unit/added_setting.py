"""Run as a program: add a row to the table of queue settings before anything reads it, and look for it everywhere."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rookery.core import queue_settings
from rookery.core.queue_settings import Argument, QueueSetting
from rookery.errors import Conflict, RookeryError

ROW = QueueSetting(
    name="warmth",
    type=int,
    smallest=2,
    largest=9,
    default=4,
    faces={"http": 6},
    help="How warm the queue is.",
    argument=Argument(name="x-warmth", place=0, smallest=2, largest=9),
)


def refused(wanted: type[Exception], call: Any, *arguments: Any, **named: Any) -> str:
    """The text of the error that a call must end with."""
    try:
        call(*arguments, **named)
    except wanted as error:
        return str(error)
    raise AssertionError("it was not refused")


def core() -> None:
    from rookery.core.policy import FACES, Policy, QueueSettings, check_settings

    assert QueueSettings().as_dict()["warmth"] == 4
    assert FACES["http"]["warmth"] == 6
    assert check_settings({"warmth": 9}) == {"warmth": 9}
    assert refused(RookeryError, check_settings, {"warmth": 10}) == "warmth must be at most 9, not 10"
    assert refused(RookeryError, check_settings, {"warmth": "9"}) == "warmth must be int, not str"
    assert Policy("p", ".*", {"warmth": 2}).settings == {"warmth": 2}


def embedded(folder: Path) -> None:
    import rookery

    kept = rookery.Config(enable_persistence=True, persistence_path=str(folder))
    with rookery.Broker(kept) as broker:
        broker.queue("jobs", warmth=7)  # type: ignore[call-arg]
        broker.set_policy("warm", "^others", warmth=8)  # type: ignore[call-arg]
        assert "warmth=7, not 3" in refused(Conflict, broker.queue, "jobs", warmth=3)
    with rookery.Broker(kept) as broker:
        document = broker.export_definitions()
        assert json.dumps(document).count('"warmth"') == 2, "of a queue and of a policy"
        assert "warmth=7, not 3" in refused(Conflict, broker.queue, "jobs", warmth=3)


def http() -> None:
    import msgspec

    from rookery.wire.api.queue_options import QueueOptions, said

    decoder = msgspec.json.Decoder(QueueOptions)
    assert said(decoder.decode(b'{"warmth": 5}')) == {"warmth": 5}
    assert refused(msgspec.ValidationError, decoder.decode, b'{"warmth": 1}') == "Expected `int` >= 2 - at `$.warmth`"
    schema = msgspec.json.schema(QueueOptions)["$defs"]["QueueOptions"]["properties"]["warmth"]
    assert schema["description"] == ROW.help
    assert {"type": "integer", "minimum": 2, "maximum": 9} in schema["anyOf"]


def amqp() -> None:
    from rookery.wire.amqp.arguments import check_same_queue, queue_settings
    from rookery.wire.amqp.codec import Fault

    where = "queue 'q' in vhost '/'"
    first = queue_settings(where, True, False, False, {"x-warmth": ("I", 3), "x-expires": ("I", 5)})
    assert first["warmth"] == 3
    for value, problem in ((-1, "value_negative"), (1, "value_zero"), (10, "max_value_exceeded")):
        assert problem in refused(Fault, queue_settings, where, True, False, False, {"x-warmth": ("I", value)})
    second = queue_settings(where, True, False, False, {"x-expires": ("I", 6), "x-warmth": ("I", 4)})
    # compared by place, not by the order in the table
    assert "inequivalent arg 'x-warmth'" in refused(Fault, check_same_queue, where, first, second)


def line() -> None:
    from rookery.wire.line import commands

    assert commands.SETTING_READERS["warmth"]("3") == 3
    assert "warmth" in commands.COMMANDS["DECLARE_QUEUE"].options.split()


def command_line() -> None:
    from typer.testing import CliRunner

    from rookery.cli import app
    from rookery.cli.completing import policy_settings, queue_settings

    rows = json.loads(CliRunner().invoke(app, ["queues", "settings", "--json"]).output)
    assert next(row for row in rows if row["name"] == "warmth")["largest"] == 9
    assert queue_settings("war") == policy_settings("war") == ["warmth="]


def written() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
    make_tables: Any = importlib.import_module("make_tables")
    rows = queue_settings.QUEUE_SETTINGS
    assert "    warmth: int\n" in make_tables.settings_types(rows)
    assert "    warmth: int\n" in make_tables.argument_types(rows)
    assert "| `warmth` | number, 2 to 9 | 4 | How warm the queue is. | yes | `x-warmth` |" in (
        make_tables.settings_table(rows)
    )
    assert "| `warmth` |  | 6 |" in make_tables.faces_table(rows)
    assert "| `x-warmth` | number, 2 to 9 |" in make_tables.arguments_table(rows)
    sys.argv = ["make_tables.py", "--check"]
    assert make_tables.main() == 1, "what is written does not have the row"


if __name__ == "__main__":
    queue_settings.QUEUE_SETTINGS = (*queue_settings.QUEUE_SETTINGS, ROW)  # type: ignore[misc]
    core()
    with tempfile.TemporaryDirectory() as made:
        embedded(Path(made))
    http()
    amqp()
    line()
    command_line()
    written()
    print("everywhere")
