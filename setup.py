"""Compiles the hot modules with mypyc, all of them or none; `pyproject.toml` says everything else.

ROOKERY_PURE=1 compiles nothing. ROOKERY_REQUIRE_COMPILED=1 fails where the default warns and installs the plain files.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PURE = os.environ.get("ROOKERY_PURE") == "1"
REQUIRED = os.environ.get("ROOKERY_REQUIRE_COMPILED") == "1"

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


def hot_files() -> list[str]:
    names: tuple[str, ...] = runpy.run_path(str(ROOT / "src/rookery/_compiled.py"))["HOT_MODULES"]
    files = [f"src/{name.replace('.', '/')}.py" for name in names]
    return [file for file in files if (ROOT / file).exists()]


def hot_extensions() -> list[Extension]:
    """One extension per hot module, and the library they share, so that they call one another natively."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        give_up("mypyc is not available here (no C compiler, no Python headers, or no mypy for this interpreter)")
        return []
    # The project's own mypy settings are a matter for `make lint`: an install must not fail for them, nor for
    # a dependency that is absent from the build's environment.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--explicit-package-bases"]
    os.environ["MYPYPATH"] = str(ROOT / "src")
    try:
        return mypycify([*options, *hot_files()], opt_level="3", debug_level="1", group_name="rookery")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc exits on a type error, having printed it
        said = "its messages are in this log" if isinstance(error, SystemExit) else repr(error)
        give_up(f"mypyc refused the hot modules ({said})")
        return []


def remove_in_place_libraries() -> None:
    """A library that an earlier editable install left beside the source would be imported instead of it."""
    for suffix in EXTENSION_SUFFIXES:
        for library in (ROOT / "src").rglob(f"*{suffix}"):
            library.unlink()


class BuildAllOrNothing(build_ext):
    """A module without the shared library, or the reverse, cannot be imported: one failure drops them all."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except Exception as error:  # noqa: BLE001 - compilers fail in more ways than distutils has errors
            give_up(f"the C compiler failed ({error})")
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions = []


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
