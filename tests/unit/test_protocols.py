"""A protocol is one package and one line of registration.

`Toy` is such a package: a peer logs in, gets its lines back in capitals, and is told when it has to go. The line is in
the fixture `toy`; the tests see what follows from it with no change elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import pytest
import trustme
from typer.testing import CliRunner

from rookery.cli import app
from rookery.clock import ManualClock, SystemClock
from rookery.config.settings import Settings
from rookery.core.access import FULL, Access, Principal
from rookery.core.consumers import Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.embed import AsyncBroker, Broker
from rookery.errors import InvalidArgument, InvalidConfig
from rookery.server import Server, attach, attach_thread
from rookery.server.logs import make_log
from rookery.wire.face import Services, WireProtocol
from rookery.wire.protocols import NAMES, PROTOCOLS
from rookery.wire.turn import NO_ACCESS, OPERATOR, SHUTDOWN, Face, Outlet, Peer
from tests.wire.http_world import World, world

API = "/api/v1"
WORDS = {SHUTDOWN: "stopping", NO_ACCESS: "no access", OPERATOR: "closed"}


# The package: a face, a connection, and what the server is told of them


class ToySettings(Protocol):
    @property
    def dlq_suffix(self) -> str: ...


class ToyFace(Face):
    def __init__(self, services: Services, settings: ToySettings) -> None:
        super().__init__("toy", services.turn)
        self.gate = services.gate
        self.suffix = settings.dlq_suffix

    def connect(self) -> Peer:
        return ToyConnection(self)


class ToyConnection(Peer):
    """`guest`, `key KEY` or `user NAME PASSWORD` first; then `consume QUEUE`, or anything else, which is repeated."""

    def __init__(self, face: ToyFace) -> None:
        super().__init__()
        self.face = face
        self.out = Outlet(face.turn, self)
        self.began_ms = int(face.shard.mono_ms)

    def connection_made(self, transport: Any) -> None:
        self.out.transport = transport
        self.face.add(self, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.face.remove(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Answers are short."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def data_received(self, data: bytes) -> None:
        if self.face.turn.begin():
            try:
                for line in data.decode().splitlines():
                    self._line(*line.split())
            finally:
                self.face.turn.end()

    def _line(self, verb: str, *words: str) -> None:
        if verb == "guest":
            self._entered(self.face.gate.guest(self), "no guests")
        elif verb == "key":
            self.face.gate.log_in(self, "", words[0], "TOY", self._entered)
        elif verb == "user":
            self.face.gate.log_in(self, words[0], words[1], "TOY", self._entered)
        elif self.principal is None:
            self.say("who are you?")
        elif verb == "consume":
            queue = self.face.shard.tenant(self.principal.tenant).queues[words[0]]
            queue.subscribe(ToyConsumer(self, queue))
            self.say("consuming")
        else:
            self.say(verb.upper())

    def _entered(self, principal: Principal | None, why: str) -> None:
        self.principal = principal
        self.say(f"hello {principal.name}" if principal is not None else f"refused: {why}")

    def say(self, text: str) -> None:
        self.out.touch()
        self.out.w.write(text.encode() + b"\n")

    def tick(self, now_ms: int) -> None:
        if self.principal is None and now_ms - self.began_ms > self.face.handshake_ms:
            self.broken()

    def dismiss(self, why: int, reason: str) -> None:
        self.say(f"{WORDS[why]}: {reason}")
        self.out.close()

    def broken(self) -> None:
        self.out.transport.abort()

    def channel_count(self) -> int:
        return 3


class ToyConsumer(Subscription):
    def __init__(self, connection: ToyConnection, queue: Queue) -> None:
        super().__init__(queue, 1, 0, False, 0, False)
        self.connection = connection

    def peer(self) -> object:
        return self.connection

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        assert lease is not None
        self.queue.ack(lease)
        self.connection.say(entry.message.body.decode())


TOY = WireProtocol(name="toy", title="a toy", make=ToyFace, port=4444, local_if_open=True)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "toy", TOY)  # the one line


class Toy:
    """A client of it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), 30)
        self._file = self._sock.makefile("rb")

    def ask(self, text: str) -> str:
        self._sock.sendall(text.encode() + b"\n")
        return self.line()

    def line(self) -> str:
        """The next line, empty when the server has closed."""
        with contextlib.suppress(ConnectionResetError):
            return self._file.readline().decode().rstrip("\n")
        return ""

    def close(self) -> None:
        self._file.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@pytest.fixture
def web(toy: None, tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, toy_port=0) as made:
        yield made


def address(web: World) -> str:
    return str(web.server.addresses["toy"])


def shown(client: httpx.Client) -> list[dict[str, Any]]:
    rows = client.get(f"{API}/connections?limit=1000").json()["connections"]
    return [row for row in rows if row["protocol"] == "toy"]


# Settings and listeners


def test_its_ports_are_settings(toy: None, tmp_path: Path) -> None:
    assert Settings.load({}, {}, tmp_path).ports["toy"] == 4444
    assert Settings.load({}, {}, tmp_path).ports["toys"] is None
    assert Settings.load({}, {"ROOKERY_TOY_PORT": "5"}, tmp_path).ports["toy"] == 5
    assert Settings.load({"toy_port": "off"}, {"ROOKERY_TOY_PORT": "5"}, tmp_path).ports["toy"] is None
    (tmp_path / "rookery.toml").write_text("[toy]\nport = 6\n")
    settings = Settings.load({}, {}, tmp_path)
    assert settings.ports["toy"] == 6
    (row,) = [row for row in settings.describe() if row.name == "ROOKERY_TOY_PORT"]
    assert row[1:] == ("6", "rookery.toml toy.port", "--toy-port", "toy.port", "port of a toy")
    assert Settings.load({"proxy_protocol": "toy,toys"}, {}, tmp_path).proxy_protocol == ("toy", "toys")
    with pytest.raises(InvalidConfig, match=r"ROOKERY_TOY_TLS_PORT .* needs ROOKERY_TLS_CERT"):
        Settings.load({"toy_tls_port": "7"}, {}, tmp_path)


def test_without_the_line_there_is_nothing_of_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no setting 'toy_port'"):
        Settings.load({"toy_port": 0}, {}, tmp_path)
    assert "toy" not in Settings.load({}, {}, tmp_path).ports


async def test_it_is_in_the_line_that_says_where_the_server_listens(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS too, and, as it asked for, only on loopback while authentication is off."""
    process = importlib.import_module("rookery.server.process")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    flags = {"host": "0.0.0.0", "http_port": 0, "amqp_port": "off", "amqp_tls_port": "off", "line_port": "off"}
    flags |= {"toy_port": 0, "toy_tls_port": 0, "tls_cert": str(tmp_path / "cert.pem"), "store_backend": "memory"}
    flags |= {"auth_mode": "none", "insecure": "true", "data_dir": str(tmp_path / "data")}
    text = io.StringIO()
    server = Server(Settings.load(flags, {}, tmp_path), log=make_log("info", text))
    seen: list[dict[str, str]] = []

    async def told(server: Server, signals: Any) -> bool:
        seen.append(dict(server.addresses))
        return False

    monkeypatch.setattr(process, "_is_fenced", told)
    assert await process._run(server) == 0
    (line,) = [row for row in map(json.loads, text.getvalue().splitlines()) if row["event"] == "listening"]
    assert list(seen[0]) == ["http", "toy", "toys"]
    assert {name: line[name] for name in seen[0]} == seen[0]
    assert seen[0]["http"].startswith("0.0.0.0:")
    assert seen[0]["toy"].startswith("127.0.0.1:")
    assert seen[0]["toys"].startswith("127.0.0.1:")


# Connections, as operators see them


def test_its_connections_are_listed_and_closed(web: World) -> None:
    key = web.key("shop")
    owner = httpx.Client(base_url=web.base, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
    stranger = web.large("elsewhere")
    with owner, Toy(address(web)) as one, Toy(address(web)) as two:
        assert one.ask("hi") == "who are you?"
        assert one.ask(f"key {key}") == f"hello {key.partition('.')[0]}"
        assert one.ask("again") == "AGAIN"
        assert two.ask("guest") == "hello guest"
        (row,) = shown(owner)
        assert (row["tenant"], row["user"], row["peer"]) == ("shop", key.partition(".")[0], "127.0.0.1")
        assert (row["channels"], row["id"].partition("-")[0]) == (3, "toy")
        assert len(shown(web.admin)) == 2
        assert shown(stranger) == []
        assert stranger.delete(f"{API}/connections/{row['id']}").status_code == 404
        assert owner.delete(f"{API}/connections/{row['id']}?reason=enough").status_code == 200
        assert (one.line(), one.line()) == ("closed: enough", "")
        assert shown(owner) == []
        assert two.ask("still") == "STILL"


def test_the_command_line_lists_and_closes_them(web: World) -> None:
    environ = {"ROOKERY_URL": web.base, "ROOKERY_API_KEY": "supersecretkey"}
    with Toy(address(web)) as one:
        assert one.ask("guest") == "hello guest"
        listed = CliRunner().invoke(app, ["connections", "list", "--json"], env=environ)
        rows = [row for row in json.loads(listed.stdout) if row["protocol"] == "toy"]
        assert [row["user"] for row in rows] == ["guest"], listed.output
        closed = CliRunner().invoke(app, ["connections", "close", rows[0]["id"], "--yes"], env=environ)
        assert closed.exit_code == 0, closed.output
        assert one.line() == "closed: closed by an operator"


def test_its_consumers_are_listed_under_their_connection(web: World) -> None:
    web.admin.put(f"{API}/queues/jobs", json={})
    with Toy(address(web)) as one:
        one.ask("guest")
        assert one.ask("consume jobs") == "consuming"
        (consumer,) = web.admin.get(f"{API}/consumers?queue=jobs").json()["consumers"]
        assert (consumer["protocol"], consumer["connection"]) == ("toy", shown(web.admin)[0]["id"])
        assert consumer["id"].startswith("toy-")
        web.admin.post(f"{API}/queues/jobs/publish", json={"message": "work"})
        assert json.loads(one.line()) == "work"


def test_metrics_and_stats_count_it(web: World) -> None:
    def measured() -> list[str]:
        return [line for line in web.client.get("/metrics").text.splitlines() if 'protocol="toy"' in line]

    assert measured() == [
        'rookery_protocol_connections{protocol="toy"} 0',
        'rookery_protocol_opened_total{protocol="toy"} 0',
    ]
    with Toy(address(web)) as one:
        one.ask("guest")
        Toy(address(web)).close()
        while measured() != [
            'rookery_protocol_connections{protocol="toy"} 1',
            'rookery_protocol_opened_total{protocol="toy"} 2',
        ]:
            pass
        assert web.admin.get(f"{API}/stats").json()["connections"]["toy"] == 1
        assert web.large("elsewhere").get(f"{API}/stats").json()["connections"]["toy"] == 0


# Limits and access


@pytest.mark.parametrize("own", [False, True], ids=["setting", "tenant's own limit"])
def test_a_tenant_has_no_more_connections_than_it_may(toy: None, tmp_path: Path, own: bool) -> None:
    with world(tmp_path, toy_port=0, tenant_connections_max=0 if own else 1) as web:
        key, other = web.key("shop"), web.key("lab")
        if own:
            assert web.admin.put(f"{API}/tenants/shop/limits", json={"connections_max": 1}).status_code == 200
        with Toy(address(web)) as one, Toy(address(web)) as two, Toy(address(web)) as three:
            assert one.ask(f"key {key}").startswith("hello")
            assert one.ask(f"key {key}").startswith("hello")  # the same connection once more
            assert two.ask(f"key {key}") == "refused: tenant 'shop' has its 1 connections"
            assert three.ask(f"key {other}").startswith("hello")
            one.close()
            while shown(web.admin) and "shop" in [row["tenant"] for row in shown(web.admin)]:
                pass
            assert two.ask(f"key {key}").startswith("hello")
        refusals = [row["reason"] for row in web.lines("connection_refused")]
        assert refusals == ["shop has 1 connections"]


def test_the_limits_of_the_whole_server_hold_for_it(toy: None, tmp_path: Path) -> None:
    with world(tmp_path, toy_port=0, connections_max=1) as web, Toy(address(web)) as one:
        assert one.ask("guest") == "hello guest"
        with Toy(address(web)) as two:
            assert two.line() == ""


def test_a_revoked_key_ends_its_connections(web: World) -> None:
    key, other = web.key("shop"), web.key("shop")
    with Toy(address(web)) as one, Toy(address(web)) as two:
        one.ask(f"key {key}")
        two.ask(f"key {other}")
        kid = key.partition(".")[0]
        assert web.admin.delete(f"/keys/{kid}").status_code == 200
        assert (one.line(), one.line()) == (f"no access: the access of '{kid}' has ended", "")
        assert two.ask("still") == "STILL"


def test_a_key_that_expires_ends_its_connections(toy: None, tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().wall_ms())
    with world(tmp_path, clock, toy_port=0) as web:
        issued = web.inside(
            lambda server: server.access.create_key("default", clock.wall_ms(), expires_ms=clock.wall_ms() + 60_000)
        )
        with Toy(address(web)) as one:
            assert one.ask(f"key {issued.text}").startswith("hello")
            clock.advance(61_000)
            assert one.line() == f"no access: the access of '{issued.record.kid}' has ended"


def test_wrong_passwords_are_counted_and_refused(toy: None, tmp_path: Path) -> None:
    with world(tmp_path, toy_port=0, login_failures_max=2) as web, Toy(address(web)) as one:
        web.inside(lambda server: server.access.set_user("ada", password="pw", tenants={"default": FULL}))
        assert one.ask("user ada pw") == "hello ada"
        assert one.ask("user ada x") == "refused: invalid user name or password"
        assert one.ask("user ada y") == "refused: invalid user name or password"
        assert one.ask("user ada pw") == "refused: too many logins failed; try again later"
        failed = web.lines("login_failed")
        assert [(row["user"], row["mechanism"]) for row in failed] == [("ada", "TOY")] * 2


def test_a_peer_that_never_logs_in_is_dropped(toy: None, tmp_path: Path) -> None:
    with world(tmp_path, toy_port=0, handshake_sec="0.5") as web, Toy(address(web)) as one:
        assert one.line() == ""
        assert shown(web.admin) == []


# The end


def test_peers_are_told_that_the_server_stops(web: World) -> None:
    with Toy(address(web)) as one:
        one.ask("guest")
        web.run(web.server.stop())
        assert (one.line(), one.line()) == ("stopping: shutdown", "")


# On a broker that a program embeds


async def test_it_is_attached_to_an_async_broker(toy: None) -> None:
    access = Access(os.urandom)
    issued = access.create_key("default", 0)
    async with AsyncBroker() as broker:
        attached = await attach(broker, toy=0, http=0, access=access)
        assert attached.addresses == {"http": attached.http, "toy": attached.toy}
        assert attached.amqp == ""
        loop = asyncio.get_running_loop()
        one = await loop.run_in_executor(None, Toy, attached.toy)
        assert (await loop.run_in_executor(None, one.ask, f"key {issued.text}")).startswith("hello")
        async with httpx.AsyncClient(base_url=f"http://{attached.http}", trust_env=False) as client:
            rows = await client.get(f"{API}/connections", headers={"Authorization": f"Bearer {issued.text}"})
            assert "toy" in [row["protocol"] for row in rows.json()["connections"]]
        access.revoke_key(issued.record.kid)
        assert (await loop.run_in_executor(None, one.line)).startswith("no access: ")
        two = await loop.run_in_executor(None, Toy, attached.toy)
        assert await loop.run_in_executor(None, two.ask, "guest") == "hello guest"
        await attached.close()
        assert await loop.run_in_executor(None, two.line) == "stopping: shutdown"
        one.close()
        two.close()


def test_it_is_attached_to_a_blocking_broker(toy: None) -> None:
    with Broker() as broker:
        attached = attach_thread(broker, toy=0)
        with Toy(attached.toy) as one:
            assert one.ask("guest") == "hello guest"
            attached.close()
            assert one.line() == "stopping: shutdown"


async def test_what_is_attached_must_be_a_protocol() -> None:
    async with AsyncBroker() as broker:
        with pytest.raises(InvalidArgument, match="no protocol 'toy' to attach: use http, amqp or line") as error:
            await attach(broker, toy=0)
        assert error.value.argument == "toy"
        with pytest.raises(InvalidArgument, match="name a port"):
            await attach(broker, amqp=None)
        attached = await attach(broker, line=0)
        with pytest.raises(AttributeError):
            attached.toy  # noqa: B018
        await attached.close()


# The protocols there are


@pytest.mark.parametrize("name", NAMES)
def test_a_package_describes_the_protocol_that_it_is(name: str) -> None:
    package = importlib.import_module(f"rookery.wire.{name}")
    assert PROTOCOLS[name] is package.PROTOCOL
    plain, over_tls = package.PROTOCOL.ports()
    assert (plain.listener, over_tls.listener) == (name, f"{name}s")
    assert (plain.field, over_tls.field) == (f"{name}_port", f"{name}_tls_port")


def test_no_other_code_asks_which_protocol_it_is() -> None:
    """Outside of its own package, a protocol is known by what its face and peers do."""
    source = Path(__file__).parents[2] / "src" / "rookery"
    compared = [
        f"{path.relative_to(source)}: {line.strip()}"
        for folder in ("server", "wire")
        for path in (source / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        for name in NAMES
        if f'== "{name}"' in line or f'!= "{name}"' in line
        if path.parent != source / "wire" / name
    ]
    assert compared == []
