"""A server in a thread of its own, on a real socket, for tests that speak HTTP to it."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from rookery.clock import Clock
from rookery.config.settings import Settings
from rookery.server.logs import make_log
from rookery.server.process import Server
from tests.logged_secrets import check_log

ADMIN = "supersecretkey"


class World:
    """`client` speaks to the server without a credential; `admin`, `small` and `large` make those with one."""

    def __init__(self, folder: Path, clock: Clock | None = None, **settings: Any) -> None:
        flags = {"host": "127.0.0.1", "http_port": 0, "amqp_port": 0, "line_port": "off", "data_dir": folder / "data"}
        flags |= {"store_backend": "memory", "api_key": ADMIN, "log_level": "debug", "shutdown_sec": "5", **settings}
        self.log = io.StringIO()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.settings = Settings.load(flags, {}, folder)
        self.server = Server(self.settings, clock=clock, log=make_log(str(flags["log_level"]), self.log))
        self.run(self.server.start())
        self.address = self.server.addresses["http"]
        self.port = int(self.address.rpartition(":")[2])
        self.base = f"http://{self.address}"
        self._keys: list[str] = []
        self._clients: list[httpx.Client] = []
        self.client = self._client({})
        self.admin = self._client({"Authorization": f"Bearer {ADMIN}"})

    def _client(self, headers: dict[str, str]) -> httpx.Client:
        client = httpx.Client(base_url=self.base, headers=headers, timeout=30, trust_env=False, verify=False)
        self._clients.append(client)
        return client

    @property
    def face(self) -> Any:
        return self.web.face

    @property
    def web(self) -> Any:
        return self.server._web

    def run(self, work: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def inside(self, work: Callable[[Any], Any]) -> Any:
        """Call a function in the server's thread, in a turn."""

        async def call() -> Any:
            with self.server.engine:
                return work(self.server)

        return self.run(call())

    def key(self, tenant: str, **more: Any) -> str:
        """A new key of a tenant."""
        # the server closes kept connections when a clock of the tests is advanced, maybe at this very moment
        fresh = {"Connection": "close"}
        made = self.admin.post("/keys", json={"tenant": tenant, **more}, headers=fresh)
        assert made.status_code == 201, made.text
        key = str(made.json()["api_key"])
        self._keys.append(key)
        return key

    def small(self, tenant: str) -> httpx.Client:
        """A client of the small queue API, with a key of its own."""
        return self._client({"Authorization": f"ApiKey {self.key(tenant)}"})

    def large(self, tenant: str, **more: Any) -> httpx.Client:
        return self._client({"Authorization": f"Bearer {self.key(tenant, **more)}"})

    def lines(self, event: str = "request") -> list[dict[str, Any]]:
        """What was logged."""
        every = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in every if line["event"] == event]

    def connect(self) -> Raw:
        return Raw(socket.create_connection(("127.0.0.1", self.port), 30))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        check_log(self.log.getvalue(), {ADMIN, *(key.partition(".")[2] for key in self._keys)})


class Raw:
    """A socket that speaks bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.sock.sendall(part)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the next answer."""
        status = self._file.readline()
        assert status.startswith(b"HTTP/1.1 "), status
        headers: dict[str, str] = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status.split()[1]), headers, self._file.read(int(headers.get("content-length", "0")))

    def line(self) -> bytes:
        return self._file.readline()

    def rest(self) -> bytes:
        """Everything until the server closes."""
        return self._file.read()


@contextmanager
def world(folder: Path, clock: Clock | None = None, **settings: Any) -> Iterator[World]:
    made = World(folder, clock, **settings)
    try:
        yield made
    finally:
        made.close()


def request(method: str, path: str, *parts: bytes, **headers: str) -> bytes:
    """The bytes of a request."""
    body = b"".join(parts)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
