"""Queues, exchanges, bindings, policies, tenants, users, definitions, connections over the native API; and rights."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from tests.wire.api_client import API, ARROW, claim, ok, publish, refused
from tests.wire.http_world import World, world

JSON = "application/json"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("admin"), line_port=0) as made:
        yield made


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return f"t-{request.node.name}"[:100]


@pytest.fixture
def client(web: World, tenant: str) -> httpx.Client:
    return web.large(tenant)


# Queues


def test_queues_are_listed_shown_and_deleted(client: httpx.Client) -> None:
    for name in ("b", "a", "c"):
        ok(client.put(f"{API}/queues/{name}", json={"max_attempts": 2}), 201)
    publish(client, "a", 1, 2)
    page = ok(client.get(f"{API}/queues?limit=2"))
    assert ([row["name"] for row in page["queues"]], page["next"]) == (["a", "b"], "b")
    rest = ok(client.get(f"{API}/queues?after=b"))
    assert ([row["name"] for row in rest["queues"]], rest["next"]) == (["c"], None)
    assert [row["name"] for row in ok(client.get(f"{API}/queues?prefix=b"))["queues"]] == ["b"]
    shown = ok(client.get(f"{API}/queues/a"))
    assert (shown["face"], shown["said"], shown["policy"]) == ("http", {"max_attempts": 2}, None)
    assert (shown["settings"]["max_attempts"], shown["stats"]["ready"]) == (2, 2)
    assert refused(client.delete(f"{API}/queues/a?if_empty=true"), 409) == "not_empty"
    assert ok(client.delete(f"{API}/queues/a")) == {"deleted": "a", "messages": 2}
    assert refused(client.get(f"{API}/queues/a"), 404) == "queue_not_found"
    assert refused(client.delete(f"{API}/queues/a"), 404) == "queue_not_found"
    refused(client.get(f"{API}/queues?limit=0"), 400, "limit")


def test_exchanges_are_declared_listed_and_deleted(client: httpx.Client) -> None:
    url = f"{API}/exchanges/x"
    wanted = {"kind": "headers", "arguments": {"raw": {"$bytes": "AAE="}}, "alternate": "amq.fanout"}
    made = ok(client.put(url, json=wanted), 201)
    assert (made["kind"], made["arguments"], made["alternate"]) == ("headers", wanted["arguments"], "amq.fanout")
    assert ok(client.put(url, json=wanted)) == made
    assert refused(client.put(url, json={"kind": "topic"}), 409, "kind") == "conflict"
    refused(client.put(f"{API}/exchanges/y", json={"kind": "square"}), 400, "kind")
    refused(client.put(f"{API}/exchanges/amq.mine", json={"kind": "topic"}), 403)
    names = [row["name"] for row in ok(client.get(f"{API}/exchanges"))["exchanges"]]
    assert names == ["amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic", "x"]
    assert ok(client.get(url))["stats"]["published"] == 0
    refused(client.delete(f"{API}/exchanges/amq.topic"), 409, "exchange")
    ok(client.put(f"{API}/queues/q"), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "q", "arguments": {"a": 1}}), 201)
    assert refused(client.delete(f"{url}?if_unused=true"), 409) == "in_use"
    ok(client.delete(url))
    assert refused(client.get(url), 404) == "exchange_not_found"


@pytest.mark.parametrize("number", ["NaN", "sNaN", "Infinity", "-1E999999"])
def test_arguments_that_are_no_finite_number_break_nothing(client: httpx.Client, number: str) -> None:
    ok(client.put(f"{API}/queues/odd-{number}", json={}), 201)
    odd = {"x": {"$decimal": number}}
    row = {"source": "amq.headers", "target": f"odd-{number}", "arguments": odd}
    ok(client.post(f"{API}/bindings", json=row), 201)
    for value in (1, 1.5, "a", [1], None):
        ok(client.post(f"{API}/exchanges/amq.headers/messages", json=[{"message": 1, "headers": {"x": value}}]), 201)
    exchange = f"{API}/exchanges/odd-{number}"
    ok(client.put(exchange, json={"kind": "direct", "arguments": odd}), 201)
    assert client.put(exchange, json={"kind": "direct", "arguments": {"x": 1}}).status_code == 409


def test_bindings_are_made_listed_and_taken_away(client: httpx.Client) -> None:
    ok(client.put(f"{API}/queues/q"), 201)
    ok(client.put(f"{API}/streams/s"), 201)
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    rows: list[dict[str, Any]] = [
        {"source": "amq.topic", "target": "q", "target_kind": "queue", "key": "a.#", "arguments": {"n": 1}},
        {"source": "amq.topic", "target": "s", "target_kind": "stream", "key": "b", "arguments": {}},
        {"source": "amq.topic", "target": "x", "target_kind": "exchange", "key": "c", "arguments": {}},
    ]
    for row in rows:
        assert ok(client.post(f"{API}/bindings", json=row), 201) == {"created": True, "binding": row}
        assert ok(client.post(f"{API}/bindings", json=row))["created"] is False
    assert sorted(ok(client.get(f"{API}/bindings?source=amq.topic"))["bindings"], key=lambda r: r["key"]) == rows
    assert ok(client.get(f"{API}/bindings?target=s"))["bindings"] == [rows[1]]
    gone = {**rows[0], "arguments": '{"n": 1}'}
    assert ok(client.delete(f"{API}/bindings", params=gone)) == {"deleted": True}
    assert ok(client.delete(f"{API}/bindings", params=gone)) == {"deleted": False}
    refused(client.delete(f"{API}/bindings", params={**gone, "arguments": "[1]"}), 400, "arguments")
    refused(client.delete(f"{API}/bindings?source=x"), 400, "target")
    refused(client.post(f"{API}/bindings", json={"source": "none", "target": "q"}), 404)
    refused(client.post(f"{API}/bindings", json={"source": "x", "target": "none"}), 404)
    refused(client.post(f"{API}/bindings", json={"source": "x", "target": "q", "target_kind": "moon"}), 400)


def test_policies_reach_queues_that_exist(client: httpx.Client) -> None:
    ok(client.put(f"{API}/queues/orders"), 201)
    url = f"{API}/policies/short"
    wanted = {"pattern": "^orders", "priority": 3, "settings": {"length_max": 5, "overflow": "reject-publish"}}
    assert ok(client.put(url, json=wanted)) == {"name": "short", **wanted}
    assert ok(client.get(url)) == {"name": "short", **wanted}
    shown = ok(client.get(f"{API}/queues/orders"))
    assert (shown["policy"], shown["settings"]["length_max"]) == ("short", 5)
    assert ok(client.get(f"{API}/policies"))["policies"] == [{"name": "short", **wanted}]
    refused(client.put(url, json={"pattern": "(", "settings": {}}), 400, "pattern")
    refused(client.put(url, json={"pattern": "x", "settings": {"durable": False}}), 400, "durable")
    refused(client.put(url, json={"pattern": "x", "settings": {"colour": 1}}), 400)
    ok(client.delete(url))
    assert ok(client.get(f"{API}/queues/orders"))["settings"]["length_max"] == -1
    refused(client.get(url), 404)
    refused(client.delete(url), 404)


# Tenants and users


def test_tenants_come_and_go_with_their_limits(web: World) -> None:
    admin = web.admin
    url = f"{API}/tenants/shop"
    made = ok(admin.put(url, json={"limits": {"queues_max": 1}}), 201)
    assert made["limits"]["queues_max"] == 1
    assert ok(admin.put(url))["name"] == "shop"
    shop = web.large("shop")
    ok(shop.put(f"{API}/queues/one"), 201)
    assert refused(shop.put(f"{API}/queues/two"), 429) == "limit_exceeded"
    assert ok(admin.put(f"{url}/limits", json={"queues_max": 2}))["limits"]["queues_max"] == 2
    ok(shop.put(f"{API}/queues/two"), 201)
    assert ok(shop.get(f"{url}/limits"))["limits"]["queues_max"] == 2
    assert ok(shop.get(url))["stats"]["queues"] == 2
    assert "shop" in [row["name"] for row in ok(admin.get(f"{API}/tenants?limit=1000"))["tenants"]]
    refused(admin.put(f"{url}/limits", json={"colour": 1}), 400)
    refused(admin.put(f"{url}/limits", json={"queues_max": -1}), 400, "queues_max")
    assert refused(admin.put(f"{API}/tenants/none/limits", json={}), 404) == "tenant_not_found"
    assert ok(admin.delete(url))["deleted"] == "shop"
    assert shop.get(f"{API}/queues").status_code == 401
    for always in ("default", "rookery"):
        assert refused(admin.delete(f"{API}/tenants/{always}"), 409) == "conflict"
    assert refused(admin.get(url), 404) == "tenant_not_found"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_users_log_in_with_what_they_were_given(web: World, tenant: str) -> None:
    admin = web.admin
    ok(admin.put(f"{API}/tenants/{tenant}"), 201)
    url = f"{API}/users/anna"
    rights = {"configure": "^a", "write": "^a", "read": ".*"}
    made = ok(admin.put(url, json={"password": "secret", "tenants": {tenant: rights}}), 201)
    assert made == {"name": "anna", "admin": False, "tenants": {tenant: rights}}
    assert web.client.put(f"{API}/queues/a", headers=basic("anna", "secret")).status_code == 201
    assert web.client.put(f"{API}/queues/b", headers=basic("anna", "secret")).status_code == 403
    assert web.client.get(f"{API}/queues", headers=basic("anna", "wrong")).status_code == 401
    assert ok(admin.put(url, json={"admin": True}))["admin"] is True
    assert web.client.get(f"{API}/users", headers=basic("anna", "secret")).status_code == 200
    ok(admin.put(url, json={"password": "other"}))
    assert web.client.get(f"{API}/queues", headers=basic("anna", "secret")).status_code == 401
    assert "anna" in [row["name"] for row in ok(admin.get(f"{API}/users"))["users"]]
    shown = admin.get(url).text
    assert "other" not in shown
    assert "digest" not in shown
    refused(admin.put(f"{API}/users/ben", json={}), 400, "password")
    refused(admin.put(f"{API}/users/ben", json={"password": "x", "tenants": {"none": rights}}), 404, "tenants")
    bad = {"password": "x", "tenants": {tenant: {**rights, "read": "("}}}
    refused(admin.put(f"{API}/users/ben", json=bad), 400, "read")
    ok(admin.delete(url))
    assert web.client.get(f"{API}/queues", headers=basic("anna", "other")).status_code == 401
    assert refused(admin.get(url), 404) == "not_found"
    refused(admin.delete(url), 404)


# Definitions


def test_definitions_move_from_one_server_to_another(web: World, client: httpx.Client, tmp_path: Path) -> None:
    ok(client.put(f"{API}/queues/q", json={"max_attempts": 2}), 201)
    ok(client.put(f"{API}/streams/s", json={"partitions": 2}), 201)
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "q", "key": "k"}), 201)
    ok(client.put(f"{API}/policies/p", json={"pattern": "q", "settings": {"ttl_ms": 5}}))
    document = ok(client.get(f"{API}/definitions"))
    assert [row["name"] for row in document["tenants"]] == [document["tenants"][0]["name"]]
    with world(tmp_path) as other:
        assert ok(other.admin.post(f"{API}/definitions", json=document))["status"] == "ok"
        name = document["tenants"][0]["name"]
        assert ok(other.admin.get(f"{API}/definitions?tenant={name}")) == document
        whole = ok(other.admin.get(f"{API}/definitions?all=true&access=true"))
        assert {row["name"] for row in whole["tenants"]} >= {name, "default"}
        assert "keys" in whole["access"]
    # again changes nothing, and what is wrong changes nothing either
    ok(client.post(f"{API}/definitions", json=document))
    wrong = {**document, "tenants": [{**document["tenants"][0], "queues": [{"name": "new", "face": "moon"}]}]}
    assert client.post(f"{API}/definitions", json=wrong).status_code == 400
    assert client.post(f"{API}/definitions", json={"rookery": 1}).status_code == 400
    assert refused(client.get(f"{API}/queues/new"), 404)
    assert ok(client.get(f"{API}/definitions")) == document


def test_definitions_do_not_reach_beyond_the_tenant(client: httpx.Client) -> None:
    document = ok(client.get(f"{API}/definitions"))
    (row,) = document["tenants"]
    for wrong in (
        {**document, "tenants": [{**row, "name": "default"}]},
        {**document, "access": {"version": 1, "keys": [], "users": []}},
        {**document, "tenants": [{**row, "limits": {**row["limits"], "queues_max": 0}}]},
    ):
        assert refused(client.post(f"{API}/definitions", json=wrong), 403) == "access_refused"
    no_limits = {**document, "tenants": [{**row, "limits": [1]}]}
    refused(client.post(f"{API}/definitions", json=no_limits), 400, "tenants[0].limits")
    for query in ("all=true", "access=true", "tenant=default"):
        assert refused(client.get(f"{API}/definitions?{query}"), 403) == "access_refused"


# Connections


def test_connections_are_listed_and_closed(web: World, client: httpx.Client, tenant: str) -> None:
    kid, _, secret = web.key(tenant).partition(".")
    host, _, port = web.server.addresses["amqp"].rpartition(":")
    parameters = pika.ConnectionParameters(
        host, int(port), tenant, pika.PlainCredentials(kid, secret), blocked_connection_timeout=20
    )
    connection = pika.BlockingConnection(parameters)
    connection.channel()
    rows = ok(client.get(f"{API}/connections"))["connections"]
    (amqp,) = [row for row in rows if row["protocol"] == "amqp"]
    assert (amqp["tenant"], amqp["user"], amqp["channels"], amqp["peer"]) == (tenant, kid, 1, "127.0.0.1")
    assert {row["tenant"] for row in rows} == {tenant}
    stranger = web.large("stranger")
    assert amqp["id"] not in [row["id"] for row in ok(stranger.get(f"{API}/connections"))["connections"]]
    assert refused(stranger.delete(f"{API}/connections/{amqp['id']}"), 404) == "not_found"
    assert amqp["id"] in [row["id"] for row in ok(web.admin.get(f"{API}/connections?limit=1000"))["connections"]]
    ok(client.delete(f"{API}/connections/{amqp['id']}?reason=enough"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        connection.process_data_events(time_limit=20)
    own = next(row for row in rows if row["protocol"] == "http")
    refused(client.delete(f"{API}/connections/{own['id']}"), 409, "id")


def test_connections_of_the_line_protocol_are_listed_and_closed(web: World) -> None:
    host, _, port = web.server.addresses["line"].rpartition(":")
    with socket.create_connection((host, int(port)), 20) as line, line.makefile("rb") as answers:
        line.sendall(b"CREATE_QUEUE listed\r\n")
        answers.readline()
        rows = ok(web.admin.get(f"{API}/connections?limit=1000"))["connections"]
        (shown,) = [row for row in rows if row["protocol"] == "line"]
        assert (shown["peer"], shown["channels"]) == ("127.0.0.1", 0)
        ok(web.admin.delete(f"{API}/connections/{shown['id']}"))
        with contextlib.suppress(ConnectionResetError):
            while answers.readline():
                pass
    rows = ok(web.admin.get(f"{API}/connections?limit=1000"))["connections"]
    assert not [row for row in rows if row["protocol"] == "line"]


@pytest.mark.row("S4-39")
def test_consumers_are_listed_and_ended(web: World, client: httpx.Client, tenant: str) -> None:
    kid, _, secret = web.key(tenant).partition(".")
    host, _, port = web.server.addresses["amqp"].rpartition(":")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host, int(port), tenant, pika.PlainCredentials(kid, secret))
    )
    channel = connection.channel()
    channel.queue_declare("consumed")
    channel.basic_qos(prefetch_count=2)
    publish(client, "consumed", 1, 2, 3)
    ended: list[Any] = []
    channel.add_on_cancel_callback(ended.append)
    channel.basic_consume("consumed", lambda *_: None, consumer_tag="tag")
    (row,) = ok(client.get(f"{API}/consumers"))["consumers"]
    assert (row["queue"], row["name"], row["protocol"], row["credit"]) == ("consumed", "tag", "amqp", 2)
    assert (row["leased"], row["priority"]) == (2, 0)
    assert row["connection"] in [each["id"] for each in ok(client.get(f"{API}/connections"))["connections"]]
    assert ok(client.get(f"{API}/consumers?queue=consumed"))["consumers"][0]["id"] == row["id"]
    assert refused(client.get(f"{API}/consumers?queue=none"), 404) == "queue_not_found"
    blind = web.large(tenant, rights={"configure": "", "write": ".*", "read": ""})
    assert ok(blind.get(f"{API}/consumers"))["consumers"] == []
    refused(blind.delete(f"{API}/consumers/{row['id']}"), 403)
    assert refused(web.large("stranger").delete(f"{API}/consumers/{row['id']}"), 404) == "not_found"
    ok(client.delete(f"{API}/consumers/{row['id']}"))
    assert ok(client.get(f"{API}/consumers"))["consumers"] == []
    for _ in range(60):
        if not ended:
            connection.process_data_events(time_limit=1)
    assert ended
    # what it holds stays with it, until its channel ends
    assert ok(client.get(f"{API}/queues/consumed"))["stats"]["leased"] == 2
    connection.close()
    assert [each["message"] for each in claim(client, "consumed")] == [1, 2, 3]


def test_a_reader_of_events_is_a_consumer_and_a_webhook_is_ended_as_one(client: httpx.Client, web: World) -> None:
    ok(client.put(f"{API}/queues/read"), 201)
    with client.stream("GET", f"{API}/queues/read/stream") as reader:
        (row,) = ok(client.get(f"{API}/consumers?queue=read"))["consumers"]
        assert (row["protocol"], row["connection"]) == ("http", None)
        ok(client.delete(f"{API}/consumers/{row['id']}"))
        assert any("cancelled by an operator" in line for line in reader.iter_lines())
    hook = ok(web.admin.post(f"{API}/queues/hooked/webhooks", json={"endpoint": "http://127.0.0.1:9/"}), 201)
    (row,) = ok(web.admin.get(f"{API}/consumers?queue=hooked"))["consumers"]
    refused(web.admin.delete(f"{API}/consumers/{row['id']}"), 409, "id")
    ok(web.admin.delete(f"{API}/webhooks/{hook['id']}"))


# Rights


def test_rights_are_asked_for_by_name(web: World, tenant: str) -> None:
    owner = web.large(tenant)
    for name in ("mine", "theirs"):
        ok(owner.put(f"{API}/queues/{name}"), 201)
        ok(owner.put(f"{API}/exchanges/{name}", json={"kind": "fanout"}), 201)
        ok(owner.put(f"{API}/streams/{name}-s"), 201)
        publish(owner, name, 1)
    one = {"message": 1}
    reader = web.large(tenant, rights={"configure": "", "write": "", "read": "^mine"})
    writer = web.large(tenant, rights={"configure": "", "write": "^mine", "read": ""})
    maker = web.large(tenant, rights={"configure": "^mine", "write": "", "read": ""})
    assert [row["name"] for row in ok(reader.get(f"{API}/queues"))["queues"]] == ["mine"]
    assert [row["name"] for row in ok(reader.get(f"{API}/streams"))["streams"]] == ["mine-s"]
    assert ok(writer.get(f"{API}/queues"))["queues"] == []
    (got,) = claim(reader, "mine")
    allowed = [
        writer.post(f"{API}/queues/mine/messages", json=[one]),
        writer.post(f"{API}/exchanges/mine/messages", json=[one]),
        writer.post(f"{API}/streams/mine-s/publish", json=[one]),
        writer.post(f"{API}/streams/mine-s/stage", json=[one]),
        writer.post(f"{API}/transactions", json={"publish": [{"queue": "mine", **one}]}),
        reader.post(f"{API}/queues/mine/settle", json={"leases": [got["lease"]]}),
        reader.get(f"{API}/streams/mine-s/records"),
        maker.patch(f"{API}/streams/mine-s", json={"max_age_ms": 5}),
    ]
    assert [answer.status_code // 100 for answer in allowed] == [2] * len(allowed), [a.text for a in allowed]
    (lease,) = claim(owner, "theirs")
    wrong = [
        reader.post(f"{API}/queues/mine/messages", json=[one]),
        reader.post(f"{API}/queues/theirs/claim"),
        reader.post(f"{API}/queues/theirs/settle", json={"leases": [lease["lease"]]}),
        reader.post(f"{API}/transactions", json={"settle": [{"lease": lease["lease"]}]}),
        reader.post(f"{API}/queues/mine/move", json={"to": "theirs"}),
        reader.post(f"{API}/queues/mine/redrive", json={"to": "theirs"}),
        reader.delete(f"{API}/queues/mine"),
        reader.post(f"{API}/streams/mine-s/publish", json=[one]),
        reader.get(f"{API}/streams/theirs-s/records"),
        reader.get(f"{API}/streams/theirs-s/records", headers={"Accept": ARROW}),
        reader.post(f"{API}/streams/theirs-s/groups/g/join"),
        reader.post(f"{API}/streams/theirs-s/plan"),
        reader.post(f"{API}/queues/theirs/cuts", json={"consumer": "c"}),
        reader.get(f"{API}/policies"),
        reader.get(f"{API}/definitions"),
        reader.get(f"{API}/connections"),
        reader.get(f"{API}/tenants/{tenant}"),
        writer.post(f"{API}/queues/theirs/messages", json=[one]),
        writer.post(f"{API}/exchanges/theirs/messages", json=[one]),
        writer.post(f"{API}/queues/mine-too/messages", json=[one]),
        writer.post(f"{API}/queues/theirs/stage", json=[one]),
        writer.post(f"{API}/transactions", json={"publish": [{"exchange": "theirs", **one}]}),
        writer.get(f"{API}/queues/mine"),
        writer.post(f"{API}/bindings", json={"source": "mine", "target": "mine"}),
        writer.put(f"{API}/streams/mine-2"),
        maker.put(f"{API}/exchanges/theirs-2", json={"kind": "topic"}),
        maker.put(f"{API}/policies/p", json={"pattern": "mine", "settings": {}}),
        maker.post(f"{API}/streams/theirs-s/seal"),
        owner.put(f"{API}/tenants/{tenant}/limits", json={}),
        owner.get(f"{API}/tenants"),
        owner.get(f"{API}/tenants/default"),
        owner.get(f"{API}/users"),
        owner.put(f"{API}/users/eve", json={"password": "x"}),
    ]
    assert [answer.status_code for answer in wrong] == [403] * len(wrong), [
        a.text for a in wrong if a.status_code != 403
    ]
    # a chunk of a stream is committed by whoever may write there
    chunk = ok(owner.post(f"{API}/streams/theirs-s/stage", json=[one]), 201)["chunk"]
    assert refused(writer.post(f"{API}/producers/p/commit", json={"epoch": 1, "chunks": [chunk]}), 403)
    assert refused(writer.delete(f"{API}/chunks/{chunk}"), 403)
    assert ok(writer.get(f"{API}/chunks"))["chunks"][0]["stream"] == "mine-s"
    assert len(ok(writer.get(f"{API}/chunks"))["chunks"]) == 1


def test_a_redrive_leaves_what_its_caller_may_not_write(web: World, tenant: str) -> None:
    owner = web.large(tenant)
    for name in ("mine", "theirs"):
        ok(owner.put(f"{API}/queues/{name}", json={"dead_letter_queue": "dead"}), 201)
        publish(owner, name, name)
        leases = [row["lease"] for row in claim(owner, name)]
        ok(owner.post(f"{API}/queues/{name}/settle", json={"leases": leases, "outcome": "reject"}))
    limited = web.large(tenant, rights={"configure": "", "write": "^mine$", "read": "^dead$"})
    assert ok(limited.post(f"{API}/queues/dead/redrive"))["redriven"] == 1
    assert [row["message"] for row in claim(owner, "dead")] == ["theirs"]


def test_tenants_do_not_meet(web: World) -> None:
    one, two = web.large("one"), web.large("two")
    publish(one, "q", 1)
    ok(one.put(f"{API}/streams/s"), 201)
    (got,) = claim(one, "q")
    ok(one.put(f"{API}/transactions/t"), 201)
    chunk = ok(one.post(f"{API}/streams/s/stage", json=[{"message": 1}]), 201)["chunk"]
    plan = ok(one.post(f"{API}/streams/s/plan"), 201)["plan"]
    assert ok(two.get(f"{API}/queues"))["queues"] == []
    assert ok(two.get(f"{API}/streams"))["streams"] == []
    assert ok(two.get(f"{API}/chunks"))["chunks"] == []
    assert ok(two.post(f"{API}/queues/q/settle", json={"leases": [got["lease"]]}))["settled"] == 0
    unknown = [
        two.get(f"{API}/streams/s"),
        two.get(f"{API}/transactions/t"),
        two.delete(f"{API}/chunks/{chunk}"),
        two.post(f"{API}/producers/p/commit", json={"epoch": 0, "chunks": [chunk]}),
        two.post(f"{API}/plans/{plan}/renew"),
        two.post(f"{API}/transactions", json={"settle": [{"lease": got["lease"]}]}),
    ]
    assert [answer.status_code for answer in unknown] == [404] * len(unknown)


def test_the_document_says_what_bodies_and_queries_may_be(web: World) -> None:
    paths = ok(web.client.get("/openapi.json"))["paths"]
    kinds = {JSON, "application/x-ndjson", "application/cloudevents+json", "application/cloudevents-batch+json"}
    kinds |= {"application/octet-stream", "application/vnd.rookery+msgpack"}
    for path in ("queues/{name}/messages", "exchanges/{name}/messages", "streams/{name}/publish"):
        assert set(paths[f"{API}/{path}"]["post"]["requestBody"]["content"]) == kinds
    staged = paths[f"{API}/streams/{{name}}/stage"]["post"]["requestBody"]["content"]
    assert set(staged) == {JSON, "application/x-ndjson", ARROW, "application/vnd.rookery+msgpack"}
    records = {row["name"] for row in paths[f"{API}/streams/{{name}}/records"]["get"]["parameters"]}
    assert records == {"name", "partition", "from", "to", "limit", "columns", "routing_key", "wait", "positions", "id"}
