"""The settings of a queue as HTTP requests say them: a struct made from the table of queue settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rookery.core.queue_settings import QUEUE_SETTINGS, QueueSetting
from rookery.wire.api.types import Name


def options(rows: Iterable[QueueSetting]) -> type[msgspec.Struct]:
    """A struct with a field for each setting; all are optional."""
    return msgspec.defstruct(
        "QueueOptions",
        [(row.name, Annotated[_type(row) | None, Meta(description=row.help)], None) for row in rows],
        namespace={"__doc__": "Settings of a queue. Those left out are up to policies and the server's settings."},
        module=__name__,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


def said(options: QueueOptions | None) -> dict[str, object]:
    """What a request says, without what it leaves out."""
    found = {} if options is None else msgspec.to_builtins(options)
    return {name: value for name, value in found.items() if value is not None}


def _type(row: QueueSetting) -> Any:
    if row.choices:
        return Literal[row.choices]
    if row.is_name:
        return Name
    if row.type is str:
        return Annotated[str, Meta(max_length=row.largest)]
    if row.type in (int, float):
        return Annotated[row.type, Meta(ge=row.smallest, le=row.largest)]
    return dict[str, Any] if row.type is dict else row.type


if TYPE_CHECKING:

    class QueueOptions(msgspec.Struct):
        """Stands for the struct that is made below; nobody reads single fields of it."""

else:
    QueueOptions = options(QUEUE_SETTINGS)
