"""Webhooks without a server: signatures, addresses, definitions, requests."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest

from rookery import webhooks
from rookery.core.shard import Shard
from rookery.core.webhooks import WEBHOOKS_MAX, Webhook
from rookery.errors import AccessRefused, BadSignature, InvalidArgument, LimitExceeded, NotFound
from rookery.format import properties
from rookery.format.properties import Properties
from rookery.webhooks.addresses import Guard
from rookery.webhooks.calls import Outgoing, _wait_ms, request

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "webhooks.md"


def signed(body: bytes = b"x", at: int = 1_000, secret: str = SECRET) -> dict[str, str]:
    signature = webhooks.sign(secret, "id", at, body)
    return {"Webhook-Id": "id", "Webhook-Timestamp": str(at), "Webhook-Signature": signature}


def test_the_block_of_the_page_holds_with_the_specification_s_own_example() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(block, PAGE.name, "exec", dont_inherit=True), {})


def test_what_was_signed_is_verified_for_a_while() -> None:
    for secret in (SECRET, "any text at all", "whsec_not base64!"):
        webhooks.verify(secret, signed(secret=secret), b"x", now=1_300)
    webhooks.verify(
        SECRET, {**signed(), "Webhook-Signature": f"v1,old {signed()['Webhook-Signature']}"}, b"x", now=1_000
    )
    webhooks.verify(SECRET, signed(), b"x", now=5_000, tolerance_sec=4_000)
    assert webhooks.new_secret(bytes) == "whsec_" + "A" * 32


@pytest.mark.parametrize(
    ("change", "body", "now"),
    [
        ({}, b"y", 1_000),
        ({}, b"x", 1_301),
        ({}, b"x", 699),
        ({"Webhook-Id": "other"}, b"x", 1_000),
        ({"Webhook-Timestamp": "1001"}, b"x", 1_000),
        ({"Webhook-Timestamp": "now"}, b"x", 1_000),
        ({"Webhook-Signature": ""}, b"x", 1_000),
        ({"Webhook-Signature": "v1,ä"}, b"x", 1_000),
    ],
)
def test_what_was_not_is_refused(change: dict[str, str], body: bytes, now: int) -> None:
    with pytest.raises(BadSignature):
        webhooks.verify(SECRET, {**signed(), **change}, body, now=now)


def test_a_missing_header_is_named() -> None:
    for name in ("Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"):
        headers = signed()
        del headers[name]
        with pytest.raises(BadSignature) as refused:
            webhooks.verify(SECRET, headers, b"x", now=1_000)
        assert refused.value.argument == name.lower()


@pytest.mark.parametrize(
    ("address", "others", "admins"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("10.0.0.1", False, True),
        ("127.0.0.1", False, True),
        ("127.9.9.9", False, True),
        ("::1", False, True),
        ("fd12::1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("::ffff:10.0.0.1", False, True),
        ("2002:7f00:1::", False, True),
        ("64:ff9b::a00:1", False, True),
        ("64:ff9b:1::a00:1", False, True),
        ("5f00::1", False, True),
        ("::127.0.0.1", False, True),
        ("::10.0.0.1", False, True),
        ("::169.254.169.254", False, False),
        ("::2", False, False),
        ("169.254.1.1", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("168.63.129.16", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("0.1.2.3", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
        ("240.0.0.1", False, False),
        ("255.255.255.255", False, False),
    ],
)
def test_who_may_call_what(address: str, others: bool, admins: bool) -> None:
    guard = Guard()
    for private, allowed in ((False, others), (True, admins)):
        try:
            guard.check(ipaddress.ip_address(address), 80, private)
        except AccessRefused:
            assert not allowed
        else:
            assert allowed


def test_an_operator_opens_networks_but_not_the_server_s_own_ports() -> None:
    guard = Guard(
        [ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("127.0.0.0/8")], lambda: frozenset({80})
    )
    guard.check(ipaddress.ip_address("169.254.1.1"), 80, False)
    guard.check(ipaddress.ip_address("127.0.0.1"), 81, False)
    guard.check(ipaddress.ip_address("::ffff:127.0.0.1"), 81, False)
    for address in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"):
        with pytest.raises(AccessRefused, match="this server itself"):
            guard.check(ipaddress.ip_address(address), 80, True)


def hook(id: str = "h", **more: object) -> Webhook:
    return Webhook(id=id, kind="queue", target="q", endpoint="http://example.org/x", secret=SECRET, **more)  # type: ignore[arg-type]


def test_webhooks_of_a_shard() -> None:
    shard = Shard(b"", 1)
    all_of = shard.webhooks
    all_of.put("t", hook())
    version = all_of.version
    all_of.put("t", hook())
    assert all_of.version == version
    all_of.put("t", hook(concurrency=2))
    assert (all_of.version, all_of.get("t", "h").concurrency) == (version + 1, 2)
    with pytest.raises(NotFound):
        all_of.get("other", "h")
    all_of.drop("t", "h")
    all_of.drop("t", "h")
    assert (all_of.all(), all_of.version) == ([], version + 2)
    for number in range(WEBHOOKS_MAX):
        all_of.put("t", hook(f"h{number}"))
    with pytest.raises(LimitExceeded):
        all_of.put("t", hook("more"))
    assert SECRET not in repr(hook())


@pytest.mark.parametrize(
    "wrong", [{"id": ""}, {"id": "a/b"}, {"secret": ""}, {"concurrency": 101}, {"timeout_ms": 0}, {"endpoint": "x"}]
)
def test_a_webhook_that_exists_is_valid(wrong: dict[str, object]) -> None:
    said = {"id": "h", "kind": "queue", "target": "q", "endpoint": "http://example.org/", "secret": SECRET}
    with pytest.raises(InvalidArgument):
        Webhook(**{**said, **wrong})  # type: ignore[arg-type]


def test_headers_hold_nothing_that_would_end_their_line() -> None:
    props = properties.encode(Properties(content_type="text/x\r\nevil: 1"))
    headers, _ = request(hook(), "t", Outgoing("i\nd", "schlüssel 100%\r\n", 1, 0, props, b"x"), 1)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert headers["x-rookery-routing-key"] == "schl%C3%BCssel 100%25%0D%0A"
    assert headers["webhook-id"] == "i%0Ad"


def test_what_retry_after_says() -> None:
    at = 784_111_777.0
    for text, wait in (
        (b"5", 5_000),
        (b" 0", 0),
        (b"99999999999", 3_600_000),
        (b"Sun, 06 Nov 1994 08:49:47 GMT", 10_000),
        (b"Sun, 06 Nov 1994 08:49:27 GMT", 0),
        (b"soon", 0),
        (b"-1", 0),
    ):
        assert _wait_ms(text, at) == wait, text
    assert _wait_ms(None, at) == 0
