"""A reader of queues, topics and streams over a WebSocket, made of a stock client library."""

from __future__ import annotations

import json
from typing import Any, Self
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.wire.http_world import ADMIN

PATIENCE_SEC = 60


class SocketReader:
    """`messages` gives them one at a time; answers that come between are kept for `answer`."""

    def __init__(
        self,
        address: str,
        path: str,
        key: str | None = ADMIN,
        subprotocols: Any = None,
        origin: Any = None,
        **query: Any,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        query = {name.rstrip("_"): value for name, value in query.items()}
        self._manager = connect(
            f"ws://{address}{path}/stream?{urlencode(query)}",
            additional_headers=headers,
            subprotocols=subprotocols,
            origin=origin,
            proxy=None,
            open_timeout=PATIENCE_SEC,
            close_timeout=PATIENCE_SEC,
            max_size=None,
            ping_interval=None,
        )
        self.link = self._manager.__enter__()
        self.last_id = ""
        self.frames = 0
        self._messages: list[Any] = []
        self._answers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.link.close()

    def _read(self) -> None:
        found = json.loads(self.link.recv(PATIENCE_SEC))
        if found["type"] == "messages":
            self.frames += 1
            self._messages += found["messages"]
            self.last_id = found["id"]
        else:
            self._answers.append(found)

    def next(self) -> Any:
        while not self._messages:
            self._read()
        return self._messages.pop(0)

    def take(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def bodies(self, count: int) -> list[Any]:
        return [found["message"] for found in self.take(count)]

    def send(self, op: str, **more: Any) -> None:
        self.link.send(json.dumps({"op": op, **more}))

    def answer(self) -> Any:
        while not self._answers:
            self._read()
        return self._answers.pop(0)

    def ask(self, op: str, **more: Any) -> Any:
        """Ask for something, and have its answer."""
        self.send(op, ref=op, **more)
        found = self.answer()
        assert found["ref"] == op, found
        return found["result"] if found["type"] == "done" else found["error"]

    def close_code(self) -> tuple[int, str]:
        """Wait for the other side to close."""
        said = None
        try:
            while True:
                self._read()
        except ConnectionClosed as closed:
            said = closed.rcvd
        assert said is not None, "the connection broke"
        return said.code, said.reason
