"""One decoder fuzzed in a process of its own: `python -m tests.fuzz.child NAME --seconds 300 --work DIR`.

Decoders of our own are fuzzed by atheris, guided by the coverage of Rookery's modules; decoders of native libraries by
mutation of well-formed input, with limits on memory and on CPU time for each input, because a crash of the process, a
hang or a rise of memory is what is looked for. Where atheris is not installed, all are fuzzed by mutation.

The input that is being tried stands in `DIR/current`, so it is known also when the process dies of it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import mmap
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
INPUT_CPU_SEC = 20
"""CPU time for one input, after which it counts as a hang."""
MEMORY_BYTES = 2 << 30
"""Address space that the process may take beyond what it has after its imports."""
GROWTH_BYTES = 256 << 20
"""How much the resident memory may grow while inputs come and go."""
SEEDS = 40
FAILED = 77
"""The exit status after a finding that is not the death of the process, as libFuzzer has it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--by-mutation", action="store_true")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    if not asked.by_mutation and importlib.util.find_spec("atheris") is not None:
        import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

        with atheris.instrument_imports(include=["rookery"]):
            decoder, target = load(asked.name)
        if not decoder.native:
            fuzz_by_coverage(atheris, decoder, target, asked)
            return
    else:
        decoder, target = load(asked.name)
    fuzz_by_mutation(decoder, target, asked)


def load(name: str) -> tuple[Any, Any]:
    from tests.fuzz.decoders import DECODERS

    decoder = DECODERS[name]
    return decoder, decoder.target()


def kept(name: str) -> list[bytes]:
    """The corpus of a decoder, as it is in the repository."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def starts(decoder: Any, target: Any, seed: int) -> list[bytes]:
    """What mutations start from: the corpus, and well-formed input that is made anew."""
    rng = random.Random(seed)
    return [*kept(decoder.name), *(target.make(rng)[: decoder.input_max_bytes] for _ in range(SEEDS))]


def fuzz_by_coverage(atheris: Any, decoder: Any, target: Any, asked: Any) -> None:
    corpus = asked.work / "corpus"
    corpus.mkdir(exist_ok=True)
    for data in starts(decoder, target, asked.seed):
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    words = asked.work / "dictionary"
    # an empty dictionary is refused
    lines = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens or (b"\0",))
    words.write_text("".join(f'"{line}"\n' for line in lines if line))
    flags = [
        f"-max_total_time={asked.seconds:.0f}" if asked.seconds else f"-runs={asked.runs}",
        f"-max_len={decoder.input_max_bytes}",
        f"-seed={asked.seed}",
        f"-dict={words}",
        "-timeout=120",
        "-rss_limit_mb=3072",
        "-print_final_stats=1",
        f"-artifact_prefix={asked.work}/found-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], target.check)
    atheris.Fuzz()


def fuzz_by_mutation(decoder: Any, target: Any, asked: Any) -> None:
    from tests.fuzz.mutation import mutate

    rng = random.Random(asked.seed)
    known = starts(decoder, target, asked.seed)
    limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    done = 0
    baseline = 0
    end = time.monotonic() + asked.seconds
    with (asked.work / "current").open("w+b") as file:
        file.truncate(decoder.input_max_bytes + 8)
        with mmap.mmap(file.fileno(), 0) as current:
            while done < asked.runs or time.monotonic() < end:
                if done < len(known):
                    data = known[done]
                elif rng.random() < 0.15:
                    data = target.make(rng)[: decoder.input_max_bytes]
                    known[rng.randrange(len(known))] = data
                else:
                    data = mutate(rng, rng.choice(known), known, target.tokens, decoder.input_max_bytes)
                current[: len(data) + 8] = len(data).to_bytes(8, "big") + data
                signal.setitimer(signal.ITIMER_PROF, INPUT_CPU_SEC)
                try:
                    target.check(data)
                except BaseException:  # noqa: BLE001 - whatever a decoder raises is a finding
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    traceback.print_exc()
                    (asked.work / f"found-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}").write_bytes(data)
                    finish(done + 1)
                    sys.exit(FAILED)
                done += 1
                if done == 2_000:
                    baseline = resident_bytes()
    signal.setitimer(signal.ITIMER_PROF, 0)
    finish(done)
    if baseline and resident_bytes() - baseline > GROWTH_BYTES:
        print(f"memory grew from {baseline:,} to {resident_bytes():,} bytes", file=sys.stderr)
        sys.exit(FAILED)


def finish(done: int) -> None:
    print(f"stat::number_of_executed_units: {done}", file=sys.stderr)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def last_input(work: Path) -> bytes:
    """What was tried when a process died."""
    data = (work / "current").read_bytes() if (work / "current").exists() else b""
    size = int.from_bytes(data[:8], "big")
    return data[8 : 8 + size]


if __name__ == "__main__":
    main()
