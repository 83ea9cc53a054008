"""What all benchmarks share: CPU per message, interleaved rounds, the facts of the machine, and the tables.

A benchmark asserts nothing. It prints numbers, how each was made, and the command that makes it again. Times are CPU of
the whole process (all threads, user and system), so a busy neighbour disturbs them less than it disturbs wall time;
cases take turns within each round, so that a slow spell hits all of them alike.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import textwrap
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from rookery import _compiled

BODY_BYTES = 200
BATCH = 100


class Case:
    """Something to measure: `run` does it once and returns how many messages that was."""

    def __init__(self, name: str, run: Callable[[], int], aim_us: float | None = None) -> None:
        self.name = name
        self.run = run
        self.aim_us = aim_us
        self.cpu_us: list[float] = []

    def median_us(self) -> float:
        return statistics.median(self.cpu_us)


def measure(cases: Sequence[Case], rounds: int) -> None:
    """Run every case once to warm up, then `rounds` times in turn; each notes its CPU microseconds per message."""
    for case in cases:
        case.run()
    for _ in range(rounds):
        for case in cases:
            started = time.process_time()
            messages = case.run()
            case.cpu_us.append((time.process_time() - started) / messages * 1e6)


def cpu_us(work: Callable[[], object], messages: int) -> float:
    """CPU microseconds per message of one run of `work`."""
    started = time.process_time()
    work()
    return (time.process_time() - started) / messages * 1e6


def show(cases: Sequence[Case], unit: str = "CPU µs/message") -> None:
    """The medians as a table, with the spread between rounds and the aim, where there is one."""
    rows = [
        [
            case.name,
            f"{case.median_us():.3f}",
            f"{min(case.cpu_us):.3f} to {max(case.cpu_us):.3f}",
            "" if case.aim_us is None else f"≤ {case.aim_us:g}",
        ]
        for case in cases
    ]
    table(["case", unit, "rounds from, to", "aim"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; the first one to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells).rstrip())
    print()


def title(text: str, how: str) -> None:
    """A heading, and how the numbers below it were made."""
    print(text if _compiled.compiled else f"{text}   [UNCOMPILED]")
    for line in textwrap.wrap(" ".join(how.split()), 110):
        print(f"  {line}")
    print()


def machine() -> list[str]:
    """The facts that the numbers depend on."""
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return [
        f"machine   {_cpu_model()}, {os.cpu_count()} cores, {memory_gb:.0f} GB, load average {load}",
        f"system    {platform.system()} {platform.release()}, {platform.libc_ver()[0]} {platform.libc_ver()[1]}",
        f"python    {platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        f"rookery   {_how_compiled()}",
    ]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _how_compiled() -> str:
    """Which modules of the core run compiled, as they were loaded."""
    if not _compiled.compiled:
        return "UNCOMPILED: every module is interpreted"
    # a benchmark of a server has no core in its own process
    core = {name: module for name, module in sys.modules.items() if name.startswith("rookery.core.")}
    if not core:
        return "compiled"
    plain = [name for name, module in core.items() if not str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES))]
    named = ", ".join(sorted(name.removeprefix("rookery.core.") for name in plain))
    return f"compiled; of the core, {len(core) - len(plain)} modules are compiled, interpreted are: {named or 'none'}"


def start(name: str, parser: ArgumentParser | None = None) -> Namespace:
    """Read the arguments, print the facts, and refuse to measure uncompiled code unless that was asked for."""
    parser = parser or ArgumentParser(prog=f"bench/run {name}")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds, of which the median counts (5)")
    parser.add_argument("--uncompiled", action="store_true", help="measure although the hot modules run interpreted")
    arguments = parser.parse_args()
    if not _compiled.compiled and not arguments.uncompiled:
        sys.exit(
            f"bench {name}: rookery runs uncompiled here ({_compiled.__file__}), at about ten times the CPU.\n"
            "Install it compiled (`make bench` does), or say --uncompiled to measure it as it is."
        )
    print("\n".join(machine()))
    print(f"again     bench/run {' '.join([name, *sys.argv[1:]])}\n", flush=True)
    return arguments


def rss_bytes() -> int:
    """The memory this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
