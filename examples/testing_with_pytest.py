"""Tests of your own code: the fixtures `rookery_broker` and `rookery_clock` come with the package.

Run it with pytest; as a program it does that itself.

Prints:

    ...[100%]
    2 passed in ...
"""

import os
import sys

import pytest

import rookery


def remind(broker: rookery.Broker, text: str) -> None:
    """The code under test."""
    broker.queue("reminders").publish(rookery.Message(text, delay_ms=3_600_000))


def test_a_reminder_comes_after_an_hour(rookery_broker: rookery.Broker, rookery_clock: rookery.ManualClock) -> None:
    remind(rookery_broker, "stand up")
    reminders = rookery_broker.queue("reminders")
    assert reminders.claim() == []
    rookery_clock.advance(3_600_000)
    (delivery,) = reminders.claim()
    assert delivery.data == "stand up"


def test_every_test_has_a_broker_of_its_own(rookery_broker: rookery.Broker) -> None:
    assert rookery_broker.queues() == []


if __name__ == "__main__":
    # Once the package is installed, pytest finds the fixtures by itself and `pytest FILE` will do.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ["-p", "rookery.testing", "-p", "no:cacheprovider"]
    sys.exit(pytest.main(["-q", "-c", os.devnull, *plugins, __file__]))
