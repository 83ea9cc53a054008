"""W3C trace context, and OpenTelemetry where a program has loaded it: which trace a piece of work belongs to.

Messages carry their trace in the headers `traceparent` and `tracestate`, whatever they came by and go by.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
STATE_MAX: Final = 512

_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def context(parent: str, state: str = "") -> dict[str, object]:
    """A trace context as headers of a message; one that is malformed is none."""
    parent, state = parent.strip(), state.strip()
    if len(parent) > 255 or parent.startswith("ff") or not _PARENT.fullmatch(parent):
        return {}
    return {PARENT: parent, STATE: state} if 0 < len(state) <= STATE_MAX else {PARENT: parent}


def current() -> dict[str, object] | None:
    """The context of the span that the caller works in, None where there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return context(parent_of(found), found.trace_state.to_header())


def parent_of(span_context: Any) -> str:
    """The `traceparent` of an OpenTelemetry span context."""
    return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{int(span_context.trace_flags):02x}"
