"""A command's conversation with a broker: requests of the native API over the client's transport, and its output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from rookery.errors import BrokerUnreachable

if TYPE_CHECKING:
    from rookery.cli.output import Output
    from rookery.cli.where import Where
    from rookery.client import Answer, Transport

ROOT: Final = "/api/v1"
PAGE: Final = 1_000
NDJSON: Final = "application/x-ndjson"
TRIES: Final = 30
"""When a broker goes away while much is sent to it: about two minutes."""


class Session:
    """`out` prints. A request that gets no answer is repeated only under a `key` by which the broker knows it again."""

    def __init__(self, out: Output, where: Where, timeout_ms: int) -> None:
        self.out = out
        self.where = where
        self._timeout_ms = timeout_ms
        self._made: Transport | None = None

    @property
    def transport(self) -> Transport:
        if self._made is None:
            from rookery.client import RetryPolicy, Transport

            self._made = Transport(
                self.where.url,
                api_key=self.where.key,
                ca_file=self.where.ca_file,
                timeout_ms=max(1, self._timeout_ms),
                retry=RetryPolicy(tries=0),
            )
        return self._made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._made is not None:
            self._made.close()

    # Requests

    def get(self, path: str, *names: str, **query: Any) -> Any:
        return self.request("GET", path, *names, **query)

    def delete(self, path: str, *names: str, **query: Any) -> Any:
        return self.request("DELETE", path, *names, **query)

    def post(self, path: str, *names: str, body: object = None, **query: Any) -> Any:
        return self.request("POST", path, *names, body=body, **query)

    def put(self, path: str, *names: str, body: object = None, **query: Any) -> Any:
        return self.request("PUT", path, *names, body=body, **query)

    def patch(self, path: str, *names: str, body: object = None, **query: Any) -> Any:
        return self.request("PATCH", path, *names, body=body, **query)

    def request(
        self,
        method: str,
        path: str,
        *names: str,
        body: object = None,
        wait_ms: int = 0,
        content_type: str = "application/json",
        key: str = "",
        **query: Any,
    ) -> Any:
        """Ask for `/api/v1` and a path, whose `{}` stand for names; `body` is JSON, or bytes as they are."""
        more: dict[str, Any] = {} if body is None else {"body": body}
        if key:
            from rookery.client import RetryPolicy

            more |= {"headers": {"Idempotency-Key": key}, "retry": RetryPolicy(tries=TRIES, base_ms=250, max_ms=5_000)}
        try:
            answer = self.transport.request(
                method, _path(path, names), query=query, wait_ms=wait_ms, content_type=content_type, **more
            )
        except BrokerUnreachable as error:
            raise self._unreachable(error) from None
        if not isinstance(answer, dict):
            raise BrokerUnreachable(f"what answers at {self.transport.address.url} is no broker")
        return answer

    def open(self, path: str, *names: str, headers: dict[str, str] | None = None, **query: Any) -> Answer:
        """Begin to read an answer that may not end."""
        try:
            return self.transport.open("GET", _path(path, names), query=query, headers=headers)
        except BrokerUnreachable as error:
            raise self._unreachable(error) from None

    def read(self, path: str, *names: str, **query: Any) -> bytes:
        """The bytes of an answer, for whoever must not have its JSON written anew."""
        try:
            with self.open(path, *names, **query) as answer:
                return answer.read()
        except BrokerUnreachable:
            raise
        except OSError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> BrokerUnreachable:
        cause = error.__cause__ or error
        reason = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).lower()
        return BrokerUnreachable(f"no broker answers at {self.transport.address.url}: {reason}")

    def pages(self, path: str, field: str, *names: str, limit: int = PAGE, **query: Any) -> Iterator[Any]:
        """All rows of a list that comes in pages of `limit`."""
        after = ""
        while True:
            page = self.get(path, *names, limit=limit, after=after, **query)
            yield from page[field]
            following = page.get("next")
            if following is None:
                return
            after = following


def _path(path: str, names: tuple[str, ...]) -> str:
    from rookery.client.http import part

    return ROOT + path.format(*(part(name) for name in names))
