"""A span of OpenTelemetry for each request, in a process that records spans.

The span is the child of the one that the request names, and what the request publishes carries the span on. A request
that is answered with a message is linked with the trace of that message.
"""

from __future__ import annotations

from typing import Any

from rookery import spans
from rookery.wire.http.call import Call


class Spans:
    """Makes spans with a tracer, and the module that it came from."""

    def __init__(self, trace: Any, propagator: Any, version: str) -> None:
        self._trace = trace
        self._propagator = propagator
        self._tracer = trace.get_tracer("rookery", version)

    def begin(self, call: Call) -> None:
        """A call whose route is known begins."""
        came = {name: call.header(name.encode()) for name in (spans.PARENT, spans.STATE)}
        route = call.route.template
        attributes = {
            "http.request.method": call.method,
            "http.route": route,
            "url.path": call.url.partition(b"?")[0].decode("latin-1")[:300],
            "messaging.system": "rookery",
        }
        call.span = self._tracer.start_span(
            f"{call.method} {route}",
            context=self._propagator.extract(came),
            kind=self._trace.SpanKind.SERVER,
            attributes=attributes,
        )
        context = call.span.get_span_context()
        # headers may be shared with later calls
        call.headers = {**call.headers, b"traceparent": spans.parent_of(context).encode()}

    def end(self, call: Call) -> None:
        """The call is answered, or nobody waits for the answer any more."""
        span = call.span
        call.span = None
        if call.linked:
            delivered = self._trace.get_current_span(self._propagator.extract({spans.PARENT: call.linked}))
            span.add_link(delivered.get_span_context())
        span.set_attribute("http.response.status_code", call.status)
        if call.principal is not None:
            span.set_attribute("rookery.tenant", call.principal.tenant)
        if call.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()


def make(version: str) -> Spans | None:
    """The spans of this process, None where nobody records any."""
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Spans(trace, TraceContextTextMapPropagator(), version)
