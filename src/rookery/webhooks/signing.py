"""Signatures of calls, as the Standard Webhooks specification has them.

A call carries `webhook-id`, `webhook-timestamp` (seconds since 1970) and `webhook-signature`: `v1,` and the base64 of
an HMAC-SHA256 over id, timestamp and body, divided by dots. A secret is `whsec_` and the base64 of the key; any other
text stands for its own bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Final

from rookery.errors import BadSignature

PREFIX: Final = "whsec_"
KEY_BYTES: Final = 24
TOLERANCE_SEC: Final = 300


def new_secret(random_bytes: Callable[[int], bytes]) -> str:
    return PREFIX + base64.b64encode(random_bytes(KEY_BYTES)).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a call."""
    text = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    digest = hmac.new(_key(secret), text, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_sec: float = TOLERANCE_SEC,
    now: float | None = None,
) -> None:
    """Raise BadSignature unless the call was signed with the secret, no longer than `tolerance_sec` ago.

    `headers` are those of the request, their names in any case, and `body` its bytes as they came. `now` is the time in
    seconds since 1970, the system's unless given.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, given = (found[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
        sent = int(timestamp)
    except KeyError as missing:
        raise BadSignature(f"the header {missing.args[0]} is missing", argument=str(missing.args[0])) from None
    except ValueError:
        raise BadSignature("webhook-timestamp is no number", argument="webhook-timestamp") from None
    if abs((time.time() if now is None else now) - sent) > tolerance_sec:
        raise BadSignature("the call was signed too long ago, or in the future", argument="webhook-timestamp")
    expected = sign(secret, message_id, sent, body).encode()
    # several are there while a secret is being changed
    if not any(hmac.compare_digest(each.encode(), expected) for each in given.split(" ")):
        raise BadSignature("the signature does not fit the body", argument="webhook-signature")


def _key(secret: str) -> bytes:
    if secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
