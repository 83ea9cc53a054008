"""The server: its process, its listeners, and the faces on them.

`attach` and `attach_thread` let others reach a broker that a program embeds; `Server` is a broker that listens. They
are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rookery.server.attached import Attached, AttachedThread, attach, attach_thread
    from rookery.server.process import Server, serve

__all__ = ["Attached", "AttachedThread", "Server", "attach", "attach_thread", "serve"]

_HOMES: Final = {
    "Attached": "attached",
    "AttachedThread": "attached",
    "attach": "attached",
    "attach_thread": "attached",
    "Server": "process",
    "serve": "process",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
