"""The corpora once more, and some mutations of each decoder, always the same ones.

What a native library decodes is tried in a process of its own: one that crashes, hangs or takes all memory fails its
test and no other.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.child import kept, last_input, starts
from tests.fuzz.decoders import DECODERS
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target

ROOT = Path(__file__).parents[2]
SEED = 7
OWN = [name for name, decoder in DECODERS.items() if not decoder.native]
NATIVE = [name for name, decoder in DECODERS.items() if decoder.native]


@pytest.mark.parametrize("name", OWN)
def test_a_decoder_of_our_own(name: str) -> None:
    decoder = DECODERS[name]
    target = decoder.target()
    rng = random.Random(SEED)
    known = starts(decoder, target, SEED)
    try:
        for data in known:
            _try(name, target, data)
        for _ in range(decoder.runs):
            _try(name, target, mutate(rng, rng.choice(known), known, target.tokens, decoder.input_max_bytes))
    finally:
        target.close()


def _try(name: str, target: Target, data: bytes) -> None:
    try:
        target.check(data)
    except BaseException as error:
        error.add_note(f"decoder {name}, input {data!r}")
        raise


@pytest.mark.parametrize("name", NATIVE)
def test_a_decoder_of_a_native_library(name: str, tmp_path: Path) -> None:
    count = len(kept(name)) + DECODERS[name].runs
    command = [sys.executable, "-m", "tests.fuzz.child", name, "--by-mutation", "--work", str(tmp_path)]
    command += ["--runs", str(count), "--seed", str(SEED)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, f"input {last_input(tmp_path)!r}\n{run.stderr[-3_000:]}"


def test_a_defect_is_found(tmp_path: Path) -> None:
    """The same machinery over a decoder that fails."""
    code = (
        "import sys; from tests.fuzz import child, decoders, targets_amqp\n"
        "targets_amqp.Tables.check = lambda self, data: data.index(b'a') and None\n"
        f"sys.argv = ['child', 'amqp-table', '--by-mutation', '--runs', '50', '--work', {str(tmp_path)!r}]\n"
        "child.main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 77, run.stderr
    assert "ValueError: subsection not found" in run.stderr
    (found,) = tmp_path.glob("found-*")
    assert b"a" not in found.read_bytes()


@pytest.mark.long
def test_a_bounded_run_guided_by_coverage(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (extra `fuzz`; it has wheels for some Pythons only)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for name in OWN:
        command = [sys.executable, "-m", "tests.fuzz.child", name, "--seconds", "10", "--work", str(tmp_path / name)]
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert run.returncode == 0, f"{name}: {run.stderr[-3_000:]}"
