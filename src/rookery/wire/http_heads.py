"""Heads of requests that were read before: clients send the same one again and again.

The same bytes mean the same request, so a head that is known need not be parsed. It becomes known when one connection
has sent it twice in a row, each time whole and with its body, and when nothing in it bears on what follows: no coding
of the body, no other protocol, no end of the connection. Who sends it is looked at anew each time.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64

from rookery.wire.http_call import Call

HEADS_MAX: Final[i64] = 1_024
HEAD_KNOWN_MAX_BYTES: Final[i64] = 1_024
END: Final = b"\r\n\r\n"

_OTHER: Final = (b"transfer-encoding", b"expect", b"upgrade", b"connection", b"trailer")


@final
class Head:
    """What a head says."""

    def __init__(self, call: Call, body_bytes: i64) -> None:
        self.method = call.method
        self.url = call.url
        self.headers = call.headers
        self.body_bytes = body_bytes
        # where it leads, once somebody has looked
        self.route: Any = None
        self.path: tuple[str, ...] = ()


@final
class Heads:
    """The heads that are known; the oldest are forgotten together."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes, start: i64) -> i64:
        """Where the head ends that begins at `start`; -1 when it is not whole."""
        end: i64 = data.find(END, start)
        return -1 if end < 0 else end + 4

    def get(self, head: bytes) -> Head | None:
        return self._known.get(head)

    def learn(self, head: bytes, call: Call) -> None:
        """Know a head, if it may be: that of a call which was parsed just now."""
        headers = call.headers
        if call.old or not call.keep or call.upgrading or head.find(END) != len(head) - 4:
            return
        for name in _OTHER:
            if name in headers:
                return
        if len(self._known) >= HEADS_MAX:
            self._known = {}
        self._known[head] = Head(call, len(call.body))
