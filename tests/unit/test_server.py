"""The server in one process: listeners, logins, limits, stopping; and listeners on an embedded broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rookery.config.settings import Settings
from rookery.core.access import FULL, Access, Rights
from rookery.core.policy import Policy
from rookery.embed import AsyncBroker, Broker
from rookery.errors import InvalidArgument, InvalidConfig
from rookery.server import Server, attach, attach_thread
from rookery.server.limits import is_local
from rookery.server.listeners import address_of
from rookery.server.logs import make_log
from rookery.server.process import announce_admin_key, key_file
from tests.wire.amqp_peer import (
    NO_ARGUMENTS,
    PROTOCOL,
    Frame,
    closed,
    deliveries,
    frames,
    long,
    method,
    octet,
    open_vhost,
    publish,
    short,
    short_string,
    start_ok,
    tune_ok,
)

CHANNEL = method(1, 20, 10, b"\x00")
DECLARE_Q = method(1, 50, 10, short(0) + short_string("q") + octet(0) + NO_ARGUMENTS)
CONSUME_Q = method(1, 60, 20, short(0) + short_string("q") + short_string("c") + octet(2) + NO_ARGUMENTS)


def settings(tmp_path: Path, **changes: Any) -> Settings:
    flags = {"host": "127.0.0.1", "http_port": 0, "amqp_port": 0, "line_port": "off", "data_dir": tmp_path / "data"}
    return Settings.load({**flags, "store_backend": "memory", **changes}, {}, tmp_path)


class Client:
    """A raw socket that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str) -> Client:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def frame(self) -> Frame:
        head = await self.reader.readexactly(7)
        (size,) = struct.unpack(">I", head[3:])
        (one,) = frames(head + await self.reader.readexactly(size + 1))
        return one

    async def until(self, *name: int) -> Frame:
        while True:
            one = await self.frame()
            if one.kind == 1 and one.name == name:
                return one

    async def opened(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> Client:
        self.writer.write(PROTOCOL + start_ok(user, password, authentication_failure_close=True))
        await self.until(10, 30)
        self.writer.write(tune_ok() + open_vhost(vhost) + CHANNEL)
        await self.until(20, 11)
        return self

    async def message(self) -> Any:
        got = [await self.until(60, 60), await self.frame(), await self.frame()]
        return deliveries(got)[0]

    def close(self) -> None:
        self.writer.close()


Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    running: list[Server] = []

    async def begin(**changes: Any) -> Server:
        server = Server(settings(tmp_path, **changes), log=make_log("critical", io.StringIO()))
        await server.start()
        running.append(server)
        return server

    yield begin
    for server in running:
        await server.stop(0)


async def test_health_and_unknown_paths(start: Start) -> None:
    server = await start(amqp_port="off")
    assert set(server.addresses) == {"http"}
    host, _, port = server.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for request, status, part in (
        (b"GET /health?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", 200, ("status", "ok")),
        (b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n", 200, ("status", "ok")),
        (
            b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
            405,
            ("code", "method_not_allowed"),
        ),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, ("code", "path_not_found")),
    ):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith(f"http/1.1 {status} ")
        assert "content-type: application/json" in head
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        assert part in json.loads(await reader.readexactly(size)).items()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01 not http\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"a" * 2000, 413),
    ],
)
async def test_http_limits(start: Start, request_bytes: bytes, status: int) -> None:
    server = await start(amqp_port="off", http_body_max_bytes=1000)
    host, _, port = server.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes)
    assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()


async def test_guest_from_loopback_publishes_and_consumes(start: Start) -> None:
    server = await start()
    client = await (await Client.connect(server.addresses["amqp"])).opened()
    client.writer.write(DECLARE_Q + CONSUME_Q + publish(1, "", "q", b"hello"))
    assert (await client.message()).body == b"hello"
    client.close()


@pytest.mark.parametrize(
    ("changes", "user", "password", "code"),
    [
        ({}, "guest", "wrong", 403),
        ({}, "nobody", "x", 403),
        ({"guest": "off"}, "guest", "guest", 403),
        ({"api_key": "sesame"}, "API_KEY", "sesame", 0),
        ({"api_key": "sesame"}, "API_KEY", "mustard", 403),
        ({"auth_mode": "none"}, "anyone", "at all", 0),
    ],
)
async def test_logins(start: Start, changes: dict[str, Any], user: str, password: str, code: int) -> None:
    server = await start(**changes)
    client = await Client.connect(server.addresses["amqp"])
    if code:
        client.writer.write(PROTOCOL + start_ok(user, password, authentication_failure_close=True))
        assert closed(await client.until(10, 50), hard=True).code == code
    else:
        await client.opened(user, password)
    client.close()


async def test_users_keys_and_tenants(start: Start) -> None:
    server = await start()
    with server.engine:
        server.engine.shard.create_tenant("shop")
    server.access.set_user("ada", password="pw", tenants={"shop": FULL, "lab": FULL})
    key = server.access.create_key("shop", server.clock.wall_ms(), rights=Rights("", "^amq.default$", ""))
    kid, _, secret = key.text.partition(".")
    ada = await (await Client.connect(server.addresses["amqp"])).opened("ada", "pw", "shop")
    ada.writer.write(DECLARE_Q + CONSUME_Q)
    await ada.until(60, 21)
    keyed = await (await Client.connect(server.addresses["amqp"])).opened(kid, secret, "shop")
    keyed.writer.write(publish(1, "", "q", b"by key"))
    assert (await ada.message()).body == b"by key"
    keyed.writer.write(DECLARE_Q)
    assert closed(await keyed.until(20, 40)).code == 403
    lost = await Client.connect(server.addresses["amqp"])
    lost.writer.write(PROTOCOL + start_ok("ada", "pw") + tune_ok() + open_vhost("/"))
    assert closed(await lost.until(10, 50), hard=True).code == 530
    server.access.revoke_key(kid)
    assert closed(await keyed.until(10, 50), hard=True).code == 320
    for client in (ada, keyed, lost):
        client.close()


async def test_connection_limit(start: Start) -> None:
    server = await start(connections_max=1)
    first = await (await Client.connect(server.addresses["amqp"])).opened()
    second = await Client.connect(server.addresses["amqp"])
    second.writer.write(PROTOCOL)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await second.frame()
    first.close()
    second.close()


@pytest.mark.parametrize("own", [False, True], ids=["setting", "tenant's own limit"])
async def test_connection_limit_of_a_tenant(start: Start, own: bool) -> None:
    server = await start(**({} if own else {"tenant_connections_max": 1}))
    with server.engine:
        if own:
            server.engine.shard.tenants["default"].set_limits({"connections_max": 1})
        server.engine.shard.create_tenant("shop")
    server.access.set_user("ada", password="pw", tenants={"default": FULL, "shop": FULL})
    first = await (await Client.connect(server.addresses["amqp"])).opened()
    second = await Client.connect(server.addresses["amqp"])
    second.writer.write(PROTOCOL + start_ok() + tune_ok() + open_vhost("/"))
    assert closed(await second.until(10, 50), hard=True).code == 530
    elsewhere = await (await Client.connect(server.addresses["amqp"])).opened("ada", "pw", "shop")
    for client in (first, second, elsewhere):
        client.close()


async def test_a_new_secret_is_taken_at_the_connection_limit_of_a_tenant(start: Start) -> None:
    server = await start(tenant_connections_max=1)
    client = await (await Client.connect(server.addresses["amqp"])).opened()
    client.writer.write(method(0, 10, 70, long(5) + b"guest" + short_string("rotated")))
    await client.until(10, 71)
    client.close()


async def test_the_log_says_that_publishers_are_held_and_why(tmp_path: Path) -> None:
    text = io.StringIO()
    server = Server(settings(tmp_path, memory_max_bytes="1MiB"), log=make_log("info", text))
    await server.start()
    client = await (await Client.connect(server.addresses["amqp"])).opened()
    client.writer.write(DECLARE_Q)
    await client.until(50, 11)
    with server.engine:
        tenant = server.engine.shard.tenants["default"]
        for _ in range(11):
            server.engine.shard.publish(tenant, "", "q", b"\x00\x00", bytes(100_000))
    client.writer.write(DECLARE_Q)
    await client.until(50, 11)
    assert '"reason":"low on memory","event":"publishers_held"' in text.getvalue()
    assert "publishers_released" not in text.getvalue()
    client.writer.write(method(1, 50, 30, short(0) + short_string("q") + octet(0)))
    await client.until(50, 31)
    client.writer.write(DECLARE_Q)
    await client.until(50, 11)
    assert '"event":"publishers_released"' in text.getvalue()
    client.close()
    await server.stop(0)


async def test_a_consumer_that_does_not_read_does_not_stop_the_others(start: Start) -> None:
    server = await start()
    slow = await (await Client.connect(server.addresses["amqp"])).opened()
    slow.writer.write(DECLARE_Q + CONSUME_Q)
    await slow.until(60, 21)
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    publisher = await (await Client.connect(server.addresses["amqp"])).opened()
    body = b"x" * 60_000
    for _ in range(500):
        publisher.writer.write(publish(1, "", "q", body))
    await publisher.writer.drain()
    publisher.writer.write(method(1, 50, 10, short(0) + short_string("q") + octet(1) + NO_ARGUMENTS))
    declared = await publisher.until(50, 11)
    (waiting,) = struct.unpack_from(">I", declared.arguments, 2)
    assert waiting > 100  # most of it is in the queue and not in buffers for a peer that does not take it
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(500):
        assert (await slow.message()).body == body
    slow.close()
    publisher.close()


async def test_stopping_tells_peers_and_frees_the_port(start: Start) -> None:
    server = await start()
    client = await (await Client.connect(server.addresses["amqp"])).opened()
    stopping = asyncio.ensure_future(server.stop(30))
    assert closed(await client.until(10, 50), hard=True).code == 320
    assert not stopping.done()
    client.writer.write(method(0, 10, 51))
    await stopping
    with pytest.raises(OSError):
        await Client.connect(server.addresses["amqp"])
    client.close()


async def test_a_host_that_cannot_be_one(tmp_path: Path) -> None:
    server = Server(
        settings(tmp_path, host="x" * 70 + ".example", http_port="off"), log=make_log("critical", io.StringIO())
    )
    with pytest.raises(InvalidConfig, match="cannot listen"):
        await server.start()


async def test_a_port_that_is_taken(start: Start, tmp_path: Path) -> None:
    server = await start()
    port = server.addresses["amqp"].rpartition(":")[2]
    other = Server(settings(tmp_path, amqp_port=port), log=make_log("critical", io.StringIO()))
    with pytest.raises(InvalidConfig, match="cannot listen"):
        await other.start()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_the_first_admin_key_goes_to_the_terminal_or_to_a_private_file(tmp_path: Path) -> None:
    log = io.StringIO()
    server = Server(settings(tmp_path), log=make_log("info", log))
    terminal = Terminal()
    announce_admin_key(server, terminal)
    text = terminal.getvalue().strip().rpartition(" ")[2]
    assert server.access.check_key(text, server.clock.wall_ms()).admin
    assert not key_file(server.settings.data_dir).exists()
    old = os.umask(0)
    try:
        announce_admin_key(server, io.StringIO())
    finally:
        os.umask(old)
    path = key_file(server.settings.data_dir)
    assert path.parent == tmp_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text().strip()
    assert server.access.check_key(written, server.clock.wall_ms()).admin
    assert written not in log.getvalue()
    assert text not in log.getvalue()
    # a link is not followed, and a key nobody can read is not left valid
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    keys = len(server.access.keys("default"))
    announce_admin_key(server, io.StringIO())
    assert len(server.access.keys("default")) == keys
    assert not (tmp_path / "elsewhere").exists()


async def test_stored_patterns_that_are_refused_now_are_listed_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A data directory of a version that matched with `re`, served and opened by an embedded broker."""
    first = Server(settings(tmp_path, store_backend="journal"), log=make_log("critical", io.StringIO()))
    await first.start()
    with first.engine:
        first.engine.shard.tenant("default").set_policy(Policy("old", r"(a)\1", {"ttl_ms": 5}, stored=True))
        issued = first.access.create_key("default", 1)
        stored = json.loads(json.dumps(first.access.export()))
        stored["keys"][-1]["rights"]["write"] = "(?>a)"
        first.access.load(stored, stored=True)
    await first.stop(0)

    text = io.StringIO()
    second = Server(settings(tmp_path, store_backend="journal"), log=make_log("info", text))
    await second.start()
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    warned = [line for line in lines if line["event"] == "pattern_not_supported"]
    assert [(line["level"], line["kind"], line["name"], line["tenant"], line["effect"]) for line in warned] == [
        ("warning", "policy", "old", "default", "the policy applies to no queue"),
        ("warning", "key", issued.record.kid, "default", "the right is denied"),
    ]
    assert "backreference" in warned[0]["reason"]
    assert not second.access.check_key(issued.text, 2).may("write", "a")
    assert second.access.check_key(issued.text, 2).may("read", "a")
    auth = {"Authorization": f"ApiKey {issued.text}"}
    async with httpx.AsyncClient(base_url=f"http://{second.addresses['http']}", headers=auth) as client:
        shown = (await client.get("/api/v1/policies")).json()["policies"]
        assert shown[0]["name"] == "old"
        assert "backreference" in shown[0]["problem"]
        refused = await client.put("/api/v1/policies/new", json={"pattern": r"(a)\1", "settings": {}})
        assert (refused.status_code, "repeat the group" in refused.text) == (400, True)
        made = await client.put("/api/v1/policies/new", json={"pattern": r"^(?!amq\.).*", "settings": {"ttl_ms": 9}})
        assert "problem" not in made.json()
    await second.stop(0)

    with Broker(enable_persistence=True, persistence_path=str(tmp_path / "data")):
        assert "policy 'old' of tenant 'default' applies to no queue" in caplog.text


def test_log_lines_are_json(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = make_log("info", stream)
    log.info("listening", amqp="127.0.0.1:5672")
    make_log("warning", stream).info("unseen")
    (line,) = stream.getvalue().splitlines()
    assert '"event":"listening"' in line
    assert json.loads(line)["amqp"] == "127.0.0.1:5672"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1%eth0", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
        ("localhost.evil.example", False),
    ],
)
def test_local_addresses(host: str, expected: bool) -> None:
    assert is_local(host) == expected


class Socket:
    def __init__(self, *name: object) -> None:
        self._name = name

    def getsockname(self) -> tuple[object, ...]:
        return self._name


def test_addresses() -> None:
    assert address_of(Socket("127.0.0.1", 5)) == "127.0.0.1:5"
    assert address_of(Socket("::1", 5, 0, 0)) == "[::1]:5"


async def test_amqp_on_an_embedded_async_broker() -> None:
    async with AsyncBroker() as broker:
        attached = await attach(broker, amqp=0)
        client = await (await Client.connect(attached.amqp)).opened()
        client.writer.write(DECLARE_Q + CONSUME_Q)
        await client.until(60, 21)
        queue = await broker.queue("q")
        await queue.publish("from inside")
        assert (await client.message()).body == b"from inside"
        unknown = await Client.connect(attached.amqp)
        unknown.writer.write(PROTOCOL + start_ok() + tune_ok() + open_vhost("other"))
        assert closed(await unknown.until(10, 50), hard=True).code == 530
        client.close()
        unknown.close()
        await attached.close()


def test_amqp_on_an_embedded_blocking_broker() -> None:
    async def talk(address: str) -> None:
        client = await (await Client.connect(address)).opened()
        client.writer.write(
            method(1, 50, 10, short(0) + short_string("in") + octet(2) + NO_ARGUMENTS)
            + publish(1, "", "in", b"from outside")
        )
        client.writer.write(CONSUME_Q)
        assert (await client.message()).body == b"from inside"
        client.close()

    with Broker() as broker:
        attached = attach_thread(broker, amqp=0)
        talking = asyncio.new_event_loop()
        broker.queue("q").publish("from inside")
        talking.run_until_complete(talk(attached.amqp))
        talking.close()
        (delivery,) = broker.queue("in").claim(1, wait_ms=5000)
        assert delivery.body == b"from outside"
        delivery.ack()
        attached.close()
        attached.close()


async def test_http_and_lines_on_an_embedded_async_broker(tmp_path: Path) -> None:
    async with AsyncBroker(enable_persistence=True, persistence_path=str(tmp_path / "data")) as broker:
        with pytest.raises(InvalidArgument):
            await attach(broker)
        attached = await attach(broker, http=0, line=0, settings=Settings(api_key="secret", log_level="error"))
        assert (attached.amqp, attached.line != attached.http) == ("", True)
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(base_url=f"http://{attached.http}", headers=headers, trust_env=False) as client:
            queue = await broker.queue("q")
            await queue.publish({"from": "inside"})
            got = (await client.post("/api/v1/queues/q/pull")).json()
            assert got["message"] == {"from": "inside"}
            waiting = asyncio.create_task(client.post("/api/v1/queues/later/pull?wait=30"))
            later = await broker.queue("later")
            while not broker.engine.shard.tenants["default"].queues["later"].waiting_claims():
                await asyncio.sleep(0)
            await later.publish("now")
            assert (await waiting).json()["message"] == "now"
            sent = await client.post("/api/v1/queues/back/publish", json={"message": 1})
            (delivery,) = await (await broker.queue("back")).claim(1)
            assert (delivery.data, delivery.id) == (1, sent.json()["message_id"])
            assert (await client.get("/health/ready")).status_code == 200
            assert (await client.get("/api/v1/queues", headers={"Authorization": "Bearer x"})).status_code == 401
        await attached.close()


def test_http_on_an_embedded_blocking_broker() -> None:
    access = Access(os.urandom)
    key = access.create_key("default", 0).text
    with Broker() as broker:
        attached = attach_thread(broker, http=0, access=access)
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://{attached.http}", headers=headers, trust_env=False) as client:
            broker.queue("q").publish("from inside")
            assert client.post("/api/v1/queues/q/pull").json()["message"] == "from inside"
            client.post("/publish?queue=in", content=b"from outside")
            (delivery,) = broker.queue("in").claim(1, wait_ms=30_000)
            assert delivery.body == b"from outside"
            delivery.ack()
        attached.close()
        attached.close()
