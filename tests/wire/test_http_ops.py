"""What operators see: health, metrics, stats, the OpenAPI document and its page, logs; and the oldest API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client.parser import text_string_to_metric_families

from rookery.wire.api import metrics
from rookery.wire.http import openapi
from tests.wire.http_world import ADMIN, World, request, world

JSON = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("ops")) as made:
        yield made


@pytest.mark.row("S2-26")
def test_health_needs_no_credential(web: World) -> None:
    for path in ("/health", "/api/v1/health"):
        answer = web.client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_sends_a_message_through_the_broker(tmp_path: Path) -> None:
    with world(tmp_path, store_backend="journal") as web:

        def counts(server: Any) -> tuple[int, int, int]:
            queue = server.engine.shard.tenants["rookery"].queues["rookery.ready"]
            return int(queue.published), int(queue.acked), int(queue.ready)

        before = web.inside(lambda s: int(s.engine.shard.log.written))
        answer = web.client.get("/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert web.inside(counts) == (1, 1, 0)
        assert web.inside(lambda s: int(s.engine.shard.log.written)) >= before + 2
        # asked again at once, it need not be tried again
        assert web.client.get("/health/ready").json() == answer.json()
        assert web.inside(counts) == (1, 1, 0)
        assert web.admin.get("/stats").json()["queues"] == {}


def test_a_broker_whose_store_failed_is_not_ready(tmp_path: Path) -> None:
    from rookery.errors import StoreFailed

    with world(tmp_path) as web:

        def fail(server: Any) -> None:
            server.engine.shard.log.failure = StoreFailed("the disk is gone")

        def mend(server: Any) -> None:
            server.engine.shard.log.failure = None

        web.inside(fail)
        answer = web.client.get("/health/ready")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert web.client.get("/health").status_code == 200
        web.inside(mend)
        assert web.client.get("/health/ready").status_code == 200


def fill(web: World, tenant: str) -> Any:
    client = web.large(tenant)
    for n in range(3):
        client.post("/api/v1/queues/jobs/publish", json={"message": n})
    tag = client.post("/api/v1/queues/jobs/pull").json()["delivery_tag"]
    client.post("/api/v1/queues/jobs/ack", json={"delivery_tag": tag})
    tag = client.post("/api/v1/queues/jobs/pull").json()["delivery_tag"]
    client.post("/api/v1/queues/jobs/nack", json={"delivery_tag": tag, "dead_letter": True})
    client.post("/api/v1/queues/jobs/pull")
    return client


@pytest.mark.row("S2-27", "S4-32")
def test_metrics(web: World) -> None:
    client = fill(web, 'metered "t"')
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    families = list(text_string_to_metric_families(answer.text))
    for family in families:
        assert family.documentation
        for sample in family.samples:
            if sample.labels in ({}, {"tenant": 'metered "t"', "queue": "jobs"}):
                samples[sample.name] = sample.value
    expected = {"published_total": 3, "delivered_total": 3, "acked_total": 1, "nacked_total": 1, "dlq_size": 1}
    for name, value in {**expected, "ready": 0, "in_flight": 1, "consumer_lag": 1}.items():
        assert samples[f"rookery_queue_{name}"] == value, name
        assert samples[f"rookery_{name}"] >= value
    assert {"rookery_queue_oldest_age_ms", "rookery_queue_retries_total", "rookery_memory_bytes"} <= set(samples)
    as_json = client.get("/metrics", headers={"Accept": "application/json"}).json()
    (row,) = [row for row in as_json["queues"] if row["queue"] == "jobs"]
    assert row["values"]["published"] == 3
    assert as_json["totals"]["published"] >= 3
    # totals for everyone, names for those who may know them
    assert "rookery_published_total" in web.client.get("/metrics").text
    assert "metered" not in web.client.get("/metrics").text
    assert "metered" not in web.large("curious").get("/metrics").text
    assert "metered" in web.admin.get("/metrics").text


def test_metrics_name_so_many_queues_and_no_more(web: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = web.large("many-queues")
    for n in range(5):
        client.put(f"/api/v1/queues/q{n}")
    monkeypatch.setattr(metrics, "METRICS_QUEUES_MAX", 2)
    text = client.get("/metrics").text
    assert text.count("rookery_queue_ready{") == 2
    assert "rookery_queues_omitted 3" in text


def test_metrics_asked_for_at_once_share_their_sums(web: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "STEP_QUEUES", 3)
    monkeypatch.setattr(metrics, "TOTALS_QUEUES_PER_MS", 1 << 30)
    client = web.large("summed")
    for n in range(20):
        client.post(f"/api/v1/queues/q{n}/publish", json={"message": n})
    expected = web.inside(
        lambda server: sum(
            int(queue.published)
            for tenant in server.engine.shard.tenants.values()
            for queue in tenant.queues.values()
            if tenant.name != "rookery"
        )
    )
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda _: web.client.get("/metrics", headers=JSON).json(), range(40)))
    assert {answer["totals"]["published"] for answer in shown} == {expected}


@pytest.mark.row("S2-28")
def test_stats_of_everything(web: World) -> None:
    client = fill(web, "sized")
    client.post("/api/v1/topics/t/subscriptions", json={"mode": "pull", "routing_key": "a.#"})
    client.post("/api/v1/topics/t/publish", json={"message": 1, "routing_key": "b"})
    for path in ("/stats", "/api/v1/stats"):
        stats = client.get(path).json()
        assert stats["queues"]["jobs"]["in_flight"] == 1
        assert stats["queues"]["jobs.DLQ"]["ready"] == 1
        assert stats["topics"]["t"]["subscriptions"] == 1
        assert stats["topics"]["t"]["unroutable"] == 1
    assert client.get("/api/v1/stats?limit=1").json()["more"] is True
    # the scheme of the small queue API, or a queue, means that API
    key = client.headers["authorization"].removeprefix("Bearer ")
    small = {"Authorization": f"ApiKey {key}"}
    assert web.client.get("/stats", headers=small).json() == {"error": "queue name required"}
    assert web.client.get("/stats?queue=jobs", headers=small).json()["DeadLetter"] == 1
    assert client.get("/stats?queue=jobs").json()["DeadLetter"] == 1
    assert web.client.get("/stats").status_code == 401


@pytest.mark.row("S2-47")
def test_the_openapi_document_is_valid_and_whole(web: World) -> None:
    document = web.client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    there = {(route.method, route.template) for route in web.web.router.routes if not route.hidden}
    assert described == there
    publish = document["paths"]["/api/v1/queues/{name}/publish"]["post"]
    assert publish["summary"]
    assert publish["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Sending")
    assert {"200", "201", "default"} == set(publish["responses"])
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


@pytest.mark.row("S2-47")
def test_the_page_is_served_from_the_installed_package(web: World, monkeypatch: pytest.MonkeyPatch) -> None:
    page = web.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text.replace("http-equiv", "")
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "start.js"):
        assert f"/docs/{name}" in page.text
        asset = web.client.get(f"/docs/{name}")
        assert asset.status_code == 200
        assert asset.content
    assert "/openapi.json" in web.client.get("/docs/start.js").text
    assert web.client.get("/docs/..%2f__init__.py").status_code == 404
    monkeypatch.setattr(openapi, "static_folder", lambda: None)
    without = web.client.get("/docs")
    assert without.status_code == 200
    assert "rookery[ui]" in without.text


@pytest.mark.row("S4-31")
@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", ["debug", "info"]), ("info", ["info"]), ("warn", []), ("ERROR", []), ("critical", [])],
)
def test_log_levels(tmp_path: Path, level: str, shown: list[str]) -> None:
    from rookery.config.settings import Settings

    assert Settings.load({}, {"LOG_LEVEL": level}, tmp_path).log_level == level.lower().replace("warn", "warning")
    with world(tmp_path, log_level=level.lower().replace("warn", "warning")) as web:
        web.client.get("/health")
        web.client.get("/api/v1/stats")
        lines = web.lines()
        assert [line["level"] for line in lines] == shown
        assert all({"request_id", "method", "path", "status", "timestamp"} <= set(line) for line in lines)


# The oldest API


@pytest.mark.row("S4-43")
def test_the_oldest_api(web: World) -> None:
    client = web.large("oldest")
    created = client.post(
        "/create", json={"exchange": "e", "exchange_type": "topic", "queue": "q", "routing_key": "a.*"}
    )
    assert created.status_code == 200
    for path in ("/add_publisher", "/add_consumer"):
        assert client.post(path).status_code == 200
    for key, body in (("a.b", "one"), ("x", "nobody's"), ("a.c", "two\nlines")):
        sent = client.post("/publish", json={"exchange": "e", "routing_key": key, "body": body})
        assert sent.status_code == 200
    unknown = client.get("/consume?queue=unknown")
    assert (unknown.status_code, unknown.text) == (404, "Queue not found")
    key = client.headers["authorization"]
    with web.connect() as raw:
        raw.send(request("GET", "/consume?queue=q", Authorization=key))
        assert raw.line() == b"HTTP/1.1 200 OK\r\n"
        head = [raw.line() for _ in range(6)]
        assert b"Content-Type: text/event-stream\r\n" in head
        assert _events(raw, 2) == ["data: one\n\n", "data: two\ndata: lines\n\n"]
        client.post("/publish", json={"exchange": "e", "routing_key": "a.d", "body": "three"})
        assert _events(raw, 1) == ["data: three\n\n"]
    stats = client.get("/api/v1/queues/q/stats").json()
    assert (stats["acked"], stats["ready"]) == (3, 0)
    bad = client.post("/create", json={"exchange": "f", "exchange_type": "odd", "queue": "q", "routing_key": ""})
    assert (bad.status_code, bad.json()["argument"]) == (400, "exchange_type")
    assert client.post("/publish", json={"exchange": "none", "routing_key": "", "body": "x"}).status_code == 404


def _events(raw: Any, count: int) -> list[str]:
    """That many events, out of whatever chunks they come in."""
    text = ""
    while text.count("\n\n") < count:
        line = raw.line()
        if line.strip() == b"":
            continue
        text += raw._file.read(int(line, 16)).decode()
        raw.line()
    return [f"{event}\n\n" for event in text.split("\n\n")[:-1]]


def test_a_head_request_for_the_oldest_events_consumes_nothing(web: World) -> None:
    client = web.large("looking")
    client.post("/api/v1/queues/q/publish", json={"message": 1})
    answer = client.head("/consume?queue=q")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    found = client.get("/api/v1/queues/q/stats").json()
    assert (found["consumers"], found["ready"]) == (0, 1)


def test_a_stream_ends_with_its_queue_and_with_its_reader(web: World) -> None:
    client = web.large("ending")
    client.post("/create", json={"exchange": "e", "exchange_type": "fanout", "queue": "q"})

    def consumers(server: Any) -> int:
        return int(server.engine.shard.tenants["ending"].queues["q"].consumers())

    with web.connect() as raw:
        raw.send(request("GET", "/consume?queue=q", Authorization=client.headers["authorization"]))
        while not web.inside(consumers):
            pass
    while web.inside(consumers):
        pass
    with web.connect() as raw:
        raw.send(request("GET", "/consume?queue=q", Authorization=client.headers["authorization"]))
        while not web.inside(consumers):
            pass
        web.inside(lambda s: s.engine.shard.tenants["ending"].delete_queue("q"))
        while raw.line() != b"0\r\n":
            pass
        assert raw.line() == b"\r\n"
        raw.send(request("GET", "/health"))
        assert json.loads(raw.answer()[2]) == {"status": "ok"}


@pytest.mark.row("S3-1")
def test_a_message_of_http_and_one_of_amqp_reach_the_same_consumer(web: World) -> None:
    import pika

    address = web.server.addresses["amqp"]
    credentials = pika.PlainCredentials("API_KEY", ADMIN)
    parameters = pika.ConnectionParameters("127.0.0.1", int(address.rpartition(":")[2]), credentials=credentials)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        # so that what is published first has arrived first
        channel.confirm_delivery()
        web.admin.put("/api/v1/queues/shared")
        channel.basic_publish("", "shared", b"by AMQP")
        web.admin.post("/api/v1/queues/shared/publish", json={"message": {"by": "HTTP"}})
        got = []
        for _, properties, body in channel.consume("shared", inactivity_timeout=10):
            got.append((body, properties.content_type if properties else None))
            if len(got) == 2:
                break
        assert got == [(b"by AMQP", None), (b'{"by":"HTTP"}', "application/json")]
        channel.cancel()
        channel.basic_publish("", "back", b"\xff\x00")
        web.admin.put("/api/v1/queues/back")
        channel.basic_publish("", "back", b"\xff\x00")
        pulled = web.admin.post("/api/v1/queues/back/pull?wait=10").json()
        assert (pulled["message"], pulled["message_base64"]) == (None, "/wA=")
