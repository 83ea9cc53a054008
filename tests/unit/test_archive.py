"""Who decodes next: tenants take turns, and what waits is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import LimitExceeded
from rookery.server.archive import DECODING_MAX, DECODING_TENANT_MAX, WAITING_MAX, Done, _Decoding

BYTES_MAX = 1_000


class Threads:
    """Work that was begun and is ended by the test."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, Done]] = []
        self.ended: list[str] = []
        self.decoding = _Decoding(self._start, BYTES_MAX)

    def _start(self, work: Callable[[], Any], done: Done) -> None:
        self.begun.append((work(), done))

    def add(self, tenant: str, size: int = 1) -> None:
        self.decoding.add(tenant, size, lambda: tenant, lambda result, error: self.ended.append(result))

    def end(self, at: int = 0) -> None:
        tenant, done = self.begun.pop(at)
        done(tenant, None)

    def running(self) -> list[str]:
        return [tenant for tenant, _ in self.begun]


def test_a_tenant_leaves_room_for_others() -> None:
    threads = Threads()
    for _ in range(10):
        threads.add("a")
    assert threads.running() == ["a"] * DECODING_TENANT_MAX
    threads.add("b")
    assert threads.running() == [*["a"] * DECODING_TENANT_MAX, "b"]


def test_tenants_take_turns() -> None:
    threads = Threads()
    for tenant in "aaaaaabbbbcc":
        threads.add(tenant)
    assert threads.running() == ["a", "a", "b", "b"]
    for _ in range(3):
        threads.end()
    # each has its turn, however much the others brought before
    assert "c" in threads.running()


def test_what_waits_is_bounded() -> None:
    threads = Threads()
    for _ in range(DECODING_TENANT_MAX + WAITING_MAX):
        threads.add("a")
    with pytest.raises(LimitExceeded, match="64 Arrow bodies of tenant 'a' wait"):
        threads.add("a")
    for _ in range(DECODING_MAX - DECODING_TENANT_MAX):
        threads.add("b", BYTES_MAX)
    threads.add("b", BYTES_MAX)
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        threads.add("b", 1)
    threads.add("c", BYTES_MAX // 2)
    with pytest.raises(LimitExceeded, match="1564 bytes of Arrow bodies wait"):
        threads.add("d", BYTES_MAX // 2)
    threads.end()
    threads.add("a")


@given(st.lists(st.sampled_from("abc") | st.integers(0, 3), max_size=60))
def test_everything_is_done_once_and_within_limits(steps: list[str | int]) -> None:
    threads = Threads()
    added: list[str] = []
    for step in steps:
        if isinstance(step, str):
            threads.add(step)
            added.append(step)
        elif threads.begun:
            threads.end(step % len(threads.begun))
        running = threads.running()
        assert len(running) <= DECODING_MAX
        assert all(running.count(tenant) <= DECODING_TENANT_MAX for tenant in running)
    while threads.begun:
        threads.end()
    assert sorted(threads.ended) == sorted(added)
