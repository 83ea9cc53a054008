"""Heads of requests that were read before: clients send the same one again and again.

The same bytes mean the same request, so a head that is known need not be parsed. It becomes known when it came twice,
not too long apart and each time whole and with its body, and when nothing in it bears on what follows: no coding of the
body, no other protocol, no end of the connection. Who sends it is looked at anew each time.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64

from rookery.wire.http.call import Call

HEADS_MAX: Final[i64] = 1_024
HEAD_KNOWN_MAX_BYTES: Final[i64] = 1_024
END: Final = b"\r\n\r\n"

_OTHER: Final = (b"transfer-encoding", b"expect", b"upgrade", b"connection", b"trailer")


@final
class Head:
    """What a head says."""

    def __init__(self, text: bytes, call: Call) -> None:
        self.text = text
        self.method = call.method
        self.url = call.url
        self.headers = call.headers
        self.body_bytes: i64 = len(call.body)
        # where it leads, once somebody has looked
        self.route: Any = None
        self.path: tuple[str, ...] = ()


@final
class Heads:
    """The heads that are known, and those that came once; of either, all are forgotten when there are too many."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}
        self._once: set[bytes] = set()

    def find(self, data: bytes, start: i64) -> Head | None:
        """The head that begins at `start`, if it is whole and known."""
        end: i64 = data.find(END, start)
        return None if end < 0 else self._known.get(data[start : end + 4])

    def learn(self, head: bytes, call: Call) -> None:
        """Know a head, if it may be and came before: that of a call which was parsed just now."""
        if head not in self._once:
            if len(self._once) >= HEADS_MAX:
                self._once = set()
            self._once.add(head)
            return
        self._once.remove(head)
        headers = call.headers
        if call.old or not call.keep or call.upgrading or head.find(END) != len(head) - 4:
            return
        for name in _OTHER:
            if name in headers:
                return
        if len(self._known) >= HEADS_MAX:
            self._known = {}
        self._known[head] = Head(head, call)


@final
class Recent:
    """The known heads as one connection asks for them: most clients do one thing all the time, or two by turns, so the
    last two are looked at first.
    """

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._last: Head | None = None
        self._other: Head | None = None

    def find(self, data: bytes, start: i64) -> Head | None:
        """The head that begins at `start`, if it is whole and known."""
        last = self._last
        if start == 0 and last is not None:
            if data.startswith(last.text):
                return last
            other = self._other
            if other is not None and data.startswith(other.text):
                self._last = other
                self._other = last
                return other
        found = self._heads.find(data, start)
        if found is not None and found is not last:
            self._last = found
            self._other = last
        return found
