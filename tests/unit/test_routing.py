"""Which targets a message reaches: each kind of exchange, the order of targets, and what adding and removing leave."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core import arguments, routing
from rookery.core.bindings import Matcher
from rookery.core.routing import matcher
from rookery.errors import InvalidArgument
from rookery.format.properties import Timestamp

KINDS = ["direct", "fanout", "topic", "headers", "consistent-hash"]


class Target:
    """A target that says it equals every other: matchers must tell targets apart by identity."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self.name


def names(targets: list[object]) -> list[str]:
    return [str(target) for target in targets]


def topic(*patterns: str) -> Matcher:
    """A topic matcher with a target for each pattern, named like it."""
    m = matcher("topic", None)
    for pattern in patterns:
        m.add(pattern, None, pattern)
    return m


# Topics


def naive(pattern: str, key: str) -> bool:
    """Whether a pattern matches, by the definition: does the rest of the pattern match the rest of the words?"""
    wanted = pattern.split(".") if pattern else []
    words = key.split(".") if key else []
    # reached[j]: the pattern so far can have taken exactly the first j words.
    reached = [True] + [False] * len(words)
    for part in wanted:
        after = [False] * (len(words) + 1)
        for j in range(len(words) + 1):
            if part == "#":
                after[j] = reached[j] or (j > 0 and after[j - 1])
            elif j > 0:
                after[j] = reached[j - 1] and part in ("*", words[j - 1])
        reached = after
    return reached[-1]


@pytest.mark.row("S2-3")
@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("order.*", "order.created", True),
        ("order.*", "order.a.b", False),
        ("order.*", "order", False),
        ("*.created", "x.created", True),
        ("*.created", "x.y.created", False),
        ("payment.#", "payment", True),
        ("payment.#", "payment.a", True),
        ("payment.#", "payment.a.b", True),
        ("payment.#", "payments", False),
    ],
)
def test_wildcards(pattern: str, key: str, matches: bool) -> None:
    assert topic(pattern).match(key, None) == ([pattern] if matches else [])


@pytest.mark.row("S1-57")
def test_pattern_subscriptions() -> None:
    m = topic("user.*", "user.created", "*.created", "order.#")
    assert m.match("user.created", None) == ["user.*", "user.created", "*.created"]
    assert m.match("user.deleted", None) == ["user.*"]
    assert m.match("user.a.b", None) == []
    assert m.match("order", None) == ["order.#"]


PATTERNS = [
    "", "#", "*", ".", "a", "a.b", "a.b.c", "a.*", "*.b", "*.*", "a.#", "#.b", "a.#.b", "#.#", "#.*", "*.#", "#.*.#",
    "*.#.#", "a.#.#", "#.a.#", "a..b", ".a", "a.", "*.", ".*", "a*", "#a", "a.#b", "a.*.c", "#.b.#.c", "a.#.*.b",
]  # fmt: skip
KEYS = [
    "", ".", "..", "a", "b", "a.b", "a.b.c", "a.c", "b.b", "a.b.b", "a.x.b", "a.x.y.b", ".a", "a.", "a..b", "a*", "#a",
    "*", "#", "*.b", "a.#", "a.#b", "b.c", "a.b.x.c", "x.y.z",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_every_pattern_against_every_key(key: str) -> None:
    assert topic(*PATTERNS).match(key, None) == [pattern for pattern in PATTERNS if naive(pattern, key)]


def test_the_empty_key_has_no_words_and_a_dot_divides_two() -> None:
    m = topic("", "#", "*", "*.*", "#.*", ".")
    assert m.match("", None) == ["", "#"]
    assert m.match(".", None) == ["#", "*.*", "#.*", "."]


words = st.sampled_from(["a", "b", "c", "", "é"])
keys = st.lists(words, max_size=6).map(".".join)
patterns = st.lists(words | st.sampled_from(["*", "#"]), max_size=6).map(".".join)


@given(st.lists(patterns, max_size=12, unique=True), st.lists(keys, min_size=1, max_size=6))
def test_topics_match_as_defined(bound: list[str], published: list[str]) -> None:
    m = topic(*bound)
    for key in published:
        assert m.match(key, None) == [p for p in bound if naive(p, key)]


def test_hostile_patterns_are_not_exponential() -> None:
    hostile = [".".join(["#", "*"] * n) for n in range(1, 60)] + [".".join(["#", "a"] * n) for n in range(1, 60)]
    m = topic(".".join(["#"] * 127), *hostile, "#.b")
    key = ".".join(["a"] * 127)
    assert m.match(key, None) == [p for p in [".".join(["#"] * 127), *hostile] if naive(p, key)]
    assert m.match(key + ".b", None)[-1] == "#.b"


def test_the_trie_is_freed() -> None:
    m = topic(*PATTERNS)
    assert isinstance(m, routing.TopicMatcher)
    for pattern in reversed(PATTERNS):
        assert m.remove(pattern, None, pattern)
    assert m._root.is_end()
    assert not m._root.bindings
    assert not m._exact
    assert m.match("a.b", None) == []


def test_removing_one_pattern_leaves_its_neighbours() -> None:
    m = topic("a.#", "a.#.b", "a.*", "a.*.c")
    assert m.remove("a.#.b", None, "a.#.b")
    assert m.match("a.x.b", None) == ["a.#"]
    assert m.remove("a.*", None, "a.*")
    assert m.match("a.x.c", None) == ["a.#", "a.*.c"]
    assert m.match("a.x", None) == ["a.#"]


# Direct and fanout


def test_direct_matches_equal_keys() -> None:
    m = matcher("direct", None)
    a, b = Target("a"), Target("b")
    assert m.add("k", None, b)
    assert m.add("k", None, a)
    assert m.add("other", None, a)
    assert names(m.match("k", None)) == ["b", "a"]
    assert names(m.match("other", None)) == ["a"]
    assert m.match("*", None) == m.match("", None) == []


def test_fanout_ignores_the_key() -> None:
    m = matcher("fanout", None)
    a, b = Target("a"), Target("b")
    m.add("x", None, b)
    m.add("y", None, a)
    m.add("z", None, b)
    assert names(m.match("whatever", None)) == ["b", "a"]
    m.remove("x", None, b)
    assert names(m.match("whatever", None)) == ["a", "b"]
    m.add("w", None, Target("c"))
    m.remove_target(a)
    assert names(m.match("whatever", None)) == ["b", "c"]


def test_a_result_is_the_callers_own() -> None:
    for kind in ("direct", "fanout", "topic"):
        m = matcher(kind, None)
        m.add("k", None, "a")
        first = m.match("k", None)
        first.append("b")
        assert m.match("k", None) == ["a"]


# Headers


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        (None, None, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 3}, False),
        ({"x-match": "any", "a": 1}, None, False),
        # x- headers count only when asked for, and x-match itself never does
        ({"x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-match": "any-with-x"}, False),
        # no value: presence
        ({"a": None}, {"a": 5}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": None}, False),
        # numbers by value; a bool or a timestamp is no number; bytes are no str
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": Decimal("1.50")}, {"a": 1.5}, True),
        ({"a": Decimal("sNaN")}, {"a": 1}, False),
        ({"a": [Decimal("sNaN")]}, {"a": [1.5]}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": False}, {"a": 0}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": Timestamp(1)}, {"a": 1}, False),
        ({"a": Timestamp(1)}, {"a": Timestamp(1)}, True),
        ({"a": b"x"}, {"a": "x"}, True),
        ({"a": [1, {"b": 2.0}]}, {"a": [1.0, {"b": 2}]}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, False),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, False),
    ],
)
def test_headers(arguments: dict[str, object] | None, headers: dict[str, object] | None, matches: bool) -> None:
    m = matcher("headers", None)
    m.add("ignored", arguments, "t")
    assert m.match("", headers) == (["t"] if matches else [])
    assert m.uses_headers


@pytest.mark.parametrize("mode", ["most", "", "ALL", 1, None])
def test_x_match_is_checked(mode: object) -> None:
    m = matcher("headers", None)
    with pytest.raises(InvalidArgument) as caught:
        m.add("", {"x-match": mode}, "t")
    assert caught.value.argument == "x-match"
    assert m.count == 0
    assert m.bindings() == []


def test_headers_of_several_bindings() -> None:
    m = matcher("headers", None)
    m.add("", {"a": 1}, "one")
    m.add("", {"b": 1}, "two")
    m.add("", {"c": 1}, "one")
    assert m.match("", {"b": 1, "c": 1}) == ["two", "one"]
    assert m.match("", {"a": 1, "b": 1, "c": 1}) == ["one", "two"]
    assert m.remove("", {"a": 1.0}, "one")
    assert m.match("", {"a": 1}) == []


def test_the_matcher_keeps_its_own_arguments() -> None:
    m = matcher("headers", None)
    arguments: dict[str, object] = {"a": 1}
    m.add("", arguments, "t")
    arguments["a"] = 2
    assert m.match("", {"a": 1}) == ["t"]


# Consistent hash

CITIES = ["amsterdam", "berlin", "cairo", "delhi", "essen"]
SAMPLE = [f"key-{i}" for i in range(4000)]


def hashing(weights: dict[str, int], arguments: dict[str, object] | None = None) -> Matcher:
    m = matcher("consistent-hash", arguments)
    for name, weight in weights.items():
        m.add(str(weight), None, Target(name))
    return m


def placed(m: Matcher) -> dict[str, str]:
    return {key: names(m.match(key, None))[0] for key in SAMPLE}


def test_hash_of_nothing() -> None:
    assert matcher("consistent-hash", None).match("k", None) == []


def test_every_key_goes_to_one_target_and_shares_follow_the_weights() -> None:
    placement = list(placed(hashing({"a": 1, "b": 1, "c": 2, "d": 4})).values())
    for name, share in (("a", 1 / 8), ("b", 1 / 8), ("c", 1 / 4), ("d", 1 / 2)):
        assert placement.count(name) / len(SAMPLE) == pytest.approx(share, abs=0.03)
    even = list(placed(hashing(dict.fromkeys(CITIES, 7))).values())
    for name in CITIES:
        assert even.count(name) / len(SAMPLE) == pytest.approx(1 / 5, abs=0.03)


def test_weights_span_their_whole_range() -> None:
    placement = list(placed(hashing({"heavy": 10_000, "light": 1})).values())
    assert placement.count("light") < 10


@pytest.mark.parametrize("weights", [dict.fromkeys(CITIES, 1), {name: i + 1 for i, name in enumerate(CITIES)}])
def test_only_the_share_of_a_target_moves(weights: dict[str, int]) -> None:
    before = placed(hashing(weights))
    for gone in weights:
        after = placed(hashing({name: weight for name, weight in weights.items() if name != gone}))
        assert {key for key in SAMPLE if before[key] != after[key]} == {key for key in SAMPLE if before[key] == gone}


def test_a_target_that_comes_back_gets_its_keys_back() -> None:
    m = hashing(dict.fromkeys(CITIES, 3))
    before = placed(m)
    for _, _, target in m.bindings()[:3]:
        m.remove_target(target)
    for name in CITIES[:3]:
        m.add("3", None, Target(name))
    assert placed(m) == before


@given(st.permutations(CITIES), st.text(max_size=20))
def test_placement_does_not_depend_on_the_order_of_binding(order: list[str], key: str) -> None:
    for weights in (dict.fromkeys(order, 5), {name: len(name) for name in order}):
        expected = names(hashing({name: weights[name] for name in CITIES}).match(key, None))
        assert names(hashing(weights).match(key, None)) == expected


def test_a_weight_may_grow_by_a_second_binding() -> None:
    m = matcher("consistent-hash", None)
    a, b = Target("a"), Target("b")
    m.add("1", None, a)
    m.add("2", None, a)
    m.add("3", None, b)
    assert placed(m) == placed(hashing({"a": 3, "b": 3}))
    m.remove("2", None, a)
    assert placed(m) == placed(hashing({"a": 1, "b": 3}))
    m.remove("1", None, a)
    assert set(placed(m).values()) == {"b"}


def test_targets_without_a_name_are_numbered() -> None:
    first, second = matcher("x-consistent-hash", None), matcher("x-consistent-hash", None)
    ours, theirs = [object() for _ in range(3)], [object() for _ in range(3)]
    for a, b in zip(ours, theirs, strict=True):
        first.add("1", None, a)
        second.add("1", None, b)
    for key in SAMPLE[:200]:
        assert ours.index(first.match(key, None)[0]) == theirs.index(second.match(key, None)[0])
    same = matcher("consistent-hash", None)
    twins = [Target("twin"), Target("twin")]
    for twin in twins:
        same.add("1", None, twin)
    taken = [same.match(key, None)[0] is twins[0] for key in SAMPLE]
    assert 0.4 < sum(taken) / len(SAMPLE) < 0.6


@pytest.mark.parametrize("key", ["", "0", "-1", "1.5", "10001", "99999999999", "one", " 1", "1 ", "+1", "¹", "٣"])
def test_a_weight_is_checked(key: str) -> None:
    m = matcher("consistent-hash", None)
    with pytest.raises(InvalidArgument) as caught:
        m.add(key, None, "t")
    assert caught.value.argument == "key"
    assert m.count == 0
    assert m.match("k", None) == []


def test_hash_header() -> None:
    m = hashing(dict.fromkeys(CITIES, 1), {"hash-header": "customer"})
    assert m.uses_headers
    by_key = hashing(dict.fromkeys(CITIES, 1))
    assert not by_key.uses_headers
    for value in ("c-1", "c-2", 17, b"c-1", 2.5, True):
        chosen = names(m.match("any key", {"customer": value}))
        assert chosen == names(m.match("another", {"customer": value, "other": 1}))
        text = value.decode() if isinstance(value, bytes) else str(value)
        assert chosen == names(by_key.match(text, None))
    lacking: list[dict[str, object] | None] = [None, {}, {"other": 1}]
    assert len({names(m.match(key, headers))[0] for key in SAMPLE[:20] for headers in lacking}) == 1


def test_hash_property() -> None:
    m = hashing(dict.fromkeys(CITIES, 1), {"hash-property": "message_id"})
    assert isinstance(m, routing.HashMatcher)
    assert (m.uses_headers, m.hash_header, m.hash_property) == (True, None, "message_id")
    found = {names(m.match("k", {"message_id": str(i)}))[0] for i in range(100)}
    assert found == set(CITIES)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"hash-header": 1}, "hash-header"),
        ({"hash-header": ""}, "hash-header"),
        ({"hash-property": "body"}, "hash-property"),
        ({"hash-header": "a", "hash-property": "message_id"}, "hash-property"),
    ],
)
def test_what_is_hashed_is_checked(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        matcher("consistent-hash", arguments)
    assert caught.value.argument == argument


def test_the_placement_is_the_same_in_every_run() -> None:
    program = (
        "from rookery.core.routing import matcher\n"
        "for weights in ((1, 1, 1), (1, 2, 3)):\n"
        "    m = matcher('consistent-hash', None)\n"
        "    for name, weight in zip('abc', weights): m.add(str(weight), None, name)\n"
        "    print(''.join(m.match(str(i), None)[0] for i in range(40)))\n"
    )
    # Written down once: changing the hash would move keys between the queues of every broker that is upgraded.
    expected = ["acccccabccccbcacacaaaaacaacbbbaaacaaabaa", "ccccccbbccccbcccccabaaccaacbbbacaccacbbc"]
    for seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == expected


# All kinds

ARGUMENTS: list[dict[str, object] | None] = [None, {}, {"a": 1}, {"a": True}, {"x-match": "any", "a": None}]
PUBLISHED: list[tuple[str, dict[str, object] | None]] = [
    ("1", None), ("2", {"a": 1}), ("1.2", {"a": True}), ("30", {"b": 1}),
]  # fmt: skip
TARGETS = [Target(name) for name in "abcd"]
bind = st.tuples(
    st.sampled_from(["1", "2", "30", "*", "#", "1.#", "#.1"]), st.sampled_from(ARGUMENTS), st.sampled_from(TARGETS)
)
steps = st.lists(
    st.tuples(st.just("add"), bind) | st.tuples(st.just("remove"), bind) | st.tuples(st.just("target"), bind),
    max_size=30,
)
Bound = tuple[str, dict[str, object] | None, Target]


def same_binding(a: Bound, b: Bound) -> bool:
    def exact(arguments: dict[str, object] | None) -> object:
        return {name: (type(value), value) for name, value in (arguments or {}).items()}

    return a[0] == b[0] and exact(a[1]) == exact(b[1]) and a[2] is b[2]


def reaches(kind: str, bound: Bound, key: str, headers: dict[str, object] | None) -> bool:
    """Whether one binding alone leads to its target."""
    m = matcher(kind, None)
    m.add(*bound)
    return bool(m.match(key, headers))


@given(st.sampled_from(["direct", "fanout", "topic", "headers"]), steps)
def test_matching_is_trying_the_bindings_in_order(kind: str, script: list[tuple[str, Bound]]) -> None:
    m = matcher(kind, None)
    model: list[Bound] = []
    for action, bound in script:
        there = [b for b in model if same_binding(b, bound)]
        if action == "add":
            assert m.add(*bound) is not bool(there)
            if not there:
                model.append(bound)
        elif action == "remove":
            assert m.remove(*bound) is bool(there)
            model = [b for b in model if not same_binding(b, bound)]
        else:
            assert m.remove_target(bound[2]) == len([b for b in model if b[2] is bound[2]])
            model = [b for b in model if b[2] is not bound[2]]
        assert m.count == len(model)
        for key, headers in PUBLISHED:
            expected: list[Target] = []
            for b in model:
                if reaches(kind, b, key, headers) and not any(b[2] is t for t in expected):
                    expected.append(b[2])
            assert names(m.match(key, headers)) == names(list(expected))
    listed = m.bindings()
    assert len(listed) == len(model)
    assert all(
        same_binding((key, arguments, target), b)  # type: ignore[arg-type]
        for (key, arguments, target), b in zip(listed, model, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bindings_are_idempotent_and_go_without_trace(kind: str) -> None:
    m = matcher(kind, None)
    target, other = Target("a"), Target("b")
    assert m.add("1", None, target)
    assert not m.add("1", None, target)
    assert not m.add("1", {}, target)
    assert m.add("1", {"a": 1}, target)
    assert not m.add("1", {"a": 1}, target)
    assert m.add("1", {"a": 2}, target)
    assert m.count == 3
    assert [(key, arguments) for key, arguments, _ in m.bindings()] == [("1", None), ("1", {"a": 1}), ("1", {"a": 2})]
    assert names(m.match("1", {"a": 1})) == ["a"]
    assert not m.remove("1", None, other)
    assert not m.remove("2", None, target)
    assert not m.remove("1", {"a": 3}, target)
    assert m.remove_target(other) == 0
    assert m.remove("1", {"a": 1}, target)
    assert not m.remove("1", {"a": 1}, target)
    assert m.add("1", None, other)
    assert m.remove_target(target) == 2
    assert m.count == 1
    assert names(m.match("1", None)) == ["b"]
    assert m.remove("1", None, other)
    assert m.count == 0
    assert m.bindings() == []
    assert m.match("1", None) == []


@pytest.mark.parametrize("kind", ["", "Direct", "x-delayed-message", "random"])
def test_an_unknown_kind(kind: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        matcher(kind, None)
    assert caught.value.argument == "kind"


def test_many_bindings_of_one_key_can_all_be_removed() -> None:
    for kind in ("direct", "fanout", "topic"):
        m = matcher(kind, None)
        targets = [Target(str(i)) for i in range(500)]
        for target in targets:
            m.add("k", None, target)
            m.add("#.k", None, target)
        assert names(m.match("k", None)) == names(list(targets))
        for target in targets[::2]:
            assert m.remove("k", None, target)
        for target in targets[::2]:
            assert m.remove_target(target) == 1
        assert names(m.match("k", None)) == names(list(targets[1::2]))


# Arguments, and many of them

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.sampled_from([0, 1, 10, 100, -10, 1.0, 10.0, 0.5, -0.0, 1e22, 10**22, Decimal("1.50"), Decimal(10), 1.5]),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.integers(0, 3).map(Timestamp),
    st.sampled_from(["", "a", b"a", "é", "é".encode(), b"\xff", "\udcff", "1"]),
    st.text(max_size=3),
    st.binary(max_size=3),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@given(values, values)
def test_equal_arguments_have_one_fingerprint_and_others_another(a: object, b: object) -> None:
    assert (arguments.fingerprint(a) == arguments.fingerprint(b)) is arguments.same(a, b, 0)


@given(values)
def test_a_fingerprint_does_not_depend_on_order_or_object(value: object) -> None:
    def again(value: object) -> object:
        if isinstance(value, dict):
            return {name: again(value[name]) for name in reversed(value)}
        return [again(item) for item in value] if isinstance(value, list) else value

    assert arguments.fingerprint(again(value)) == arguments.fingerprint(value)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2) | st.none(), max_size=3), max_size=40))
def test_many_headers_bindings_match_as_few_do(tables: list[dict[str, object]]) -> None:
    m = matcher("headers", None)
    bound: list[tuple[dict[str, object], Target]] = []
    for i, table in enumerate(tables):
        rule: dict[str, object] = {**table, "x-match": "any" if i % 3 == 0 else "all"}
        target = TARGETS[i % len(TARGETS)]
        if m.add("", rule, target):
            bound.append((rule, target))
    for headers in ({}, {"a": 1}, {"a": 0, "b": 2}, {"a": 1.0, "b": 1, "c": 2, "d": 0}, {"d": None}):
        expected: list[Target] = []
        for rule, target in bound:
            if reaches("headers", ("", rule, target), "", dict(headers)) and not any(target is t for t in expected):
                expected.append(target)
        assert names(m.match("", dict(headers))) == names(list(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_bindings_that_differ_in_their_arguments_cost_the_same_however_many(kind: str) -> None:
    many = 20_000
    m = matcher(kind, None)
    target, other = Target("a"), Target("b")
    began = time.thread_time()
    for i in range(many):
        assert m.add("1", {"n": i}, target)
    assert m.count == many
    assert not m.add("1", {"n": many - 1}, target)
    for i in range(many // 2):
        assert m.remove("1", {"n": i}, target)
    m.add("1", None, other)
    for _ in range(100):
        m.match("1", {"n": many - 1})
    assert m.remove_target(target) == many // 2
    # what is left of a removed target in the index matches nothing, and goes while others come
    assert names(m.match("1", {"n": many - 1})) == ["b"]
    assert [found for _, _, found in m.bindings()] == [other]
    while m._litter:
        m.add("1", {"other": 1}, other)
        m.remove("1", {"other": 1}, other)
    assert names(m.match("1", {"n": many - 1})) == ["b"]
    # with a walk over the bindings of the key for each, this took minutes
    assert time.thread_time() - began < 10


def test_a_consistent_hash_exchange_has_a_limit_of_targets() -> None:
    m = matcher("consistent-hash", None)
    targets = [Target(str(i)) for i in range(routing.HASH_TARGETS_MAX)]
    for target in targets:
        assert not m.refusal("1", target)
        m.add("1", None, target)
    assert "1000 targets" in m.refusal("1", Target("more"))
    assert not m.refusal("2", targets[0])


def test_patterns_that_make_every_word_slow_have_a_limit() -> None:
    m = matcher("topic", None)
    bound = []
    for pattern in (".".join(parts) + ".a" for n in range(1, 9) for parts in itertools.product("#*a", repeat=n)):
        if not m.refusal(pattern, "t"):
            m.add(pattern, None, "t")
            bound.append(pattern)
    assert isinstance(m, routing.TopicMatcher)
    assert max(m._behind.values()) == routing.REPEATS_MAX
    began = time.thread_time()
    m.match(".".join("a" * 128), None)
    # without the limit it is seconds
    assert time.thread_time() - began < 1
    # other words are not affected
    assert not m.refusal("#.b.c", "t")
    for i in range(5_000):
        assert not m.refusal(f"#.n{i}", "t")
        m.add(f"#.n{i}", None, "t")
    for pattern in bound:
        m.remove(pattern, None, "t")
    m.remove_target("t")
    while m._litter:
        m.sweep(1_000)
    assert m._behind == {}
    assert m._root.is_end()
