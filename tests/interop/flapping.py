"""A TCP proxy between a client and a server that cuts, stalls and refuses connections on command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Flapping:
    """Listens on `port` and hands on to `target`, which may change: a server that was started again."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self._refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Break all connections; how many there were."""
        with self._lock:
            pairs = list(self._pairs)
            self._pairs.clear()
        for pair in pairs:
            for end in pair:
                _shut(end)
        return len(pairs)

    def refuse(self, refusing: bool) -> None:
        """Break every new connection at once, or let them through again."""
        self._refusing = refusing

    def stall(self) -> None:
        """Hand nothing on, in either direction, until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        _shut(self._listener)
        self.flow()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            _shut(peer)
            return
        with self._lock:
            self._pairs.add((peer, server))
        threading.Thread(target=self._copy, args=(peer, server), daemon=True).start()
        self._copy(server, peer)
        with self._lock:
            self._pairs.discard((peer, server))

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._flowing.wait()
                target.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()


@contextmanager
def flapping(target: int) -> Iterator[Flapping]:
    made = Flapping(target)
    try:
        yield made
    finally:
        made.close()
