"""From a clone to a running broker: `tools/package.py`, which `make serve` and `make test` call.

pip and the broker are stand-ins here, since the real ones take a minute; `test_a_fresh_clone_serves_within_a_minute`
is the whole way with the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rookery import _compiled
from tests.interop.server import serving

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SEC = 60

pytestmark = pytest.mark.skipif(os.name == "nt", reason="make is for Unix")

# What package.py finds as `bin/python`: `-m pip wheel` takes as long as the file `hold` exists, and has a child.
PYTHON = """#!{python}
import os, subprocess, sys, time
from pathlib import Path

arguments = sys.argv[1:]
if "pip" not in arguments:
    sys.exit(1)
venv = Path({venv!r})
with (venv / "calls").open("a") as calls:
    print(arguments[arguments.index("pip") + 2], *arguments[-1:], os.environ.get("ROOKERY_PURE", ""), file=calls)
if "wheel" in arguments:
    print("rookery: compiling", flush=True)
    child = subprocess.Popen(["sleep", "1000"])
    (venv / "child").write_text(str(child.pid))
    while (venv / "hold").exists():
        time.sleep(0.02)
    child.kill()
    child.wait()
    if (venv / "broken").exists():
        sys.exit("the compiler is broken")
    out = Path(arguments[arguments.index("--wheel-dir") + 1])
    out.mkdir()
    (out / os.environ.get("WHEEL", "rookery-1-cp311-cp311-linux_x86_64.whl")).write_text("a wheel")
"""

# Says which package it found installed, and runs until it is told to end.
BROKER = """#!{python}
import pathlib, signal, sys, time

print("serving", pathlib.Path({venv!r}, ".installed").read_text(), *sys.argv[1:], flush=True)
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
while True:
    time.sleep(0.05)
"""


class Clone:
    """A copy of what a build reads, small, with a virtual environment of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.venv = folder / "venv"
        (self.root / "src" / "rookery").mkdir(parents=True)
        (self.root / "src" / "rookery" / "__init__.py").write_text("one = 1\n")
        for name in ("tools", "build_backend"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(ROOT / name, self.root)
        (self.venv / "bin").mkdir(parents=True)
        for name, text in (("python", PYTHON), ("rookery", BROKER)):
            program = self.venv / "bin" / name
            program.write_text(text.format(python=sys.executable, venv=str(self.venv)))
            program.chmod(0o755)
        self.hold = self.venv / "hold"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, command: str, *arguments: str, **setting: str) -> subprocess.Popen[str]:
        program = (
            f"import sys; sys.prefix = {str(self.venv)!r}; sys.path.insert(0, {str(self.root / 'tools')!r})\n"
            "import package; package.main(sys.argv[1:])"
        )
        names = ("ROOKERY_PURE", "ROOKERY_REQUIRE_COMPILED", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        process = subprocess.Popen(
            [sys.executable, "-c", program, command, *arguments],
            env={**kept, "CC": sys.executable, **setting},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, command: str, **setting: str) -> tuple[int, str]:
        process = self.start(command, **setting)
        out, err = process.communicate(timeout=PATIENCE_SEC)
        return process.returncode, out + err

    def serve(self, **setting: str) -> tuple[subprocess.Popen[str], list[str], dict[str, str]]:
        """Start it; returns what it said before the broker began, and what was installed when it did."""
        process = self.start("serve", "--http-port", "0", **setting)
        assert process.stdout is not None
        before: list[str] = []
        for line in process.stdout:
            if line.startswith("serving"):
                installed, _, arguments = line.removeprefix("serving ").rpartition("} ")
                assert arguments.split() == ["serve", "--http-port", "0"]
                return process, before, json.loads(installed + "}")
            before.append(line)
        raise AssertionError(before, process.communicate())

    def calls(self) -> list[str]:
        """What pip was asked for: the command, and whether it was to leave the compiler alone."""
        lines = [line.split() for line in (self.venv / "calls").read_text().splitlines()]
        return [" ".join((line[0], *(["plain"] if line[-1] == "1" else []))) for line in lines]

    def wheels(self) -> list[Path]:
        return list((self.venv / "wheel").glob("*/*.whl"))

    def in_work(self) -> list[Path]:
        return list((self.venv / "wheel").glob("building-*"))


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    made = Clone(tmp_path)
    yield made
    made.hold.unlink(missing_ok=True)
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SEC)


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_SEC
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc/self").exists() else True


def test_the_first_start_is_plain_and_the_next_is_compiled(clone: Clone) -> None:
    clone.hold.touch()
    first, said, installed = clone.serve()
    assert installed["how"] == "plain"
    assert "uncompiled, about 10 × the CPU, restart to switch" in "".join(said)
    until(clone.in_work, "no build began")
    assert clone.wheels() == []
    clone.hold.unlink()
    assert first.stdout is not None
    assert "built" in first.stdout.readline()
    assert first.stdout.readline() == "rookery: the compiled build is ready: restart to switch\n"
    assert [wheel.read_text() for wheel in clone.wheels()] == ["a wheel"]
    # nothing was installed under the running broker
    assert clone.calls() == ["install plain", "wheel"]
    assert json.loads((clone.venv / ".installed").read_text())["how"] == "plain"
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(PATIENCE_SEC) == 0

    _, said, installed = clone.serve()
    assert installed["how"] == "compiled"
    assert said == ["rookery: rookery is installed, compiled\n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_broker_ends_the_build_and_leaves_nothing_of_it(clone: Clone, number: signal.Signals) -> None:
    clone.hold.touch()
    broker, _, _ = clone.serve()
    until((clone.venv / "child").exists, "no build began")
    until((clone.venv / "child").read_text, "the compiler has no number")
    compiler = int((clone.venv / "child").read_text())
    assert is_alive(compiler)
    os.killpg(broker.pid, number)
    broker.wait(PATIENCE_SEC)
    until(lambda: not is_alive(compiler), "the compiler goes on")
    until(lambda: not clone.in_work(), "half a build is left")
    assert clone.wheels() == []


def test_a_build_that_was_killed_is_not_taken_for_one(clone: Clone) -> None:
    left = clone.venv / "wheel" / "building-1" / "out"
    left.mkdir(parents=True)
    (left / "rookery-1-cp311-cp311-linux_x86_64.whl").write_text("half")
    assert clone.run("install")[0] == 0
    assert [wheel.read_text() for wheel in clone.wheels()] == ["a wheel"]
    assert not clone.in_work()


def test_ctrl_c_ends_a_build_in_the_foreground(clone: Clone) -> None:
    clone.hold.touch()
    build = clone.start("wheel")
    until((clone.venv / "child").exists, "no build began")
    until((clone.venv / "child").read_text, "the compiler has no number")
    compiler = int((clone.venv / "child").read_text())
    os.killpg(build.pid, signal.SIGINT)
    assert build.wait(PATIENCE_SEC) == 130
    until(lambda: not is_alive(compiler), "the compiler goes on")
    assert not clone.wheels()
    assert not clone.in_work()


def test_nothing_is_installed_under_a_running_broker(clone: Clone) -> None:
    assert clone.run("install")[0] == 0
    broker, _, installed = clone.serve()
    (clone.root / "src" / "rookery" / "__init__.py").write_text("one = 2\n")
    code, said = clone.run("install")
    assert (code, "a broker runs from" in said) == (1, True)
    # a second broker starts with what the first has
    second, said_before, same = clone.serve()
    assert same == installed
    assert "starts with what is installed" in "".join(said_before)
    for each in (broker, second):
        os.killpg(each.pid, signal.SIGINT)
        each.wait(PATIENCE_SEC)
    assert clone.run("install")[0] == 0
    assert json.loads((clone.venv / ".installed").read_text()) != installed


def test_a_build_is_done_once_per_state_of_the_sources(clone: Clone) -> None:
    for _ in range(2):
        assert clone.run("install")[0] == 0
    assert clone.calls() == ["wheel", "install", "install"]
    (clone.root / "README.md").write_text("other words")
    assert clone.run("wheel")[0] == 0
    assert clone.calls().count("wheel") == 1
    (clone.root / "src" / "rookery" / "more.py").write_text("more = 1\n")
    assert clone.run("wheel")[0] == 0
    assert clone.calls().count("wheel") == 2
    assert len(clone.wheels()) == 1


def test_a_wheel_of_other_sources_is_not_promised(clone: Clone) -> None:
    assert clone.run("wheel")[0] == 0
    (clone.root / "src" / "rookery" / "__init__.py").write_text("one = 2\n")
    clone.hold.touch()
    _, _, installed = clone.serve()
    assert installed["how"] == "plain"
    assert not clone.wheels()


def test_a_build_shows_its_progress_and_if_it_fails_its_end(clone: Clone) -> None:
    (clone.venv / "broken").touch()
    code, said = clone.run("install")
    assert code == 1
    assert "rookery: compiling\n" in said
    assert "the compiler is broken" in said
    assert not clone.wheels()


def test_without_a_compiler_no_build_is_promised(clone: Clone) -> None:
    for setting in ({"CC": "no-such-compiler"}, {"ROOKERY_PURE": "1"}):
        broker, said, installed = clone.serve(**setting)
        assert installed["how"] == "plain"
        assert "restart to switch" not in "".join(said)
        os.killpg(broker.pid, signal.SIGINT)
        broker.wait(PATIENCE_SEC)
    assert set(clone.calls()) == {"install plain"}


def test_a_plain_wheel_does_not_do_where_compilation_is_required(clone: Clone) -> None:
    plain = {"WHEEL": "rookery-1-py3-none-any.whl"}
    assert clone.run("wheel", **plain)[0] == 0
    assert clone.run("wheel", **plain)[0] == 0
    assert clone.calls() == ["wheel"]
    assert clone.run("wheel", ROOKERY_REQUIRE_COMPILED="1")[0] == 0
    assert clone.calls() == ["wheel", "wheel"]


def test_the_package_says_whether_a_restart_would_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "compiled", True)
    assert _compiled.speed() == "compiled"
    monkeypatch.setattr(_compiled, "compiled", False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "restart" not in _compiled.speed()
    plain = tmp_path / "wheel" / "0123" / "rookery-1-py3-none-any.whl"
    plain.parent.mkdir(parents=True)
    plain.touch()
    assert "restart" not in _compiled.speed()
    building = tmp_path / "wheel" / f"building-{os.getpid()}"
    building.mkdir()
    assert _compiled.speed() == "uncompiled, about 10 × the CPU, restart to switch when the compiled build is ready"
    building.rmdir()
    (tmp_path / "wheel" / "4567").mkdir()
    (tmp_path / "wheel" / "4567" / "rookery-1-cp311-cp311-linux_x86_64.whl").touch()
    assert _compiled.speed().startswith("uncompiled, about 10 × the CPU, restart to switch: ")


def test_the_log_says_what_an_uncompiled_broker_costs(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.listening["compiled"] is _compiled.compiled
        said = [(line["level"], line["text"]) for line in server.log if line["event"] == "uncompiled"]
        assert said == ([] if _compiled.compiled else [("warning", _compiled.speed())])
        assert server.stop() == 0


@pytest.mark.long
def test_a_fresh_clone_serves_within_a_minute(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    """`make serve` with the real pip, which needs a package index, and the real broker."""
    need_program("make")
    tree = tmp_path / "clone"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "rookery-data*", "*.so"))
    started = time.monotonic()
    names = ("ROOKERY_PURE", "ROOKERY_REQUIRE_COMPILED", "PYTHONPATH", "VENV", "MAKEFLAGS", "MAKELEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    make = subprocess.Popen(
        ["make", "serve", "ARGS=--amqp-port off --line-port off --http-port 0 --host 127.0.0.1"],
        cwd=tree,
        env=kept,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert make.stderr is not None
        events = []
        for line in make.stderr:
            event = json.loads(line)
            events.append(event)
            if event["event"] == "listening":
                break
        with urllib.request.urlopen(f"http://{events[-1]['http']}/health", timeout=10) as answer:
            assert answer.status == 200
        # one minute on two idle processors; this machine may be busy
        assert time.monotonic() - started < 60 * max(1.0, os.getloadavg()[0] / 2)
        assert events[-1]["compiled"] is False
        (told,) = (event["text"] for event in events if event["event"] == "uncompiled")
        assert told.startswith("uncompiled, about 10 × the CPU, restart to switch")
    finally:
        os.killpg(make.pid, signal.SIGINT)
        make.communicate(timeout=PATIENCE_SEC)
    until(lambda: not list((tree / ".venv" / "wheel").glob("building-*")), "half a build is left")
