"""The heap under 64-bit keys, against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.core.index import SLACK, Heap
from rookery.format.model import NEVER

keys = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 8)


def test_an_empty_heap_is_due_never() -> None:
    heap = Heap()
    assert len(heap) == 0
    assert heap.first_key() == NEVER
    assert heap.items() == []


@given(st.lists(keys))
def test_items_come_out_by_key(given_keys: list[int]) -> None:
    heap = Heap()
    for key in given_keys:
        heap.push(key, key)
    popped = []
    while len(heap):
        assert heap.first() == heap.first_key()
        popped.append(heap.pop())
    assert popped == sorted(given_keys)
    assert heap.first_key() == NEVER


@given(st.lists(st.none() | keys))
def test_pushes_and_pops_may_alternate(steps: list[int | None]) -> None:
    heap = Heap()
    model: list[int] = []
    for step in steps:
        if step is not None:
            heap.push(step, (step, len(model)))
            model.append(step)
            model.sort()
        elif model:
            item = heap.pop()
            assert isinstance(item, tuple)
            assert item[0] == model.pop(0)
        assert len(heap) == len(model)
        assert heap.first_key() == (model[0] if model else NEVER)
        assert sorted(item[0] for item in heap.items() if isinstance(item, tuple)) == model


def test_equal_keys_keep_every_item() -> None:
    heap = Heap()
    for i in range(50):
        heap.push(7, i)
    assert sorted(item for item in (heap.pop() for _ in range(50)) if isinstance(item, int)) == list(range(50))


def test_a_cleared_heap_starts_anew() -> None:
    heap = Heap()
    heap.push(3, "a")
    heap.clear()
    assert (len(heap), heap.first_key()) == (0, NEVER)
    heap.push(9, "b")
    assert (heap.first_key(), heap.pop()) == (9, "b")


def test_a_heap_is_crowded_when_most_of_it_is_stale() -> None:
    heap = Heap()
    for i in range(SLACK + 10):
        heap.push(i, None)
    assert not heap.crowded(5)
    assert heap.crowded(4)
