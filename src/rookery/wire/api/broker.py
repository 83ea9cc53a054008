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
from rookery.format.model import Message
from rookery.wire.api.rest import Rest
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Router
from rookery.wire.packed import DONE as DONE_NAME
from rookery.wire.packed import KEY
from rookery.wire.turn import Face

Result = TypeVar("Result")
Run = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]
"""How work gets a thread, as `Archive.run`."""

ARROW = b"application/vnd.apache.arrow.stream"
KEY_HEADER: Final = KEY.lower().encode()
DONE: Final = DONE_NAME.lower().encode()
KEY_MAX: Final = 128

LIST_STEPS: Final = 1_000
SHOW_STEPS: Final = 10
"""How much of a list is made in one turn: so many names are looked at, of which each that is shown counts as ten."""


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

    def decode(
        self, tenant: str, size: int, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """As `run`, for work on an Arrow body of so many bytes; tenants take turns, and too much of it is refused."""

    def rows(self, body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
        """The rows of an Arrow table, to be staged (in a thread of `decode`)."""

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

    def later(
        self, call: Call, work: Callable[[], Result], then: Callable[[Result], object], run: Run | None = None
    ) -> object:
        """Answer with what `then` makes, in a turn, of what `work` gives in a thread."""
        task = _Task(self.router, call, then)
        (run or self.archive.run)(work, task.done)
        call.suspend(task.leave)
        return LATER

    def in_steps(self, call: Call, work: Iterator[object], count: int, then: Callable[[], object]) -> object:
        """Go on with `work`, `count` items a turn, and answer with what `then` gives when it is done.

        Between steps others are served. It goes on to its end also when the caller leaves.
        """
        steps = _Steps(self, call, work, count, then)
        return then() if steps.step() else steps.go_on()

    def page(
        self,
        call: Call,
        names: list[str],
        ask: tuple[str, str, int],
        show: Callable[[str], Result | None],
        answer: Callable[[list[Result], str | None], object],
    ) -> object:
        """Answer with a page of what the caller may read, in steps: matching names can be slow, and there can be many.

        `ask` has the prefix, the name before the page, and how many. `show` gives None for what is gone by then.
        """
        prefix, after, limit = ask
        principal: Principal = call.principal
        found: list[str] = []
        shown: list[Result] = []

        def work() -> Iterator[None]:
            for name in names:
                if name > after and name.startswith(prefix) and principal.may("read", name):
                    found.append(name)
                yield
            found.sort()
            for name in found[:limit]:
                one = show(name)
                if one is not None:
                    shown.append(one)
                for _ in range(SHOW_STEPS):
                    yield

        return self.in_steps(
            call, work(), LIST_STEPS, lambda: answer(shown, found[limit - 1] if len(found) > limit else None)
        )


class _Steps:
    """Work that is done a little in each turn."""

    def __init__(self, api: Api, call: Call, work: Iterator[object], count: int, then: Callable[[], object]) -> None:
        self._api = api
        self._call: Call | None = call
        self._work = work
        self._count = count
        self._then = then

    def step(self) -> bool:
        """Do the next items; whether there are no more."""
        left = self._count
        for _ in self._work:
            left -= 1
            if left <= 0:
                return False
        return True

    def go_on(self) -> object:
        if self._call is not None:
            self._call.suspend(self._leave)
        self._api.archive.run(_nothing, self._next)
        return LATER

    def _leave(self) -> None:
        self._call = None

    def _next(self, _: object, error: BaseException | None) -> None:
        try:
            if error is None and not self.step():
                self._api.archive.run(_nothing, self._next)
                return
        except Exception as raised:  # noqa: BLE001 - the router tells errors from defects
            error = raised
        call, self._call = self._call, None
        if call is not None:
            self._api.router.complete(call, lambda: self._answer(error))

    def _answer(self, error: BaseException | None) -> object:
        if error is not None:
            raise error
        return self._then()


def _nothing() -> None:
    """What a thread does so that a later turn goes on."""


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
    """The key of a request, apart from those of other callers: no caller's part of it holds a slash."""
    caller = call.principal.name.replace("%", "%25").replace("/", "%2F")
    return f"{REQUEST}{caller}/{name}"
