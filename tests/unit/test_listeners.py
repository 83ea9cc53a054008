"""Listeners over real sockets, on both event loops: a protocol made for the test, TLS, proxies, limits.

The protocol below is all that a new one has to be: a face and its connection. It answers each line with who the peer
is, so that a test sees what the listener found out.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from rookery.clock import ManualClock
from rookery.server.listeners import Attendance, Listener
from rookery.server.logs import make_log
from rookery.server.process import loop_factory
from rookery.server.tls import Certificates, ClientCertificates, TlsFiles
from rookery.wire.turn import Face, Peer, Turn
from tests.wire.amqp_peer import Driver

FROM_AFAR = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 5672\r\n"


class WhoFace(Face):
    def __init__(self) -> None:
        super().__init__("who", Turn(Driver(ManualClock()), lambda: None))

    def connect(self) -> Peer:
        return WhoConnection(self)


class WhoConnection(Peer):
    def __init__(self, face: WhoFace) -> None:
        super().__init__()
        self._face = face
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._face.add(self, transport)

    def dismiss(self, why: int, reason: str) -> None:
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        for line in data.splitlines():
            words = [line.decode(), self.peer_name, str(self.loopback), self.certified]
            self.transport.write("|".join(words).encode() + b"\n")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """There is nothing to write that was not asked for."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def connection_lost(self, error: Exception | None) -> None:
        self._face.remove(self)


class World:
    """A face that is listened for, and its log."""

    def __init__(self, most: int = 100, address_most: int = 0, **options: Any) -> None:
        self.text = io.StringIO()
        self.log = make_log("debug", self.text)
        self.face = WhoFace()
        self.attendance = Attendance(most, self.log, address_most)
        self.attendance.attend(self.face)
        self.listener = Listener(self.face, self.attendance, self.log, **options)
        self.port = 0

    opened: ClassVar[list[World]] = []

    async def open(self, host: str = "127.0.0.1") -> World:
        self.opened.append(self)
        self.port = int((await self.listener.open(host, 0)).rpartition(":")[2])
        return self

    async def ask(self, first: bytes = b"", **options: Any) -> str:
        """Connect, say who is there, and give the answer; empty when the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        try:
            writer.write(first + b"hello\n")
            return (await reader.readline()).decode().strip()
        except (ConnectionError, ssl.SSLError):
            return ""
        finally:
            writer.close()

    async def until(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait for lines of the log."""
        while True:
            rows = [json.loads(line) for line in self.text.getvalue().splitlines()]
            found = [row for row in rows if row["event"] == event]
            if len(found) >= times:
                return found
            await asyncio.sleep(0.01)

    async def left(self) -> None:
        await self.attendance.empty.wait()
        while self.attendance.arriving:
            await asyncio.sleep(0)


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on one of the loops that a server may have."""
    factory = loop_factory(request.param)
    assert (factory is None) == (request.param == "asyncio")

    def go(work: Callable[[], Awaitable[None]]) -> None:
        async def patient() -> None:
            try:
                await asyncio.wait_for(work(), 30)
            finally:
                while World.opened:
                    World.opened.pop().listener.close()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(patient())

    return go


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificates(ca: trustme.CA, tmp_path: Path) -> TlsFiles:
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsFiles(tmp_path / "cert.pem", ca=tmp_path / "ca.pem")


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


@pytest.mark.row("S3-14")
def test_a_protocol_is_a_face_and_its_connection(run: Run) -> None:
    async def work() -> None:
        world = await World().open()
        assert await world.ask() == "hello|127.0.0.1|True|"
        await world.left()
        world.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.ask()

    run(work)


def test_all_addresses_of_a_host_have_one_port(run: Run) -> None:
    async def work() -> None:
        world = await World().open("localhost")
        families = {info[0] for info in await asyncio.get_running_loop().getaddrinfo("localhost", 0)}
        for family in families:
            host = "127.0.0.1" if family == socket.AF_INET else "::1"
            reader, writer = await asyncio.open_connection(host, world.port)
            writer.write(b"hello\n")
            assert await reader.readline() == f"hello|{host}|True|\n".encode()
            writer.close()
        world.listener.close()

    run(work)


@pytest.mark.row("S4-40")
def test_tls_with_and_without_the_name_of_the_client(run: Run, ca: trustme.CA, certificates: TlsFiles) -> None:
    async def work() -> None:
        certified = trusting(ca)
        ca.issue_cert("ada@shop.example", common_name="ada").configure_cert(certified)
        stranger = trusting(ca)
        trustme.CA().issue_cert("eve@shop.example", common_name="ada").configure_cert(stranger)
        cases: dict[ClientCertificates, tuple[str | None, str | None, str | None]] = {
            "off": ("", "", ""),
            "optional": ("", "ada", None),
            "required": (None, "ada", None),
        }
        for clients, expected in cases.items():
            files = certificates._replace(clients=clients)
            world = await World(certificates=Certificates(files)).open()
            for context, name in zip((trusting(ca), certified, stranger), expected, strict=True):
                answer = await world.ask(ssl=context, server_hostname="localhost")
                assert answer == ("" if name is None else f"hello|127.0.0.1|True|{name}"), (clients, name)
            if None in expected:
                assert len(await world.until("handshake_failed", expected.count(None))) == expected.count(None)
            await world.left()
            world.listener.close()

    run(work)


def test_old_versions_plain_text_and_silence_do_not_get_through_tls(
    run: Run, ca: trustme.CA, certificates: TlsFiles
) -> None:
    async def work() -> None:
        files = Certificates(certificates._replace(min_version="1.3"))
        world = await World(certificates=files, handshake_sec=0.2).open()
        old = trusting(ca)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            await world.ask(ssl=old, server_hostname="localhost")
        assert "hello" not in await world.ask()
        silent, writer = await asyncio.open_connection("127.0.0.1", world.port)
        assert await silent.read() == b""
        writer.close()
        await world.until("handshake_failed", 3)
        await world.left()
        assert await world.ask(ssl=trusting(ca), server_hostname="localhost") == "hello|127.0.0.1|True|"
        world.listener.close()

    run(work)


def test_new_connections_get_the_new_certificate_and_old_ones_go_on(
    run: Run, ca: trustme.CA, certificates: TlsFiles
) -> None:
    async def work() -> None:
        files = Certificates(certificates)
        world = await World(certificates=files).open()
        options: dict[str, Any] = {"ssl": trusting(ca), "server_hostname": "localhost"}
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, **options)
        before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificates.cert)
        files.reload()
        _, second = await asyncio.open_connection("127.0.0.1", world.port, **options)
        assert second.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
        second.close()
        writer.write(b"still there\n")
        assert (await reader.readline()).startswith(b"still there|")
        writer.close()
        await world.left()
        world.listener.close()

    run(work)


def test_proxies_say_who_is_there(run: Run, ca: trustme.CA, certificates: TlsFiles) -> None:
    async def work() -> None:
        world = await World(proxied=True).open()
        assert await world.ask(FROM_AFAR) == "hello|192.0.2.7|False|"
        assert await world.ask(b"PROXY TCP4 127.0.0.9 127.0.0.1 1 2\r\n") == "hello|127.0.0.9|True|"
        assert await world.ask(b"PROXY UNKNOWN\r\n") == "hello|unknown|False|"
        own = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
        assert await world.ask(own) == "hello|127.0.0.1|True|"
        await world.left()
        world.listener.close()
        # the header comes before the handshake, in the same packet as its first bytes or not
        secure = await World(proxied=True, certificates=Certificates(certificates)).open()
        loop = asyncio.get_running_loop()
        raw = socket.create_connection(("127.0.0.1", secure.port))
        raw.setblocking(False)
        for part in (FROM_AFAR[:9], FROM_AFAR[9:]):
            await loop.sock_sendall(raw, part)
        options: dict[str, Any] = {"sock": raw, "ssl": trusting(ca), "server_hostname": "localhost"}
        reader, writer = await asyncio.open_connection(**options)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello|192.0.2.7|False|\n"
        writer.close()
        await secure.left()
        secure.listener.close()

    run(work)


def test_headers_that_are_malformed_or_do_not_come_end_the_connection(run: Run) -> None:
    async def work() -> None:
        world = await World(proxied=True, handshake_sec=0.2).open()
        assert await world.ask() == ""
        assert await world.ask(b"PROXY TCP4 nonsense\r\n") == ""
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(FROM_AFAR[:20])
        assert await reader.read() == b""
        writer.close()
        _, gone = await asyncio.open_connection("127.0.0.1", world.port)
        gone.close()
        reasons = [row["reason"] for row in await world.until("proxy_header", 3)]
        assert reasons[0] == "there is no PROXY header"
        assert reasons[2] == "no PROXY header came in time"
        await world.left()
        assert await world.ask(FROM_AFAR) == "hello|192.0.2.7|False|"
        world.listener.close()

    run(work)


def test_closing_turns_away_who_is_on_the_way_in(run: Run, certificates: TlsFiles) -> None:
    async def work() -> None:
        for options in ({"proxied": True}, {"certificates": Certificates(certificates)}):
            world = await World(**options).open()
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            while not world.attendance.arriving:
                await asyncio.sleep(0)
            world.listener.close()
            assert await reader.read() == b""
            writer.close()
            await world.left()

    run(work)


def test_limits_in_all_and_by_address(run: Run) -> None:
    async def work() -> None:
        world = await World(most=2, address_most=1, proxied=True).open()
        _, first = await asyncio.open_connection("127.0.0.1", world.port)
        first.write(FROM_AFAR)
        while not world.attendance.present or world.attendance.arriving:
            await asyncio.sleep(0)
        assert await world.ask(FROM_AFAR) == ""
        (row,) = await world.until("connection_refused")
        assert (row["peer"], row["reason"]) == ("192.0.2.7", "its address has 1 connections")
        other = b"PROXY TCP4 192.0.2.8 198.51.100.1 40000 5672\r\n"
        reader, second = await asyncio.open_connection("127.0.0.1", world.port)
        second.write(other + b"hello\n")
        assert await reader.readline() == b"hello|192.0.2.8|False|\n"
        assert await world.ask(other) == ""  # whether or not the second is counted as arriving still
        assert (await world.until("connection_refused", 2))[1]["reason"] == "there are 2 connections"
        first.close()
        second.close()
        await world.left()
        assert await world.ask(FROM_AFAR) == "hello|192.0.2.7|False|"
        world.listener.close()

    run(work)


def test_an_address_counts_from_its_handshake_on(run: Run, certificates: TlsFiles) -> None:
    async def work() -> None:
        world = await World(address_most=3, proxied=True, certificates=Certificates(certificates)).open()
        waiting = []
        for _ in range(3):
            # these never begin with TLS
            _, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(FROM_AFAR)
            waiting.append(writer)
        while sum(world.attendance._by_address.values()) < 3:
            await asyncio.sleep(0)
        for _ in range(20):
            assert await world.ask(FROM_AFAR) == ""
        # one line tells of them all
        assert len(await world.until("connection_refused")) == 1
        assert world.attendance.refused == 20
        for writer in waiting:
            writer.close()
        await world.left()
        while world.attendance._by_address:
            await asyncio.sleep(0)
        world.listener.close()

    run(work)


def test_this_machine_has_no_limit_of_its_own(run: Run) -> None:
    async def work() -> None:
        world = await World(address_most=1).open()
        writers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(b"hello\n")
            assert await reader.readline()
            writers.append(writer)
        for writer in writers:
            writer.close()
        await world.left()
        world.listener.close()

    run(work)
