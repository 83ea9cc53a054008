"""W3C trace context: from a request into the headers of what it publishes, and back out with what is delivered."""

from __future__ import annotations

from rookery import spans
from rookery.core.publishing import Publish
from rookery.format import properties
from rookery.wire.http.call import Call


def trace_of(call: Call) -> dict[str, object]:
    """The trace context of a request, as headers of its messages; one that is malformed is none."""
    if b"traceparent" not in call.headers:
        return {}
    return spans.context(call.header(b"traceparent"), call.header(b"tracestate"))


def carry(call: Call, p: Publish) -> None:
    """Let a message go with the trace of its request, unless it has one of its own."""
    if b"traceparent" in call.headers and properties.header(p.props, spans.PARENT) is None:
        trace = trace_of(call)
        if trace:
            p.props = properties.with_headers(p.props, trace)


def answer_trace(call: Call, props: bytes) -> None:
    """Hand the trace context of a message back in the headers of the answer."""
    parent, state = properties.header(props, spans.PARENT), properties.header(props, spans.STATE)
    if isinstance(parent, str):
        # by the rules for those that come in: a publisher over AMQP may write anything there
        for name, value in spans.context(parent, state if isinstance(state, str) else "").items():
            call.add_header(name, str(value))
            if name == spans.PARENT:
                call.linked = str(value)
