"""The optional arguments of queue.declare and exchange.declare: what they mean, and whether a redeclaration agrees.

RabbitMQ's names and its wording of every refusal are kept, with its names of field types. All arguments that begin with
`x-` are kept with the queue (setting `arguments`: name, type and value), also those that mean nothing here, and a
redeclaration must have the same; numbers are compared by value. Other arguments are passed over.
"""

from __future__ import annotations

from typing import Final

from rookery.core.definitions import plain_table
from rookery.core.policy import TIME_MAX_MS, check_settings
from rookery.errors import InvalidArgument
from rookery.wire.amqp_codec import Fault

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

# argument -> setting, in the order in which RabbitMQ compares them
NAMES: Final = {
    "x-expires": "expires_ms",
    "x-message-ttl": "ttl_ms",
    "x-dead-letter-exchange": "dead_letter_exchange",
    "x-dead-letter-routing-key": "dead_letter_key",
    "x-max-length": "length_max",
    "x-max-length-bytes": "bytes_max",
    "x-max-priority": "priority_max",
    "x-overflow": "overflow",
    "x-single-active-consumer": "single_active",
    "x-queue-type": "queue_type",
    "x-delivery-limit": "max_attempts",
    "x-consumer-timeout": "consumer_timeout_ms",
    "x-message-deduplication": "dedup",
    "x-deduplication-window": "dedup_window_ms",
}
_TIMES: Final = ("x-expires", "x-consumer-timeout", "x-deduplication-window")
"""These may not be 0."""
_OVERFLOWS: Final = {
    "drop-head": "drop-head",
    "reject-publish": "reject-publish",
    "reject-publish-dlx": "reject-publish-dead-letter",
}
PRIORITY_MAX: Final = 255


def queue_settings(where: str, durable: bool, auto_delete: bool, exclusive: bool, table: Typed) -> dict[str, object]:
    """The settings that queue.declare asks for; `where` names the queue and its vhost."""
    settings: dict[str, object] = {}
    for argument, (kind, value) in table.items():
        _check_only(argument, kind, value, where)
        setting = NAMES.get(argument)
        if setting is None:
            continue
        meant = _meaning(argument, kind, value, where)
        settings[setting] = meant
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


def _meaning(argument: str, kind: str, value: object, where: str) -> object:
    """The value of the setting that an argument stands for."""
    if argument == "x-dead-letter-exchange":
        if not isinstance(value, str):
            raise Fault(406, f"invalid type '{TYPES[kind]}' for arg '{argument}' in {where}")
    elif argument in ("x-dead-letter-routing-key", "x-overflow", "x-queue-type"):
        if not isinstance(value, str):
            raise _unacceptable(argument, kind, where)
        if argument == "x-overflow":
            if value not in _OVERFLOWS:
                raise _invalid(argument, where, "invalid_overflow")
            return _OVERFLOWS[value]
        if argument == "x-queue-type" and value not in ("classic", "quorum"):
            raise _invalid(argument, where, f"\"unsupported queue type '{value}'\"")
    elif argument in ("x-single-active-consumer", "x-message-deduplication"):
        if not isinstance(value, bool):
            raise _unacceptable(argument, kind, where)
    else:
        return _number(argument, kind, value, where)
    return value


def _number(argument: str, kind: str, value: object, where: str) -> int:
    if kind not in INTEGERS or not isinstance(value, int):
        raise _invalid(argument, where, f'"expected integer, got {TYPES[kind]}"')
    if value < 0:
        raise _invalid(argument, where, f"{{value_negative,{value}}}")
    if value == 0 and argument in _TIMES:
        raise _invalid(argument, where, "{value_zero,0}")
    if argument == "x-max-priority" and value > PRIORITY_MAX:
        raise _invalid(argument, where, f"{{max_value_exceeded,{value}}}")
    if value > TIME_MAX_MS:
        raise _invalid(argument, where, f"{{value_too_large,{value}}}")
    # the limit is of redeliveries, the setting of deliveries
    return value + 1 if argument == "x-delivery-limit" else value


def _check_only(argument: str, kind: str, value: object, where: str) -> None:
    """Arguments that change nothing here, but whose values are known."""
    if argument == "x-queue-mode":
        if not isinstance(value, str):
            raise _unacceptable(argument, kind, where)
        if value not in ("default", "lazy"):
            raise _invalid(argument, where, f"\"unsupported queue mode '{value}'\"")
    elif argument == "x-queue-version" and _number(argument, kind, value, where) not in (1, 2):
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
    for argument, name in NAMES.items():
        if name == setting:
            return argument
    return setting


def _invalid(argument: str, where: str, problem: str) -> Fault:
    return Fault(406, f"invalid arg '{argument}' for {where}: {problem}")


def _unacceptable(argument: str, kind: str, where: str) -> Fault:
    return _invalid(argument, where, f"{{unacceptable_type,{TYPES[kind]}}}")


# Redeclaring


def check_same_queue(where: str, said: dict[str, object], settings: dict[str, object]) -> None:
    """Raise the Fault that names the first difference between a queue of this face and its redeclaration."""
    check_same(where, "durable", said.get("durable", True), settings["durable"])
    check_same(where, "auto_delete", said.get("auto_delete", False), settings["auto_delete"])
    before = _kept(said)
    now = _kept(settings)
    for argument in [*NAMES, *sorted(set(before) | set(now))]:
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
