"""What the machine allows, and how often logins may fail."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rookery.server.limits import (
    ADDRESS_FACTOR,
    TRACKED_MAX,
    WINDOW_MS,
    FailedLogins,
    Seldom,
    allow_open_files,
    machine_memory_bytes,
    network_of,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_is_the_least_that_any_level_allows(tmp_path: Path) -> None:
    all_of_it = machine_memory_bytes(tmp_path)
    assert all_of_it > 1 << 20
    groups = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self/cgroup", "0::/shop/broker\n")
    write(groups / "memory.max", "max\n")
    write(groups / "shop/broker/memory.max", "max\n")
    assert machine_memory_bytes(tmp_path) == all_of_it
    write(groups / "shop/memory.max", "900000\n")
    assert machine_memory_bytes(tmp_path) == 900_000
    write(groups / "shop/broker/memory.max", "800000\n")
    assert machine_memory_bytes(tmp_path) == 800_000
    write(groups / "memory/memory.limit_in_bytes", "700000\n")
    assert machine_memory_bytes(tmp_path) == 700_000


def test_open_files_are_asked_for_as_far_as_the_system_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert allow_open_files(150) == 150
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
        assert allow_open_files(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        if hard != resource.RLIM_INFINITY:
            assert allow_open_files(hard + 1) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_what_counts_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network


def test_a_user_who_fails_too_often_is_refused_for_a_minute() -> None:
    failed = FailedLogins(3)
    assert [failed.fail("192.0.2.7", "ada", now) for now in (0, 10, 20)] == [False, False, True]
    assert failed.refused("192.0.2.7", "ada", 30)
    assert not failed.refused("192.0.2.7", "bob", 30)
    assert not failed.refused("192.0.2.8", "ada", 30)
    assert failed.refused("192.0.2.7", "ada", WINDOW_MS - 1)
    assert not failed.refused("192.0.2.7", "ada", WINDOW_MS)
    assert not failed.fail("192.0.2.7", "ada", WINDOW_MS)


def test_an_address_that_tries_many_names_is_refused_whoever_it_is() -> None:
    failed = FailedLogins(3)
    told = [failed.fail("2001:db8::1", f"user{n}", n) for n in range(3 * ADDRESS_FACTOR)]
    assert told.index(True) == len(told) - 1
    assert failed.refused("2001:db8::2", "ada", 100)  # the same network
    assert not failed.refused("2001:db8:1::1", "ada", 100)


def test_no_limit_and_a_bounded_memory_of_failures() -> None:
    free = FailedLogins(0)
    assert not any(free.fail("192.0.2.7", "ada", 0) for _ in range(100))
    assert not free.refused("192.0.2.7", "ada", 0)
    failed = FailedLogins(1)
    for n in range(TRACKED_MAX):
        failed.fail(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", "ada", n)
    assert failed.refused("10.0.78.31", "ada", TRACKED_MAX)
    assert not failed.refused("10.0.0.0", "ada", TRACKED_MAX)
    assert len(failed._failed) == TRACKED_MAX


def test_what_happens_again_and_again_is_told_once_in_a_while() -> None:
    seldom = Seldom(every_ms=100)
    assert [seldom.count("a", now) for now in (0, 1, 99, 100, 150, 200)] == [1, 0, 0, 3, 0, 2]
    assert seldom.count("b", 1) == 1
    for number in range(TRACKED_MAX + 10):
        seldom.count(str(number), 0)
    assert len(seldom._told) == TRACKED_MAX
