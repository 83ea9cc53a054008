"""Loads on AMQP servers: the programs in `load/`, compiled when they are needed, and what one run of them shows.

`amqpload` stops at each stage of a run until it is told to go on; meanwhile nothing moves, and the server's CPU time
and memory are read. So the numbers are of the load alone: not of declaring, subscribing and deleting.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.servers import Server

SOURCES = Path(__file__).resolve().parent / "load"
RUN_SEC = 600


@dataclass(frozen=True)
class Run:
    """One run: CPU seconds and resident bytes of the server at each stage, and what the clients saw."""

    server: str
    cpu_sec: dict[str, float]
    rss_bytes: dict[str, int]
    said: dict[str, float]

    def cpu_us(self, per: str = "messages", since: str = "ready", until: str = "done") -> float:
        return (self.cpu_sec[until] - self.cpu_sec[since]) / self.said[per] * 1e6

    def faults(self) -> list[str]:
        """What must not happen, with its count."""
        names = ("lost", "doubled", "reordered", "strays", "refused", "returned")
        return [f"{self.said[name]:.0f} {name}" for name in names if self.said[name]]


def build(folder: Path) -> Path:
    """Compile the programs into a folder."""
    compiler = os.environ.get("CC", "cc")
    for name in ("amqpload", "nullbroker"):
        command = [compiler, "-O2", "-o", str(folder / name), str(SOURCES / f"{name}.c"), "-lpthread"]
        try:
            subprocess.run(command, check=True)
        except OSError:
            raise SystemExit(f"the load generator is a C program, and there is no compiler {compiler!r}") from None
    return folder


def load(tools: Path, server: Server, **options: int) -> Run:
    """Put a load on a server, as the options of `amqpload` describe it."""
    command = [str(tools / "amqpload"), f"port={server.port}", *(f"{name}={n}" for name, n in options.items())]
    cpu_sec, rss_bytes = {}, {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                break
            stage = line.split()[1]
            rss_bytes[stage] = server.rss_bytes()
            cpu_sec[stage] = server.cpu_sec()
            process.stdin.write("\n")
        else:
            raise SystemExit(f"{' '.join(command)} failed")
        process.wait(RUN_SEC)
    return Run(server.name, cpu_sec, rss_bytes, said)
