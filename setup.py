"""Compiles the hot modules with mypyc, all of them or none; `pyproject.toml` says everything else.

ROOKERY_PURE=1 compiles nothing. ROOKERY_REQUIRE_COMPILED=1 fails where the default warns and installs the plain files.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NoReturn

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PURE = os.environ.get("ROOKERY_PURE") == "1"
REQUIRED = os.environ.get("ROOKERY_REQUIRE_COMPILED") == "1"

# Measured (docs/adr/0003): -O3 takes 6 % longer to compile and saves half a percent of the instructions; -O1 takes
# 40 % less and costs 4 %. Nothing but the entry points is exported, so the C files call one another directly.
OPTIMIZE = "2"
UNIX_FLAGS = ["-fvisibility=hidden", "-w"]
MAX_JOBS = 8
"""Each compiler takes up to 130 MB, and a machine with many processors may have little memory."""

# mypyc type-checks and translates as soon as it is called, so it is called only by commands that build.
BUILDING = not {"bdist_wheel", "editable_wheel", "build", "build_ext", "install"}.isdisjoint(sys.argv)


def give_up(reason: str) -> None:
    """Go on without compiled modules, unless they are required."""
    if REQUIRED:
        fail(f"rookery: ROOKERY_REQUIRE_COMPILED=1, but {reason}")
    line = "=" * 100
    print(
        f"{line}\nWARNING: rookery is installed WITHOUT its compiled modules: {reason}.\n"
        "It works, and needs about ten times the CPU per message. `rookery doctor` shows the state;\n"
        f"ROOKERY_REQUIRE_COMPILED=1 makes this an error, ROOKERY_PURE=1 asks for it.\n{line}",
        file=sys.stderr,
        flush=True,
    )


def fail(message: str) -> NoReturn:
    raise SystemExit(message)


def progress(text: str) -> None:
    """pip shows this with -v, and tools/build_wheel.py always."""
    print(f"rookery: {text}", flush=True)


def hot_files() -> list[str]:
    names: tuple[str, ...] = runpy.run_path(str(ROOT / "src/rookery/_compiled.py"))["HOT_MODULES"]
    files = [f"src/{name.replace('.', '/')}.py" for name in names]
    return [file for file in files if (ROOT / file).exists()]


def hot_extensions() -> list[Extension]:
    """One extension per hot module, and the library they share, so that they call one another natively.

    The library has one C file per module, so that several compilers work at a time.
    """
    try:
        from mypyc.build import mypycify
    except ImportError:
        give_up("mypyc is not available here (no C compiler, no Python headers, or no mypy for this interpreter)")
        return []
    # The project's own mypy settings are a matter for `make lint`: an install must not fail for them, nor for
    # a dependency that is absent from the build's environment.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--explicit-package-bases"]
    os.environ["MYPYPATH"] = str(ROOT / "src")
    files = hot_files()
    progress(f"translating {len(files)} modules to C")
    try:
        extensions: list[Extension] = mypycify(
            [*options, *files], opt_level=OPTIMIZE, debug_level="0", group_name="rookery", multi_file=True
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc exits on a type error, having printed it
        said = "its messages are in this log" if isinstance(error, SystemExit) else repr(error)
        give_up(f"mypyc refused the hot modules ({said})")
        return []
    if os.name != "nt":
        for extension in extensions:
            extension.extra_compile_args += [flag for flag in UNIX_FLAGS if flag not in extension.extra_compile_args]
    return extensions


def remove_in_place_libraries() -> None:
    """A library that an earlier editable install left beside the source would be imported instead of it."""
    for suffix in EXTENSION_SUFFIXES:
        for library in (ROOT / "src").rglob(f"*{suffix}"):
            library.unlink()


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class BuildAllOrNothing(build_ext):
    """A module without the shared library, or the reverse, cannot be imported: one failure drops them all."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An interrupted build may have left half a library, newer than its sources.
        self.force = True

    def build_extensions(self) -> None:
        try:
            if self.compiler.compiler_type == "unix":
                self.compile_in_parallel()
            super().build_extensions()
        except Exception as error:  # noqa: BLE001 - compilers fail in more ways than distutils has errors
            give_up(f"the C compiler failed ({error})")
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions = []

    def compile_in_parallel(self) -> None:
        """Compile the C files of all extensions, one compiler per processor; what is left to do is to link them."""
        compile_one = self.compiler.compile
        started = time.monotonic()
        size = {source: Path(source).stat().st_size for extension in self.extensions for source in extension.sources}
        work = [(source, extension) for extension in self.extensions for source in extension.sources]
        # The largest first: a large one at the end would keep a single processor busy.
        work.sort(key=lambda each: size[each[0]], reverse=True)
        objects: dict[str, list[str]] = {}
        jobs = self.parallel if isinstance(self.parallel, int) and self.parallel > 0 else min(processors(), MAX_JOBS)
        progress(f"compiling {len(work)} C files, {jobs} at a time")
        with ThreadPoolExecutor(jobs) as pool:
            running = {
                pool.submit(
                    compile_one,
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    debug=self.debug,
                    extra_postargs=extension.extra_compile_args,
                ): source
                for source, extension in work
            }
            try:
                ready = shown = 0
                for done in as_completed(running):
                    objects[running[done]] = done.result()
                    ready += size[running[done]]
                    if ready * 10 // sum(size.values()) > shown:
                        shown = ready * 10 // sum(size.values())
                        progress(f"compiled {shown * 10} %, {time.monotonic() - started:.0f} s")
            finally:
                # Where one failed, the others need not begin.
                pool.shutdown(wait=True, cancel_futures=True)

        def compiled(sources: list[str], **_: Any) -> list[str]:
            return [name for source in sources for name in objects[source]]

        self.compiler.compile = compiled
        progress("linking")


class BuildExactly(build):
    """setuptools packs whatever lies in its build directory, also what an earlier build left there."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        wanted = {Path(output).resolve() for output in self.outputs_of_subcommands()}
        for file in Path(self.build_lib).rglob("*"):
            if file.is_file() and file.resolve() not in wanted:
                file.unlink()

    def outputs_of_subcommands(self) -> list[str]:
        return [output for name in self.get_sub_commands() for output in self.get_finalized_command(name).get_outputs()]


os.chdir(ROOT)
if "editable_wheel" in sys.argv:
    remove_in_place_libraries()

setup(
    ext_modules=hot_extensions() if BUILDING and not PURE else [],
    cmdclass={"build_ext": BuildAllOrNothing, "build": BuildExactly},
)
