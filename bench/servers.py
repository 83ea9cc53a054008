"""The servers that a benchmark compares, each in a folder of its own, on free ports of the loopback.

A `Server` is a process with all its descendants: CPU time is read from their clocks, to the nanosecond and with the
threads that have ended; memory is what is resident. RabbitMQ runs as it is packaged, with no plugins unless its HTTP
API is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from rookery import __version__

# Debian's rabbitmq-server changes the user and drops the environment; this is what it starts.
_STARTED_BY_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SEC = 120
_CPU_CLOCK = 2
_T = TypeVar("_T")


@dataclass(frozen=True)
class Server:
    name: str
    version: str
    pid: int
    port: int

    def cpu_sec(self) -> float:
        """CPU time of all threads of all processes so far."""
        total = 0.0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                # the clock of another process, as clock_getcpuclockid(3) numbers it
                total += time.clock_gettime(~pid << 3 | _CPU_CLOCK)
        return total

    def rss_bytes(self) -> int:
        total = 0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def _pids(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found


@contextlib.contextmanager
def rookery(folder: Path, *options: str, face: str = "amqp") -> Iterator[Server]:
    """A server of the interpreter that runs this, with its journal on disk, which is the default."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "rookery", "serve", "--host", "127.0.0.1"]
    for each in ("http", "amqp", "line"):
        command += [f"--{each}-port", "0" if each == face else "off"]
    with _running([*command, *options], folder, dict(os.environ)) as (process, log):

        def listening() -> dict[str, str] | None:
            for line in log.read_text().splitlines():
                if '"event":"listening"' in line:
                    return dict(json.loads(line))
            return None

        said = _until(listening, process, log)
        yield Server("rookery", f"Rookery {__version__}", process.pid, int(said[face].rpartition(":")[2]))


@contextlib.contextmanager
def rabbitmq(folder: Path, face: str = "amqp") -> Iterator[Server]:
    """A node that meets no other: it has an epmd of its own. Its guest may come from the loopback."""
    program = shutil.which("rabbitmq-server")
    if program is None:
        raise SystemExit("there is no rabbitmq-server to compare with (Debian: apt-get install rabbitmq-server)")
    folder.mkdir(parents=True)
    port, distribution, names, http = _free_ports(4)
    settings = f"listeners.tcp.default = 127.0.0.1:{port}\nlog.file.level = warning\n"
    if face == "http":
        settings += f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http}\n"
    (folder / "rabbitmq.conf").write_text(settings)
    (folder / "enabled_plugins").write_text("[rabbitmq_management]." if face == "http" else "[].")
    (folder / "env").write_text("")
    environ = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    node = str(_STARTED_BY_DEBIAN) if _STARTED_BY_DEBIAN.exists() else program
    with (
        _running(["epmd", "-port", str(names)], folder / "epmd", environ),
        _running([node], folder / "node", environ) as (process, log),
    ):
        served = http if face == "http" else port
        _until(lambda: _answers(served), process, log)
        yield Server("rabbitmq", _rabbitmq_version(), process.pid, served)


@contextlib.contextmanager
def fastapi(folder: Path) -> Iterator[Server]:
    """A queue as one writes it in an afternoon: FastAPI on uvicorn, lists in Redis, which is its child."""
    http, redis = _free_ports(2)
    command = [sys.executable, str(Path(__file__).parent / "load" / "fastapi_queue.py"), str(http), str(redis)]
    with _running(command, folder, dict(os.environ)) as (process, log):
        _until(lambda: _answers(http) and _answers(redis), process, log)
        yield Server("fastapi", f"FastAPI {version('fastapi')} with Redis", process.pid, http)


@contextlib.contextmanager
def nullbroker(program: Path, folder: Path) -> Iterator[Server]:
    with _running([str(program)], folder, dict(os.environ)) as (process, log):
        port = _until(lambda: log.read_text().strip(), process, log)
        yield Server("null", "null broker", process.pid, int(port))


@contextlib.contextmanager
def _running(
    command: list[str], folder: Path, environ: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process in a group of its own, which is ended as a whole; with the file that it writes to."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until(ask: Callable[[], _T | None], process: subprocess.Popen[bytes], log: Path) -> _T:
    deadline = time.monotonic() + _START_SEC
    while True:
        if found := ask():
            return found
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _rabbitmq_version() -> str:
    command = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
    with contextlib.suppress(OSError):
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if said:
            return f"RabbitMQ {said.partition('-')[0]}"
    return "RabbitMQ"
