"""What the tests of Celery share on the client's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from tests.interop.celery_tasks import SETTINGS
from tests.interop.celery_worker import PATIENCE_SEC
from tests.interop.server import ServerProcess


def url_of(server: ServerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.amqp}//"


@contextmanager
def client_of(broker: str, backend: str = "rpc://", settings: str = "classic", **more: Any) -> Iterator[Celery]:
    with Celery("client", broker=broker, backend=backend, set_as_current=False) as app:
        app.conf.update(SETTINGS[settings] | more)
        yield app
        connection = getattr(app.backend.result_consumer, "_connection", None)
        if connection is not None:
            connection.close()


def eventually(found: Callable[[], Any], patience_sec: float = PATIENCE_SEC) -> Any:
    """The first answer that counts."""
    deadline = time.monotonic() + patience_sec
    while not (answer := found()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
    return answer


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []
