"""Which modules are hot, and whether they run compiled.

`HOT_MODULES` is the one list: the build compiles these files with mypyc into one group, and `rookery doctor` reports
on them. The build runs this file by itself, before the package exists, so it imports only the standard library.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

HOT_MODULES: Final = (
    "rookery.fieldtables",
    "rookery.properties",
    "rookery.rendering",
    "rookery.model",
    "rookery.core.pattern_syntax",
    "rookery.core.automata",
    "rookery.core.patterns",
    "rookery.core.index",
    "rookery.core.arguments",
    "rookery.core.bindings",
    "rookery.core.routing",
    "rookery.core.meters",
    "rookery.core.entries",
    "rookery.core.parking",
    "rookery.core.lines",
    "rookery.core.timing",
    "rookery.core.stream",
    "rookery.core.staging",
    "rookery.core.events",
    "rookery.core.queue",
    "rookery.core.consumers",
    "rookery.core.feeds",
    "rookery.core.topology",
    "rookery.core.dead_letters",
    "rookery.core.transactions",
    "rookery.core.paging",
    "rookery.core.log",
    "rookery.core.shard",
    "rookery.store.records",
    "rookery.store.columns",
    "rookery.store.arrow_rows",
    "rookery.store.recovery",
    "rookery.wire.turn",
    "rookery.wire.amqp_codec",
    "rookery.wire.amqp_channel",
    "rookery.wire.amqp_names",
    "rookery.wire.amqp_replies",
    "rookery.wire.amqp_exchanges",
    "rookery.wire.amqp_queues",
    "rookery.wire.amqp_consume",
    "rookery.wire.amqp_tx",
    "rookery.wire.amqp_methods",
    "rookery.wire.amqp_parking",
    "rookery.wire.amqp_handshake",
    "rookery.wire.amqp_publish",
    "rookery.wire.amqp",
    "rookery.wire.http_call",
    "rookery.wire.http_heads",
    "rookery.wire.http_routes",
    "rookery.wire.http_auth",
    "rookery.wire.http_trace",
    "rookery.wire.http",
    "rookery.wire.rest",
    "rookery.wire.rest_pulling",
    "rookery.wire.rest_handles",
    "rookery.wire.api_bodies",
    "rookery.wire.api_handling",
    "rookery.wire.websocket",
    "rookery.wire.push_json",
    "rookery.wire.push_sources",
    "rookery.wire.push_socket",
    "rookery.wire.line_consumer",
    "rookery.wire.line_commands",
    "rookery.wire.line",
)

_PACKAGE = Path(__file__).parent


def _is_compiled(module: str) -> bool:
    """True when `module` is loaded from a shared library, or would be: an extension wins over a `.py` beside it."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is not None:
        return str(file).endswith(tuple(EXTENSION_SUFFIXES))
    stem = _PACKAGE.parent.joinpath(*module.split("."))
    return any(stem.with_name(stem.name + suffix).exists() for suffix in EXTENSION_SUFFIXES)


def report() -> dict[str, bool]:
    """Every hot module by name, and whether it runs compiled. Imports none of them."""
    return {module: _is_compiled(module) for module in HOT_MODULES}


compiled: Final[bool] = _is_compiled("rookery.model")
"""Whether the hot modules run compiled. The build compiles all of them or none, so one speaks for all."""
