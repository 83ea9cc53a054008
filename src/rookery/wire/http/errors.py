"""What errors look like over HTTP."""

from __future__ import annotations

import msgspec


class Error(msgspec.Struct, omit_defaults=True):
    """What went wrong: `code` is for programs, `message` for people, `argument` names the part that was wrong.
    `detail` is the traceback of an internal error, with `APP_ENV=development` only.
    """

    code: str
    message: str
    request_id: str
    argument: str | None = None
    detail: str = ""
