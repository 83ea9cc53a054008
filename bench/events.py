"""What the stream of events costs: two servers under the same AMQP loads, one of which tells nothing.

In every round each load goes to one server after the other; loads last, because the first second of one is told of in
more detail than what follows.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from bench.harness import start, table, title
from bench.loading import build, load
from bench.servers import rookery

CONFIRM = {"window": 256, "prefetch": 200}
LOADS = {
    "transient, no acks": {"count": 1_000_000},
    "confirms, an ack each": {"count": 500_000, **CONFIRM},
    "durable: confirmed when synced": {"count": 200_000, **CONFIRM, "durable": 1},
}
AIM = 1.10


def main() -> None:
    parser = ArgumentParser(prog="bench/run events")
    parser.add_argument("--rate", type=int, help="messages a second to tell of (the server's default)")
    arguments = start("events", parser)
    told = [] if arguments.rate is None else ["--events-rate", str(arguments.rate)]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as directory:
        folder = Path(directory)
        tools = build(folder)
        with rookery(folder / "silent", "--events-rate", "0") as silent, rookery(folder / "telling", *told) as telling:
            for server in (silent, telling):
                load(tools, server, count=5_000, **CONFIRM)  # warms up
            for number in range(arguments.rounds):
                for name, options in LOADS.items():
                    pair = (silent, telling) if number % 2 == 0 else (telling, silent)
                    cpu = {server.pid: load(tools, server, **options).cpu_us() for server in pair}
                    found[name].append((cpu[silent.pid], cpu[telling.pid]))
                    print(f"  round {number + 1}: {name}: {cpu[telling.pid] / cpu[silent.pid]:.3f}", file=sys.stderr)
    rate = "the default rate" if arguments.rate is None else f"{arguments.rate} messages a second"
    title(
        "rookery.events",
        f"""CPU of all threads and processes of a server, journal on disk, at full load over AMQP (bodies of 256 B),
        with events at {rate} and with none; the median of the ratios of {arguments.rounds} rounds, in brackets the
        extremes.""",
    )
    rows = []
    for name, pairs in found.items():
        ratios = [b / a for a, b in pairs]
        rows.append(
            [
                name,
                f"{statistics.median(a for a, _ in pairs):.2f}",
                f"{statistics.median(b for _, b in pairs):.2f}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                f"≤ {AIM:.2f}",
            ]
        )
    table(["CPU µs/message", "without", "with", "ratio", "aim"], rows)


if __name__ == "__main__":
    main()
