"""Whether the hot modules can be compiled here, and what that requires. It imports only the standard library."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

# mypy decides what C is generated and librt what it calls, so both are fixed together.
COMPILER_REQUIRES = ["mypy[mypyc]==2.4.1", "librt>=0.16,<0.17"]

_MACHINES_WITH_WHEELS = {"x86_64", "amd64", "aarch64", "arm64"}


def has_c_compiler() -> bool:
    """True when extensions can be built here: a compiler that can be found, and Python's own headers."""
    if os.name == "nt":
        # Finding MSVC is setuptools' work; where it finds none, the build falls back by itself.
        return True
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return bool(command) and shutil.which(command[0]) is not None and headers.exists()


def mypy_has_wheels() -> bool:
    """True on the interpreters and machines that mypy and its compiled dependencies publish wheels for."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info >= (3, 11)
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and platform.machine().lower() in _MACHINES_WITH_WHEELS
    )


def compiler_requires() -> list[str]:
    if os.environ.get("ROOKERY_PURE") == "1":
        return []
    if os.environ.get("ROOKERY_REQUIRE_COMPILED") == "1" or (has_c_compiler() and mypy_has_wheels()):
        return list(COMPILER_REQUIRES)
    return []
