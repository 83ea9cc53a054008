"""Streams over the native API: records as JSON and Arrow, offsets, groups, plans, staging and cuts."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookery.clock import ManualClock
from rookery.sealed.schema import SCHEMA
from rookery.store.file import FileMedium
from tests.wire.api_client import API, ARROW, LINES, claim, ok, publish, refused
from tests.wire.http_world import ADMIN, World, request, world


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("streams"), clock, store_backend="journal") as made:
        yield made


@pytest.fixture
def client(web: World, request: pytest.FixtureRequest) -> httpx.Client:
    return web.large(f"t-{request.node.name}"[:100])


def make(client: httpx.Client, name: str = "s", **settings: Any) -> str:
    ok(client.put(f"{API}/streams/{name}", json=settings), 201)
    return f"{API}/streams/{name}"


def append(client: httpx.Client, url: str, *values: object, **more: Any) -> list[tuple[int, int]]:
    answer = ok(client.post(f"{url}/publish", json=[{"message": v, **more} for v in values]), 201)
    return [(row["partition"], row["offset"]) for row in answer["positions"]]


def values(client: httpx.Client, url: str, **query: Any) -> list[Any]:
    return [row["value"] for row in ok(client.get(f"{url}/records", params=query))["records"]]


def table(client: httpx.Client, url: str, **query: Any) -> pa.Table:
    answer = client.get(url, params=query, headers={"Accept": ARROW})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return pa.ipc.open_stream(answer.content).read_all()


def ipc(**columns: Any) -> bytes:
    sink = io.BytesIO()
    made = pa.table(columns)
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue()


# Declaring


def test_a_stream_is_declared_altered_and_deleted(client: httpx.Client) -> None:
    url = f"{API}/streams/orders"
    made = ok(client.put(url, json={"partitions": 3, "max_age_ms": 60_000}), 201)
    assert (made["created"], made["settings"]["partitions"]) == (True, 3)
    assert ok(client.put(url, json={"partitions": 3}))["created"] is False
    assert refused(client.put(url, json={"partitions": 4}), 409, "partitions") == "conflict"
    refused(client.put(url, json={"partitions": 257}), 400, "partitions")
    refused(client.put(url, json={"colour": 1}), 400)
    assert ok(client.patch(url, json={"max_bytes": 1 << 20}))["settings"]["max_bytes"] == 1 << 20
    refused(client.patch(url, json={"partitions": 4}), 409, "partitions")
    append(client, url, 1, 2)
    shown = ok(client.get(url))
    assert (shown["records"], len(shown["partitions"])) == (2, 3)
    make(client, "other")
    assert [row["name"] for row in ok(client.get(f"{API}/streams"))["streams"]] == ["orders", "other"]
    page = ok(client.get(f"{API}/streams?limit=1"))
    assert page["next"] == "orders"
    assert [row["name"] for row in ok(client.get(f"{API}/streams?after=orders"))["streams"]] == ["other"]
    assert ok(client.delete(url)) == {"deleted": "orders", "messages": 2}
    assert refused(client.get(url), 404) == "stream_not_found"
    publish(client, "q", 1)
    assert refused(client.put(f"{API}/streams/q"), 409) == "conflict"


# Records


def test_records_are_appended_and_read(client: httpx.Client, clock: ManualClock) -> None:
    url = make(client)
    assert ok(client.post(f"{url}/publish", json={"message": {"n": 0}, "key": "k"}), 201) == {
        "partition": 0,
        "offset": 0,
    }
    assert append(client, url, "one", 2) == [(0, 1), (0, 2)]
    lines = '{"message": 3}\n{"message": 4, "headers": {"h": 1}}\n'
    assert ok(client.post(f"{url}/publish", content=lines, headers=LINES), 201)["count"] == 2
    raw = {"Content-Type": "application/octet-stream", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    ok(client.post(f"{url}/publish?key=bin", content=b"\xff\x00", headers=raw), 201)
    page = ok(client.get(f"{url}/records"))
    assert (page["next"], page["end"], page["stream"], page["partition"]) == (6, 6, "s", 0)
    rows = page["records"]
    assert [row["offset"] for row in rows] == list(range(6))
    assert [row.get("value") for row in rows] == [{"n": 0}, "one", 2, 3, 4, None]
    assert (rows[0]["key"], rows[0]["timestamp"], rows[4]["headers"]) == ("k", clock.wall_ms(), {"h": 1})
    assert (rows[5]["value_base64"], rows[5]["key"]) == ("/wA=", "bin")
    assert rows[5]["headers"] == {"traceparent": raw["traceparent"]}
    assert values(client, url, **{"from": 2, "to": 4}) == [2, 3]
    assert values(client, url, **{"from": 1, "limit": 1}) == ["one"]
    assert values(client, url, **{"from": 6}) == []
    assert ok(client.get(f"{url}/records?columns=offset,value&limit=1"))["records"] == [
        {"offset": 0, "value": {"n": 0}}
    ]


def test_a_page_of_records_is_bounded(client: httpx.Client) -> None:
    url = make(client)
    for _ in range(3):
        append(client, url, *range(500))
    first = ok(client.get(f"{url}/records?limit=5000"))
    assert (len(first["records"]), first["next"], first["end"]) == (1_000, 1_000, 1_500)
    rest = ok(client.get(f"{url}/records?from=1000"))
    assert (len(rest["records"]), rest["next"]) == (500, 1_500)
    large = make(client, "large")
    append(client, large, *["x" * 2_000_000] * 3)
    assert ok(client.get(f"{large}/records"))["next"] == 2


def test_ranges_that_are_not_there_are_refused(client: httpx.Client) -> None:
    url = make(client)
    append(client, url, 1, 2, 3)
    assert refused(client.get(f"{url}/records?from=4"), 416) == "offset_out_of_range"
    assert refused(client.get(f"{url}/records?to=4"), 416) == "offset_out_of_range"
    refused(client.get(f"{url}/records?from=2&to=1"), 400, "to")
    refused(client.get(f"{url}/records?partition=1"), 400, "partition")
    refused(client.get(f"{url}/records?from=-1"), 400, "from")
    refused(client.get(f"{url}/records?from=x"), 400, "from")
    refused(client.get(f"{url}/records?columns=colour"), 400, "columns")
    refused(client.get(f"{url}/records?routing_key={'x' * 300}"), 400, "routing_key")
    for query in ({"from": 4}, {"columns": "colour"}):
        answer = client.get(f"{url}/records", params=query, headers={"Accept": ARROW})
        assert answer.status_code in (400, 416)
        assert answer.json()["code"]


def test_records_and_plans_of_a_stream_that_was_made_anew_are_refused(client: httpx.Client) -> None:
    url = make(client)
    append(client, url, 1, 2)
    known = ok(client.get(url))["id"]
    assert values(client, url, id=known) == [1, 2]
    ok(client.post(f"{url}/plan", json={"id": known}), 201)
    ok(client.delete(url))
    make(client)
    append(client, url, 3, 4)
    assert ok(client.get(url))["id"] != known
    assert refused(client.get(f"{url}/records", params={"id": known}), 416, "id") == "offset_out_of_range"
    assert refused(client.post(f"{url}/plan", json={"id": known}), 416, "id") == "offset_out_of_range"


def test_a_wrong_record_refuses_them_all(web: World, client: httpx.Client) -> None:
    url = make(client, partitions=2)
    refused(client.post(f"{url}/publish", json=[{"message": 1}, {"message": 1, "partition": 2}]), 400, "[1].partition")
    refused(client.post(f"{url}/publish", json=[{"message": 1}, {"message": 1, "delay_ms": 5}]), 400, "[1].delay_ms")
    refused(client.post(f"{url}/publish", json=[{"message": 1}, {}]), 400, "[1].message")
    tenant = ok(client.get(f"{API}/stats"))["tenant"]
    ok(web.admin.put(f"{API}/tenants/{tenant}/limits", json={"message_bytes_max": 1_000}))
    assert refused(client.post(f"{url}/publish", json=[{"message": 1}, {"message": "x" * 2_000}]), 413, "[1].message")
    assert ok(client.get(url))["records"] == 0


def test_keys_choose_partitions_and_idempotency_keys_add_nothing(client: httpx.Client) -> None:
    url = make(client, partitions=8)
    where = {position[0] for position in append(client, url, *range(20), key="same")}
    assert len(where) == 1
    assert append(client, url, "x", partition=5)[0][0] == 5
    one = {"message": 1, "idempotency_key": "once"}
    ok(client.post(f"{url}/publish", json=one), 201)
    assert ok(client.post(f"{url}/publish", json=one)) == {"partition": None, "offset": None, "duplicate": True}


def test_events_become_records(client: httpx.Client) -> None:
    url = make(client, partitions=4)
    event = {"specversion": "1.0", "id": "1", "source": "/x", "type": "t", "partitionkey": "k", "data": [1]}
    headers = {"Content-Type": "application/cloudevents+json"}
    places = [ok(client.post(f"{url}/publish", json=event, headers=headers), 201)["partition"] for _ in range(3)]
    assert len(set(places)) == 1
    (row, *_) = ok(client.get(f"{url}/records", params={"partition": places[0]}))["records"]
    assert (row["value"], row["key"], row["message_id"]) == ([1], "k", "1")


def test_an_exchange_feeds_a_stream(client: httpx.Client) -> None:
    url = make(client)
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "s", "target_kind": "stream", "key": "#"}), 201)
    batch = [{"message": n, "routing_key": f"a.{n}" if n % 2 else f"b.{n}"} for n in range(6)]
    ok(client.post(f"{API}/exchanges/x/messages", json=batch), 201)
    assert values(client, url, routing_key="a.*") == [1, 3, 5]
    assert table(client, f"{url}/records", routing_key="a.*").column("routing_key").to_pylist() == ["a.1", "a.3", "a.5"]


def test_a_range_is_an_arrow_table(client: httpx.Client) -> None:
    url = make(client)
    append(client, url, *range(100), key="k", headers={"h": "v"})
    whole = table(client, f"{url}/records")
    assert whole.schema == SCHEMA
    assert whole.column("offset").to_pylist() == list(range(100))
    assert whole.column("value")[7].as_py() == b"7"
    assert whole.column("key")[0].as_py() == b"k"
    some = table(client, f"{url}/records", **{"from": 10, "to": 20, "columns": "offset,value"})
    assert (some.column_names, some.num_rows) == (["offset", "value"], 10)
    assert table(client, f"{url}/records", **{"from": 95, "limit": 50}).num_rows == 5
    assert table(client, f"{url}/records", **{"from": 100}).num_rows == 0
    head = client.head(f"{url}/records", headers={"Accept": ARROW})
    assert (head.status_code, head.headers["content-type"]) == (200, ARROW)


def test_a_long_range_is_sent_in_pieces_and_held_up_by_its_reader_only(web: World, client: httpx.Client) -> None:
    url = make(client)
    size = 50_000
    for n in range(20):
        append(client, url, *[str(n) * size] * 20)
    with client.stream("GET", f"{url}/records", headers={"Accept": ARROW}) as answer:
        assert "content-length" not in answer.headers
        pieces = answer.iter_raw()
        got = [next(pieces)]
        # whoever does not read holds up nobody else
        assert values(client_of(web, client), url, limit=1) == ["0" * size]
        got += list(pieces)
    found = pa.ipc.open_stream(b"".join(got)).read_all()
    assert found.num_rows == 400
    assert found.column("value").to_pylist() == [f'"{str(n) * size}"'.encode() for n in range(20) for _ in range(20)]


def test_a_reader_that_leaves_lets_go_of_its_range(web: World, client: httpx.Client) -> None:
    url = make(client)
    for _ in range(10):
        append(client, url, *["x" * 50_000] * 20)
    held = web.inside(lambda s: len(s.engine.history._plans))
    # a small window: what the kernels would buffer must not be the whole range
    narrow = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)])
    with (
        httpx.Client(transport=narrow, base_url=client.base_url, headers=client.headers, timeout=30) as slow,
        slow.stream("GET", f"{url}/records", headers={"Accept": ARROW}) as answer,
    ):
        # the iterator is kept: httpx closes the connection when it goes
        pieces = answer.iter_raw()
        next(pieces)
        assert web.inside(lambda s: len(s.engine.history._plans)) == held + 1
    while web.inside(lambda s: len(s.engine.history._plans)) > held:
        pass


def client_of(web: World, client: httpx.Client) -> httpx.Client:
    return web.large(str(ok(client.get(f"{API}/stats"))["tenant"]))


def test_a_read_at_the_end_waits(web: World, client: httpx.Client) -> None:
    url = make(client)
    append(client, url, 0)
    tenant = ok(client.get(f"{API}/stats"))["tenant"]
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(values(client, url, **{"from": 1, "wait": 20})))
    waiting.start()
    while not web.inside(lambda s: s.engine.shard.tenants[tenant].streams["s"].partitions[0].followers):
        pass
    append(web.large(tenant), url, "new")
    waiting.join(20)
    assert got == [["new"]]
    assert not web.inside(lambda s: s.engine.shard.tenants[tenant].streams["s"].partitions[0].followers)


def test_a_read_that_waits_ends_with_its_stream(web: World, client: httpx.Client) -> None:
    url = make(client)
    tenant = ok(client.get(f"{API}/stats"))["tenant"]
    got: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: got.append(client.get(f"{url}/records?wait=20")))
    waiting.start()
    while not web.inside(lambda s: s.engine.shard.tenants[tenant].streams["s"].partitions[0].followers):
        pass
    ok(web.large(tenant).delete(url))
    waiting.join(20)
    assert refused(got[0], 404) == "stream_not_found"


def test_sealed_records_are_read_like_others(client: httpx.Client, clock: ManualClock) -> None:
    url = make(client)
    append(client, url, *range(10))
    before = clock.wall_ms()
    clock.advance(1_000)
    append(client, url, *range(10, 20))
    sealed = ok(client.post(f"{url}/seal"))
    assert sealed["partitions"][0]["sealed_before"] == 20
    clock.advance(1_000)
    append(client, url, *range(20, 30))
    assert values(client, url) == list(range(20))
    assert values(client, url, **{"from": 20}) == list(range(20, 30))
    assert table(client, f"{url}/records").column("value").to_pylist() == [str(n).encode() for n in range(30)]

    def at(when: int | str) -> list[Any]:
        found: list[Any] = ok(client.get(f"{url}/offsets", params={"at": when}))["offsets"]
        return found

    assert [at(when)[0]["offset"] for when in ("first", "last", "next")] == [0, 29, 30]
    assert [at(when)[0]["offset"] for when in (0, before + 1, before + 1_001, before + 9_999)] == [0, 10, 20, 30]
    refused(client.get(f"{url}/offsets?at=yesterday"), 400, "at")
    refused(client.get(f"{url}/offsets?partition=1"), 400, "partition")
    trimmed = ok(client.post(f"{url}/trim", json={"offset": 20}))
    assert trimmed == {"partition": 0, "first": 20}
    assert refused(client.get(f"{url}/records?from=5"), 416) == "offset_out_of_range"
    refused(client.post(f"{url}/trim", json={"offset": 99}), 416)


def test_records_are_replayed_from_files_and_from_the_tail(client: httpx.Client) -> None:
    url = make(client)
    ok(client.put(f"{API}/exchanges/shop", json={"kind": "topic"}), 201)
    stream = url.rpartition("/")[2]
    ok(
        client.post(f"{API}/bindings", json={"source": "shop", "target": stream, "target_kind": "stream", "key": "#"}),
        201,
    )
    shop = f"{API}/exchanges/shop/messages?routing_key=eu"
    ok(client.post(shop, json=[{"message": n} for n in range(10)]), 201)
    ok(client.post(f"{url}/seal"))
    ok(client.post(shop, json=[{"message": n} for n in range(10, 15)]), 201)
    assert ok(client.post(f"{url}/replay")) == {"replayed": 0, "next": 10, "end": 15}
    ok(client.put(f"{API}/queues/late", json={}), 201)
    ok(client.post(f"{API}/bindings", json={"source": "shop", "target": "late", "key": "eu"}), 201)
    assert ok(client.post(f"{url}/replay", json={"from": 7})) == {"replayed": 3, "next": 10, "end": 15}
    assert ok(client.post(f"{url}/replay", json={"from": 10, "limit": 2})) == {"replayed": 2, "next": 12, "end": 15}
    found = ok(client.post(f"{API}/queues/late/claim", json={"max": 100}))["deliveries"]
    assert [each["message"] for each in found] == [7, 8, 9, 10, 11]
    assert ok(client.get(url))["records"] == 15
    refused(client.post(f"{url}/replay", json={"from": 16}), 416)


# Plans


def test_a_plan_keeps_the_files_that_it_names(web: World, client: httpx.Client, clock: ManualClock) -> None:
    url = make(client)
    append(client, url, *range(10))
    ok(client.post(f"{url}/seal"))
    append(client, url, *range(10, 15))
    plan = ok(client.post(f"{url}/plan"), 201)
    (part,) = plan["partitions"]
    assert (part["from"], part["to"], part["tail"]) == (0, 15, {"from": 10, "to": 15})
    (file,) = part["files"]
    path = Path(plan["root"]) / file["path"]
    assert pq.ParquetFile(path).read(columns=["offset"]).column("offset").to_pylist() == list(range(10))
    some = ok(client.post(f"{url}/plan", json={"partition": 0, "from": 3, "to": 7}), 201)
    assert some["partitions"][0]["files"] == [{**file, "from": 3, "to": 7}]
    assert some["partitions"][0]["tail"] is None
    ok(client.delete(url))
    for _ in range(3):
        clock.advance(50_000)
        assert ok(client.post(f"{API}/plans/{plan['plan']}/renew"))["status"] == "renewed"
        web.inside(lambda s: s.engine.history.tick())
        assert path.exists()
    assert refused(client.post(f"{API}/plans/{some['plan']}/renew"), 404, "plan") == "not_found"
    assert refused(web.admin.post(f"{API}/plans/{plan['plan']}/renew"), 404) == "not_found"
    ok(client.delete(f"{API}/plans/{plan['plan']}"))
    clock.advance(2_000)
    web.inside(lambda s: s.engine.history.tick())
    assert not path.exists()
    refused(client.delete(f"{API}/plans/{plan['plan']}"), 404)


def test_plans_of_what_is_not_there_are_refused(client: httpx.Client) -> None:
    url = make(client, partitions=2)
    refused(client.post(f"{url}/plan", json={"from": 1}), 400, "partition")
    refused(client.post(f"{url}/plan", json={"partition": 2}), 400, "partition")
    refused(client.post(f"{url}/plan", json={"partition": 0, "to": 9}), 416)
    refused(client.post(f"{url}/plan", json={"lease_ms": 1}), 400, "lease_ms")
    assert len(ok(client.post(f"{url}/plan"), 201)["partitions"]) == 2


# Groups


def test_a_group_knows_how_far_it_has_read(client: httpx.Client) -> None:
    url = make(client, partitions=2)
    append(client, url, *range(4), partition=0)
    append(client, url, *range(2), partition=1)
    group = f"{url}/groups/g"
    assert refused(client.get(group), 404) == "group_not_found"
    shown = ok(client.post(f"{group}/commit", json={"offsets": {"0": 3}}))
    assert (shown["group"], shown["stream"], shown["lag"]) == ("g", "s", 3)
    assert [row["committed"] for row in shown["partitions"]] == [3, None]
    # it does not move back by a commit
    assert ok(client.post(f"{group}/commit", json={"offsets": {"0": 1, "1": 2}}))["lag"] == 1
    assert ok(client.get(group))["lag"] == 1
    assert [row["group"] for row in ok(client.get(f"{url}/groups"))["groups"]] == ["g"]
    assert ok(client.post(f"{group}/reset", json={"to": "first"}))["lag"] == 6
    assert ok(client.post(f"{group}/reset", json={"offsets": {"0": 4}}))["lag"] == 2
    assert ok(client.post(f"{group}/reset", json={"to": "next"}))["lag"] == 0
    assert ok(client.post(f"{group}/reset", json={"to": "next", "offsets": {"1": 0}}))["lag"] == 2
    refused(client.post(f"{group}/reset", json={"to": "yesterday"}), 400, "to")
    refused(client.post(f"{group}/commit", json={"offsets": {"0": 9}}), 400, "offset")
    refused(client.post(f"{group}/commit", json={"offsets": {"7": 0}}), 400, "partition")
    refused(client.post(f"{group}/commit", json={"offsets": {"x": 0}}), 400)
    ok(client.delete(group))
    refused(client.get(group), 404)


def test_members_share_the_partitions(client: httpx.Client, clock: ManualClock) -> None:
    url = make(client, partitions=3)
    append(client, url, *range(5), partition=0)
    group = f"{url}/groups/g"
    one = ok(client.post(f"{group}/join", json={"member": "one", "session_ms": 10_000}))
    assert [row["partition"] for row in one["partitions"]] == [0, 1, 2]
    two = ok(client.post(f"{group}/join", json={"member": "two", "session_ms": 20_000}))
    assert two["generation"] > one["generation"]
    offsets = {"offsets": {"0": 2}, "member": "one"}
    assert (
        refused(client.post(f"{group}/commit", json={**offsets, "generation": one["generation"]}), 409)
        == "group_fenced"
    )
    beat = ok(client.post(f"{group}/heartbeat", json={"member": "one"}))
    assert sorted(row["partition"] for share in (beat, two) for row in share["partitions"]) == [0, 1, 2]
    ok(client.post(f"{group}/commit", json={**offsets, "generation": beat["generation"]}))
    assert refused(client.post(f"{group}/commit", json={"offsets": {"0": 3}}), 409) == "group_fenced"
    assert refused(client.post(f"{group}/reset", json={"to": "first"}), 409) == "in_use"
    assert refused(client.delete(group), 409) == "in_use"
    clock.advance(11_000)
    assert refused(client.post(f"{group}/heartbeat", json={"member": "one"}), 409) == "group_fenced"
    alone = ok(client.post(f"{group}/heartbeat", json={"member": "two"}))
    assert [row["committed"] for row in alone["partitions"]] == [2, None, None]
    ok(client.post(f"{group}/leave", json={"member": "two"}))
    assert ok(client.get(group))["members"] == {}
    assert ok(client.post(f"{group}/join"))["member"].startswith("member-")


# Staging


def test_staged_rows_happen_with_their_commit(client: httpx.Client) -> None:
    url = make(client)
    append(client, url, "before")
    first = ok(client.post(f"{url}/stage", json=[{"message": 1}, {"message": 2, "key": "k"}]), 201)
    assert first["rows"] == 2
    lines = '{"message": 3}\n{"message": 4}\n'
    ok(client.post(f"{url}/stage?chunk=mine", content=lines, headers=LINES), 201)
    body = ipc(value=[b"5", b"6"], key=["a", None], routing_key=["r", None])
    third = ok(client.post(f"{url}/stage", content=body, headers={"Content-Type": ARROW}), 201)
    assert values(client, url) == ["before"]
    assert {row["chunk"] for row in ok(client.get(f"{API}/chunks"))["chunks"]} == {
        first["chunk"],
        "mine",
        third["chunk"],
    }
    commit = f"{API}/producers/p/commit"
    assert ok(client.get(f"{API}/producers/p"))["epoch"] is None
    chunks = [first["chunk"], "mine", third["chunk"]]
    assert refused(client.post(commit, json={"epoch": 7, "chunks": [*chunks, "gone"]}), 404) == "chunk_not_found"
    done = ok(client.post(commit, json={"epoch": 7, "chunks": chunks}))
    assert (done["rows"], done["duplicate"], len(done["positions"])) == (6, False, 3)
    assert done["positions"][0] == {"stream": "s", "partition": 0, "first": 1, "last": 2}
    again = ok(client.post(commit, json={"epoch": 7, "chunks": ["of a zombie"]}))
    assert (again["duplicate"], again["positions"]) == (True, done["positions"])
    assert refused(client.post(commit, json={"epoch": 6, "chunks": []}), 409) == "stale_epoch"
    assert ok(client.get(f"{API}/producers/p"))["epoch"] == 7
    assert values(client, url) == ["before", 1, 2, 3, 4, "5", "6"]
    assert ok(client.get(f"{url}/records?from=5"))["records"][0]["routing_key"] == "r"


def test_a_chunk_can_be_repeated_or_dropped(client: httpx.Client) -> None:
    url = make(client)
    for _ in range(2):
        ok(client.post(f"{url}/stage?chunk=c", json=[{"message": 1}]), 201)
    refused(client.post(f"{url}/stage?chunk=c", json=[{"message": 1}, {"message": 2}]), 400, "chunk")
    refused(client.post(f"{url}/stage?chunk=%01", json=[{"message": 1}]), 400, "chunk")
    refused(client.get(f"{API}/producers/{'p' * 300}"), 400, "producer")
    assert ok(client.delete(f"{API}/chunks/c"))["status"] == "dropped"
    assert refused(client.delete(f"{API}/chunks/c"), 404) == "chunk_not_found"


def test_rows_are_staged_for_exchanges_and_queues(client: httpx.Client, clock: ManualClock) -> None:
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    ok(client.put(f"{API}/queues/q"), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "q", "key": "a.*"}), 201)
    body = ipc(
        value=[b"1", b"2"],
        routing_key=["a.b", "c"],
        exchange=["x", None],
        headers=[[("h", b"v")], []],
        priority=pa.array([5, None], pa.int32()),
        message_id=["m", None],
        content_type=["application/json", None],
        correlation_id=["c", None],
        expiration_ms=pa.array([60_000, None]),
        timestamp=pa.array([1_700_000_000_000, None], pa.timestamp("ms", tz="UTC")),
    )
    one = ok(client.post(f"{API}/exchanges/x/stage", content=body, headers={"Content-Type": ARROW}), 201)
    two = ok(client.post(f"{API}/queues/q/stage", json=[{"message": 3, "delay_ms": 1_000}]), 201)
    assert claim(client, "q") == []
    ok(client.post(f"{API}/producers/p/commit", json={"epoch": 0, "chunks": [one["chunk"], two["chunk"]]}))
    got = claim(client, "q", wait_ms=20_000)
    assert [row["message"] for row in got] == [1]
    assert (got[0]["headers"], got[0]["priority"], got[0]["message_id"]) == ({"h": "v"}, 5, "m")
    assert (got[0]["correlation_id"], got[0]["timestamp_ms"]) == ("c", 1_700_000_000_000)
    assert got[0]["expires_ms"] == clock.wall_ms() + 60_000
    while not ok(client.get(f"{API}/queues/q"))["stats"]["delayed"]:
        clock.advance(1)
    clock.advance(1_000)
    assert [row["message"] for row in claim(client, "q")] == [3]


@pytest.mark.parametrize(
    ("columns", "argument"),
    [
        ({"key": ["a"]}, "value"),
        ({"value": [None, b"x"]}, "value"),
        ({"value": [b"x"], "colour": [1]}, "colour"),
        ({"value": [b"x"], "partition": ["first"]}, "partition"),
        ({"value": [b"x"], "partition": [1]}, "partition"),
        ({"value": [b"x"], "partition": [-1]}, "partition"),
        ({"value": [b"x"], "delay_ms": [5]}, "delay_ms"),
        ({"value": [b"x"], "topic": ["other"]}, "topic"),
        ({"value": [b"x"], "message_id": ["i" * 300]}, "message_id"),
        ({"value": [b"x"], "routing_key": ["i" * 300]}, "routing_key"),
        ({"value": [b"x"], "headers": [[(1, 2)]]}, "headers"),
        ({"value": [[1]]}, "value"),
    ],
)
def test_rows_that_cannot_be_are_refused(client: httpx.Client, columns: dict[str, Any], argument: str) -> None:
    url = make(client)
    body = ipc(**columns)
    refused(client.post(f"{url}/stage", content=body, headers={"Content-Type": ARROW}), 400, argument)
    cut = client.post(f"{url}/stage", content=body[: len(body) // 2], headers={"Content-Type": ARROW})
    refused(cut, 400)
    refused(client.post(f"{url}/stage", json=[{"message": 1, "idempotency_key": "k"}]), 400, "idempotency_key")
    assert ok(client.get(f"{API}/chunks"))["chunks"] == []


# Cuts


def test_a_queue_is_read_by_cuts(client: httpx.Client) -> None:
    publish(client, "q", *range(5))
    url = f"{API}/queues/q/cuts"
    want = {"consumer": "spark", "after": 0, "max": 3}
    assert ok(client.post(url, json=want)) == {"consumer": "spark", "cut": 1, "messages": 3}
    assert ok(client.post(url, json=want)) == {"consumer": "spark", "cut": 1, "messages": 3}
    page = ok(client.get(f"{url}/spark/1"))
    assert [row["message"] for row in page["messages"]] == [0, 1, 2]
    assert (page["count"], page["next"]) == (3, None)
    some = ok(client.get(f"{url}/spark/1?from=1&limit=1"))
    assert ([row["message"] for row in some["messages"]], some["next"]) == ([1], 2)
    arrow = table(client, f"{url}/spark/1")
    assert arrow.schema == SCHEMA
    assert arrow.column("value").to_pylist() == [b"0", b"1", b"2"]
    assert arrow.column("offset").to_pylist() == [0, 1, 2]
    assert arrow.column("delivery_count").to_pylist() == [1, 1, 1]
    assert set(arrow.column("stream").to_pylist()) == {"q"}
    part = table(client, f"{url}/spark/1", **{"from": 1, "limit": 1, "columns": "offset,value"})
    assert part.to_pylist() == [{"offset": 1, "value": b"1"}]
    assert [row["message"] for row in claim(client, "q", max=1)] == [3]
    assert ok(client.post(url, json={**want, "after": 1}))["messages"] == 1
    assert ok(client.post(url, json={**want, "after": 2})) == {"consumer": "spark", "cut": 2, "messages": 0}
    assert ok(client.get(url))["consumers"] == [{"consumer": "spark", "acked": 0, "cuts": {"1": 3, "2": 1}}]
    assert ok(client.post(f"{url}/spark/ack", json={"upto": 1})) == {"consumer": "spark", "acked": 1, "messages": 3}
    assert ok(client.post(f"{url}/spark/ack", json={"upto": 1}))["messages"] == 0
    assert refused(client.get(f"{url}/spark/1"), 404, "cut") == "not_found"
    refused(client.post(f"{url}/spark/ack", json={"upto": 9}), 400, "cut")
    refused(client.post(url, json={**want, "after": 9}), 400, "after")
    refused(client.get(f"{url}/spark/one"), 400, "cut")
    assert ok(client.delete(f"{url}/spark")) == {"consumer": "spark", "released": 1}
    assert [row["message"] for row in claim(client, "q")] == [4]
    refused(client.delete(f"{url}/spark"), 404, "consumer")
    refused(client.post(f"{API}/queues/none/cuts", json=want), 404)


def test_what_was_answered_survives_the_process(tmp_path: Path) -> None:
    with world(tmp_path, store_backend="journal") as web:
        url = make(web.admin)
        append(web.admin, url, 1, 2)
        ok(web.admin.post(f"{url}/groups/g/commit", json={"offsets": {"0": 1}}))
        chunk = ok(web.admin.post(f"{url}/stage", json=[{"message": 3}]), 201)["chunk"]
        publish(web.admin, "q", *range(3))
        ok(web.admin.post(f"{API}/queues/q/cuts", json={"consumer": "c", "max": 2}))
    with world(tmp_path, store_backend="journal") as web:
        assert values(web.admin, url) == [1, 2]
        assert ok(web.admin.get(f"{url}/groups/g"))["lag"] == 1
        ok(web.admin.post(f"{API}/producers/p/commit", json={"epoch": 1, "chunks": [chunk]}))
        assert values(web.admin, url) == [1, 2, 3]
        cut = ok(web.admin.get(f"{API}/queues/q/cuts/c/1"))
        assert [row["message"] for row in cut["messages"]] == [0, 1]


def test_cuts_are_listed_once_they_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    going.set()
    plain = FileMedium._append

    def held(medium: Any, *arguments: Any) -> None:
        going.wait(60)
        plain(medium, *arguments)

    monkeypatch.setattr(FileMedium, "_append", held)
    with world(tmp_path, store_backend="journal") as web, web.connect() as cutting, web.connect() as listing:
        publish(web.admin, "q", 1, 2)
        going.clear()
        more = {"Authorization": f"Bearer {ADMIN}", "Content_Type": "application/json"}
        cutting.send(request("POST", f"{API}/queues/q/cuts", b'{"consumer":"c"}', **more))
        while not web.inside(lambda server: server.engine.shard.cuts._queues):
            pass
        listing.send(request("GET", f"{API}/queues/q/cuts", Authorization=f"Bearer {ADMIN}"))
        while not web.inside(
            lambda server: len(server.engine.shard.cuts._queues) and len(server._web.face.connections) > 2
        ):
            pass
        for _ in range(3):
            ok(web.client.get("/health"))
        listing.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            listing.sock.recv(1)
        listing.sock.settimeout(60)
        going.set()
        status, _, content = listing.answer()
        assert (status, b'"cuts":{"1":2}' in content) == (200, True), content
        assert cutting.answer()[0] == 200


# The broker's own stream


def test_the_events_of_the_broker_are_for_admins(web: World, client: httpx.Client, clock: ManualClock) -> None:
    url = f"{API}/streams/rookery.events"
    publish(client, "q", 1)
    rows: list[Any] = []
    while "published" not in {row["value"]["event_type"] for row in rows}:
        clock.advance(100)
        rows = ok(web.admin.get(f"{url}/records"))["records"]
    assert table(web.admin, f"{url}/records").num_rows >= len(rows)
    assert "rookery.events" in [row["name"] for row in ok(web.admin.get(f"{API}/streams"))["streams"]]
    ok(web.admin.post(f"{url}/groups/pipeline/commit", json={"offsets": {"0": 1}}))
    ok(web.admin.post(f"{url}/plan"), 201)
    for answer in (
        client.get(url),
        client.get(f"{url}/records"),
        client.get(f"{url}/groups"),
        client.post(f"{url}/plan"),
        client.put(url),
        client.post(f"{url}/publish", json={"message": 1}),
        web.admin.put(url),
        web.admin.patch(url, json={}),
        web.admin.delete(url),
        web.admin.post(f"{url}/publish", json={"message": 1}),
        web.admin.post(f"{url}/trim", json={"offset": 0}),
    ):
        assert refused(answer, 403) == "access_refused"
    assert "rookery.events" not in [row["name"] for row in ok(client.get(f"{API}/streams"))["streams"]]


def test_streams_in_memory_are_read_as_tables_too(tmp_path: Path) -> None:
    with world(tmp_path) as web:
        url = make(web.admin)
        append(web.admin, url, *range(10))
        assert table(web.admin, f"{url}/records").column("value").to_pylist() == [str(n).encode() for n in range(10)]
        plan = ok(web.admin.post(f"{url}/plan"), 201)
        assert (plan["root"], plan["partitions"][0]["files"]) == (None, [])
        assert ok(web.admin.post(f"{API}/plans/{plan['plan']}/renew"))["status"] == "renewed"
        assert refused(web.admin.post(f"{url}/seal"), 503) == "store_error"
