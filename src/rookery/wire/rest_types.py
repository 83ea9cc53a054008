"""Types of what requests say, with their ranges: checked as a request is read, and shown in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from rookery.core.policy import TIME_MAX_MS
from rookery.wire.http_routes import CHECKED, NEEDED

_NAME: Final = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s][^\x00-\x1f\x7f]*$"

Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME)]
"""Of a queue, topic, exchange or tenant."""

CheckedName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME), CHECKED]
NeededName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME), NEEDED]
NeededText = Annotated[str, Meta(min_length=1), NEEDED]
Short = Annotated[str, Meta(max_length=255)]
CheckedShort = Annotated[str, Meta(max_length=255), CHECKED]
DedupKey = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Regex = Annotated[str, Meta(max_length=1_024, extra_json_schema={"format": "regex"})]
Priority = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Duration = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
Lasting = Annotated[int, Meta(ge=1, le=TIME_MAX_MS)]
Amount = Annotated[int, Meta(ge=0, le=1 << 53)]
Attempts = Annotated[int, Meta(ge=0, le=1 << 30)]
Share = Annotated[float, Meta(ge=0, le=1)]
WaitSeconds = Annotated[float, Meta(ge=0, le=60)]
Many = Annotated[int, Meta(ge=1, le=1_000)]
AtMost = Annotated[int, Meta(ge=0, le=1_000_000)]
