"""The broker over HTTP as drivers and executors use it: one kept connection, retries, Arrow streams.

Only what may be repeated is asked for here: reads, commits of groups, cuts, chunks under names of their own, epochs. So
a request whose answer was lost is sent again, to the next endpoint, after a pause that grows.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import selectors
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from rookery import errors
from rookery.errors import BrokerUnreachable, RookeryError, StoreDamaged
from rookery.spark.offsets import Bounds, Place, Positions, Range
from rookery.spark.options import Connection

if TYPE_CHECKING:
    import pyarrow as pa

ARROW: Final = "application/vnd.apache.arrow.stream"
PAUSE_SEC: Final = 0.1
PAUSE_MAX_SEC: Final = 5.0
PAGE: Final = 1_000

_BROKEN: Final = (OSError, http.client.HTTPException)
_log = logging.getLogger(__name__)


class Client:
    """Not shared by threads. What is pickled is where the broker is; the connection is made where it is used."""

    def __init__(self, connection: Connection) -> None:
        self._to = connection
        self._http: http.client.HTTPConnection | None = None
        self._endpoint = 0

    def __getstate__(self) -> Connection:
        return self._to

    def __setstate__(self, connection: Connection) -> None:
        self._to = connection
        self._http = None
        self._endpoint = 0

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    # Requests

    def get(self, path: str, **query: object) -> Any:
        return self._json("GET", _url(path, query), None, "")

    def post(self, path: str, body: object = None, **query: object) -> Any:
        """Send JSON, or, when it is bytes, an Arrow stream."""
        if isinstance(body, bytes):
            return self._json("POST", _url(path, query), body, ARROW)
        return self._json("POST", _url(path, query), json.dumps(body).encode(), "application/json")

    def put(self, path: str, body: object) -> Any:
        return self._json("PUT", path, json.dumps(body).encode(), "application/json")

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path, None, "")

    def _json(self, method: str, url: str, body: bytes | None, kind: str) -> Any:
        headers = {"Accept": "application/json"} | ({"Content-Type": kind} if kind else {})
        pauses = self._pauses()
        while True:
            try:
                answer = self._send(method, url, body, headers)
                data = answer.read()
            except _BROKEN as error:
                self._wait(pauses, method, url, error)
                continue
            if answer.status in (429, 503) and self._pause(pauses, answer):
                continue
            if answer.status >= 400:
                raise _error(answer.status, data)
            return json.loads(data)

    def _send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._http is not None and _is_over(self._http):
            self.close()
        if self._http is None:
            self._http = self._connect()
        if self._to.token:
            headers = {**headers, "Authorization": f"Bearer {self._to.token}"}
        try:
            self._http.request(method, url, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # what is refused for its size is answered before it is all there
            if not body:
                raise
        return self._http.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._to.endpoints[self._endpoint])
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self._to.timeout_sec)
        context = ssl.create_default_context(cafile=self._to.ca_file or None)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=self._to.timeout_sec, context=context)

    # Retries

    def _pauses(self) -> Iterator[float]:
        """How long to wait before each further try: grows, and is never the same for two tasks."""
        for i in range(self._to.retries):
            yield random.uniform(0.5, 1.0) * min(PAUSE_MAX_SEC, PAUSE_SEC * 2**i)  # noqa: S311  not a secret

    def _wait(self, pauses: Iterator[float], method: str, url: str, error: Exception) -> None:
        """The connection broke: go on with the next endpoint after a pause, or give up."""
        self.close()
        pause = next(pauses, None)
        where = self._to.endpoints[self._endpoint]
        if pause is None:
            raise BrokerUnreachable(
                f"{method} {where}{url.partition('?')[0]} failed {self._to.retries + 1} times, "
                f"last with {type(error).__name__}: {error}",
                argument="endpoint",
            ) from error
        _log.warning("%s: %s: trying again", where, error)
        self._endpoint = (self._endpoint + 1) % len(self._to.endpoints)
        time.sleep(pause)

    def _pause(self, pauses: Iterator[float], answer: http.client.HTTPResponse) -> bool:
        """The broker asks for patience; False when it has had all there is."""
        pause = next(pauses, None)
        if pause is None:
            return False
        asked = answer.headers.get("Retry-After", "")
        time.sleep(max(pause, min(float(asked), PAUSE_MAX_SEC) if asked.isdecimal() else 0.0))
        return True

    # Arrow

    def records(self, each: Range, columns: tuple[str, ...], routing_key: str = "") -> Iterator[pa.RecordBatch]:
        """The records of a range, also over broken connections: each once, in order."""
        path = f"/api/v1/streams/{quote(each.stream, safe='')}/records"
        fixed: dict[str, object] = {"partition": each.partition, "to": each.stop}
        if routing_key:
            fixed["routing_key"] = routing_key
        if each.id:
            fixed["id"] = each.id
        yield from self._range(path, fixed, each, columns)

    def cut_messages(
        self, queue: str, consumer: str, each: Range, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Messages of a cut, whose number is the range's partition."""
        path = f"{cuts_path(queue)}/{quote(consumer, safe='')}/{each.partition}"
        yield from self._range(path, {}, each, columns)

    def _range(
        self, path: str, fixed: Mapping[str, object], each: Range, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        # the offsets say where to go on after a broken connection, so they are always asked for
        asked = columns if "offset" in columns else (*columns, "offset")
        at = each.start
        rows = 0
        pauses = self._pauses()
        while at < each.stop:
            query = {**fixed, "from": at, "columns": ",".join(asked)}
            if "to" not in fixed:
                query["limit"] = each.stop - at
            try:
                for batch in self._batches(_url(path, query)):
                    if batch.num_rows:
                        at = batch.column("offset")[-1].as_py() + 1
                        rows += batch.num_rows
                        pauses = self._pauses()
                        yield batch if asked is columns else batch.select(list(columns))
                if "routing_key" not in fixed and rows != each.rows:
                    raise StoreDamaged(f"{path} has {rows} records from {each.start} on, not {each.rows}")
                return
            except _BROKEN as error:
                self._wait(pauses, "GET", path, error)
            except _Busy as busy:
                if not self._pause(pauses, busy.answer):
                    raise busy.error from None

    def _batches(self, url: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        answer = self._send("GET", url, None, {"Accept": ARROW})
        if answer.status != 200:
            error = _error(answer.status, answer.read())
            raise _Busy(answer, error) if answer.status in (429, 503) else error
        whole = False
        try:
            # pyarrow's errors of short data are OSErrors or ArrowInvalids, which are ValueErrors
            try:
                yield from pa.ipc.open_stream(_Body(answer))
            except pa.ArrowInvalid as error:
                raise http.client.HTTPException(f"the stream ended early: {error}") from None
            if answer.read() or answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            whole = True
        finally:
            if not whole:
                self.close()

    # What there is

    def stream_names(self) -> list[str]:
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.get("/api/v1/streams", after=after, limit=PAGE)
            names.extend(each["name"] for each in page["streams"])
            after = page["next"]
        return names

    def bounds(self, stream: str) -> dict[Place, Bounds]:
        """The partitions of a stream, and what they have."""
        shown = self.get(_stream(stream))
        return {
            (stream, row["partition"]): Bounds(
                row["first"], row["end"], row["bytes"], row["sealed_before"], shown["id"]
            )
            for row in shown["partitions"]
        }

    def positions_at(self, stream: str, time_ms: int) -> Positions:
        """The first offsets that were appended at a time or later."""
        shown = self.get(f"{_stream(stream)}/offsets", at=time_ms)
        return {(stream, row["partition"]): row["offset"] for row in shown["offsets"]}

    def commit_group(self, stream: str, group: str, offsets: Mapping[int, int]) -> None:
        body = {"offsets": {str(partition): offset for partition, offset in offsets.items()}}
        self.post(f"{_stream(stream)}/groups/{quote(group, safe='')}/commit", body)

    # Plans of sealed files

    def make_plan(self, stream: str, wanted: Mapping[str, object]) -> Any:
        return self.post(f"{_stream(stream)}/plan", wanted)

    def renew_plan(self, plan: str, lease_ms: int) -> None:
        self.post(f"/api/v1/plans/{quote(plan, safe='')}/renew", {"lease_ms": lease_ms})

    def release_plan(self, plan: str) -> None:
        self.delete(f"/api/v1/plans/{quote(plan, safe='')}")


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Whether the broker has closed a connection that waits for its next request, as it does with idle ones."""
    if connection.sock is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


class _Body:
    """The body of an answer as pyarrow reads it: straight into the memory that a batch then has."""

    closed: Final = False

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def read(self, size: int) -> pa.Buffer:
        import pyarrow as pa

        made = pa.allocate_buffer(size)
        found = self._answer.readinto(memoryview(made)) if size else 0
        return made if found == size else made.slice(0, found)


class _Busy(Exception):
    """The broker asks for patience."""

    def __init__(self, answer: http.client.HTTPResponse, error: RookeryError) -> None:
        super().__init__(str(error))
        self.answer = answer
        self.error = error


def cuts_path(queue: str) -> str:
    return f"/api/v1/queues/{quote(queue, safe='')}/cuts"


def _stream(name: str) -> str:
    return f"/api/v1/streams/{quote(name, safe='')}"


def _url(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _error(status: int, data: bytes) -> RookeryError:
    """The error that the broker answered with, as the class it has here."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {}
    message = str(found.get("message") or f"the broker answered {status}")
    kind = _kinds().get(str(found.get("code")), RookeryError)
    return kind(message, argument=found.get("argument"))


def _kinds() -> dict[str, type[RookeryError]]:
    return {
        kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RookeryError)
    }
