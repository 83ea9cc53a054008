"""Whether something secret is in what a server wrote for people to read."""

from __future__ import annotations

import re
from collections.abc import Iterable

KEY_LIKE = re.compile(r"(?<![\w-])[\w-]{11}\.[\w-]{22}(?![\w-])")
SECRET_LIKE = re.compile(r"whsec_[A-Za-z0-9+/=]{8,}|eyJ[\w-]{8,}\.eyJ[\w-]*\.[\w-]*")


def check_log(text: str, secrets: Iterable[str]) -> None:
    assert not [secret for secret in secrets if secret and secret in text], "a secret is in the log"
    assert not KEY_LIKE.findall(text), "what looks like a key is in the log"
    assert not SECRET_LIKE.findall(text), "what looks like a secret is in the log"
