"""What the server and the process that decodes an Arrow body say to each other: a job, then rows part by part.

A frame is its length (four bytes, big-endian) and MessagePack. The server trusts nothing that it reads: frames are
bounded, typed, and counted.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final

import msgspec

from rookery.core.staging import Row
from rookery.format import properties

PART_ROWS: Final = 4_096
"""How many rows one frame has at most: few enough that decoding it holds nobody up."""

ROW_BYTES: Final = 128
"""What a row may take in its frame beside its own bytes."""

HEAD: Final = struct.Struct(">I")
JOB_MAX_BYTES: Final = 1 << 16
WORDS_MAX: Final = 1_000

Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Words = Annotated[str, msgspec.Meta(max_length=WORDS_MAX)]


class Job(msgspec.Struct, array_like=True, tag="job"):
    """A body of `size` bytes, which follow, and its limits. The rest is as in `arrow_rows.parts_of`."""

    size: int
    key: str
    names: dict[str, str]
    now_ms: int
    bytes_max: int
    memory_bytes: int
    cpu_sec: int
    wall_sec: int


class Part(msgspec.Struct, array_like=True, tag="part", forbid_unknown_fields=True):
    """Rows as columns. A column of one value stands for as many as there are bodies."""

    keys: list[Annotated[str, msgspec.Meta(max_length=255)]]
    props: list[bytes]
    bodies: list[bytes]
    priorities: list[Number]
    expiries_ms: list[Number]
    partitions: list[Number]

    def rows(self) -> list[Row]:
        """The rows; ValueError unless the columns are of one length and the property lists sound."""
        count = len(self.bodies)
        if count > PART_ROWS:
            raise ValueError("too many rows in a frame")
        for props in self.props:
            properties.check(props)
        columns: tuple[list[Any], ...] = (self.keys, self.props, self.priorities, self.expiries_ms, self.partitions)
        if all(len(column) == 1 for column in columns):
            key, same, priority, expires_ms, partition = (column[0] for column in columns)
            return [Row(key, same, body, priority, expires_ms, partition) for body in self.bodies]
        columns = tuple(column * count if len(column) == 1 else column for column in columns)
        keys, all_props, priorities, expiries, partitions = columns
        return [Row(*row) for row in zip(keys, all_props, self.bodies, priorities, expiries, partitions, strict=True)]


class Refused(msgspec.Struct, array_like=True, tag="refused", forbid_unknown_fields=True):
    """The body is not as it should be: the code of an error, what to tell, and the argument that it is about."""

    code: Words
    message: Words
    argument: Words | None


class Done(msgspec.Struct, array_like=True, tag="done", forbid_unknown_fields=True):
    """All rows were sent."""

    rows: int


pack: Final = msgspec.msgpack.Encoder().encode
read_job: Final = msgspec.msgpack.Decoder(Job).decode
read_answer: Final = msgspec.msgpack.Decoder(Part | Refused | Done).decode


def frame(message: Job | Part | Refused | Done) -> bytes:
    packed = pack(message)
    return HEAD.pack(len(packed)) + packed
