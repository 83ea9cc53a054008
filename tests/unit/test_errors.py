"""The error hierarchy: stable codes, a number per protocol, and the builtin each error can be caught as."""

from __future__ import annotations

import pytest

from rookery import errors
from rookery.errors import RookeryError

CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RookeryError)), key=lambda c: c.__name__
)

# AMQP 0-9-1, 1.5 (reply codes), and 312 (no route) and 541 (internal error)
AMQP_CODES = {311, 312, 313, 320, 402, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540, 541}


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_its_own_code_and_a_number_in_each_protocol(error: type[RookeryError]) -> None:
    assert [c for c in CLASSES if c.code == error.code] == [error]
    assert error.code == error.code.lower()
    assert error.code.replace("_", "").isalpha()
    assert 400 <= error.http <= 599
    assert error.amqp in AMQP_CODES
    # MQTT 5, 2.4: reason codes of failure are 0x80 and above; 0x10 is "no matching subscribers"
    assert error.mqtt == 0x10 or 0x80 <= error.mqtt <= 0xA2


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_an_error_without_words_says_what_its_class_says(error: type[RookeryError]) -> None:
    raised = error()
    assert raised.message
    assert raised.message == str(raised)
    assert not raised.message.endswith(".")
    assert raised.argument is None


def test_an_error_names_the_argument() -> None:
    raised = errors.InvalidName("queue cannot be empty", argument="queue")
    assert (raised.argument, raised.message, raised.code) == ("queue", "queue cannot be empty", "invalid_name")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidArgument, ValueError),
        (errors.InvalidName, ValueError),
        (errors.InvalidType, TypeError),
        (errors.QueueNotFound, LookupError),
        (errors.TransactionNotFound, LookupError),
        (errors.ReplyTimeout, TimeoutError),
    ],
)
def test_errors_can_be_caught_as_builtins(error: type[RookeryError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise error


@pytest.mark.parametrize(
    ("error", "parent"),
    [
        (errors.QueueFull, errors.LimitExceeded),
        (errors.MemoryLimitExceeded, errors.LimitExceeded),
        (errors.TransactionTooLarge, errors.LimitExceeded),
        (errors.TransactionTooLarge, errors.TransactionError),
        (errors.TenantNotFound, errors.NotFound),
        (errors.DuplicateTask, errors.AlreadyExists),
        (errors.TaskExpired, errors.MessageExpired),
    ],
)
def test_families(error: type[RookeryError], parent: type[RookeryError]) -> None:
    assert issubclass(error, parent)
