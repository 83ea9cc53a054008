"""A message belongs to the trace it was published in, whichever protocol it comes by and goes by."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rookery import spans
from rookery.config.settings import Settings
from rookery.embed import Broker, Message
from rookery.server import attach_thread
from tests.wire.http_world import ADMIN, Raw, world

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "vendor=1"
KEY = "supersecretkey"


class Faces:
    """A broker of this process, and those who speak to it from outside."""

    def __init__(self, broker: Broker, attached: Any) -> None:
        self.broker = broker
        self._attached = attached
        headers = {"Authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(base_url=f"http://{attached.http}", headers=headers, timeout=30, trust_env=False)

    @contextmanager
    def amqp(self) -> Iterator[Any]:
        host, _, port = self._attached.amqp.rpartition(":")
        credentials = pika.PlainCredentials("API_KEY", KEY)
        with pika.BlockingConnection(pika.ConnectionParameters(host, int(port), "/", credentials)) as connection:
            yield connection.channel()

    @contextmanager
    def line(self) -> Iterator[Raw]:
        host, _, port = self._attached.line.rpartition(":")
        with Raw(socket.create_connection((host, int(port)), 30)) as raw:
            yield raw


@pytest.fixture(scope="module")
def faces() -> Iterator[Faces]:
    with Broker() as broker:
        settings = Settings(api_key=KEY, log_level="warning")
        attached = attach_thread(broker, amqp=0, http=0, line=0, settings=settings)
        made = Faces(broker, attached)
        yield made
        made.http.close()
        attached.close()


def publish_http(faces: Faces, queue: str) -> None:
    headers = {"traceparent": PARENT, "tracestate": STATE}
    faces.http.post(f"/api/v1/queues/{queue}/publish", json={"message": "m"}, headers=headers).raise_for_status()


def publish_native(faces: Faces, queue: str) -> None:
    headers = {"traceparent": PARENT, "tracestate": STATE}
    faces.http.post(f"/api/v1/queues/{queue}/messages", json=[{"message": "m"}], headers=headers).raise_for_status()


def publish_small(faces: Faces, queue: str) -> None:
    headers = {"traceparent": PARENT, "tracestate": STATE}
    faces.http.post(f"/publish?queue={queue}", content="m", headers=headers).raise_for_status()


def publish_amqp(faces: Faces, queue: str) -> None:
    with faces.amqp() as channel:
        channel.confirm_delivery()
        said = pika.BasicProperties(headers={"traceparent": PARENT, "tracestate": STATE})
        channel.basic_publish("", queue, b"m", said)


def publish_line(faces: Faces, queue: str) -> None:
    with faces.line() as raw:
        raw.send(f"TRACE {PARENT} {STATE}\nPUBLISH amq.default {queue} m\nQUIT\n".encode())
        assert raw.rest().split(b"\n")[:2] == [b"Trace set", b"Message published successfully"]


def publish_embedded(faces: Faces, queue: str) -> None:
    faces.broker.queue(queue).publish(Message("m", meta={"traceparent": PARENT, "tracestate": STATE}))


def consume_http(faces: Faces, queue: str) -> tuple[object, object]:
    got = faces.http.post(f"/api/v1/queues/{queue}/pull?wait=30")
    assert got.json()["headers"] == {"traceparent": PARENT, "tracestate": STATE}
    return got.headers["traceparent"], got.headers["tracestate"]


def consume_small(faces: Faces, queue: str) -> tuple[object, object]:
    got = faces.http.post(f"/claim?queue={queue}")
    return got.headers["traceparent"], got.headers["tracestate"]


def consume_amqp(faces: Faces, queue: str) -> tuple[object, object]:
    with faces.amqp() as channel:
        _, properties, _ = channel.basic_get(queue, auto_ack=True)
        return properties.headers["traceparent"], properties.headers["tracestate"]


def consume_line(faces: Faces, queue: str) -> tuple[object, object]:
    with faces.line() as raw:
        raw.send(f"CONSUME {queue} ack=auto trace=on\n".encode())
        assert raw.line() == b"Consumer started\n"
        word, parent, state = raw.line().decode().split()
        assert word == "Trace:"
        assert raw.line().startswith(b"Consumed message: ")
        return parent, state


def consume_embedded(faces: Faces, queue: str) -> tuple[object, object]:
    (delivery,) = faces.broker.queue(queue).claim(1, wait_ms=30_000)
    meta = delivery.message.meta
    delivery.ack()
    return meta["traceparent"], meta["tracestate"]


@pytest.mark.parametrize("consume", [consume_http, consume_small, consume_amqp, consume_line, consume_embedded])
@pytest.mark.parametrize(
    "publish", [publish_http, publish_native, publish_small, publish_amqp, publish_line, publish_embedded]
)
def test_from_publish_to_delivery(
    faces: Faces, publish: Callable[..., None], consume: Callable[..., tuple[object, object]]
) -> None:
    queue = f"{publish.__name__}-{consume.__name__}"
    faces.broker.queue(queue)
    publish(faces, queue)
    assert consume(faces, queue) == (PARENT, STATE)


def test_what_is_no_trace_is_not_carried(faces: Faces) -> None:
    faces.broker.queue("odd")
    for bad in ("x", "ff" + PARENT[2:], PARENT.upper(), PARENT[:-1]):
        faces.http.post("/api/v1/queues/odd/publish", json={"message": 1}, headers={"traceparent": bad})
        assert "traceparent" not in faces.http.post("/api/v1/queues/odd/pull").headers
    with faces.line() as raw:
        raw.send(b"TRACE x\nTRACE off\nTRACE\nQUIT\n")
        first, second, third = raw.rest().split(b"\n")[:3]
        assert first.startswith(b"Error: ")
        assert (second, third) == (b"Trace off", b"Usage: TRACE <traceparent>")


# Spans


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def test_a_request_is_a_span_between_its_caller_s_and_the_message(
    tmp_path: Path, recorded: InMemorySpanExporter
) -> None:
    with world(tmp_path) as web:
        web.admin.post("/api/v1/queues/q/publish", json={"message": 1}, headers={"traceparent": PARENT})
        pulled = web.admin.post("/api/v1/queues/q/pull")
        web.client.get("/api/v1/queues/q/stats")
        web.client.get("/nowhere")
    published, pulling, refused = recorded.get_finished_spans()
    assert (published.name, published.kind) == ("POST /api/v1/queues/{name}/publish", trace.SpanKind.SERVER)
    said = dict(published.attributes or {})
    assert (said["http.response.status_code"], said["rookery.tenant"]) == (201, "default")
    assert ADMIN not in str(said)
    assert published.parent is not None
    assert f"{published.parent.span_id:016x}" in PARENT
    carried = pulled.headers["traceparent"]
    assert carried == f"00-{published.context.trace_id:032x}-{published.context.span_id:016x}-01"
    assert [link.context.span_id for link in pulling.links] == [published.context.span_id]
    assert dict(refused.attributes or {})["http.response.status_code"] == 401


def test_a_client_that_leaves_ends_its_span(tmp_path: Path, recorded: InMemorySpanExporter) -> None:
    with world(tmp_path) as web:
        with pytest.raises(httpx.ReadTimeout):
            web.admin.post("/api/v1/queues/q/pull?wait=60", timeout=0.5)
        while not recorded.get_finished_spans():
            web.client.get("/health")


def test_what_is_published_within_a_span_carries_it(recorded: InMemorySpanExporter) -> None:
    with Broker() as broker:
        queue = broker.queue("q")
        with trace.get_tracer("test").start_as_current_span("work") as span:
            queue.publish("one")
            queue.publish_many([b"two", b"three"])
            queue.publish(Message("four", meta={"traceparent": PARENT}))
        queue.publish("five")
        parents = [delivery.message.meta.get("traceparent") for delivery in queue.claim(9)]
        within = spans.parent_of(span.get_span_context())
        assert parents == [within, within, within, PARENT, None]


def test_without_a_recorder_there_are_no_spans(tmp_path: Path) -> None:
    with world(tmp_path) as web:
        assert web.face.spans is None
