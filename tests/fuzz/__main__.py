"""Fuzz the decoders of `decoders.py`, each in a process of its own: `make fuzz MINUTES=5 [DECODER=name]`.

What was found stands below `.fuzz/NAME/`, with the command that shows it again; so does the corpus that coverage has
grown, from which `--keep` takes a few inputs into the repository. The exit status is 1 after a finding.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.child import CORPUS, last_input
from tests.fuzz.decoders import DECODERS, Decoder

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".fuzz"
START_SEC = 300
"""What a process may take beyond its time: to import, and to end."""
KEPT = 6
KEPT_MAX_BYTES = 3_000


@dataclass
class Outcome:
    """What became of one decoder."""

    decoder: Decoder
    how: str
    executions: int
    seconds: float
    findings: list[Path]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1, help="minutes for each decoder [default: 1]")
    parser.add_argument("--decoder", action="append", choices=sorted(DECODERS), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time [default: 2]")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first seed [default: the time]")
    parser.add_argument("--replay", type=Path, help="try one input, in this process, and show what it raises")
    parser.add_argument("--keep", action="store_true", help="keep a few inputs of the grown corpora, and exit")
    asked = parser.parse_args()
    chosen = [DECODERS[name] for name in asked.decoder or DECODERS]
    if asked.replay:
        return replay(chosen, asked.replay)
    if asked.keep:
        for decoder in chosen:
            keep(decoder)
        return 0
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed (extra `fuzz`; it has wheels for some Pythons only): "
            "decoders of our own are fuzzed by mutation, without coverage",
            file=sys.stderr,
        )
    with ThreadPoolExecutor(asked.jobs) as pool:
        outcomes = list(pool.map(lambda each: fuzz(each, asked.minutes * 60, asked.seed), chosen))
    return report(outcomes)


def fuzz(decoder: Decoder, seconds: float, seed: int) -> Outcome:
    """Fuzz one decoder for so long."""
    work = WORK / decoder.name
    work.mkdir(parents=True, exist_ok=True)
    before = set(work.glob("found-*"))
    by_coverage = not decoder.native and importlib.util.find_spec("atheris") is not None
    flags = ["--seconds", str(seconds), "--seed", str(seed % (1 << 31)), "--work", str(work)]
    if not by_coverage:
        flags.append("--by-mutation")
    command = [sys.executable, "-m", "tests.fuzz.child", decoder.name, *flags]
    began = time.monotonic()
    with (work / "log").open("w+b") as log:
        try:
            status = subprocess.run(
                command, cwd=ROOT, stdout=log, stderr=log, check=False, timeout=seconds + START_SEC
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    text = (work / "log").read_text("utf-8", "replace")
    found = sorted(set(work.glob("found-*")) - before)
    if status and not found:
        # it died of its input, or before there was any
        data = last_input(work) if not by_coverage else b""
        found = [work / f"found-died-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"]
        found[0].write_bytes(data)
    counts = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    how = "coverage" if by_coverage else "mutation"
    outcome = Outcome(decoder, how, int(counts[-1]) if counts else 0, time.monotonic() - began, found)
    print(f"{decoder.name}: {outcome.executions:,} executions, {len(found)} findings", file=sys.stderr, flush=True)
    return outcome


def report(outcomes: list[Outcome]) -> int:
    print(f"{'decoder':<18} {'by':<9} {'executions':>12} {'seconds':>8} {'findings':>8}")
    for each in outcomes:
        print(
            f"{each.decoder.name:<18} {each.how:<9} {each.executions:>12,} {each.seconds:>8.0f} {len(each.findings):>8}"
        )
    print(f"{'total':<18} {'':<9} {sum(each.executions for each in outcomes):>12,}")
    failed = False
    for each in outcomes:
        for path in each.findings:
            failed = True
            print(f"\nfinding: {path}\n  its log: {path.parent / 'log'}")
            print(f"  show it: PYTHONPATH=src python -m tests.fuzz --decoder {each.decoder.name} --replay {path}")
            print(f"  once it is mended: copy it to {CORPUS.relative_to(ROOT) / each.decoder.name}")
    return 1 if failed else 0


def replay(chosen: list[Decoder], path: Path) -> int:
    (decoder,) = chosen
    decoder.target().check(path.read_bytes())
    print(f"{decoder.name} takes or refuses this input as it should")
    return 0


def keep(decoder: Decoder) -> None:
    """Take a few inputs of a grown corpus, in which each reaches something that no other does."""
    grown = WORK / decoder.name / "corpus"
    if not grown.is_dir():
        return
    (CORPUS / decoder.name).mkdir(parents=True, exist_ok=True)
    by_size = sorted(grown.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    fitting = [path for path in by_size if path.stat().st_size <= KEPT_MAX_BYTES]
    # spread over the sizes: the smallest are alike
    step = max(1, len(fitting) // KEPT)
    for path in fitting[step - 1 :: step][:KEPT]:
        data = path.read_bytes()
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]
        (CORPUS / decoder.name / name).write_bytes(data)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", f"{ROOT / 'src'}")
    sys.exit(main())
