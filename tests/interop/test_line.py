"""The line protocol over real sockets: both generations of Raven-MQ's clients, made again from their description, and
raw sockets for the rest.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import signal
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

from rookery.config.settings import Settings
from rookery.core.access import FULL, Rights
from rookery.server.logs import make_log
from rookery.server.process import Server
from tests.interop.server import ServerProcess, serving

PUBLISHED = "Message published successfully"
PREFIX = "Consumed message: "


class Stock:
    """What both generations share: a line is the start of one read, and the rest of that read is thrown away."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def read(self) -> str:
        data = b""
        while b"\n" not in data:
            more = self.sock.recv(4096)
            assert more, data
            data += more
        return data.partition(b"\n")[0].decode()

    def ask(self, line: str) -> str:
        self.sock.sendall(line.encode() + b"\n")
        return self.read()

    def define(self, exchange: str, kind: str, queue: str, key: str) -> None:
        assert self.ask(f"DECLARE_EXCHANGE {exchange} {kind}") == "Exchange declared successfully"
        assert self.ask(f"DECLARE_QUEUE {queue}") == "Queue declared successfully"
        assert self.ask(f"BIND_QUEUE {queue} {exchange} {key}") == "Queue bound to exchange successfully"

    def publish(self, exchange: str, key: str, message: str) -> None:
        assert self.ask(f"PUBLISH {exchange} {key} {message}") == PUBLISHED

    def consume(self, queue: str) -> None:
        assert self.ask(f"CONSUME {queue}") == "Consumer started"


class OldConsumer(Stock):
    """Never acknowledges. Deliveries are read through one buffer, made after the answer to CONSUME was read."""

    def messages(self, queue: str, count: int) -> list[str]:
        self.consume(queue)
        with self.sock.makefile("r", encoding="utf-8") as scanner:
            return [next(scanner).rstrip("\n").removeprefix(PREFIX) for _ in range(count)]


class NewConsumer(Stock):
    """Acknowledges each message, and takes what it reads next for the answer."""

    def messages(self, queue: str, count: int) -> list[str]:
        self.consume(queue)
        found = []
        for _ in range(count):
            line = self.read()
            assert line.startswith(PREFIX), line
            found.append(line.removeprefix(PREFIX))
            assert self.ask(f"ACK {queue} {found[-1]}") == "ACK successfully"
        return found


class Lines:
    """A client that reads as it should."""

    def __init__(self, port: int, sock: socket.socket | None = None) -> None:
        self.sock = sock or socket.create_connection(("127.0.0.1", port), 30)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, *lines: str) -> None:
        self.sock.sendall("".join(f"{line}\n" for line in lines).encode())

    def read(self, count: int = 1) -> list[str]:
        return [self._file.readline().decode().removesuffix("\n") for _ in range(count)]

    def ask(self, *lines: str) -> list[str]:
        self.send(*lines)
        return self.read(len(lines))


@pytest.mark.row("S4-1")
async def test_the_port_is_2122_unless_configured_or_switched_off(tmp_path: Path) -> None:
    assert Settings.load({}, {}, tmp_path).ports["line"] == 2122
    assert Settings.load({}, {"ROOKERY_LINE_PORT": "2123"}, tmp_path).ports["line"] == 2123
    async with started(tmp_path) as server:
        assert await answers(server.addresses["line"], "PING") == ["PONG"]
    async with started(tmp_path, line_port="off") as server:
        assert server.addresses == {}


@pytest.mark.row("S4-11")
@pytest.mark.row("S4-13")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_both_generations_of_clients_get_every_message_once_and_in_order(tmp_path: Path, loop: str) -> None:
    sent = [f"message {n}  with spaces" for n in range(12)]
    with serving(tmp_path, "--loop", loop) as server:
        with Stock(server.line) as producer:
            producer.define("x", "direct", "old", "o")
            producer.define("x", "direct", "new", "n")
            for text in sent:
                producer.publish("x", "o", text)
                producer.publish("x", "n", text)
        with OldConsumer(server.line) as old:
            assert old.messages("old", len(sent)) == sent
        with NewConsumer(server.line) as new:
            assert new.messages("new", len(sent)) == sent
        with Lines(server.line) as last:
            # nothing is left of them
            last.ask("PUBLISH x o end", "PUBLISH x n end")
            assert last.ask("CONSUME old ack=auto") == ["Consumer started"]
            assert last.read() == [f"{PREFIX}end"]
            assert last.ask("CONSUME new ack=auto") == ["Consumer started"]
            assert last.read() == [f"{PREFIX}end"]
        assert server.stop() == 0


@pytest.mark.row("S4-11")
def test_a_waiting_consumer_of_the_new_generation_misses_nothing(server: ServerProcess) -> None:
    """Messages come while its acknowledgements are under way."""
    with NewConsumer(server.line) as consumer, Lines(server.line) as producer:
        consumer.define("busy", "fanout", "busy", "any")
        producer.send(*[f"PUBLISH busy any {n}" for n in range(20)])
        assert consumer.messages("busy", 20) == [str(n) for n in range(20)]
        assert producer.read(20) == [PUBLISHED] * 20


@pytest.mark.row("S4-16")
def test_consumers_are_told_that_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Lines(server.line) as client, Lines(server.line) as idle:
        client.ask("DECLARE_QUEUE q", "CONSUME q")
        server.signal(signal.SIGTERM)
        assert client.read(2) == ["Consumer stopped", ""]
        assert idle.read() == [""]
        assert server.wait() == 0


@pytest.mark.row("S4-28")
@pytest.mark.row("S4-29")
def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Lines(server.line) as client:
        client.ask("DECLARE_EXCHANGE x direct", "DECLARE_QUEUE q", "BIND_QUEUE q x k")
        assert client.ask(*[f"PUBLISH x k {n}" for n in range(100)]) == [PUBLISHED] * 100
        assert client.ask("CONSUME q ack=manual prefetch=60") == ["Consumer started"]
        assert client.read(60) == [f"{PREFIX}{n}" for n in range(60)]
        client.send(*[f"ACK q {n}" for n in range(50)])
        answers = [line for line in client.read(90) if line == "ACK successfully"]
        assert len(answers) == 50
        server.signal(signal.SIGKILL)
        server.wait()
    with serving(tmp_path) as server, Lines(server.line) as client:
        assert client.ask("PUBLISH x k 100", "CONSUME q ack=auto") == [PUBLISHED, "Consumer started"]
        assert client.read(51) == [f"{PREFIX}{n}" for n in range(50, 101)]


@pytest.mark.row("S3-1")
def test_one_consumer_gets_what_was_published_over_tcp_and_over_http(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", "supersecretkey") as server, Lines(server.line) as client:
        client.ask("DECLARE_QUEUE both", "CONSUME both ack=auto")
        client.send("PUBLISH amq.default both 42")
        assert sorted(client.read(2)) == [f"{PREFIX}42", PUBLISHED]
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.http}/api/v1/queues/both/publish",
            b'{"message": 42}',
            {"Authorization": "Bearer supersecretkey", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201
        assert client.read() == [f"{PREFIX}42"]


def test_connections_are_listed_and_closed_over_http(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", "supersecretkey") as server, Lines(server.line) as client:
        client.ask("DECLARE_QUEUE q", "CONSUME q")

        def call(method: str, path: str) -> Any:
            url = f"http://127.0.0.1:{server.http}/api/v1/connections{path}"
            request = urllib.request.Request(url, headers={"Authorization": "Bearer supersecretkey"}, method=method)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)

        (shown,) = [row for row in call("GET", "")["connections"] if row["protocol"] == "line"]
        assert (shown["tenant"], shown["user"], shown["peer"]) == ("default", "guest", "127.0.0.1")
        call("DELETE", f"/{shown['id']}?reason=enough")
        assert client.read(3) == ["Consumer stopped", "Error: enough", ""]


def test_a_consumer_that_does_not_read_holds_nobody_up(server: ServerProcess) -> None:
    with Lines(server.line) as deaf, Lines(server.line) as reader, Lines(server.line) as producer:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert deaf.ask("DECLARE_QUEUE flood", "CONSUME flood ack=auto")[1] == "Consumer started"
        assert reader.ask("CONSUME flood ack=auto") == ["Consumer started"]
        body = "x" * 50_000
        for _ in range(10):
            assert producer.ask(*[f"PUBLISH amq.default flood {body}"] * 40) == [PUBLISHED] * 40
        producer.ask("PUBLISH amq.default flood end", "PUBLISH amq.default flood end")
        read = 0
        while reader.read() != [f"{PREFIX}end"]:
            read += 1
        # what the system's buffers took, and no more than that, went to the one that is deaf
        assert read > 200


def test_a_script_may_close_its_end_before_it_has_the_answers(server: ServerProcess) -> None:
    with Lines(server.line) as client:
        client.send("DECLARE_QUEUE script", "PUBLISH amq.default script done")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read(3) == ["Queue declared successfully", PUBLISHED, ""]


def test_a_page_in_a_browser_cannot_speak_lines(server: ServerProcess) -> None:
    with Lines(server.line) as client:
        client.ask("DECLARE_QUEUE web")
        body = "PUBLISH amq.default web forged"
        client.send("POST / HTTP/1.1\r", "Host: localhost\r", f"Content-Length: {len(body)}\r", "\r", body)
        assert client.read(2) == ["Error: this is not HTTP", ""]
    with Lines(server.line) as client:
        client.ask("PUBLISH amq.default web real", "CONSUME web ack=auto")
        assert client.read() == [f"{PREFIX}real"]


@pytest.mark.row("S4-40")
def test_over_tls(tmp_path: Path) -> None:
    ca = trustme.CA()
    cert = tmp_path / "cert.pem"
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(cert)
    flags = ("--line-tls-port", "0", "--amqp-tls-port", "off", "--tls-cert", str(cert), "--line-port", "0")
    with serving(tmp_path, *flags) as server:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        plain = socket.create_connection(("127.0.0.1", server.port("lines")), 30)
        with Lines(0, context.wrap_socket(plain, server_hostname="localhost")) as client:
            assert client.ask("DECLARE_QUEUE q", "PUBLISH amq.default q hi") == [
                "Queue declared successfully",
                PUBLISHED,
            ]


# Who may come in: a server in this process, so that keys and users can be made beforehand


async def answers(address: str, *lines: str, preface: bytes = b"") -> list[str]:
    """What comes back for these lines, until as many came or the connection ends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(preface + "".join(f"{line}\n" for line in lines).encode())
        found: list[str] = []
        while len(found) < len(lines):
            line = await asyncio.wait_for(reader.readline(), 30)
            if not line:
                break
            found.append(line.decode().rstrip("\n"))
        return found
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def started(folder: Path, **changes: Any) -> AsyncIterator[Server]:
    flags = {"host": "127.0.0.1", "http_port": "off", "amqp_port": "off", "line_port": 0, "store_backend": "memory"}
    settings = Settings.load({**flags, "api_key": "supersecretkey", **changes}, {}, folder)
    server = Server(settings, log=make_log("critical", io.StringIO()))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)


FROM_ELSEWHERE = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 2122\r\n"
LOG_IN = "Error: log in first: AUTH <user> <password> or AUTH <api_key>"
IN = "Authenticated successfully"
DECLARED = "Queue declared successfully"


@pytest.mark.row("S4-41")
async def test_peers_from_elsewhere_log_in_with_a_key_or_a_password(tmp_path: Path) -> None:
    async with started(tmp_path, proxy_protocol="line") as server:
        address = server.addresses["line"]
        with server.engine:
            server.engine.shard.create_tenant("acme")
        issued = server.access.create_key("acme", 0)
        kid, _, secret = issued.text.partition(".")
        server.access.set_user("clerk", password="pass word", tenants={"default": Rights("^mine", "^mine", "^mine")})

        async def from_elsewhere(*lines: str) -> list[str]:
            return await answers(address, *lines, preface=FROM_ELSEWHERE)

        assert await from_elsewhere("PING", "DECLARE_QUEUE q") == ["PONG", LOG_IN]
        assert await from_elsewhere("AUTH guest guest") == ["Error: user 'guest' may not connect from here"]
        assert await from_elsewhere("AUTH supersecretkey", "DECLARE_QUEUE q") == [IN, DECLARED]
        assert await from_elsewhere("AUTH API_KEY supersecretkey", "DECLARE_QUEUE q") == [IN, DECLARED]
        assert await from_elsewhere(f"AUTH {issued.text}", "DECLARE_QUEUE theirs") == [IN, DECLARED]
        assert await from_elsewhere(f"AUTH {kid} {secret}", "CONSUME theirs", "CONSUME q") == [
            IN,
            "Consumer started",
            "Queue q does not exist",
        ]
        assert await from_elsewhere("AUTH clerk pass word", "DECLARE_QUEUE mine", "DECLARE_QUEUE q") == [
            IN,
            DECLARED,
            "Error: configure access to queue 'q' in tenant 'default' refused for user 'clerk'",
        ]
        wrong = base64.urlsafe_b64encode(bytes(16)).rstrip(b"=").decode()
        assert await from_elsewhere(f"AUTH {kid} {wrong}") == ["Error: invalid user name or password"]
        assert await from_elsewhere("AUTH clerk wrong", "DECLARE_QUEUE mine") == [
            "Error: invalid user name or password",
            LOG_IN,
        ]
        failed = [await from_elsewhere("AUTH clerk wrong") for _ in range(10)]
        assert failed[-1] == ["Error: too many logins failed; try again later"]
        # a peer of this machine needs nothing
        assert await answers(address, "DECLARE_QUEUE q", preface=b"PROXY UNKNOWN\r\n") == [LOG_IN]
        local = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 2122\r\n"
        assert await answers(address, "DECLARE_QUEUE q", preface=local) == [DECLARED]


@pytest.mark.row("S4-41")
async def test_the_guest_may_be_switched_off_or_have_a_password(tmp_path: Path) -> None:
    async with started(tmp_path, guest="off") as server:
        assert await answers(server.addresses["line"], "DECLARE_QUEUE q") == [LOG_IN]
    async with started(tmp_path) as server:
        address = server.addresses["line"]
        assert await answers(address, "DECLARE_QUEUE q") == [DECLARED]
        server.access.set_user("guest", password="own", tenants={"default": FULL})
        assert await answers(address, "DECLARE_QUEUE q") == [LOG_IN]
        assert await answers(address, "AUTH guest own", "DECLARE_QUEUE q") == [IN, DECLARED]


@pytest.mark.row("S4-41")
async def test_a_revoked_key_ends_its_connections(tmp_path: Path) -> None:
    async with started(tmp_path) as server:
        issued = server.access.create_key("default", 0)
        host, _, port = server.addresses["line"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"AUTH {issued.text}\nDECLARE_QUEUE q\nCONSUME q\n".encode())
        for expected in (IN, DECLARED, "Consumer started"):
            assert (await reader.readline()).decode() == f"{expected}\n"
        server.access.revoke_key(issued.record.kid)
        rest = (await asyncio.wait_for(reader.read(), 30)).decode()
        assert rest == f"Consumer stopped\nError: the access of '{issued.record.kid}' has ended\n"
        writer.close()
        await writer.wait_closed()


async def test_with_authentication_off_only_this_machine_is_served(tmp_path: Path) -> None:
    async with started(tmp_path, host="0.0.0.0", auth_mode="none", insecure=True) as server:
        address = server.addresses["line"]
        assert address.startswith("127.0.0.1:")
        assert await answers(address, "DECLARE_QUEUE q", "AUTH anybody anything") == [DECLARED, IN]


async def test_a_tenant_has_no_more_connections_than_it_may(tmp_path: Path) -> None:
    async with started(tmp_path, tenant_connections_max=1) as server:
        address = server.addresses["line"]
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PING\n")
        assert await reader.readline() == b"PONG\n"
        other, refused = await asyncio.open_connection(host, int(port))
        assert await other.read() == b"Error: tenant 'default' has its 1 connections\n"
        for each in (writer, refused):
            each.close()
            await each.wait_closed()
