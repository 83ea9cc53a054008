"""Instructions per message in the core, counted by callgrind: steady to a percent where times are not.

Each case runs twice in a process of its own under valgrind, once short and once long, with a fixed hash seed; the
difference of the two counts, by the difference in messages, leaves out everything that is not done per message. The
interpreted loop that calls the core is part of it (`--functions` shows how much). `rep movs` counts once per
repetition, so compare counts with counts, not with time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.core import claiming, fan_out, subscribed
from bench.harness import Case, start, table, title
from bench.world import World

SHORT = 1_000
LONG = 6_000

CASES: dict[str, Callable[[World, int], Case]] = {
    "claim": lambda world, n: claiming(world, "publish + claim + ack", n),
    "mailbox": lambda world, n: subscribed(world, "publish + mailbox + ack", n),
    "expiry": lambda world, n: claiming(world, "claim, time to live", n, ttl_ms=60_000),
    "priorities": lambda world, n: claiming(world, "claim, 10 priorities", n, priorities=10),
    "fan-out": lambda world, n: fan_out(world, "fan-out to 10 queues", n, 10),
}


def count(case: str, messages: int) -> Counter[str]:
    """Instructions by function of one run of a case, imports and all."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "--compress-strings=no", f"--callgrind-out-file={out}"]
        command += [sys.executable, "-m", "bench.instructions", "--case", case, "--messages", str(messages)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"bench instructions: valgrind failed\n{done.stderr}")
        return self_costs(out)


def self_costs(out: Path) -> Counter[str]:
    """Instructions spent in each function itself, from callgrind's file: the line after `calls=` is not its own."""
    costs: Counter[str] = Counter()
    function = ""
    after_call = False
    with out.open() as lines:
        for line in lines:
            if line.startswith("fn="):
                function = line[3:].strip().partition("'")[0]
            elif line.startswith("calls="):
                after_call = True
            elif line[0].isdigit() or line[0] in "+-*":
                if not after_call:
                    costs[function] += int(line.split()[1])
                after_call = False
    return costs


def main() -> None:
    parser = ArgumentParser(prog="bench/run instructions")
    parser.add_argument("--functions", type=int, default=0, help="also show so many functions with the most of them")
    parser.add_argument("--only", choices=CASES, help="count this case alone")
    parser.add_argument("--case", choices=CASES, help="run a case in this process, uncounted (what valgrind runs)")
    parser.add_argument("--messages", type=int, default=LONG, help="how many messages --case runs")
    if "--case" in sys.argv:
        one = parser.parse_args()
        CASES[one.case](World(), one.messages).run()
        return
    arguments = start("instructions", parser)
    if shutil.which("valgrind") is None:
        sys.exit("bench instructions: valgrind is not installed (Debian: valgrind)")
    title(
        "Core, instructions per message",
        f"""Callgrind, PYTHONHASHSEED=0, 200 B bodies, batches of 100: a run of {LONG:,} messages less a run of
        {SHORT:,}, by {LONG - SHORT:,}. In the fan-out one message is one publish, ten deliveries and ten acks.""",
    )
    rows = []
    top: dict[str, Counter[str]] = {}
    for case, make in CASES.items():
        if arguments.only in (None, case):
            spent = count(case, LONG)
            spent.subtract(count(case, SHORT))
            top[case] = spent
            rows.append([make(World(), 0).name, f"{spent.total() / (LONG - SHORT):,.0f}"])
    table(["case", "instructions/message"], rows)
    if arguments.functions:
        for case, spent in top.items():
            print(f"  {case}: by function, itself only")
            shown = spent.most_common(arguments.functions)
            table(["function", "instructions/message"], [[f, f"{n / (LONG - SHORT):,.1f}"] for f, n in shown])


if __name__ == "__main__":
    main()
