"""The folders of archived streams: one for each name, whatever is in it, and none that Delta reads otherwise."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rookery.pipelines.builtin.archive import table_name

NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(NAMES, NAMES)
def test_two_streams_never_share_a_folder(one: str, other: str) -> None:
    assert (table_name(one) == table_name(other)) == (one == other)


@given(NAMES)
def test_a_folder_is_plain(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9~-][A-Za-z0-9~._-]*", table_name(name))


def test_ordinary_names_stay() -> None:
    assert table_name("orders.eu-1") == "orders.eu-1"
    assert table_name(".hidden") == "~2Ehidden"
    assert table_name("a/b é~") == "a~2Fb~20~C3~A9~7E"
