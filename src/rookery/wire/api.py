"""What the routes of the native API share: the broker as they see it, work that takes a while, and streams by name.

Reading history, Arrow tables and hashing passwords happen in threads of the `Archive`, which whoever makes the HTTP
face hands in: `wire` knows of no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from rookery.core import events
from rookery.core.access import Principal
from rookery.core.dedup import REQUEST, REQUEST_WINDOW_MS, scope_of
from rookery.core.staging import Row
from rookery.core.stream import Partition, Stream
from rookery.core.topology import Tenant
from rookery.errors import AccessRefused, InvalidArgument, StreamNotFound
from rookery.model import Message
from rookery.wire.http_call import Call
from rookery.wire.http_routes import LATER, Router
from rookery.wire.packed import DONE as DONE_NAME
from rookery.wire.packed import KEY
from rookery.wire.rest import Rest
from rookery.wire.turn import Face

Result = TypeVar("Result")
ARROW = b"application/vnd.apache.arrow.stream"
KEY_HEADER: Final = KEY.lower().encode()
DONE: Final = DONE_NAME.lower().encode()
KEY_MAX: Final = 128


class RangeReading(Protocol):
    """A planned range of a partition, to be read in any thread until `done_reading`."""

    def ipc(self) -> Iterator[bytes]: ...


class Archive(Protocol):
    """Threads, and the history of streams as they can be read there.

    `load` and what is marked so run in threads, everything else within turns.
    """

    @property
    def root(self) -> str | None:
        """Where the sealed files are, None where there are none."""

    def run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Do `work` in a thread, then, in a turn, `done` with what it gave or raised."""

    def load(self) -> None:
        """Have what Arrow needs at hand (in a thread)."""

    def reading(
        self, partition: Partition, start: int, stop: int, columns: Sequence[str], routing_key: str
    ) -> RangeReading: ...

    def done_reading(self, reading: Any) -> None: ...

    def records(self, path: str, start: int, stop: int) -> list[bytes]:
        """Records of a sealed file (in a thread)."""

    def first_at(self, path: str, stamp_ms: int) -> int:
        """The first offset of a file that is not older (in a thread)."""

    def rows(self, body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
        """The rows of an Arrow table, to be staged (in a thread)."""

    def table(
        self, tenant: str, queue: str, found: list[tuple[int, int, int, Message]], columns: Sequence[str]
    ) -> Iterator[bytes]:
        """Messages with their numbers, times and attempts as an Arrow stream (in a thread)."""

    def lease(self, plan: str, paths: frozenset[str], lease_ms: int) -> None: ...

    def renew(self, plan: str, lease_ms: int) -> None: ...

    def release(self, plan: str) -> None: ...

    def seal(self, partition: Partition, done: Callable[[BaseException | None], None]) -> None: ...


class Api:
    """What a module of routes is given. `faces` are the protocols of the server by name."""

    def __init__(
        self, rest: Rest, archive: Archive, random_bytes: Callable[[int], bytes], faces: Mapping[str, Face]
    ) -> None:
        self.rest = rest
        self.shard = rest.shard
        self.router: Router = rest.router
        self.archive = archive
        self.random_bytes = random_bytes
        self.faces = faces

    def tenant(self, call: Call) -> Tenant:
        return self.rest.tenant(call)

    # Requests that are made again

    def repeated(self, call: Call, exchange: str, key: str) -> int:
        """The number that was remembered when this very request was made before, 0 when it is new."""
        dedup = self.tenant(call).dedup
        scope = scope_of(exchange, key)
        for done in call.header(DONE).split(","):
            if done:
                dedup.forget(scope, _request_key(call, done.strip()))
        name = call.header(KEY_HEADER)
        if not name:
            return 0
        if len(name) > KEY_MAX:
            raise InvalidArgument(f"{KEY} is longer than {KEY_MAX} characters", argument=KEY)
        found = dedup.find(scope, _request_key(call, name), int(self.shard.wall_ms))
        dedup.duplicates += found > 0
        return found

    def remember(self, call: Call, exchange: str, key: str, number: int) -> None:
        """A request was done that may be made again: keep that with what it did."""
        name = call.header(KEY_HEADER)
        if name:
            self.tenant(call).remember(exchange, key, _request_key(call, name), number)

    def remember_here(self, call: Call, exchange: str, key: str) -> None:
        """The same, for as long as this process lives."""
        name = call.header(KEY_HEADER)
        if name:
            now_ms = int(self.shard.wall_ms)
            self.tenant(call).dedup.remember(
                scope_of(exchange, key), _request_key(call, name), 1, now_ms, REQUEST_WINDOW_MS
            )

    def random_text(self) -> str:
        return self.random_bytes(12).hex()

    def stream(self, call: Call, name: str, action: Literal["configure", "write", "read"]) -> Stream:
        """The stream of that name, if the caller may do that to it. The broker's own is there for admins to read."""
        principal: Principal = call.principal
        if name == events.STREAM:
            principal.require_admin()
            if action != "read":
                raise AccessRefused(f"stream '{name}' is the broker's own")
            system = self.shard.tenants.get(events.SYSTEM)
            if system is None or name not in system.streams:
                raise StreamNotFound(f"stream {name!r} is switched off (ROOKERY_EVENTS_RATE=0)", argument="stream")
            return system.streams[name]
        principal.require(action, name, kind="stream")
        return self.tenant(call).stream(name)

    def after(self, call: Call, work: Callable[[], object]) -> object:
        """Answer with what `work` gives once what has happened so far is durable."""
        call.lasting()
        call.then = work
        call.ready = True
        call.touch()
        return LATER

    def later(self, call: Call, work: Callable[[], Result], then: Callable[[Result], object]) -> object:
        """Answer with what `then` makes, in a turn, of what `work` gives in a thread."""
        task = _Task(self.router, call, then)
        call.suspend(task.leave)
        self.archive.run(work, task.done)
        return LATER


class _Task:
    """A call that waits for a thread."""

    def __init__(self, router: Router, call: Call, then: Callable[[Any], object]) -> None:
        self._router = router
        self._call: Call | None = call
        self._then = then

    def leave(self) -> None:
        self._call = None

    def done(self, result: Any, error: BaseException | None) -> None:
        call = self._call
        if call is not None:
            self._call = None
            self._router.complete(call, lambda: self._go_on(result, error))

    def _go_on(self, result: Any, error: BaseException | None) -> object:
        if error is not None:
            raise error
        return self._then(result)


def _request_key(call: Call, name: str) -> str:
    return f"{REQUEST}{call.principal.name}/{name}"


def require_all(principal: Principal) -> None:
    """Raise unless the caller may configure everything in its tenant."""
    if not principal.admin and principal.rights.configure != ".*":
        raise AccessRefused(
            f"this needs the right to configure everything in tenant '{principal.tenant}', "
            f"which user '{principal.name}' has not"
        )


def require_some(principal: Principal, action: Literal["configure", "write", "read"]) -> None:
    """Raise for whoever may do that to nothing at all."""
    if getattr(principal.rights, action) in ("", "^$"):
        raise AccessRefused(f"{action} access refused for user '{principal.name}'")
