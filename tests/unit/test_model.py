"""Messages and the text form of their ids."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.format.model import MESSAGE_OVERHEAD_BYTES, Death, Message, MessageIds, Route

IDS = MessageIds(b"one secret")
numbers = st.integers(0, (1 << 48) - 1)


@given(numbers)
def test_an_id_gives_its_number_back(number: int) -> None:
    text = IDS.uuid(number)
    assert IDS.number(text) == number
    assert IDS.number(text.upper()) == number


@given(numbers)
def test_an_id_is_a_uuid_of_version_4(number: int) -> None:
    parsed = uuid.UUID(IDS.uuid(number))
    assert str(parsed) == IDS.uuid(number)
    assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


@given(st.lists(numbers, unique=True))
def test_ids_of_different_numbers_differ(many: list[int]) -> None:
    assert len({IDS.uuid(number) for number in many}) == len(many)


@given(numbers, st.integers(0, 35), st.sampled_from("0123456789abcdefg-"))
def test_a_changed_id_is_nobodys(number: int, at: int, digit: str) -> None:
    text = IDS.uuid(number)
    changed = text[:at] + digit + text[at + 1 :]
    assert IDS.number(changed) == (number if changed == text else -1)


@given(numbers)
def test_another_secret_gives_other_ids(number: int) -> None:
    other = MessageIds(b"another secret")
    assert other.uuid(number) != IDS.uuid(number)
    assert other.number(IDS.uuid(number)) == -1
    assert MessageIds(b"one secret").uuid(number) == IDS.uuid(number)


@pytest.mark.parametrize("text", ["", "x", "-" * 36, "0" * 36, "0" * 32, str(uuid.UUID(int=0)), "é" * 36, "1_2" * 12])
def test_foreign_text_is_nobodys(text: str) -> None:
    assert IDS.number(text) == -1


def test_following_ids_do_not_look_alike() -> None:
    texts = [IDS.uuid(number) for number in range(1, 200)]
    assert len({text[:8] for text in texts}) > 190


def test_size_counts_body_properties_and_overhead() -> None:
    message = Message(Route("", "q"), b"\0\0", b"12345", 1, 0, 0, 0)
    assert message.size_bytes() == 7 + MESSAGE_OVERHEAD_BYTES


def test_a_dead_letter_keeps_the_public_id_of_the_message_it_was() -> None:
    route = Route("", "q")
    assert Message(route, b"", b"", 17, 0, 0, 0).public_id == 17
    route.origin_id = 5
    assert Message(route, b"", b"", 17, 0, 0, 0).public_id == 5


def test_a_death_tells_its_story() -> None:
    death = Death("jobs", "rejected", "bad input", "orders", "eu.new", 3, 1_000, 2_000, 2)
    assert death.as_dict() == {
        "queue": "jobs",
        "reason": "rejected",
        "detail": "bad input",
        "exchange": "orders",
        "routing_key": "eu.new",
        "attempts": 3,
        "first_ms": 1_000,
        "last_ms": 2_000,
        "count": 2,
    }
    expired = Death("jobs", "expired", "expired", "", "jobs", 0, 1_000, 1_000, 1, 900)
    assert expired.as_dict()["expiration_ms"] == 900
