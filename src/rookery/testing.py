"""For users' own tests: a broker in memory on a clock that the test moves. Installed as a pytest plugin.

def test_retry(rookery_broker, rookery_clock):
    jobs = rookery_broker.queue("jobs", backoff_base_ms=500)
    jobs.publish("once more")
    jobs.claim()[0].retry()
    rookery_clock.advance(500)
    assert jobs.claim()[0].attempt == 2

What becomes due as the clock moves happens with the next call; `tick()` is one for those who only wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rookery.clock import ManualClock
    from rookery.embed import AsyncBroker, Broker


@pytest.fixture
def rookery_clock() -> ManualClock:
    """The clock of the brokers below: `rookery_clock.advance(ms)` lets time pass."""
    from rookery.clock import ManualClock

    return ManualClock()


@pytest.fixture
def rookery_broker(rookery_clock: ManualClock) -> Iterator[Broker]:
    """A blocking broker in memory."""
    from rookery.embed import Broker

    with Broker(clock=rookery_clock, secret=b"testing") as broker:
        yield broker


@pytest.fixture
def rookery_async_broker(rookery_clock: ManualClock) -> AsyncBroker:
    """An async broker in memory, whatever runs the async tests: it joins the loop of the test that uses it.

    Its handlers run in `async with rookery_async_broker:` or after `await rookery_async_broker.start()`.
    """
    from rookery.embed import AsyncBroker

    return AsyncBroker(clock=rookery_clock, secret=b"testing")
