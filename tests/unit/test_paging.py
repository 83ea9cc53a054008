"""What a page knows of its entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.core.paging import Page, Paged
from rookery.format.model import NEVER

ENTRY = st.tuples(st.integers(0, 100), st.sampled_from([0, 0, 0, 50, 120]))


@given(st.lists(ENTRY, min_size=1, max_size=30), st.sampled_from([-1, 0, 40]), st.integers(0, 200))
def test_what_expires_is_known_whoever_has_an_expiry_first(
    entries: list[tuple[int, int]], ttl_ms: int, now: int
) -> None:
    page = Page()
    expected = []
    for seq, (enqueued, expires) in enumerate(entries, 1):
        page.add(seq, seq << 4, enqueued, 0, expires)
        expected.append(min(expires or NEVER, enqueued + ttl_ms if ttl_ms >= 0 else NEVER))
    assert [page.expiry(i, ttl_ms) for i in range(len(entries))] == expected
    assert page.expired(now, ttl_ms) == [seq for seq, due in enumerate(expected, 1) if due <= now]
    assert page.due_ms == min((due for due in expected if due > now), default=NEVER)


def test_entries_are_found_taken_out_and_dropped_over_pages() -> None:
    paged = Paged()
    for seq in range(1, 3_001):
        paged.add(seq, seq << 4, 0, seq << 32, 0)
    for seq in (1, 1_024, 1_025, 3_000):
        assert (paged.place_of(seq), paged.meta_of(seq)) == (seq << 4, seq << 32)
    paged.move(2_000, 7)
    assert paged.place_of(2_000) == 7
    page = paged.find(1_500)
    assert page is not None
    paged.take_out(page, page.find(1_500))
    assert (paged.count, paged.place_of(1_500), paged.find(1_500)) == (2_999, 0, None)
    assert paged.place_of(3_001) == 0
    for _ in range(1_499):
        paged.drop_first()
    # the hole is not the first
    assert (paged.first_seq(), paged.count) == (1_501, 1_500)
