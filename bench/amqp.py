"""Rookery and RabbitMQ side by side over AMQP: CPU per message, latency, memory, and that every message came.

    bench/run amqp                                    # everything, 5 rounds
    bench/run amqp --only transient,large --rounds 9  # some modes
    bench/run amqp --write                            # ... and put table and plot into docs/

Needs rabbitmq-server and a C compiler. Both servers run as they are installed, on spare ports, with data of their own
in a temporary folder; in every round each mode loads one after the other, so that a slow minute hits both alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench import report
from bench.harness import start, table, title
from bench.loading import Run, build, load
from bench.servers import Server, nullbroker, rabbitmq, rookery

CONFIRM = {"window": 256, "prefetch": 200}
RUNS = {"rookery": 3, "rabbitmq": 1}
"""Runs of a mode in a round: the quicker server gets more of them, so that a moment does not decide."""


@dataclass
class Mode:
    """A load, and what Rookery's CPU may be of RabbitMQ's."""

    name: str
    said: str
    aim: float
    options: dict[str, int]
    per: str = "messages"
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def cpu_us(self, server: str) -> list[float]:
        """By round: the mean of its runs."""
        every = [run.cpu_us(self.per) for run in self.runs[server]]
        step = RUNS[server]
        return [statistics.fmean(every[i : i + step]) for i in range(0, len(every), step)]

    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.cpu_us("rookery"), self.cpu_us("rabbitmq"), strict=True)]


MODES = (
    Mode("transient", "transient, no acks", 0.06, {"count": 200_000}),
    Mode("confirm", "confirms, an ack each", 0.05, {"count": 100_000, **CONFIRM}),
    Mode("ack50", "confirms, an ack for 50", 0.05, {"count": 100_000, **CONFIRM, "ack_every": 50}),
    Mode("durable", "durable: confirmed when synced", 0.07, {"count": 60_000, **CONFIRM, "durable": 1}),
    Mode(
        "backlog",
        "a backlog of 1 kB, filled and drained",
        0.10,
        {"count": 200_000, "size": 1024, "window": 1000, "prefetch": 1000, "backlog": 1},
    ),
    Mode(
        "fanout",
        "fan-out to 10, per delivery",
        0.08,
        {"count": 30_000, "fanout": 1, "queues": 10, "consumers": 10},
        "deliveries",
    ),
    Mode("topic", "topics, 1,000 bindings", 0.06, {"count": 50_000, "topic": 1, "queues": 10, "consumers": 10}),
    Mode("queues", "1,000 queues", 0.12, {"count": 40_000, **CONFIRM, "queues": 1000}),
    Mode(
        "pairs",
        "4 publishers, 4 consumers",
        0.06,
        {"count": 100_000, **CONFIRM, "publishers": 4, "consumers": 4, "queues": 4},
    ),
    Mode("idle", "beside 1,000 idle connections", 0.06, {"count": 60_000, **CONFIRM, "held": 1000}),
    Mode("large", "bodies of 64 KiB", 0.6, {"count": 10_000, **CONFIRM, "size": 65536}),
)

RATE = {"count": 6_000, "rate": 2_000, **CONFIRM}
LATENCIES = {"latency": RATE, "latency-durable": {**RATE, "durable": 1}}

MEMORY_COUNT = 100_000
HELD = 5_000

HOW = """CPU time of all threads of a server's processes from the first publish to the last ack, by the number of
messages; ratios are of one round, and their median counts, in brackets the extremes. Bodies of 256 B, one publisher,
one queue and one consumer, a window of 256 unconfirmed publishes and a prefetch of 200 unless the mode says otherwise.
Clients and servers share the machine and talk over its loopback. Every delivery is checked: each message once, in its
publisher's order."""

HOW_LATENCY = """2,000 messages a second, each sent alone, with confirms and acks: microseconds from the publisher's
write to the consumer's read. The null broker copies a message to its consumer and does nothing else, in C: what is
left is the kernel."""


def main() -> None:
    parser = ArgumentParser(prog="bench/run amqp")
    names = [mode.name for mode in MODES] + [*LATENCIES, "memory", "held"]
    parser.add_argument("--only", default=",".join(names), metavar="NAMES", help=f"some of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="put the report into docs/performance.md and docs/img/")
    arguments = start("amqp", parser)
    only = arguments.only.split(",")
    if unknown := set(only) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    modes = [mode for mode in MODES if mode.name in only]
    sections: list[report.Section] = []
    faults: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rookery-bench-")))
        tools = build(folder)
        ours = stack.enter_context(rookery(folder / "rookery"))
        theirs = stack.enter_context(rabbitmq(folder / "rabbitmq"))
        null = stack.enter_context(nullbroker(tools / "nullbroker", folder / "null"))
        print(f"servers   {ours.version}, {theirs.version}\n", flush=True)
        for server in (ours, theirs):
            load(tools, server, count=5_000, **CONFIRM)  # warms up
        if "memory" in only:
            sections.append(memory(tools, ours, theirs, faults))
        if modes:
            compare(tools, modes, [ours, theirs], arguments.rounds, faults)
            sections.append(compared(modes))
        latencies = [name for name in LATENCIES if name in only]
        if latencies:
            sections.append(latency(tools, latencies, [ours, theirs, null], arguments.rounds, faults))
        if "held" in only:
            sections.append(held(tools, ours, arguments.rounds, faults))
        for section in sections:
            title(section.title, section.how)
            table(section.head, section.rows)
        print("\n".join(faults) or "No message was lost, doubled or reordered in any run.")
        if arguments.write and not faults:
            report.write(sections, modes, f"{ours.version}, {theirs.version}", sys.argv[1:])
    sys.exit(1 if faults else 0)


def one(tools: Path, server: Server, name: str, faults: list[str], **options: int) -> Run:
    run = load(tools, server, **options)
    faults += [f"FAULT: {name}, {server.version}: {fault}" for fault in run.faults()]
    return run


def compare(tools: Path, modes: list[Mode], servers: list[Server], rounds: int, faults: list[str]) -> None:
    for number in range(rounds):
        for mode in modes:
            # who begins changes from round to round
            for server in servers if number % 2 == 0 else servers[::-1]:
                for _ in range(RUNS[server.name]):
                    run = one(tools, server, mode.name, faults, **mode.options)
                    mode.runs.setdefault(server.name, []).append(run)
            print(f"  round {number + 1}: {mode.name:<12}{mode.ratios()[-1]:8.4f}", file=sys.stderr, flush=True)


def compared(modes: list[Mode]) -> report.Section:
    rows = []
    for mode in modes:
        ratios = mode.ratios()
        rows.append(
            [
                mode.said,
                *(report.number(statistics.median(mode.cpu_us(name))) for name in ("rabbitmq", "rookery")),
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                f"{mode.aim:g}",
            ]
        )
    head = ["CPU µs/message", "RabbitMQ", "Rookery", "ratio", "aim"]
    return report.Section("Beside RabbitMQ", HOW, head, rows)


def latency(tools: Path, names: list[str], servers: list[Server], rounds: int, faults: list[str]) -> report.Section:
    runs: dict[tuple[str, str], list[Run]] = {}
    for number in range(rounds):
        for name in names:
            for server in servers[number % 3 :] + servers[: number % 3]:
                runs.setdefault((name, server.name), []).append(one(tools, server, name, faults, **LATENCIES[name]))
    rows = []
    for name in names:
        p50 = {s: [run.said["p50_us"] for run in runs[name, s.name]] for s in servers}
        p99 = {s: statistics.median(run.said["p99_us"] for run in runs[name, s.name]) for s in servers}
        for server in servers:
            to_null, to_rabbit = (
                statistics.median(a / b for a, b in zip(p50[server], p50[other], strict=True))
                for other in (servers[2], servers[1])
            )
            aim = ""
            if server.name == "rookery":
                aim = "≤ 0.8 of RabbitMQ" if name == "latency-durable" else "≤ 1.6 of null"
            rows.append(
                [
                    f"{server.version}, {'durable' if name == 'latency-durable' else 'transient'}",
                    f"{statistics.median(p50[server]):.0f}",
                    f"{p99[server]:.0f}",
                    f"{to_null:.2f}",
                    f"{to_rabbit:.2f}",
                    aim,
                ]
            )
    head = ["latency, µs", "median", "99 %", "median to null", "to RabbitMQ", "aim"]
    return report.Section("Latency", HOW_LATENCY, head, rows)


def memory(tools: Path, ours: Server, theirs: Server, faults: list[str]) -> report.Section:
    """The first load on both servers: memory that another left behind would hide what this one takes."""
    rows = []
    for server, aim in ((theirs, ""), (ours, "1400")):
        options = {"count": MEMORY_COUNT, "size": 1024, "window": 1000, "prefetch": 1000, "backlog": 1}
        run = one(tools, server, "memory", faults, **options)
        used = (run.rss_bytes["filled"] - run.rss_bytes["start"]) / MEMORY_COUNT
        rows.append([server.version, f"{used:.0f}", aim])
    how = f"""Resident memory after {MEMORY_COUNT:,} transient messages of 1,024 B were queued, less before, by their
    number; body included."""
    return report.Section("Memory", how, ["bytes per queued message of 1 kB", "", "aim"], rows)


def held(tools: Path, ours: Server, rounds: int, faults: list[str]) -> report.Section:
    runs: dict[int, list[Run]] = {0: [], HELD: []}
    for _ in range(rounds):
        for count, done in runs.items():
            done.append(one(tools, ours, "held", faults, count=200_000, held=count, **CONFIRM))
    rate = {
        count: statistics.median(run.said["messages"] / run.said["all_sec"] for run in runs[count]) for count in runs
    }
    cpu = {count: statistics.median(run.cpu_us() for run in runs[count]) for count in runs}
    kept = statistics.median(
        b.said["all_sec"] and a.said["all_sec"] / b.said["all_sec"] for a, b in zip(runs[0], runs[HELD], strict=True)
    )
    rows = [
        ["none", f"{rate[0]:,.0f}", f"{cpu[0]:.2f}", "", ""],
        [f"{HELD:,}", f"{rate[HELD]:,.0f}", f"{cpu[HELD]:.2f}", f"{kept:.2f}", "≥ 0.8"],
    ]
    how = f"""Messages a second with confirms and an ack each, alone and while {HELD:,} further connections with a
    channel each are held open."""
    head = ["idle connections held", "messages/s", "CPU µs/message", "rate to none", "aim"]
    return report.Section("Many connections", how, head, rows)


if __name__ == "__main__":
    main()
