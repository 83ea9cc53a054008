"""One call of a webhook: the request that a message becomes, and what the answer means.

| answer | outcome |
|---|---|
| 2xx | ack |
| 410 | gone: the webhook is ended |
| 429 or 503 with `Retry-After` | wait: the message is released, the endpoint left alone for so long; at last failed |
| 301, 302, 307, 308 | the same request goes to the new address, checked again, up to three times |
| anything else, no answer in time, no connection | failed: retry with the queue's backoff, then a dead letter |
"""

from __future__ import annotations

import asyncio
import email.utils
import time
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from rookery import __version__
from rookery.core.webhooks import Webhook, check_endpoint
from rookery.errors import RookeryError
from rookery.format import properties
from rookery.format.model import Message
from rookery.format.rendering import body_as_json, plain_table
from rookery.webhooks.network import Answer, CallFailed, Connections
from rookery.webhooks.signing import sign

REDIRECTS_MAX: Final = 3
EXCERPT_CHARS: Final = 200
RETRY_AFTER_MAX_MS: Final = 3_600_000
AGENT: Final = f"Rookery/{__version__}"

Outcome = Literal["ack", "gone", "wait", "failed"]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be told of a message."""

    message_id: str
    routing_key: str
    attempt: int
    entered_ms: int
    props: bytes
    body: bytes

    @classmethod
    def of(cls, message: Message, message_id: str, attempt: int, entered_ms: int) -> Outgoing:
        route = message.route
        key = route.deaths[-1].key if route.deaths else route.key
        return cls(message_id, key, attempt, entered_ms, message.props, message.body)


@dataclass(frozen=True, slots=True)
class Result:
    """How a call went. `status` is None when there was no answer, and `text` says why, or how the answer begins."""

    outcome: Outcome
    status: int | None
    text: str
    ms: int
    wait_ms: int = 0

    @property
    def endpoint_failed(self) -> bool:
        """Whether it is the endpoint that is in trouble, and not this message."""
        return self.outcome == "failed" and (self.status is None or self.status >= 500 or self.status == 429)


def request(hook: Webhook, tenant: str, sent: Outgoing, now_sec: int) -> tuple[dict[str, str], bytes]:
    """Headers and body of the call."""
    kind = properties.content_type(sent.props) or "application/octet-stream"
    headers = {
        "user-agent": AGENT,
        "content-type": _ascii(kind),
        "x-rookery-routing-key": _ascii(sent.routing_key),
        "x-rookery-attempt": str(sent.attempt),
        "x-rookery-subscription": hook.id,
        f"x-rookery-{hook.kind}": _ascii(hook.target),
    }
    body = sent.body
    if hook.format != "raw":
        event = _cloud_event(hook, tenant, sent)
        if hook.format == "cloudevents":
            headers["content-type"] = "application/cloudevents+json"
            body = _encode(event | _data(kind, sent.body))
        else:
            headers |= {f"ce-{name}": _ascii(str(value)) for name, value in event.items() if name != "datacontenttype"}
    name = _ascii(sent.message_id)
    headers["webhook-id"] = name
    headers["webhook-timestamp"] = str(now_sec)
    headers["webhook-signature"] = sign(hook.secret, name, now_sec, body)
    return headers, body


def _cloud_event(hook: Webhook, tenant: str, sent: Outgoing) -> dict[str, Any]:
    seconds, milliseconds = divmod(sent.entered_ms, 1000)
    event = {
        "specversion": "1.0",
        "id": sent.message_id,
        "source": f"/tenants/{_quoted(tenant)}/{hook.kind}s/{_quoted(hook.target)}",
        "type": properties.decode(sent.props).type or "rookery.message",
        "subject": sent.routing_key,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03}Z",
        "datacontenttype": properties.content_type(sent.props) or "application/octet-stream",
        "attempt": sent.attempt,
    }
    return plain_table(event)


def _data(kind: str, body: bytes) -> dict[str, Any]:
    value, coded = body_as_json(body, kind)
    return {"data": value} if coded is None else {"data_base64": coded}


def _quoted(text: str) -> str:
    return quote(text, errors="surrogateescape")


def _ascii(text: str) -> str:
    """A header's value: what is not printable ASCII is percent-encoded, and so is the percent sign then."""
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    return quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="surrogateescape")


async def call(connections: Connections, hook: Webhook, headers: dict[str, str], body: bytes) -> Result:
    """Call the endpoint; every way that can go is a result."""
    began = time.monotonic()
    status: int | None = None
    text, wait_ms = "", 0
    try:
        async with asyncio.timeout(hook.timeout_ms / 1000):
            answer = await _post(connections, hook.endpoint, headers, body)
        status = answer.status
        text = answer.content[: EXCERPT_CHARS * 4].decode("utf-8", "replace")
        wait_ms = _wait_ms(answer.headers.get(b"retry-after"), time.time())
    except TimeoutError:
        text = f"no answer in {hook.timeout_ms} ms"
    except (RookeryError, CallFailed) as error:
        text = str(error)
    outcome: Outcome = "failed"
    if status is not None:
        if 200 <= status < 300:
            outcome = "ack"
        elif status == 410:
            outcome = "gone"
        elif status in (429, 503) and wait_ms:
            outcome = "wait"
    ms = round((time.monotonic() - began) * 1000)
    return Result(outcome, status, text[:EXCERPT_CHARS], ms, wait_ms if outcome == "wait" else 0)


async def _post(connections: Connections, url: str, headers: dict[str, str], body: bytes) -> Answer:
    """The answer that redirects lead to in the end."""
    for _ in range(REDIRECTS_MAX):
        answer = await connections.post(url, headers, body)
        to = answer.headers.get(b"location")
        if answer.status not in (301, 302, 307, 308) or to is None:
            return answer
        url = _redirected(url, to.decode("latin-1"))
    return await connections.post(url, headers, body)


def _redirected(url: str, to: str) -> str:
    try:
        following = urljoin(url, to)
    except ValueError:
        raise CallFailed("the redirect does not lead to a URL") from None
    check_endpoint(following)
    if urlsplit(url).scheme == "https" and urlsplit(following).scheme != "https":
        raise CallFailed("a redirect away from https is not followed")
    return following


def _wait_ms(retry_after: bytes | None, now: float) -> int:
    """What a Retry-After header asks for, in seconds or as a date; 0 without a good one."""
    if retry_after is None:
        return 0
    text = retry_after.decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(int(text[:9]) * 1000, RETRY_AFTER_MAX_MS)
    try:
        until = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0
    return min(max(0, round((until - now) * 1000)), RETRY_AFTER_MAX_MS)
