"""The columns of rows to be staged, and of which Arrow types they may be. Needs pyarrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rookery.errors import InvalidArgument

TARGETS: Final = ("stream", "exchange", "topic", "queue")
COLUMNS: Final = (
    "value",
    "key",
    "headers",
    "routing_key",
    "partition",
    "timestamp",
    "priority",
    "expiration_ms",
    "delay_ms",
    "message_id",
    "correlation_id",
    "content_type",
)
"""The columns of rows to be staged; `value` must be there. Those of TARGETS may only repeat where the rows go."""

TEXTS: Final = ("routing_key", "message_id", "correlation_id", "content_type", *TARGETS)
NUMBERS: Final = ("partition", "priority", "expiration_ms", "delay_ms")


def check_schema(schema: pa.Schema) -> None:
    """Refuse columns that rows do not have, or of types that they cannot have."""
    for name in schema.names:
        if name not in COLUMNS and name not in TARGETS:
            raise InvalidArgument(f"no column {name!r}; there are {', '.join((*COLUMNS, *TARGETS))}", argument=name)
    if "value" not in schema.names:
        raise InvalidArgument("the column value is missing", argument="value")
    if len(set(schema.names)) != len(schema.names):
        raise InvalidArgument("a column is there twice", argument="body")
    for field in schema:
        _check_kind(field.name, field.type)


def _check_kind(name: str, kind: pa.DataType) -> None:
    if name == "headers":
        if not _is_headers(kind):
            raise bad_headers()
        return
    if name != "value" and pa.types.is_null(kind):
        return
    plain = _plain(kind)
    if name in NUMBERS:
        fits, wanted = pa.types.is_integer(plain) or pa.types.is_floating(plain), "whole numbers"
    elif name == "timestamp":
        fits = pa.types.is_timestamp(plain) or pa.types.is_date(plain) or pa.types.is_integer(plain)
        wanted = "timestamps, or milliseconds since 1970"
    else:
        fits, wanted = is_bytes(plain), "texts" if name in TEXTS else "bytes or texts"
    if not fits:
        raise InvalidArgument(f"the column {name} is of type {str(kind)[:100]}; it must hold {wanted}", argument=name)


def _is_headers(kind: pa.DataType) -> bool:
    """Whether headers may be so: a map, or a list of structs of key and value, or a list of lists of two."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_map(kind):
        return is_bytes(_plain(kind.key_type)) and _is_header_value(kind.item_type)
    if not _is_list(kind):
        return False
    item = kind.value_type
    if pa.types.is_struct(item):
        names = [item.field(i).name for i in range(item.num_fields)]
        if names.count("key") != 1 or names.count("value") != 1:
            return False
        return is_bytes(_plain(item.field("key").type)) and _is_header_value(item.field("value").type)
    return _is_list(item) and is_bytes(_plain(item.value_type))


def _is_header_value(kind: pa.DataType) -> bool:
    plain = _plain(kind)
    return is_bytes(plain) or any(test(plain) for test in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, or the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes or texts."""
    tests = (
        pa.types.is_binary,
        pa.types.is_string,
        pa.types.is_large_binary,
        pa.types.is_large_string,
        pa.types.is_fixed_size_binary,
    )
    return is_view(kind) or any(test(kind) for test in tests)


def is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def bad_headers() -> InvalidArgument:
    return InvalidArgument("headers are pairs of a text and a text or bytes", argument="headers")
