"""W3C trace context: from a request into the headers of what it publishes, and back out with what is delivered."""

from __future__ import annotations

import re
from typing import Final

from rookery import properties
from rookery.core.transactions import Publish
from rookery.wire.http_call import Call

STATE_MAX: Final = 512

_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_of(call: Call) -> dict[str, str]:
    """The trace context of a request, as headers of its messages; one that is malformed is none."""
    parent = call.headers.get(b"traceparent")
    if parent is None:
        return {}
    text = parent.decode("latin-1").strip()
    if len(text) > 255 or text.startswith("ff") or not _PARENT.fullmatch(text):
        return {}
    state = call.header(b"tracestate").strip()
    return {"traceparent": text, "tracestate": state} if 0 < len(state) <= STATE_MAX else {"traceparent": text}


def carry(call: Call, p: Publish) -> None:
    """Let a message go with the trace of its request, unless it has one of its own."""
    if b"traceparent" in call.headers and properties.header(p.props, "traceparent") is None:
        trace: dict[str, object] = {**trace_of(call)}
        if trace:
            p.props = properties.with_headers(p.props, trace)


def answer_trace(call: Call, props: bytes) -> None:
    """Hand the trace context of a message back in the headers of the answer."""
    for name in ("traceparent", "tracestate"):
        value = properties.header(props, name)
        if isinstance(value, str):
            call.add_header(name, value)
