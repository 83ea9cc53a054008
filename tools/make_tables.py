"""Write what is derived from the tables of queue settings, events and sink options; with --check, only compare.

Types that a type checker has to read stand in the source between two marks, tables of the documentation as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rookery.core.event_kinds import EVENT_FIELDS, EVENT_KINDS
from rookery.core.queue_settings import QUEUE_SETTINGS, Argument, QueueSetting
from rookery.spark.options import SINK_OPTIONS, SinkOption

ROOT: Final = Path(__file__).parents[1]
SOURCE_MARKS: Final = (
    "    # The types of the settings: written by tools/make_tables.py\n",
    "    # End of settings\n",
)

SHOWN_FACES: Final = {
    "embedded": "embedded broker",
    "http": "HTTP",
    "s0": "HTTP `/publish`",
    "line": "line protocol",
    "amqp": "AMQP",
}
"""Who creates queues, as the documentation calls them; there is nothing yet that creates others."""


# Types


def settings_types(rows: Iterable[QueueSetting]) -> str:
    """The attributes of `core.policy.QueueSettings`."""
    return "".join(f"    {row.name}: {_type(row)}{' | None' if row.default is None else ''}\n" for row in rows)


def argument_types(rows: Iterable[QueueSetting]) -> str:
    """The items of `embed.options.QueueArguments`."""
    text = ""
    for row in rows:
        choices = ", ".join(f'"{choice}"' for choice in row.choices)
        text += f"    {row.name}: {f'Literal[{choices}]' if choices else _type(row)}\n"
    return text


def _type(row: QueueSetting) -> str:
    return "dict[str, object]" if row.type is dict else row.type.__name__


# Documentation


def settings_table(rows: Iterable[QueueSetting]) -> str:
    text = "| setting | value | default | meaning | policy | AMQP |\n|---|---|---|---|---|---|\n"
    for row in rows:
        policy = "yes" if row.by_policy else "no"
        amqp = f"`{row.argument.name}`" if row.argument else "a bit of `queue.declare`" if row.flag else ""
        text += f"| `{row.name}` | {_values(row)} | {_default(row)} | {row.help} | {policy} | {amqp} |\n"
    return text


def faces_table(rows: Iterable[QueueSetting]) -> str:
    """The settings whose defaults differ by face; an empty place is the default of the table."""
    text = f"| setting | {' | '.join(SHOWN_FACES.values())} |\n|---|{'---|' * len(SHOWN_FACES)}\n"
    for row in rows:
        if row.faces.keys() & SHOWN_FACES.keys():
            shown = (_shown(row.faces[face]) if face in row.faces else "" for face in SHOWN_FACES)
            text += f"| `{row.name}` | {' | '.join(shown)} |\n"
    return text


def arguments_table(rows: Iterable[QueueSetting]) -> str:
    found = sorted(((row.argument, row) for row in rows if row.argument is not None), key=lambda pair: pair[0].place)
    text = "| argument | value | meaning | setting |\n|---|---|---|---|\n"
    for argument, row in found:
        text += f"| `{argument.name}` | {_amqp_values(argument, row)} | {argument.help or row.help} | `{row.name}` |\n"
    return text


def kinds_table() -> str:
    text = "| `event_type` | meaning |\n|---|---|\n"
    return text + "".join(f"| `{kind.name}` | {kind.help} |\n" for kind in EVENT_KINDS)


def fields_table() -> str:
    text = "| field | meaning | events |\n|---|---|---|\n"
    every = tuple(kind.name for kind in EVENT_KINDS)
    messages = tuple(name for name in every if name != "snapshot")
    groups = {every: "all", messages: "all but `snapshot`"}
    for field in EVENT_FIELDS:
        kinds = groups.get(field.kinds) or ", ".join(f"`{name}`" for name in field.kinds)
        text += f"| `{field.name}` | {field.help} | {kinds} |\n"
    return text


def sink_table(rows: Iterable[SinkOption]) -> str:
    text = "| option | default | meaning | in pipelines |\n|---|---|---|---|\n"
    for row in rows:
        default = row.shown or ("" if row.default == "" else _shown(row.default))
        text += f"| `{row.name}` | {default} | {row.help} | {'yes' if row.in_pipelines else 'no'} |\n"
    return text


def _values(row: QueueSetting) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.type is bool:
        return "`true`, `false`"
    if row.type is str:
        return "a name" if row.is_name else f"text, up to {row.largest} bytes"
    if row.type is dict:
        return "an object"
    return _range(row.name, row.smallest, row.largest)


def _amqp_values(argument: Argument, row: QueueSetting) -> str:
    if argument.values:
        return ", ".join(f"`{value}`" for value in argument.values)
    if row.type is int:
        return _range(row.name, argument.smallest, argument.largest)
    return _values(row)


def _range(name: str, smallest: int | None, largest: int | None) -> str:
    unit = "ms" if name.endswith("_ms") else "bytes" if name.startswith("bytes_") else "number"
    if largest is not None and largest < 1 << 30:
        return f"{unit}, {smallest} to {largest}"
    return f"{unit}, {smallest} or more"


def _default(row: QueueSetting) -> str:
    if row.none and row.default == row.smallest:
        return f"{_shown(row.default)}: {row.none}"
    return row.none or _shown(row.default)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


# Files


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by tools/make_tables.py -->\n", f"<!-- end of {name} -->\n"


PLACES: Final[tuple[tuple[str, tuple[str, str], Callable[[], str]], ...]] = (
    ("src/rookery/core/policy.py", SOURCE_MARKS, lambda: settings_types(QUEUE_SETTINGS)),
    ("src/rookery/embed/options.py", SOURCE_MARKS, lambda: argument_types(QUEUE_SETTINGS)),
    ("docs/queue-settings.md", _marks("queue settings"), lambda: settings_table(QUEUE_SETTINGS)),
    ("docs/queue-settings.md", _marks("defaults"), lambda: faces_table(QUEUE_SETTINGS)),
    ("docs/amqp.md", _marks("arguments"), lambda: arguments_table(QUEUE_SETTINGS)),
    ("docs/insights.md", _marks("events"), kinds_table),
    ("docs/insights.md", _marks("fields"), fields_table),
    ("docs/spark.md", _marks("sink options"), lambda: sink_table(SINK_OPTIONS)),
)


def replaced(text: str, marks: tuple[str, str], table: str) -> str:
    """The text with the table between its marks."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    assert begin, f"a mark is lost: {marks[0].strip()}"
    assert end, f"a mark is lost: {marks[1].strip()}"
    return before + begin + table + end + after


def main() -> int:
    stale = []
    for name, marks, make in PLACES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = replaced(old, marks, make())
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"run tools/make_tables.py: {', '.join(dict.fromkeys(stale))} differ from the tables", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
