"""The optional arguments of queue.declare and exchange.declare: what they mean, and whether a redeclaration agrees.

RabbitMQ's names and its wording of every refusal are kept, with its names of field types. All arguments that begin with
`x-` are kept with the queue (setting `arguments`: name, type and value), also those that mean nothing here, and a
redeclaration must have the same; numbers are compared by value. Other arguments are passed over. Which arguments stand
for settings, and which values they take, is said by the table of queue settings in the core.
"""

from __future__ import annotations

from typing import Final

from rookery.core.definitions import plain_table
from rookery.core.policy import check_settings
from rookery.core.queue_settings import QUEUE_SETTINGS, TIME_MAX_MS, Argument, QueueSetting
from rookery.errors import InvalidArgument
from rookery.wire.amqp.codec import Fault

Typed = dict[str, tuple[str, object]]
"""A table as it came: type octet and value by name."""

TYPES: Final = {
    "S": "longstr",
    "I": "signedint",
    "l": "long",
    "L": "long",
    "t": "bool",
    "d": "double",
    "f": "float",
    "s": "short",
    "b": "byte",
    "B": "unsignedbyte",
    "u": "unsignedshort",
    "i": "unsignedint",
    "D": "decimal",
    "T": "timestamp",
    "F": "table",
    "A": "array",
    "x": "binary",
    "V": "void",
}
INTEGERS: Final = "IlLsbBui"

_Row = tuple[Argument, QueueSetting]


def _place(row: _Row) -> int:
    return row[0].place


ARGUMENTS: Final[dict[str, _Row]] = {
    argument.name: (argument, row)
    for argument, row in sorted(((row.argument, row) for row in QUEUE_SETTINGS if row.argument is not None), key=_place)
}
"""The arguments that stand for settings, in the order in which RabbitMQ compares them."""

FLAGS: Final = tuple(row for row in QUEUE_SETTINGS if row.flag)
"""The settings that are bits of the method, compared before all arguments."""


def queue_settings(where: str, durable: bool, auto_delete: bool, exclusive: bool, table: Typed) -> dict[str, object]:
    """The settings that queue.declare asks for; `where` names the queue and its vhost."""
    settings: dict[str, object] = {}
    for argument, (kind, value) in table.items():
        _check_only(argument, kind, value, where)
        found = ARGUMENTS.get(argument)
        if found is not None:
            settings[found[1].name] = _meaning(found[0], found[1], kind, value, where)
    if "dead_letter_key" in settings and "dead_letter_exchange" not in settings:
        raise _invalid("x-dead-letter-routing-key", where, "routing_key_but_no_dlx_defined")
    try:
        check_settings(settings)
    except InvalidArgument as error:
        raise _invalid(_argument_of(str(error.argument)), where, str(error)) from None
    if settings.get("queue_type") == "quorum":
        _check_quorum(where, durable, auto_delete, exclusive, settings)
    elif settings.get("queue_type") == "classic":
        # what a queue is anyway
        del settings["queue_type"]
    if "priority_max" in settings:
        settings["ordered"] = True
        if settings["priority_max"] == 0:
            # one priority is none
            del settings["priority_max"]
            settings["ordered"] = False
    kept = {name: field for name, field in table.items() if name.startswith("x-")}
    if kept:
        settings["arguments"] = {name: [kind, plain_table({"": value})[""]] for name, (kind, value) in kept.items()}
    settings["durable"] = durable
    settings["auto_delete"] = auto_delete
    return settings


def _meaning(argument: Argument, row: QueueSetting, kind: str, value: object, where: str) -> object:
    """The value of the setting that an argument stands for."""
    if row.type is int:
        return _number(argument, kind, value, where) + argument.added
    if not isinstance(value, row.type):
        if row.name == "dead_letter_exchange":
            raise Fault(406, f"invalid type '{TYPES[kind]}' for arg '{argument.name}' in {where}")
        raise _unacceptable(argument.name, kind, where)
    if isinstance(value, str) and row.choices:
        # RabbitMQ's names, or ours where it has the same
        values = argument.values or {choice: choice for choice in row.choices}
        if value not in values:
            raise _invalid(argument.name, where, _no_choice(row.name, value))
        return values[value]
    return value


def _no_choice(setting: str, value: str) -> str:
    """RabbitMQ's words for a value that is none of the choices."""
    if setting == "overflow":
        return "invalid_overflow"
    if setting == "queue_type":
        return f"\"unsupported queue type '{value}'\""
    return f"\"unsupported value '{value}'\""


def _number(argument: Argument, kind: str, value: object, where: str) -> int:
    if kind not in INTEGERS or not isinstance(value, int):
        raise _invalid(argument.name, where, f'"expected integer, got {TYPES[kind]}"')
    if value < 0:
        raise _invalid(argument.name, where, f"{{value_negative,{value}}}")
    if value < argument.smallest:
        raise _invalid(argument.name, where, f"{{value_zero,{value}}}")
    if value > argument.largest:
        problem = "value_too_large" if argument.largest == TIME_MAX_MS else "max_value_exceeded"
        raise _invalid(argument.name, where, f"{{{problem},{value}}}")
    return value


_VERSION: Final = Argument(name="x-queue-version", place=0)


def _check_only(argument: str, kind: str, value: object, where: str) -> None:
    """Arguments that change nothing here, but whose values are known."""
    if argument == "x-queue-mode":
        if not isinstance(value, str):
            raise _unacceptable(argument, kind, where)
        if value not in ("default", "lazy"):
            raise _invalid(argument, where, f"\"unsupported queue mode '{value}'\"")
    elif argument == "x-queue-version" and _number(_VERSION, kind, value, where) not in (1, 2):
        raise _invalid(argument, where, f"\"unsupported queue version '{value}'\"")


def _check_quorum(where: str, durable: bool, auto_delete: bool, exclusive: bool, settings: dict[str, object]) -> None:
    wrong = ""
    if auto_delete:
        wrong = "auto-delete"
    elif exclusive:
        wrong = "exclusive-owner"
    elif not durable:
        wrong = "non-durable"
    if wrong:
        raise Fault(406, f"invalid property '{wrong}' for {where}")
    if "priority_max" in settings:
        raise Fault(406, f"invalid arg 'x-max-priority' for {where} of queue type rabbit_quorum_queue")


def _argument_of(setting: str) -> str:
    for argument, row in ARGUMENTS.values():
        if row.name == setting:
            return argument.name
    return setting


def _invalid(argument: str, where: str, problem: str) -> Fault:
    return Fault(406, f"invalid arg '{argument}' for {where}: {problem}")


def _unacceptable(argument: str, kind: str, where: str) -> Fault:
    return _invalid(argument, where, f"{{unacceptable_type,{TYPES[kind]}}}")


# Redeclaring


def check_same_queue(where: str, said: dict[str, object], settings: dict[str, object]) -> None:
    """Raise the Fault that names the first difference between a queue of this face and its redeclaration."""
    for row in FLAGS:
        check_same(where, row.name, said.get(row.name, row.default), settings[row.name])
    before = _kept(said)
    now = _kept(settings)
    for argument in [*ARGUMENTS, *sorted(set(before) | set(now))]:
        old, new = before.get(argument), now.get(argument)
        if argument == "x-queue-type" and _type_of(old) == _type_of(new):
            continue
        check_same_field(where, argument, old, new)


def _kept(settings: dict[str, object]) -> dict[str, tuple[str, object]]:
    kept = settings.get("arguments")
    found: dict[str, tuple[str, object]] = {}
    if isinstance(kept, dict):
        for name, field in kept.items():
            found[name] = (str(field[0]), field[1])
    return found


def _type_of(field: tuple[str, object] | None) -> object:
    return "classic" if field is None else field[1]


def check_same(where: str, argument: str, old: object, new: object) -> None:
    if old != new:
        raise _unequal(where, argument, f"received '{shown(new)}' but current is '{shown(old)}'")


def check_same_field(where: str, argument: str, old: tuple[str, object] | None, new: tuple[str, object] | None) -> None:
    """The same for a field of a table, which may be absent."""
    if old is not None and new is not None:
        check_same(where, argument, old[1], new[1])
    elif old is not new:
        raise _unequal(where, argument, f"received {_described(new)} but current is {_described(old)}")


def _unequal(where: str, argument: str, text: str) -> Fault:
    return Fault(406, f"inequivalent arg '{argument}' for {where}: {text}")


def _described(field: tuple[str, object] | None) -> str:
    return "none" if field is None else f"the value '{shown(field[1])}' of type '{TYPES[field[0]]}'"


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
