"""A credential that is taken away is no longer good on connections that are open, whatever they speak.

Nothing here waits for the tick that looks around once a second: it is stopped.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from rookery.core.access import FULL
from tests.wire.http_world import Raw, World, request, world

pytestmark = pytest.mark.row("S0-38")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("revoked"), line_port=0) as made:
        made.inside(lambda server: server._turns.stop())
        yield made


@pytest.fixture
def key(web: World) -> str:
    return web.key("t")


def revoke(web: World, key: str) -> None:
    assert web.admin.delete(f"/keys/{key.partition('.')[0]}").status_code == 200


def port(web: World, face: str) -> int:
    return int(web.server.addresses[face].rpartition(":")[2])


def amqp(web: World, user: str, password: str, vhost: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port(web, "amqp"), vhost, credentials, heartbeat=0)
    )


def test_a_kept_http_connection(web: World, key: str) -> None:
    asked = request("GET", "/api/v1/queues/q/stats", Authorization=f"Bearer {key}")
    with web.connect() as raw:
        raw.send(asked)
        assert raw.answer()[0] == 200
        revoke(web, key)
        raw.send(asked)
        assert raw.answer()[0] == 401


def test_a_claim_that_waits(web: World, key: str) -> None:
    with web.connect() as raw:
        raw.send(request("POST", "/api/v1/queues/waiting/pull?wait=60", Authorization=f"Bearer {key}"))
        while not web.inside(lambda server: _waiting(server, "waiting")):
            pass
        revoke(web, key)
        assert raw.answer()[0] == 401


def _waiting(server: Any, queue: str) -> bool:
    found = server.engine.shard.tenants["t"].queues.get(queue)
    return found is not None and int(found.waiting_claims()) > 0


def test_a_reader_of_events(web: World, key: str) -> None:
    client = httpx.Client(base_url=web.base, headers={"Authorization": f"Bearer {key}"}, timeout=30, trust_env=False)
    with client, client.stream("GET", "/api/v1/queues/q/stream") as answer:
        pieces = answer.iter_raw()
        next(pieces)
        revoke(web, key)
        # ends in good order: a broken one would raise
        assert b"data:" not in b"".join(pieces)


def test_an_amqp_connection_with_a_consumer(web: World, key: str) -> None:
    kid, _, secret = key.partition(".")
    connection = amqp(web, kid, secret, "t")
    channel = connection.channel()
    channel.queue_declare("mine")
    channel.basic_consume("mine", lambda *_: None)
    revoke(web, key)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        channel.start_consuming()
    assert closed.value.reply_code == 320
    assert web.inside(lambda server: server.engine.shard.tenants["t"].queues["mine"].consumers()) == 0


def test_a_connection_of_the_line_protocol(web: World, key: str) -> None:
    kid, _, secret = key.partition(".")
    with Raw(socket.create_connection(("127.0.0.1", port(web, "line")), 30)) as raw:
        raw.send(f"AUTH {kid} {secret}\r\n".encode())
        assert b"success" in raw.line()
        revoke(web, key)
        assert b"has ended" in raw.rest()


def test_a_user_who_is_deleted_or_loses_a_tenant(web: World) -> None:
    def add(server: Any) -> None:
        for name in ("ada", "eve"):
            server.access.set_user(name, password="pw", tenants={"default": FULL})

    web.inside(add)
    ada, eve = (amqp(web, name, "pw", "/") for name in ("ada", "eve"))
    web.inside(lambda server: server.access.delete_user("ada"))
    web.inside(lambda server: server.access.set_user("eve", tenants={}))
    for connection in (ada, eve):
        with pytest.raises(ConnectionClosedByBroker):
            connection.process_data_events(30)


def test_others_stay(web: World, key: str) -> None:
    kid, _, secret = web.key("t").partition(".")
    connection = amqp(web, kid, secret, "t")
    with web.connect() as raw:
        raw.send(request("POST", "/api/v1/queues/waiting/pull?wait=60", Authorization=f"Bearer {key}"))
        while not web.inside(lambda server: _waiting(server, "waiting")):
            pass
        revoke(web, key)
        # from here on everyone has been looked at
        assert raw.answer()[0] == 401
    assert connection.channel().is_open
    connection.close()
