"""The table of queue settings: every list of settings is made from it, or agrees with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from rookery.config.settings import Settings
from rookery.core.consumers import DISTRIBUTIONS
from rookery.core.policy import FACES, FIXED_AT_DECLARE, SETTINGS, Policy, QueueSettings, check_settings, effective
from rookery.core.queue import OVERFLOWS
from rookery.core.queue_settings import FACES as FACE_NAMES
from rookery.core.queue_settings import QUEUE_SETTINGS, QueueSetting
from rookery.embed.options import QueueArguments
from rookery.errors import RookeryError
from rookery.server.web import options
from rookery.wire.amqp.arguments import ARGUMENTS, queue_settings
from rookery.wire.amqp.codec import Fault
from rookery.wire.api.queue_options import QueueOptions
from rookery.wire.line.commands import SETTING_READERS

ROOT = Path(__file__).parents[2]
ROWS = pytest.mark.parametrize("row", QUEUE_SETTINGS, ids=[row.name for row in QUEUE_SETTINGS])
WHERE = "queue 'q' in vhost '/'"


def values(row: QueueSetting) -> tuple[list[Any], list[Any]]:
    """Some that a setting takes, and some that it does not."""
    if row.choices:
        return list(row.choices), ["no-such", 1]
    if row.type is bool:
        return [True, False], ["yes", 1]
    if row.type is dict:
        return [{}, {"x-a": ["I", 1]}], [[], "x"]
    if row.type is str:
        assert row.largest is not None
        return ["a", "a" * row.largest], ["a" * (row.largest + 1), 5, *([""] if row.is_name else [])]
    assert row.smallest is not None
    assert row.largest is not None
    return [row.smallest, row.largest], [row.smallest - 1, row.largest + 1, "1", True]


def settings_of(row: QueueSetting, value: Any) -> dict[str, Any]:
    """A setting with what it needs beside it."""
    beside = {"dead_letter_exchange": "graves"} if row.name == "dead_letter_key" else {}
    return {row.name: value, **beside}


def test_a_row_that_is_added_is_known_everywhere() -> None:
    command = [sys.executable, "-m", "tests.unit.added_setting"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert found.stdout == "everywhere\n", found.stderr


def test_what_is_written_from_the_tables_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_tables.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run tools/make_tables.py"


def test_names_and_places_are_used_once() -> None:
    assert len(SETTINGS) == len(QUEUE_SETTINGS)
    arguments = [row.argument for row in QUEUE_SETTINGS if row.argument]
    assert len({argument.name for argument in arguments}) == len({a.place for a in arguments}) == len(arguments)


@ROWS
def test_a_row_is_consistent(row: QueueSetting) -> None:
    assert row.help.endswith(".")
    assert set(row.faces) <= set(FACE_NAMES)
    assert row.default is None or isinstance(row.default, row.type)
    if row.argument is not None:
        assert row.argument.name.startswith("x-")
        assert set(row.argument.values.values()) <= set(row.choices)
    for value in row.faces.values():
        check_settings(settings_of(row, value))


@ROWS
def test_core_and_http_take_the_same_values(row: QueueSetting) -> None:
    good, bad = values(row)
    for value in good:
        assert check_settings(settings_of(row, value))[row.name] == value
        msgspec.convert({row.name: value}, QueueOptions)
    for value in bad:
        with pytest.raises(RookeryError) as refused:
            check_settings(settings_of(row, value))
        assert refused.value.argument == row.name
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({row.name: value}, QueueOptions)


@ROWS
def test_a_policy_changes_what_the_row_says(row: QueueSetting) -> None:
    said = settings_of(row, values(row)[0][0])
    if row.by_policy:
        policy = Policy("p", ".*", said)
        assert getattr(effective("q", "amqp", {}, policy, {}), row.name) == said[row.name]
    else:
        assert row.name in FIXED_AT_DECLARE
        with pytest.raises(RookeryError, match=f"a policy cannot change {row.name}"):
            Policy("p", ".*", said)


@ROWS
def test_types_that_type_checkers_read_are_those_of_the_table(row: QueueSetting) -> None:
    argument = get_type_hints(QueueArguments)[row.name]
    if row.choices:
        assert get_origin(argument) is Literal
        assert get_args(argument) == row.choices
    else:
        assert (get_origin(argument) or argument) is row.type
    attribute = get_type_hints(QueueSettings)[row.name]
    assert attribute == (
        row.type | None if row.default is None else dict[str, object] if row.type is dict else row.type
    )


def test_no_list_has_more_than_the_table() -> None:
    names = SETTINGS.keys()
    assert list(get_type_hints(QueueArguments)) == list(names)
    assert get_type_hints(QueueSettings).keys() == names | {"dead_letter_declared"}
    assert QueueOptions.__struct_fields__ == tuple(names)
    assert SETTING_READERS.keys() == names
    assert FACES.keys() == set(FACE_NAMES)


def test_choices_have_a_meaning_in_the_core() -> None:
    assert tuple(OVERFLOWS) == SETTINGS["overflow"].choices
    assert tuple(DISTRIBUTIONS) == SETTINGS["distribution"].choices


def test_a_queue_has_its_own_arguments() -> None:
    first, second = QueueSettings(), QueueSettings()
    first.arguments["x-a"] = 1
    assert second.arguments == {}


def test_arguments_are_compared_in_the_order_of_rabbitmq() -> None:
    assert list(ARGUMENTS) == [
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-delivery-limit",
        "x-consumer-timeout",
        "x-message-deduplication",
        "x-deduplication-window",
    ]


@pytest.mark.parametrize(
    ("argument", "kind", "value", "text"),
    [
        ("x-expires", "I", 0, "invalid arg 'x-expires' for {}: {{value_zero,0}}"),
        ("x-consumer-timeout", "I", 0, "invalid arg 'x-consumer-timeout' for {}: {{value_zero,0}}"),
        ("x-deduplication-window", "I", 0, "invalid arg 'x-deduplication-window' for {}: {{value_zero,0}}"),
        ("x-message-ttl", "I", -1, "invalid arg 'x-message-ttl' for {}: {{value_negative,-1}}"),
        ("x-message-ttl", "S", "1", "invalid arg 'x-message-ttl' for {}: \"expected integer, got longstr\""),
        ("x-max-length", "l", (1 << 53) + 1, "invalid arg 'x-max-length' for {}: {{value_too_large,9007199254740993}}"),
        ("x-max-priority", "I", 256, "invalid arg 'x-max-priority' for {}: {{max_value_exceeded,256}}"),
        ("x-overflow", "S", "close", "invalid arg 'x-overflow' for {}: invalid_overflow"),
        ("x-overflow", "I", 1, "invalid arg 'x-overflow' for {}: {{unacceptable_type,signedint}}"),
        ("x-queue-type", "S", "slow", "invalid arg 'x-queue-type' for {}: \"unsupported queue type 'slow'\""),
        (
            "x-single-active-consumer",
            "I",
            1,
            "invalid arg 'x-single-active-consumer' for {}: {{unacceptable_type,signedint}}",
        ),
        ("x-dead-letter-exchange", "I", 1, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in {}"),
        ("x-queue-version", "I", 3, "invalid arg 'x-queue-version' for {}: \"unsupported queue version '3'\""),
    ],
)
def test_an_argument_is_refused_in_the_words_of_rabbitmq(argument: str, kind: str, value: object, text: str) -> None:
    with pytest.raises(Fault) as fault:
        queue_settings(WHERE, True, False, False, {argument: (kind, value)})
    assert fault.value.text == text.format(WHERE)


def test_the_defaults_of_a_server_are_those_of_the_table(tmp_path: Path) -> None:
    settings = Settings.load({}, {}, tmp_path)
    for face, defaults in options(settings).face_defaults.items():
        assert (
            effective("q", face, defaults, None, {}).as_dict() == effective("q", face, FACES[face], None, {}).as_dict()
        )
