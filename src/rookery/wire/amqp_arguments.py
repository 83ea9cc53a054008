"""The optional arguments of queue.declare and the core's settings they stand for, in both directions.

RabbitMQ's names are kept; what it spells otherwise than the core is translated. Arguments that are not known are passed
over, as RabbitMQ does: programs send those of other brokers' plugins and versions.
"""

from __future__ import annotations

from typing import Final

from rookery.core.policy import SETTINGS, check_settings
from rookery.errors import InvalidArgument
from rookery.wire.amqp_codec import Fault

# argument -> setting
NAMES: Final = {
    "x-message-ttl": "ttl_ms",
    "x-expires": "expires_ms",
    "x-max-length": "length_max",
    "x-max-length-bytes": "bytes_max",
    "x-overflow": "overflow",
    "x-dead-letter-exchange": "dead_letter_exchange",
    "x-dead-letter-routing-key": "dead_letter_key",
    "x-max-priority": "priority_max",
    "x-single-active-consumer": "single_active",
    "x-delivery-limit": "max_attempts",
}
_ARGUMENTS: Final = {
    **{setting: argument for argument, setting in NAMES.items()},
    "durable": "durable",
    "auto_delete": "auto_delete",
    "ordered": "x-max-priority",
}
_OVERFLOWS: Final = {
    "drop-head": "drop-head",
    "reject-publish": "reject-publish",
    "reject-publish-dlx": "reject-publish-dead-letter",
}
_QUEUE_TYPES: Final = ("classic", "quorum")
PRIORITY_MAX: Final = 255


def queue_settings(name: str, vhost: str, table: dict[str, object]) -> dict[str, object]:
    """The settings that the arguments of queue.declare ask for."""
    settings: dict[str, object] = {}
    for argument, value in table.items():
        if argument == "x-queue-type" and value not in _QUEUE_TYPES:
            raise Fault(540, f"queue type '{value}'")
        setting = NAMES.get(argument)
        if setting is None:
            continue
        problem = ""
        try:
            value = _translated(argument, value)
            check_settings({setting: value} if setting != "dead_letter_key" else {setting: value, _DLX: ""})
        except InvalidArgument as error:
            problem = str(error)
        if problem:
            raise _invalid(argument, name, vhost, problem)
        settings[setting] = value
    if "dead_letter_key" in settings and _DLX not in settings:
        raise _invalid("x-dead-letter-routing-key", name, vhost, "routing_key_but_no_dlx_defined")
    if "priority_max" in settings:
        settings["ordered"] = True
    return settings


_DLX: Final = "dead_letter_exchange"


def _translated(argument: str, value: object) -> object:
    if argument == "x-overflow":
        if not isinstance(value, str) or value not in _OVERFLOWS:
            raise InvalidArgument(f"it must be one of {', '.join(_OVERFLOWS)}")
        return _OVERFLOWS[value]
    if argument == "x-delivery-limit":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument("it must be a whole number that is not negative")
        return value + 1
    if argument == "x-max-priority" and isinstance(value, int) and value > PRIORITY_MAX:
        raise InvalidArgument(f"it must be at most {PRIORITY_MAX}")
    return value


def _invalid(argument: str, name: str, vhost: str, problem: str) -> Fault:
    return Fault(406, f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {problem}")


def conflict_text(setting: str, before: dict[str, object], now: dict[str, object]) -> tuple[str, str]:
    """How RabbitMQ words the first difference between a queue and its redeclaration: the argument, and the values."""
    if setting == "ordered":
        setting = "priority_max"
    argument = _ARGUMENTS.get(setting, setting)
    old, new = before.get(setting), now.get(setting)
    if isinstance(old, bool) and isinstance(new, bool) and not argument.startswith("x-"):
        text = f"received '{str(new).lower()}' but current is '{str(old).lower()}'"
    else:
        text = f"received {_shown(argument, new)} but current is {_shown(argument, old)}"
    return f"inequivalent arg '{argument}'", text


def _shown(argument: str, value: object) -> str:
    if value is None:
        return "none"
    kind = "longstr"
    if isinstance(value, bool):
        kind = "bool"
    elif isinstance(value, int):
        kind = "signedint"
        if argument == "x-delivery-limit":
            value -= 1
    elif argument == "x-overflow":
        value = next(each for each, setting in _OVERFLOWS.items() if setting == value)
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"the value '{shown}' of type '{kind}'"


assert set(NAMES.values()) <= set(SETTINGS)
