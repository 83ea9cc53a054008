"""The two faces of the embedded broker are one program, and its pytest plugin works in a project of its own."""

from __future__ import annotations

import gc
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery import embed

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    (getattr(embed, name), getattr(embed, name.removeprefix("Async")))
    for name in embed.__all__
    if name.startswith("Async")
]


def test_the_blocking_face_is_what_the_async_face_generates() -> None:
    check = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_blocking.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_faces_have_the_same_methods_with_the_same_parameters(asynchronous: type, blocking: type) -> None:
    both = public(asynchronous).keys() - {"lifespan"}
    assert public(blocking).keys() == both
    for name in both:
        ours, theirs = public(asynchronous)[name], public(blocking)[name]
        assert not inspect.iscoroutinefunction(theirs)
        if inspect.isfunction(ours):
            assert [(p.name, p.kind, p.default) for p in inspect.signature(ours).parameters.values()] == [
                (p.name, p.kind, p.default) for p in inspect.signature(theirs).parameters.values()
            ]
            assert inspect.getdoc(ours) == inspect.getdoc(theirs) or "async" in str(inspect.getdoc(ours)).lower()
        else:
            assert type(ours) is type(theirs)


def test_the_generated_files_hold_nothing_asynchronous() -> None:
    for path in (ROOT / "src" / "rookery" / "embed" / "blocking").glob("*.py"):
        assert not re.search(
            r"\basync (def|for|with)\b|\bawait |import asyncio|__a(enter|exit|iter|next)__|\bAsync[A-Z]",
            path.read_text(),
        ), path


@pytest.mark.parametrize("name", [name for name in embed.__all__ if not name.isupper()])
def test_every_public_method_says_what_it_does(name: str) -> None:
    kind = getattr(embed, name)
    assert inspect.getdoc(kind)
    for method_name, method in public(kind).items():
        if inspect.iscoroutinefunction(method) and method_name not in ("retry", "release", "reject", "delete_policy"):
            assert inspect.getdoc(method), f"{name}.{method_name}"


# The pytest plugin


PLUGIN_TESTS = """
import asyncio
import rookery

def test_retry(rookery_broker, rookery_clock):
    jobs = rookery_broker.queue("jobs", backoff_base_ms=500)
    jobs.publish("once more")
    jobs.claim()[0].retry()
    assert jobs.claim() == []
    rookery_clock.advance(500)
    assert jobs.claim()[0].attempt == 2

def test_each_test_has_its_own_broker(rookery_broker):
    assert rookery_broker.queues() == []
    assert isinstance(rookery_broker, rookery.Broker)

def test_ids_repeat(rookery_broker):
    rookery_broker.queue("jobs").publish("x") == rookery.Broker(secret=b"testing").queue("jobs").publish("x")

def test_async_without_a_plugin(rookery_async_broker, rookery_clock):
    async def main():
        async with rookery_async_broker as broker:
            jobs = await broker.queue("jobs", lease_ms=100)
            await jobs.publish(1)
            await jobs.claim()
            rookery_clock.advance(100)
            assert (await jobs.claim())[0].attempt == 2
    asyncio.run(main())
"""

ASYNC_TESTS = """
import pytest

@pytest.mark.asyncio
async def test_async(rookery_async_broker):
    @rookery_async_broker.handler("double")
    async def double(n: int) -> int:
        return 2 * n
    async with rookery_async_broker as broker:
        assert await broker.request("double", 4) == 8

@pytest.mark.asyncio
async def test_without_starting(rookery_async_broker, rookery_clock):
    jobs = await rookery_async_broker.queue("jobs")
    await jobs.publish("x")
    assert len(await jobs.claim()) == 1
"""

SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]


@pytest.mark.parametrize(
    ("tests", "options", "passed"),
    [
        (PLUGIN_TESTS, ["-p", "no:asyncio"], 4),
        (ASYNC_TESTS, ["-o", "asyncio_mode=strict", *SCOPE], 2),
        (ASYNC_TESTS, ["-o", "asyncio_mode=auto", *SCOPE], 2),
    ],
    ids=["plain", "strict", "auto"],
)
def test_the_fixtures_of_the_plugin(tmp_path: Path, tests: str, options: list[str], passed: int) -> None:
    (tmp_path / "test_mine.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    source = str(Path(rookery.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "rookery.testing"]
    if "no:asyncio" not in options:
        plugins += ["-p", "pytest_asyncio.plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{passed} passed" in run.stdout


def test_a_closed_broker_is_let_go_of_with_what_was_under_lease() -> None:
    body = bytes(range(256))
    before = sys.getrefcount(body)
    with rookery.Broker() as broker:
        queue = broker.queue("q")
        queue.publish(body)
        assert len(queue.claim()) == 1
    del broker, queue
    gc.collect()
    assert sys.getrefcount(body) == before


async def test_a_closed_async_broker_is_let_go_of_with_what_was_under_lease() -> None:
    body = bytes(range(256))
    before = sys.getrefcount(body)
    async with rookery.AsyncBroker() as broker:
        queue = await broker.queue("q")
        await queue.publish(body)
        assert len(await queue.claim()) == 1
    del broker, queue
    gc.collect()
    assert sys.getrefcount(body) == before
