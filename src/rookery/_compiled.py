"""Which modules are hot, and whether they run compiled.

`HOT_MODULES` is the one list: the build compiles these files with mypyc into one group, and `rookery doctor` reports
on them. The build runs this file by itself, before the package exists, so it imports only the standard library.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

HOT_MODULES: Final = (
    "rookery.format.fieldtables",
    "rookery.format.properties",
    "rookery.format.rendering",
    "rookery.format.model",
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
    "rookery.core.publishing",
    "rookery.core.dead_letters",
    "rookery.core.transactions",
    "rookery.core.paging",
    "rookery.core.log",
    "rookery.core.shard",
    "rookery.format.records",
    "rookery.sealed.columns",
    "rookery.arrow.rows",
    "rookery.store.recovery",
    "rookery.wire.turn",
    "rookery.wire.amqp.codec",
    "rookery.wire.amqp.channel",
    "rookery.wire.amqp.names",
    "rookery.wire.amqp.replies",
    "rookery.wire.amqp.exchanges",
    "rookery.wire.amqp.queues",
    "rookery.wire.amqp.consume",
    "rookery.wire.amqp.tx",
    "rookery.wire.amqp.methods",
    "rookery.wire.amqp.parking",
    "rookery.wire.amqp.handshake",
    "rookery.wire.amqp.publish",
    "rookery.wire.amqp.connection",
    "rookery.wire.http.call",
    "rookery.wire.http.heads",
    "rookery.wire.http.routes",
    "rookery.wire.http.auth",
    "rookery.wire.http.trace",
    "rookery.wire.http.connection",
    "rookery.wire.api.rest",
    "rookery.wire.api.compat.pulling",
    "rookery.wire.api.compat.handles",
    "rookery.wire.api.bodies",
    "rookery.wire.api.handling",
    "rookery.wire.websocket",
    "rookery.wire.push.json",
    "rookery.wire.push.sources",
    "rookery.wire.push.socket",
    "rookery.wire.line.consumer",
    "rookery.wire.line.commands",
    "rookery.wire.line.connection",
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


compiled: Final[bool] = _is_compiled(HOT_MODULES[0])
"""Whether the hot modules run compiled. The build compiles all of them or none, so one speaks for all."""


def speed() -> str:
    """One line for people: whether this package runs compiled, and if not, what to do.

    `make serve` starts uncompiled while it builds a wheel in `wheel` of the virtual environment (tools/package.py).
    """
    if compiled:
        return "compiled"
    wheels = Path(sys.prefix) / "wheel"
    if any(not wheel.name.endswith("-none-any.whl") for wheel in wheels.glob("*/rookery-*.whl")):
        return "uncompiled, about 10 × the CPU, restart to switch: `make serve` installs the compiled build first"
    if any(_is_alive(folder.name.rpartition("-")[2]) for folder in wheels.glob("building-*")):
        return "uncompiled, about 10 × the CPU, restart to switch when the compiled build is ready"
    return "uncompiled, about 10 × the CPU: install it where there is a C compiler"


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OSError):
        return False
    return True
