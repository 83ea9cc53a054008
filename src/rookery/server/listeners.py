"""Listening: from a bound address to the connections of one face.

    accept → (PROXY header) → (TLS handshake) → Face.connect

Every protocol is listened for in the same way: a `Face` makes its connections, a `Listener` brings their transports.
Sockets are accepted here and not by the event loop's server, so that the total is known before anything is spent on a
peer, the PROXY header is read before TLS begins, each handshake takes the certificate in force, and a process that
runs out of file descriptors waits with its peers instead of turning in circles or dropping them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import InvalidArgument
from rookery.server.limits import Seldom, is_local, network_of
from rookery.server.proxy import HEADER_MAX_BYTES, Reader, Source
from rookery.server.tls import name_in

if TYPE_CHECKING:
    from rookery.server.logs import Log
    from rookery.server.tls import Certificates
    from rookery.wire.turn import Face, Peer

BACKLOG: Final = 1_024
ACCEPT_MAX: Final = 64
"""How many peers are accepted before others have their turn."""

BACK_OFF_SEC: Final = 0.5
WRITE_HIGH_BYTES: Final = 256 * 1024
"""What a socket may hold back before its consumers are told to wait."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6), ("TCP_USER_TIMEOUT", 120_000))
"""A peer that vanished without a word is noticed after two minutes, also where there is no heartbeat."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Attendance:
    """How many are connected over all listeners, and, if that is limited, from each address. `empty`: nobody is.

    A peer counts for its address from the moment that is known until it leaves, also while it negotiates TLS. Peers on
    this machine count in all only: they may be a proxy for everybody, and could do worse. `refused` counts who was
    turned away.
    """

    def __init__(self, most: int, log: Log, address_most: int = 0) -> None:
        self.most = most
        self.arriving = 0
        self.present = 0
        self.refused = 0
        self.empty = asyncio.Event()
        self.empty.set()
        self._log = log
        self._address_most = address_most
        self._by_address: dict[str, int] = {}
        self._seldom = Seldom()

    def full(self) -> bool:
        return self.arriving + self.present >= self.most

    def attend(self, face: Face) -> None:
        """Be asked about every connection of a face."""
        face.admit = self._admit
        face.left = self._left

    def refuse(self, peer: str, name: str, reason: str) -> None:
        """Count somebody who is turned away, and log it, but not each time."""
        self.refused += 1
        count = self._seldom.count(name, int(time.monotonic() * 1_000))
        if count:
            self._log.warning("connection_refused", peer=peer, reason=reason, count=count)

    def enter(self, host: str) -> bool:
        """Let one more peer of this address arrive, unless it has too many; `leave` undoes it."""
        if not self._address_most or is_local(host):
            return True
        address = network_of(host)
        count = self._by_address.get(address, 0)
        if count >= self._address_most:
            self.refuse(host, address, f"its address has {count} connections")
            return False
        self._by_address[address] = count + 1
        return True

    def leave(self, host: str) -> None:
        if not self._address_most or is_local(host):
            return
        address = network_of(host)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _admit(self, peer: Peer, transport: Any) -> bool:
        if not peer.peer_name:
            name = transport.get_extra_info("peername")
            peer.peer_name = str(name[0]) if isinstance(name, tuple) else ""
        peer.loopback = is_local(peer.peer_name)
        peer.network = network_of(peer.peer_name) or "-"
        self.present += 1
        self.empty.clear()
        peer.certified = name_in(transport.get_extra_info("peercert"))
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        return True

    def _left(self, peer: Peer) -> None:
        self.leave(peer.peer_name)
        self.present -= 1
        if not self.present:
            self.empty.set()


class Listener:
    """One address of one face."""

    def __init__(
        self,
        face: Face,
        attendance: Attendance,
        log: Log,
        *,
        certificates: Certificates | None = None,
        proxied: bool = False,
        handshake_sec: float = 10.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._face = face
        self._attendance = attendance
        self._log = log
        self._certificates = certificates
        self._proxied = proxied
        self.handshake_sec = handshake_sec
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._arrivals: set[asyncio.Task[bool]] = set()
        self._prefaces: set[_Preface] = set()

    async def open(self, host: str, port: int) -> str:
        """Listen on all addresses of a host; returns the first. What cannot be had is an OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                bound = address_port(self._sockets[0])[1] if self._sockets else port
                self._sockets.append(_bound(family, (address[0], bound, *address[2:])))
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)
        return address_of(self._sockets[0])

    def close(self) -> None:
        """Accept no more; who is on the way in is turned away."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets = []
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for preface in list(self._prefaces):
            preface.end()
        for task in self._arrivals:
            task.cancel()

    # Arriving

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPT_MAX):
            try:
                peer, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    self._log.warning("accept_failed", reason=str(error))
                    return
                self._back_off(sock, error)
                return
            if self._attendance.full():
                peer.close()
                self._attendance.refuse(str(address[0]), "", f"there are {self._attendance.most} connections")
                continue
            self._attendance.arriving += 1
            _prepare(peer)
            if self._proxied:
                self._prefaces.add(_Preface(self, peer, str(address[0])))
            else:
                self.arrive(peer, str(address[0]), None)

    def _back_off(self, sock: socket.socket, error: OSError) -> None:
        """There are no descriptors: leave peers in the backlog for a while."""
        self._log.warning("accept_paused", reason=error.strerror, for_sec=BACK_OFF_SEC)
        self._loop.remove_reader(sock)
        self._pauses[sock] = self._loop.call_later(BACK_OFF_SEC, self._go_on, sock)

    def _go_on(self, sock: socket.socket) -> None:
        del self._pauses[sock]
        self._loop.add_reader(sock, self._accept, sock)

    def arrive(self, sock: socket.socket, address: str, source: Source | None) -> None:
        """Begin the connection of an accepted socket, which comes from `source` if a proxy said so."""
        if source is not None and not source.itself:
            # unknown to the proxy: certainly not from this machine
            address = source.address or "unknown"
        if not self._attendance.enter(address):
            self._attendance.arriving -= 1
            sock.close()
            return
        task = self._loop.create_task(self._connect(sock, address))
        self._arrivals.add(task)
        task.add_done_callback(lambda task: self._arrived(task, address))

    def _arrived(self, task: asyncio.Task[bool], address: str) -> None:
        self._arrivals.discard(task)
        self._attendance.arriving -= 1
        if task.cancelled() or task.exception() is not None or not task.result():
            # nobody is there who would leave
            self._attendance.leave(address)

    async def _connect(self, sock: socket.socket, address: str) -> bool:
        """Negotiate TLS, if that is to be, and make the connection; whether it came to be."""
        certificates = self._certificates
        context = None if certificates is None else certificates.context
        patience = None if context is None else self.handshake_sec

        made: list[Peer] = []

        def make() -> Any:
            peer = self._face.connect()
            made.append(peer)
            peer.peer_name = address
            return peer

        try:
            await self._loop.connect_accepted_socket(make, sock, ssl=context, ssl_handshake_timeout=patience)
        except (OSError, EOFError) as error:
            # TLS errors and timeouts are OSErrors
            if not made:
                sock.close()
            self._log.info("handshake_failed", peer=address, reason=str(error) or "the peer left")
        except asyncio.CancelledError:
            # what was made has a transport by now, which closes the socket
            if not made:
                sock.close()
        return any(peer.network for peer in made)

    def turn_away(self, preface: _Preface, peer: str, reason: str) -> None:
        """A peer did not say as it should from where it comes."""
        self._attendance.arriving -= 1
        self._prefaces.discard(preface)
        if reason:
            self._log.warning("proxy_header", peer=peer, reason=reason)

    def introduced(self, preface: _Preface, sock: socket.socket, peer: str, source: Source) -> None:
        self._prefaces.discard(preface)
        self.arrive(sock, source.address or peer, source)


class _Preface:
    """Reads the PROXY header of one socket, and not a byte more."""

    def __init__(self, listener: Listener, sock: socket.socket, peer: str) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._peer = peer
        self._reader = Reader()
        self._timer = self._loop.call_later(listener.handshake_sec, self.end, "no PROXY header came in time")
        self._loop.add_reader(sock, self._ready)

    def _ready(self) -> None:
        try:
            data = self._sock.recv(HEADER_MAX_BYTES, socket.MSG_PEEK)
            if not data:
                self.end()
                return
            self._sock.recv(self._reader.take(data))
        except (BlockingIOError, InterruptedError):
            return
        except InvalidArgument as error:
            self.end(str(error))
            return
        except OSError:
            self.end()
            return
        if self._reader.source is not None:
            self._stop()
            self._listener.introduced(self, self._sock, self._peer, self._reader.source)

    def _stop(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._sock)

    def end(self, reason: str = "") -> None:
        """Hang up."""
        self._stop()
        self._sock.close()
        self._listener.turn_away(self, self._peer, reason)


def _bound(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # a peer that is gone already is found out soon enough
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def address_port(sock: Any) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return host, port


def address_of(sock: Any) -> str:
    host, port = address_port(sock)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
