"""HTTP from the asking side, without I/O: addresses, requests, answers fed whole and in pieces, pauses, errors."""

from __future__ import annotations

import pytest

from rookery import errors
from rookery.client import RetryPolicy
from rookery.client.address import Address, addresses
from rookery.client.answers import KINDS, error_of, is_passing
from rookery.client.http import Request, part, target_of
from rookery.wire.http.answers import HEAD_MAX_BYTES, BrokenAnswer, Incoming

HERE = Address("localhost", 8080)


@pytest.mark.parametrize(
    ("url", "shown", "credential"),
    [
        ("http://localhost", "http://localhost:8080", ""),
        ("http://localhost:81/", "http://localhost:81", ""),
        ("https://broker.example/deep/er/", "https://broker.example:443/deep/er", ""),
        ("http://[::1]:8080", "http://[::1]:8080", ""),
        ("http://k1.se%2Fcret@localhost", "http://localhost:8080", "Bearer k1.se/cret"),
        ("http://anna:pass%40word@localhost", "http://localhost:8080", "Basic YW5uYTpwYXNzQHdvcmQ="),
    ],
)
def test_a_url_says_where_and_as_whom(monkeypatch: pytest.MonkeyPatch, url: str, shown: str, credential: str) -> None:
    monkeypatch.delenv("ROOKERY_API_KEY", raising=False)
    (address,) = addresses(url)
    assert (address.url, address.credential) == (shown, credential)
    assert "cret" not in repr(address)


def test_the_key_is_the_argument_the_url_or_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_API_KEY", "of the variable")
    found = [
        *addresses("http://localhost"),
        *addresses("http://url@localhost"),
        *addresses("http://url@localhost", api_key="argument"),
        *addresses("http://localhost", api_key=""),
    ]
    assert [address.credential for address in found] == ["Bearer of the variable", "Bearer url", "Bearer argument", ""]


def test_several_urls_are_several_endpoints() -> None:
    assert [address.port for address in addresses("http://a:1, http://a:2")] == [1, 2]
    assert [address.port for address in addresses(["http://a:1", "http://a:2"])] == [1, 2]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("localhost:8080", errors.InvalidArgument),
        ("ftp://localhost", errors.InvalidArgument),
        ("http://", errors.InvalidArgument),
        ("http://localhost:port", errors.InvalidArgument),
        ("http://localhost:99999", errors.InvalidArgument),
        ("http://localhost?x=1", errors.InvalidArgument),
        ("http://ké%0Ay@localhost", errors.InvalidArgument),
        ("", errors.InvalidArgument),
        ([], errors.InvalidArgument),
        (None, errors.InvalidType),
        ([7], errors.InvalidType),
    ],
)
def test_what_is_no_url_is_refused(url: object, kind: type[errors.RookeryError]) -> None:
    with pytest.raises(kind) as failure:
        addresses(url)  # type: ignore[arg-type]
    assert failure.value.argument == "url"


def test_certificates_that_are_not_there_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument) as failure:
        addresses("https://localhost", ca_file="/no/such/file")
    assert failure.value.argument == "ca_file"


def test_a_request_as_bytes() -> None:
    asked = Request("POST", "/api/v1/queues/q/claim", {"Accept": "application/json"}, b"{}")
    assert asked.encode(Address("::1", 81, None, "/deep", "Bearer k")) == (
        b"POST /deep/api/v1/queues/q/claim HTTP/1.1\r\nHost: [::1]:81\r\nAuthorization: Bearer k\r\n"
        b"Accept: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Content-Length" not in Request("GET", "/", {}, b"").encode(HERE)
    assert b"Content-Length: 0" in Request("POST", "/", {}, b"").encode(HERE)


@pytest.mark.parametrize("value", ["a\r\nEvil: yes", "ü"])
def test_a_header_cannot_smuggle_anything(value: str) -> None:
    with pytest.raises(errors.InvalidArgument) as failure:
        Request("GET", "/", {"X-Name": value}, b"")
    assert failure.value.argument == "headers"


def test_paths_and_queries() -> None:
    assert part("a/b ü?") == "a%2Fb%20%C3%BC%3F"
    assert target_of("/x", {"a": 1, "b": None, "c": True, "d": "e f&"}) == "/x?a=1&c=true&d=e+f%26"
    assert target_of("/x", {"b": None}) == target_of("/x", {}) == target_of("/x", None) == "/x"


ANSWERS = {
    "sized": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello", 200, b"hello", True),
    "empty": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        200,
        b"hello",
        True,
    ),
    "closing": (b"HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 404, b"x", False),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_answers_are_the_same_in_any_pieces(name: str, size: int) -> None:
    raw, status, content, keep = ANSWERS[name]
    answer = Incoming()
    got = b""
    for at in range(0, len(raw), size):
        assert not answer.done
        answer.feed(raw[at : at + size])
        got += answer.take()
    assert (answer.done, answer.status, got, answer.keep) == (True, status, content, keep)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_MAX_BYTES,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    ],
)
def test_what_is_no_whole_answer_is_a_broken_connection(raw: bytes) -> None:
    answer = Incoming()
    with pytest.raises(OSError) as failure:
        answer.feed(raw)
        answer.feed(b"")
    assert isinstance(failure.value, BrokenAnswer)


def test_an_error_is_the_one_that_the_broker_has() -> None:
    error = error_of(404, b'{"code":"queue_not_found","message":"no queue","argument":"queue"}')
    assert (type(error), str(error), error.argument) == (errors.QueueNotFound, "no queue", "queue")
    assert type(error_of(401, b"<html>")) is errors.Unauthenticated
    assert type(error_of(500, b"[1]")) is errors.RookeryError
    assert str(error_of(502, b"")) == "the broker answered 502"
    assert all(kind.code == code for code, kind in KINDS.items())


@pytest.mark.parametrize(
    ("status", "code", "passing", "for_room"),
    [
        (503, "broker_closed", True, True),
        (429, "rate_limited", True, True),
        (502, "", True, True),
        (429, "queue_full", False, True),
        (503, "memory_limit_exceeded", False, True),
        (409, "conflict", False, False),
        (500, "error", False, False),
    ],
)
def test_which_refusals_are_worth_another_try(status: int, code: str, passing: bool, for_room: bool) -> None:
    error = KINDS.get(code, errors.RookeryError)()
    assert (is_passing(status, error, False), is_passing(status, error, True)) == (passing, for_room)


@pytest.mark.row("S4-23", "S4-36")
def test_pauses_double_up_to_a_bound_and_are_left_to_chance() -> None:
    steady = list(RetryPolicy(jitter=0).pauses())
    assert steady == [1, 2, 4, 8, 10, 10, 10, 10, 10, 10]
    for pause, whole in zip(RetryPolicy().pauses(), steady, strict=True):
        assert whole / 2 <= pause <= whole
    assert list(RetryPolicy(tries=0).pauses()) == []
    assert max(RetryPolicy(tries=100, base_ms=1, jitter=0).pauses()) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [("tries", -1), ("base_ms", 0.5), ("max_ms", True), ("jitter", 2), ("jitter", "x"), ("for_room", 1)],
)
def test_a_policy_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(errors.InvalidConfig) as failure:
        RetryPolicy(**{name: value})  # type: ignore[arg-type]
    assert failure.value.argument == name
