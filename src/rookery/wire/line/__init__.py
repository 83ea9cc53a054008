"""The line protocol without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rookery.wire.face import Services, WireProtocol

if TYPE_CHECKING:
    from rookery.wire.turn import Face


def _make(services: Services, settings: Any) -> Face:
    from rookery.wire.line.face import make

    return make(services, settings)


# local_if_open: whoever reaches it needs to know no more than a verb
PROTOCOL: Final = WireProtocol(name="line", title="the line protocol", make=_make, port=2122, local_if_open=True)
