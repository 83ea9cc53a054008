"""Build the package and install it into the virtual environment that runs this file; the Makefile calls it.

    package.py wheel      build the compiled wheel of the sources, unless it is there
    package.py install    the same, and install it
    package.py tools      install the plain package and what its development needs
    package.py serve …    start the broker: compiled if the wheel is there, otherwise plain at once, while another
                          process builds the wheel for the next start

A wheel is built from a copy of the sources in a directory of its own, `wheel/building-<pid>`, and moved to
`wheel/<digest of the sources>` when it is complete: there is no half build, whoever is interrupted.

A running broker holds a lock on `.in-use`, and nothing is installed over it: it would find a shared library where it
expects a plain module. Unix only, as make is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build_backend"))

from rookery_compiler import has_c_compiler, mypy_has_wheels

BUILT_FROM = ("src", "build_backend", "pyproject.toml", "setup.py", "MANIFEST.in")
ALSO_IN_IT = ("README.md", "LICENSE", "CHANGELOG.md")
UNWANTED = shutil.ignore_patterns("*.so", "*.py[cod]", "__pycache__", "*.egg-info")
# What decides whether and how the C compiler is used.
SETTINGS = ("CC", "CFLAGS", "LDFLAGS", "ROOKERY_PURE")
PATIENCE_SEC = 10

UNCOMPILED = "uncompiled, about 10 × the CPU, restart to switch"


def say(text: str) -> None:
    print(f"rookery: {text}", flush=True)


class Refused(Exception):
    """What to tell the user instead of a traceback."""


class Package:
    """The sources in `root`, and what is built of them and installed in the virtual environment `venv`."""

    def __init__(self, root: Path, venv: Path) -> None:
        self.root = root
        self.venv = venv
        self.python = str(venv / "bin" / "python")
        self.wheels = venv / "wheel"
        self.log = venv / "wheel.log"
        self.state = venv / ".installed"
        self.shows_progress = True

    def digest(self) -> str:
        """One value for everything that a build depends on."""
        total = hashlib.sha256()
        facts: list[Any] = [sys.version, platform.platform(), shutil.which(os.environ.get("CC", "cc"))]
        total.update(repr(facts + [os.environ.get(name) for name in SETTINGS]).encode())
        for path in self.sources():
            content = path.read_bytes()
            total.update(f"{path.relative_to(self.root)} {len(content)}\n".encode() + content)
        return total.hexdigest()[:16]

    def sources(self) -> list[Path]:
        found = []
        for name in BUILT_FROM:
            path = self.root / name
            if path.is_dir():
                for folder, folders, files in os.walk(path):
                    left_out = UNWANTED(folder, [*folders, *files])
                    folders[:] = [each for each in folders if each not in left_out]
                    found += [Path(folder, each) for each in files if each not in left_out]
            elif path.exists():
                found.append(path)
        return sorted(found)

    def wheel(self) -> Path | None:
        """The wheel of the sources as they are, if it was built. Plain files do where nothing else was asked for."""
        for path in (self.wheels / self.digest()).glob("*.whl"):
            if not path.name.endswith("-none-any.whl") or os.environ.get("ROOKERY_REQUIRE_COMPILED") != "1":
                return path
        return None

    def installed(self) -> dict[str, str]:
        """What was installed last: {digest, how}."""
        try:
            state: dict[str, str] = json.loads(self.state.read_text())
        except (OSError, ValueError):
            return {}
        return state

    # Building

    def build(self, *, wait: bool = True) -> Path:
        """Build the wheel, unless it is there."""
        self.wheels.mkdir(exist_ok=True)
        with lock(self.wheels / ".lock", wait=wait):
            self.remove_leftovers()
            wheel = self.wheel()
            return wheel if wheel is not None else self.build_now()

    def build_now(self) -> Path:
        started = time.monotonic()
        work = self.wheels / f"building-{os.getpid()}"
        try:
            (work / "tmp").mkdir(parents=True)
            digest = self.copy_sources(work / "tree")
            command = ["wheel", "-v", "--no-deps", *self.isolation(), "--wheel-dir", str(work / "out"), "."]
            if self.shows_progress:
                say(f"building the compiled package; the log is {self.log}")
            if self.pip(command, work / "tree", work / "tmp"):
                raise Refused(f"the build failed; the end of {self.log}:\n\n{tail(self.log)}")
            self.keep(work / "out", digest)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        (wheel,) = (self.wheels / digest).glob("*.whl")
        how = "compiled" if is_compiled(wheel) else "NOT compiled (why: see the log)"
        say(f"the package is built in {time.monotonic() - started:.0f} s, {how}")
        return wheel

    def copy_sources(self, tree: Path) -> str:
        """Copy what a build needs; returns the digest of the copy, whatever happens to the sources meanwhile."""
        for path in [*self.sources(), *(self.root / name for name in ALSO_IN_IT)]:
            target = tree / path.relative_to(self.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        return Package(tree, self.venv).digest()

    def isolation(self) -> list[str]:
        """Nothing need be fetched where the build's own requirements are installed, as the development tools are."""
        program = (
            "import sys; sys.path.insert(0, 'build_backend')\n"
            "import rookery_build as b, importlib.metadata as m, packaging.requirements as r\n"
            "needs = map(r.Requirement, ['setuptools>=77', *b.compiler_requires()])\n"
            "sys.exit(not all(n.specifier.contains(m.version(n.name)) for n in needs))"
        )
        done = subprocess.run([self.python, "-c", program], cwd=self.root, capture_output=True, check=False)
        return ["--no-build-isolation"] if done.returncode == 0 else []

    def pip(self, arguments: list[str], folder: Path, temporary: Path) -> int:
        """Run pip in a process group of its own, which ends with this process; shows the build's own lines only."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONPATH", None)
        with self.log.open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    if self.shows_progress and line.strip().startswith("rookery: "):
                        say(line.strip().removeprefix("rookery: "))
                return process.wait()
            finally:
                end_group(process)
                process.stdout.close()

    def keep(self, out: Path, digest: str) -> None:
        """Move a complete wheel to its place."""
        target = self.wheels / digest
        shutil.rmtree(target, ignore_errors=True)
        out.rename(target)
        self.remove_others(digest)

    def remove_others(self, digest: str) -> None:
        """The wheels of other sources. `rookery doctor` promises that a restart switches to whatever is there."""
        for other in self.wheels.glob("*"):
            if other.is_dir() and other.name != digest and not other.name.startswith("building-"):
                shutil.rmtree(other, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """The lock is ours, so nobody works in them any more."""
        for folder in self.wheels.glob("building-*"):
            shutil.rmtree(folder, ignore_errors=True)

    # Installing

    def install(self, wheel: Path) -> None:
        digest = wheel.parent.name
        how = "compiled" if is_compiled(wheel) else "plain"
        if self.installed() == {"digest": digest, "how": how}:
            return
        with self.nobody_runs():
            # The second command is for a wheel of the version that is there already, which the first leaves alone.
            self.pip_install([str(wheel)])
            self.pip_install(["--force-reinstall", "--no-deps", str(wheel)])
            self.remember(digest, how)
        say(f"rookery is installed, {'compiled' if how == 'compiled' else 'NOT compiled'}")

    def install_plain(self, extra: str = "") -> None:
        """Install the plain files and what they depend on: quick, and right for a first start."""
        with self.nobody_runs():
            work = self.venv / f"plain-{os.getpid()}"
            try:
                digest = self.copy_sources(work)
                self.pip_install([str(work) + extra], ROOKERY_PURE="1")
            finally:
                shutil.rmtree(work, ignore_errors=True)
            self.remember(digest, "plain")

    def pip_install(self, arguments: list[str], **setting: str) -> None:
        # What is half installed counts as nothing.
        self.state.unlink(missing_ok=True)
        command = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *arguments]
        environment = {**os.environ, **setting}
        environment.pop("PYTHONPATH", None)
        if setting:
            environment.pop("ROOKERY_REQUIRE_COMPILED", None)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"pip install failed:\n\n{done.stdout}{done.stderr}")

    def remember(self, digest: str, how: str) -> None:
        self.state.write_text(json.dumps({"digest": digest, "how": how}))

    @contextlib.contextmanager
    def nobody_runs(self) -> Iterator[None]:
        try:
            with lock(self.venv / ".in-use", wait=False):
                yield
        except Busy:
            raise Refused(f"a broker runs from {self.venv}: stop it, nothing is installed under it") from None

    # Serving

    def serve(self, arguments: list[str]) -> NoReturn:
        """Become the broker. Whatever is installed is installed before, and nothing afterwards."""
        switch = False
        try:
            switch = self.prepare()
        except Refused as refusal:
            if not self.installed():
                raise
            say(f"{refusal}; this one starts with what is installed")
        running = (self.venv / ".in-use").open("w")
        fcntl.flock(running, fcntl.LOCK_SH)
        os.set_inheritable(running.fileno(), True)
        if switch:
            self.build_in_background()
        program = str(self.venv / "bin" / "rookery")
        os.execv(program, [program, "serve", *arguments])

    def prepare(self) -> bool:
        """Install the best there is without waiting for a compiler; true if a build is worth while."""
        wheel = self.wheel()
        if wheel is not None:
            self.install(wheel)
            return False
        self.remove_others(self.digest())
        if self.installed().get("digest") != self.digest():
            started = time.monotonic()
            say("installing the package and what it depends on")
            self.install_plain()
            say(f"installed in {time.monotonic() - started:.0f} s")
        if os.environ.get("ROOKERY_PURE") == "1":
            return False
        if not (has_c_compiler() and mypy_has_wheels()):
            say("uncompiled, about 10 × the CPU: there is no C compiler here, or no mypy for this Python")
            return False
        say(f"{UNCOMPILED}: the compiled build runs in the background, its log is {self.log}")
        return True

    def build_in_background(self) -> None:
        """Start a build that ends with this process, or with the program that takes its place.

        Its standard input is a pipe that this process holds open: when that ends, so does the build.
        """
        read, write = os.pipe()
        os.set_inheritable(write, True)
        command = [sys.executable, str(Path(__file__).resolve()), "background", str(self.root), str(self.venv)]
        # It forks and leaves, so that the broker has no child it does not know.
        subprocess.run(command, stdin=read, start_new_session=True, check=True)
        os.close(read)

    def background(self) -> None:
        """What `build_in_background` starts."""
        if os.fork():
            os._exit(0)
        threading.Thread(target=end_with_standard_input, daemon=True).start()
        os.nice(10)
        self.shows_progress = False
        try:
            self.build(wait=False)
        except Busy:
            return
        say("the compiled build is ready: restart to switch")


class Busy(Exception):
    """Somebody else holds the lock."""


@contextlib.contextmanager
def lock(path: Path, *, wait: bool) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Busy from None
            say("waiting for another build to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def end_group(process: subprocess.Popen[str]) -> None:
    """End what the process started too. Where it ended by itself, nothing of it is left."""
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SEC)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_with_standard_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def end_in_order(number: int, _frame: object) -> NoReturn:
    # A second signal must not keep the first from cleaning up.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def is_compiled(wheel: Path) -> bool:
    return not wheel.name.endswith("-none-any.whl")


def tail(path: Path, lines: int = 40) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def main(arguments: list[str]) -> None:
    command, *rest = arguments
    if command == "background":
        package = Package(Path(rest[0]), Path(rest[1]))
    else:
        package = Package(Path(__file__).resolve().parents[1], Path(sys.prefix))
    # Also where the shell that started this in the background had it ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_in_order)
    try:
        match command:
            case "wheel":
                package.build()
            case "install":
                package.install(package.build())
            case "tools":
                say("installing the development tools")
                package.install_plain("[dev]")
            case "serve":
                package.serve(rest)
            case "background":
                package.background()
            case _:
                sys.exit(f"{command}: no such command\n\n{__doc__}")
    except Refused as refusal:
        sys.exit(f"rookery: {refusal}")


if __name__ == "__main__":
    main(sys.argv[1:])
