"""The build backend: setuptools, asked to compile only where that can work.

It adds mypy to the build requirements where a C compiler is present and mypy has wheels, so that an install never
fails for want of either. Everything else is setuptools' own; `setup.py` does the compiling.
"""

from __future__ import annotations

from rookery_compiler import compiler_requires
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *compiler_requires()]


def get_requires_for_build_editable(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *compiler_requires()]
