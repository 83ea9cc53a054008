"""Run simulations by seed: `PYTHONPATH=src python -m tests.simulation SEED [--count N] [--journal] [--trace] …`."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.keeping import KeptWorld
from tests.simulation.world import STEPS, SimulationFailure, World, run, tightened


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run simulations by seed.")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from SEED on")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--trace", action="store_true", help="print every operation")
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    parser.add_argument("--journal", action="store_true", help="with a journal on a faulty medium")
    parser.add_argument("--streams", action="store_true", help="streams, with files that are sealed")
    options = parser.parse_args(arguments)
    if options.streams:
        return streams(options)
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            with tightened():
                world = run(seed, options.steps, KeptWorld if options.journal else World)
        except SimulationFailure as failure:
            failed += 1
            if options.trace:
                print("\n".join(failure.trace))
            print(failure)
            if options.first:
                break
        else:
            if options.trace:
                print("\n".join(world.trace))
    print(f"{failed} of {options.count} runs broke a law" if failed else f"{options.count} runs kept the laws")
    return 1 if failed else 0


def streams(options: argparse.Namespace) -> int:
    # sealing needs pyarrow, which the others do without
    from tests.simulation import streams_world

    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            with streams_world.small():
                trace = streams_world.run(seed, options.steps).trace
        except streams_world.StreamsFailure as failure:
            failed += 1
            trace = failure.trace
            print(failure)
        if options.trace:
            print("\n".join(trace))
        if failed and options.first:
            break
    print(f"{failed} of {options.count} runs broke a law" if failed else f"{options.count} runs kept the laws")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
