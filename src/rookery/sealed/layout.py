"""Where the sealed files of streams are, below the directory of all streams: a tree that tools read as one table.

tenant=<t>/stream=<s>/partition=<p>/date=<yyyy-mm-dd>/<first offset>-<last offset>.parquet
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

TEMPORARY: Final = "_sealing-"
"""Names that begin so are ignored by everything that reads tables, and removed at start."""

PART_BYTES_MAX: Final = 240
"""File systems take names of 255 bytes; a part is a name behind `tenant=` or `stream=`."""


def partition_directory(tenant: str, stream: str, partition: int) -> str:
    return f"tenant={escape(tenant)}/stream={escape(stream)}/partition={partition}/"


def file_path(directory: str, first_ms: int, first: int, last: int) -> str:
    """The file of these offsets, whose first was appended at that time."""
    return f"{directory}date={day_of(first_ms)}/{file_name(first, last)}"


def file_name(first: int, last: int) -> str:
    return f"{first:020d}-{last:020d}.parquet"


def last_offset(path: str) -> int:
    """What the name of a file says about where it ends."""
    return int(path[-28:-8])


def escape(name: str) -> str:
    """A name as part of a path: nothing in it leads elsewhere, or looks like something to be ignored.

    What is not ASCII stays as it is, since Spark takes each escaped byte for a character. A name that is too long for a
    file system ends in a hash of the whole.
    """
    text = "".join(
        c if ord(c) > 127 and not 0xD800 <= ord(c) < 0xE000 else quote(c.encode("utf-8", "surrogateescape"), safe="")
        for c in name
    )
    if text[0] in "._":
        text = f"%{ord(text[0]):02X}{text[1:]}"
    whole = text.encode()
    if len(whole) <= PART_BYTES_MAX:
        return text
    hashed = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return _whole_escapes(whole[: PART_BYTES_MAX - 17].decode("utf-8", "ignore")) + "~" + hashed


def _whole_escapes(text: str) -> str:
    """Without an escape that was cut off."""
    at = text.rfind("%", len(text) - 2)
    return text if at < 0 else text[:at]


def day_of(stamp_ms: int) -> str:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC).strftime("%Y-%m-%d")
