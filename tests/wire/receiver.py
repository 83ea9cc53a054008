"""An HTTP endpoint on loopback that answers as a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Arrived:
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Arrived], tuple[int, dict[str, str]]]


def fine(arrived: Arrived) -> tuple[int, dict[str, str]]:
    return 200, {}


class Receiver:
    """`calls` are the requests in the order in which they came; `answer` decides about each."""

    def __init__(self, answer: Answer = fine) -> None:
        self.answer = answer
        self.calls: queue.Queue[Arrived] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                arrived = Arrived(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                receiver.calls.put(arrived)
                status, headers = receiver.answer(arrived)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def next(self) -> Arrived:
        return self.calls.get(timeout=30)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiving(answer: Answer = fine) -> Iterator[Receiver]:
    receiver = Receiver(answer)
    try:
        yield receiver
    finally:
        receiver.close()
