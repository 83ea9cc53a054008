"""How large bodies are made smaller on disk: with zlib, which is always there, or with zstd.

zstd comes with Python 3.14 and newer; before that it is the package `zstandard`, which the extra `zstd` installs. It is
looked for when somebody asks for it, or when a journal holds what was made with it.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

from rookery.errors import StoreDamaged, StoreError

COMPRESSIONS: Final = ("none", "zlib", "zstd")
NEEDS_ZSTD: Final = 'zstd needs Python 3.14 or the package zstandard: pip install "rookery[zstd]"'

ZLIB_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3


Packer = Callable[[bytes], bytes]
Unpacker = Callable[[bytes, int], bytes]
"""Gives of what was packed no more than so many bytes."""


@functools.cache
def _zstd() -> tuple[Callable[[], Packer], Unpacker, type[Exception]] | None:
    """What makes a packer, what unpacks, and the error of what cannot be unpacked; None where there is no library."""
    try:
        standard: Any = importlib.import_module("compression.zstd")
    except ImportError:
        try:
            package: Any = importlib.import_module("zstandard")
        except ImportError:
            return None
        # the package's contexts are not for several threads at once: a packer has one owner, unpacking anybody may do
        return (
            lambda: package.ZstdCompressor(level=ZSTD_LEVEL).compress,
            lambda body, most: package.ZstdDecompressor().stream_reader(body).read(most),
            package.ZstdError,
        )
    return (
        lambda: lambda body: standard.compress(body, ZSTD_LEVEL),
        lambda body, most: standard.ZstdDecompressor().decompress(body, most),
        standard.ZstdError,
    )


def is_available(name: str) -> bool:
    return name != "zstd" or _zstd() is not None


def packer(name: str) -> Packer:
    """What makes a body smaller, for one owner: `zlib` or `zstd`."""
    if name == "zlib":
        return lambda body: zlib.compress(body, ZLIB_LEVEL)
    found = _zstd()
    if found is None:
        raise StoreError(NEEDS_ZSTD)
    return found[0]()


def unpack(body: bytes, is_zstd: bool, size: int) -> bytes:
    """The body as it was, which has `size` bytes. Another size is damage, and no more than that is unpacked."""
    if is_zstd:
        found = _zstd()
        if found is None:
            raise StoreError(NEEDS_ZSTD)
        _, read, failure = found
    else:
        read, failure = _inflate, zlib.error
    try:
        # one byte more tells a body that is too long; 0 would mean no limit to zlib
        whole = read(body, max(0, size) + 1)
    except failure as error:
        raise StoreDamaged(f"a compressed body cannot be unpacked: {error}") from None
    if len(whole) != size:
        raise StoreDamaged(f"a compressed body does not have the {size} bytes that it had")
    return whole


def _inflate(body: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(body, most)
