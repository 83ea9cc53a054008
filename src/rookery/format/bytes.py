"""Packed bytes and packed integers: the one place that imports librt.

Compiled modules import these names from here and mypyc still turns each call into its C primitive, because it follows
the re-export to librt itself. Where librt is not installed nothing is compiled, and the stand-in serves the same names.

In compiled code give `BytesWriter.append` a `u8(...)`: with another integer type the call is not a primitive.
"""

from __future__ import annotations

try:
    from librt.strings import (
        BytesWriter,
        read_f32_be,
        read_f64_be,
        read_i16_be,
        read_i32_be,
        read_i64_be,
        write_f32_be,
        write_f64_be,
        write_i16_be,
        write_i32_be,
        write_i32_le,
        write_i64_be,
        write_i64_le,
    )
    from librt.vecs import append, pop, vec
except ImportError:
    from rookery.format.bytes_fallback import (  # type: ignore[assignment]
        BytesWriter,
        append,
        pop,
        read_f32_be,
        read_f64_be,
        read_i16_be,
        read_i32_be,
        read_i64_be,
        vec,
        write_f32_be,
        write_f64_be,
        write_i16_be,
        write_i32_be,
        write_i32_le,
        write_i64_be,
        write_i64_le,
    )

__all__ = [
    "BytesWriter",
    "append",
    "pop",
    "read_f32_be",
    "read_f64_be",
    "read_i16_be",
    "read_i32_be",
    "read_i64_be",
    "vec",
    "write_f32_be",
    "write_f64_be",
    "write_i16_be",
    "write_i32_be",
    "write_i32_le",
    "write_i64_be",
    "write_i64_le",
]
