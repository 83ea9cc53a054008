"""Slots for calls of webhooks: limits that always hold, and turns that everybody gets."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rookery.webhooks.slots import CallSlots

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from("abc"), st.sampled_from("xyz")),
        st.tuples(st.sampled_from(["end", "give up", "cancel"]), st.integers(0, 50), st.just("")),
    ),
    max_size=120,
)


@given(STEPS)
def test_limits_hold_and_no_slot_is_lost(steps: list[tuple[str, object, str]]) -> None:
    async def work() -> None:
        slots = CallSlots(10)  # of which a tenant has two, and one for a host
        waiting: set[asyncio.Future[bool]] = set()
        tasks: dict[asyncio.Task[bool], tuple[str, str]] = {}
        for what, which, host in steps:
            if what == "call":
                tasks[asyncio.create_task(slots.acquire(str(which), host, waiting))] = (str(which), host)
            elif what == "give up" and waiting:
                future = list(waiting)[int(str(which)) % len(waiting)]
                if not future.done():
                    future.set_result(False)
            elif tasks:
                task = list(tasks)[int(str(which)) % len(tasks)]
                if what == "cancel":
                    if task.done() and not task.cancelled() and task.result():
                        slots.release(*tasks[task])
                    task.cancel()
                    del tasks[task]
                elif task.done():
                    if task.result():
                        slots.release(*tasks[task])
                    del tasks[task]
            for _ in range(3):
                await asyncio.sleep(0)
            held = [tasks[task] for task in tasks if task.done() and task.result()]
            assert slots.used == len(held) <= 10
            for tenant in "abc":
                assert sum(each[0] == tenant for each in held) <= 2
                assert all(held.count((tenant, host)) <= 1 for host in "xyz")
            # nobody waits for what is there
            for task, (tenant, host) in tasks.items():
                if not task.done():
                    assert not slots._fits(tenant, host)
        for future in list(waiting):
            if not future.done():
                future.set_result(False)
        await asyncio.sleep(0)
        for task, whose in tasks.items():
            if await task:
                slots.release(*whose)
        assert (slots.used, slots.waiting, slots._tenants, slots._hosts) == (0, 0, {}, {})

    asyncio.run(work())


async def test_tenants_take_turns() -> None:
    slots = CallSlots(10)
    got: list[str] = []

    async def call(tenant: str, number: int) -> None:
        await slots.acquire(tenant, f"{tenant}{number}", set())
        got.append(tenant)
        slots.release(tenant, f"{tenant}{number}")

    held = [(f"t{number}", "x") for number in range(10)]
    for each in held:
        await slots.acquire(*each, set())
    tasks = [asyncio.create_task(call("many", number)) for number in range(100)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(call("few", number)) for number in range(2)]
    await asyncio.sleep(0)
    slots.release(*held.pop())
    while tasks:
        await tasks.pop()
    assert got[:4] == ["many", "few", "many", "few"]


def test_connections_that_are_kept_are_few() -> None:
    slots = CallSlots(10)
    assert [slots.keep() for _ in range(6)] == [True] * 5 + [False]
    slots.idle -= 1
    assert slots.keep()
