"""Sealed files of streams that are missing or cut off: which they are, and what stands in their places afterwards.

The journal has the lists of files. Where the oldest files of a partition are lost, it begins after them; where later
ones are, a file of as many empty records (`x-lost`) takes their place, since offsets have no gaps.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from rookery.core.paging import PLACE_BITS
from rookery.core.shard import Shard
from rookery.core.stream import Partition, SealedFile
from rookery.errors import RookeryError, StoreError
from rookery.format import properties, records
from rookery.format.bytes import BytesWriter
from rookery.format.model import PERSISTENT, Message, Route
from rookery.format.records import DEFINE, STATE, Reader
from rookery.store import changes

MAGIC: Final = b"PAR1"
"""What a Parquet file begins and ends with."""

SEGMENT: Final = 1
LOST: Final = properties.with_headers(properties.EMPTY, {"x-lost": True})
"""The properties of a record that stands where one was lost."""


class Lists:
    """The files of all partitions, by what the batches of a journal say."""

    def __init__(self) -> None:
        self.shard = Shard(b"", 1)

    def read(self, payload: bytes) -> None:
        """Go on with the next batch. What does not fit, because others are damaged, is passed over."""
        reader = Reader(payload, 0, len(payload))
        while reader.next():
            if reader.kind != STATE and reader.kind != DEFINE:
                continue
            document = cast(dict[str, Any], reader.document())
            try:
                if reader.kind == STATE:
                    changes.restore(self.shard, document, None)
                elif document["op"] != "forget":
                    changes.replay(self.shard, document, None)
            except (RookeryError, ValueError, KeyError, TypeError):
                continue


def missing(shard: Shard, root: Path) -> Iterator[tuple[Partition, SealedFile]]:
    """The files on the lists that are not there, or not whole."""
    for partition in shard.partitions.values():
        for file in partition.files:
            if not is_whole(root / file.path):
                yield partition, file


def is_whole(path: Path) -> bool:
    """Whether a file is there from its beginning to its end."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4))
            return size >= 12 and begins == file.read(4) == MAGIC
    except OSError:
        return False


def let_go(partition: Partition, root: Path) -> dict[str, Any] | None:
    """Let a partition begin after its oldest files, as far as they are lost; the change, as the journal words it."""
    gone = 0
    while gone < len(partition.files) and not is_whole(root / partition.files[gone].path):
        gone += 1
    if not gone:
        return None
    lost, partition.files = partition.files[:gone], partition.files[gone:]
    first = int(partition.files[0].first if partition.files else partition.tail)
    partition.first = first
    return {
        "op": "trim",
        "tenant": partition.stream.tenant.name,
        "partition": int(partition.number),
        "first": first,
        "files": [file.path for file in lost],
        "due_ms": 0,
    }


def fill(partition: Partition, file: SealedFile, root: Path, number: int) -> None:
    """Put a file of empty records in the place of a lost one; `number` is the first of their ids."""
    try:
        from rookery.sealed import sealing
    except ImportError:
        raise StoreError("a lost file of sealed records can only be replaced with pyarrow") from None
    count = int(file.last - file.first) + 1
    stamps = [int(file.first_ms)] * (count - 1) + [int(file.last_ms)]
    w, places = BytesWriter(), BytesWriter()
    route = Route("", "")
    for index, stamp in enumerate(stamps):
        places.write(int((SEGMENT << PLACE_BITS) | len(w)).to_bytes(8, "big"))
        message = Message(route, LOST, b"", number + index, 0, 0, PERSISTENT)
        records.write_record(w, 0, int(file.first) + index, stamp, message, b"", records.PLAIN)
    (root / file.path).unlink(missing_ok=True)
    row = {
        "tenant": partition.stream.tenant.name,
        "stream": partition.stream.name,
        "partition": int(partition.index),
        "first": int(file.first),
    }
    run = sealing.Run(row, places.getvalue(), b"".join(stamp.to_bytes(8, "big") for stamp in stamps))
    with tempfile.NamedTemporaryFile(dir=root) as segment:
        segment.write(w.getvalue())
        segment.flush()
        sealing.seal(root, run, {SEGMENT: segment.name}, os.getpid())
