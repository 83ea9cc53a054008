"""A broker's streams and queues as Spark's tests use them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import requests

KEY = "secret"


class World:
    """One real server, spoken to over HTTP, and the options that name it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.here: dict[str, Any] = {"endpoint": self.url, "token": KEY}

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = requests.request(method, f"{self.url}/api/v1{path}", json=body, headers=headers, timeout=60)
        assert answer.ok, (method, path, answer.status_code, answer.text)
        return answer.json()

    def stream(self, name: str, count: int = 0, partitions: int = 1, **settings: object) -> str:
        """A stream with `count` records, m0, m1 …, in turn in its partitions."""
        self.call("PUT", f"/streams/{name}", {"partitions": partitions, **settings})
        self.fill(name, 0, count, partitions)
        return name

    def fill(self, name: str, first: int, stop: int, partitions: int = 1) -> None:
        for at in range(first, stop, 5_000):
            rows = [
                {"message": f"m{i}", "partition": i % partitions, "headers": {"n": str(i)}}
                for i in range(at, min(at + 5_000, stop))
            ]
            self.call("POST", f"/streams/{name}/publish", rows)

    def ready(self, queue: str, wanted: int) -> int:
        """How many messages of a queue are ready; rows for exchanges and queues are enqueued after their commit."""
        deadline = time.monotonic() + 30
        while True:
            found = int(self.call("GET", f"/queues/{queue}")["stats"]["ready"])
            if found >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def lag(self, stream: str, group: str) -> int:
        return int(self.call("GET", f"/streams/{stream}/groups/{group}")["lag"])

    def values(self, stream: str) -> list[str]:
        """All records of a stream, partition by partition."""
        found: list[str] = []
        for row in self.call("GET", f"/streams/{stream}")["partitions"]:
            at = row["first"]
            while at < row["end"]:
                page = self.call("GET", f"/streams/{stream}/records?partition={row['partition']}&from={at}")
                found += [str(record["value"]) for record in page["records"]]
                at = page["next"]
        return found


class Proxy:
    """Between a client and a server: cuts as many connections as it is told, each after so many bytes of answers; or
    takes them and lets them wait.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts_left = 0
        self.cut_after = 0
        self.stalls_left = 0
        self.connections = 0
        self._closed = False
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, times: int, after_bytes: int) -> None:
        self.cut_after = after_bytes
        self.cuts_left = times

    def stall(self, times: int) -> None:
        self.stalls_left = times

    def hang_up(self) -> None:
        """Close the connections that are open now, as a server does with idle ones."""
        for peer in self._peers:
            peer.shutdown(socket.SHUT_RDWR)
        self._peers = []

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        if self.stalls_left:
            self.stalls_left -= 1
            with peer:
                # until the client has enough of it
                while peer.recv(65_536):
                    pass
            return
        with peer, socket.create_connection(("127.0.0.1", self._to)) as server:
            threading.Thread(target=_copy, args=(peer, server), daemon=True).start()
            left = None
            if self.cuts_left:
                self.cuts_left -= 1
                left = self.cut_after
            while left is None or left > 0:
                try:
                    data = server.recv(65_536 if left is None else min(left, 65_536))
                    if not data:
                        return
                    peer.sendall(data)
                except OSError:
                    return
                if left is not None:
                    left -= len(data)
            peer.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass


def eventually(is_so: Callable[[], bool], patience_sec: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + patience_sec
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    found = Proxy(port)
    try:
        yield found
    finally:
        found.close()
