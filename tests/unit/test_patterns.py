"""Patterns: they mean what `re.search` says, and no pattern and no name make a search take long."""

from __future__ import annotations

import random
import re
import sys
import time
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rookery.core import pattern_syntax
from rookery.core.automata import CHARACTERS_MAX, EDGES_MAX
from rookery.core.patterns import (
    CHARS_MAX,
    CONDITIONS_MAX,
    LOOKS_MAX,
    STATES_MAX,
    Pattern,
    PatternCache,
    PatternError,
)

NAME_CHARS_MAX = 1_024


def python_says(pattern: str, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.search(pattern, name) is not None


# What people write: policies and permissions of RabbitMQ's documentation and of its tools, and the like.

IN_USE = [
    "",
    "^$",
    ".*",
    "^.*",
    "^.*$",
    "^",
    "$",
    "orders",
    "^orders",
    "^orders$",
    r"^orders\.",
    "^amq.",
    r"^amq\.",
    r"^(?!amq\.).*",
    r"^(?!amq\.)",
    r"^(?!amq\.).+$",
    r"^(?!(amq\.|celery|tmp)).*",
    r"^(?!amq\.)(?!.*\.DLQ$).*",
    r"(?!^amq\.)^.*$",
    r"^(?!.*dead).*$",
    r"^((?!dead).)*$",
    r"(?<!-test)$",
    r"(?<=\.)eu$",
    r"^(amq\.default|orders)$",
    "^(orders|payments)$",
    r"^(orders|payments)\.(eu|us)$",
    "^orders$|^payments$",
    "^(^orders$)",
    r"^(aliveness-test|amq\.default)$",
    r"^(amq\.gen.*|amq\.default)$",
    "^two-",
    r"^ha\.",
    "^ttl$",
    r"^q[0-9]{1,4}$",
    r"^[a-z0-9-]{3,16}$",
    r"^[\w.-]+\.DLQ$",
    r"\.DLQ$",
    r"(?i)^ORDERS",
    r"(?i:dlq)$",
    r"\bjobs\b",
    r"\Ajobs\Z",
    r"^(?P<team>[a-z]+)\.(?:high|low)?$",
    r"(?x) ^ orders \. [a-z]+ # the team",
    r"^federation: .* -> .*$",
    r"^mqtt-subscription-.*qos[01]$",
    r"^stomp-subscription-.*",
    r"^(celery|celeryev\..*|.*\.pidbox)$",
    r"^[^.]+$",
    r"^[^.]+\.[^.]+$",
    "größe",
    "(?i)GRÖSSE",
]

NAMES = [
    "orders",
    "orders.",
    "orders.eu",
    "old-orders-2",
    "Orders",
    "payments.us",
    "payments",
    "amq.gen-JzTY20BRgKO-HjmUJj0wLg",
    "amq.default",
    "amqx",
    "celery",
    "celeryev.1234",
    "celery@host.pidbox",
    "tmp.1",
    "jobs",
    "my jobs here",
    "my-jobs",
    "jobs.DLQ",
    "jobs.dlq",
    "dead",
    "team.high",
    "team.",
    "orders.team",
    "ha.x",
    "two-x",
    "ttl",
    "q1",
    "q12345",
    "x-test",
    "federation: a -> b",
    "mqtt-subscription-meqos1",
    "größe",
    "GRÖßE",
    "a\nb",
    "orders\n",
    "\n",
]


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_mean_what_python_says(pattern: str) -> None:
    ours = Pattern(pattern)
    for name in NAMES:
        assert ours.search(name) is python_says(pattern, name), name
        assert ours.search(name) is python_says(pattern, name), f"{name}, the second time"


# Any pattern against any name

ATOMS = st.sampled_from(
    [
        "a", "b", "ab", "A", "_", "1", " ", ".", "é", "É", "ß",
        r"\.", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\n", r"\x61", r"\u00e9", r"\101", r"\N{SPACE}",
        "[ab]", "[^a]", "[a-c1]", r"[\w.]", r"[^\W1]", r"[^\n]", "[]a]", "[^]a]", "[a-]", r"[\]\-]",
        "^", "$", r"\A", r"\Z", r"\b", r"\B",
        "(?i:a)", "(?i:[A-C])", "(?i:ß)", "(?-i:a)", "(?s:.)", "(?m:^)", "(?m:$)", r"(?a:\w)", r"(?a:\b)", "(?x: a b )",
        "(?#a)", "{", "a{", "}", "",
    ]
)  # fmt: skip
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "{,2}", "{,}", "*?", "+?", "??", "{0}"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, QUANTIFIERS).map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
        st.tuples(st.sampled_from(["?=", "?!", "?<=", "?<!"]), inner).map(lambda parts: f"({parts[0]}{parts[1]})"),
    )


PATTERNS = st.tuples(
    st.sampled_from(["", "", "^", "(?i)", "(?m)", "(?s)", "(?im)", "(?a)", r"\A"]),
    st.recursive(ATOMS, nested, max_leaves=8),
    st.sampled_from(["", "", "$", r"\Z"]),
).map("".join)
TEXTS = st.text("ab1 _.\nAéÉcßẞ", min_size=1, max_size=8)


@settings(max_examples=1_500, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=4, max_size=8))
def test_a_pattern_means_what_python_says(pattern: str, names: list[str]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            python = re.compile(pattern)
    except re.error as error:
        assume("look-behind requires fixed-width" not in str(error))
        with pytest.raises(PatternError):
            Pattern(pattern)
        return
    ours = Pattern(pattern)
    for name in names:
        assert ours.search(name) is (python.search(name) is not None), name


PIECES = [*"ab()[]{}|*+?^$.\\-,:=!<>Pix01 9#\n&", *["(?", "(?:", "\\x4", "\\u0041", "{1,", "{,}", "{2}", "[^", "\\d"]]
PIECES += ["(?i)", "(?x)", "(?#", "(?P<n>", "\\N{SPACE}", "(?im-s:", "\\)"]


@settings(max_examples=3_000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_what_python_refuses_is_refused_and_nothing_else_but_what_is_not_supported(pattern: str) -> None:
    accepted = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError) as error:
        assume("look-behind requires fixed-width" not in str(error))
        accepted = False
    try:
        ours = Pattern(pattern)
    except PatternError as error:
        supported = "is not supported" not in str(error)
        assert not (accepted and supported)
    else:
        assert accepted
        for name in ("a", "ab", "a b", "(", "[", "{", "a{1,", "]", "01", "x", " ", "A", "\n", "#", "-"):
            assert ours.search(name) is python_says(pattern, name), name


def test_case_is_ignored_as_python_does() -> None:
    """For every character that has another case, or is the other case of one."""
    cased = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).casefold() != chr(code) != chr(code).lower()]
    cased += [chr(code) for code in range(sys.maxunicode + 1) if chr(code).upper() != chr(code)]
    for c in cased:
        if "\ud800" <= c <= "\udfff":
            continue
        python = re.compile(re.escape(c), re.IGNORECASE)
        candidates = {c, c.lower(), c.upper(), c.title(), c.casefold(), c.lower().upper(), c.upper().lower()}
        for group in pattern_syntax._ALIKE:
            candidates |= set(group) if c in group else set()
        same = set(pattern_syntax.variants(c, False))
        for other in candidates | same:
            if len(other) == 1:
                assert (other in same) is (python.fullmatch(other) is not None), (c, other)


# What is refused, and how it is said


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", r"the backreference \1 at position 3 is not supported: repeat the group's expression"),
        ("(?P<x>a)(?P=x)", "the backreference (?P=…) at position 8 is not supported: repeat the group's expression"),
        ("(a)?(?(1)b|c)", "the conditional group at position 4 is not supported: write both cases as alternatives"),
        ("(?>a+)b", "the atomic group at position 0 is not supported: write (?:…)"),
        ("a++b", "the possessive quantifier at position 1 is not supported: leave out the second +"),
        ("a{2,3}+", "the possessive quantifier at position 1 is not supported"),
        ("(?<team>a)", "write (?P<name>…) for a named group"),
        ("(a", "missing ), unterminated group at position 0"),
        ("a)", "unbalanced parenthesis at position 1"),
        ("[a", "unterminated character set at position 0"),
        ("[z-a]", "bad character range z-a at position 1"),
        ("*", "nothing to repeat at position 0"),
        ("a**", "multiple repeat at position 2"),
        (r"\y", r"bad escape \y at position 0"),
        ("a(?i)", "global flags not at the start of the expression at position 1"),
        ("a{2000}", f"needs more than {STATES_MAX} states"),
        ("((a{30}){30}){30}", f"needs more than {STATES_MAX} states"),
        ("a{999999999}b?", f"needs more than {STATES_MAX} states"),
        ("(a?){4294967295}", "the repetition number is too large"),
        ("(" * 100 + "a" + ")" * 100, f"nested deeper than {pattern_syntax.DEPTH_MAX}"),
        ("a" * (CHARS_MAX + 1), f"longer than {CHARS_MAX} characters"),
        ("b?x" + "(?=a)" * (LOOKS_MAX + 1), f"more than {LOOKS_MAX}: join them with |"),
        (r"x(a\b){33}", f"more than {CONDITIONS_MAX}"),
    ],
)
def test_what_is_refused_says_why_and_what_to_write(pattern: str, said: str) -> None:
    with pytest.raises(PatternError) as caught:
        Pattern(pattern)
    assert said in str(caught.value)


def test_without_counted_repeats_no_pattern_is_too_large() -> None:
    for piece in ("a", "a|", "a?", "(a)", "^a$|", "[ab]"):
        Pattern((piece * CHARS_MAX)[: CHARS_MAX // len(piece) * len(piece)].removesuffix("|"))


# Cost


def dense(seed: int, length: int = NAME_CHARS_MAX) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice("ab") for _ in range(length))


WORST = [
    "^(a+)+$",
    "^(a|a)*$",
    "^(a|aa)+$",
    "(a*)*b",
    "((a+)+)+c",
    "(.*)*x",
    "(.*a){12}x",
    "(a?){500}a{500}x",
    "^(a?){510}a{510}$",
    "[ab]*a[ab]{1000}c",
    "(a|b)*a((a|b)b?){300}c",
    "([ab]?[ab]?[ab]?){300}c",
    "((((a?b?)?){4}){4}){16}x",
    "([ab]{1,30}){1,30}c",
    r"\w*\d?[\w.]*a[ab]{900}\W",
    "(?i)([A-C]?){900}x",
    "x?" + "".join(f"(?=.*a[ab]{{60}}{c})" for c in "ab" * (LOOKS_MAX // 2)) + "c",
    "x?" + "".join(f"(?<=a[ab]{{60}}{c}.{{9}})" for c in "ab" * (LOOKS_MAX // 2)) + "c",
    "^" + "".join(f"(?!.*a[ab]{{60}}{c}x)" for c in "ab" * (LOOKS_MAX // 2)) + "[ab]*a[ab]{100}c",
    "(?=(?=(?=(?=.*a[ab]{90}c).*a[ab]{90}).*a[ab]{90}).*a[ab]{90})[ab]c",
    r"([ab]*a[ab]{400}|(\B){30})c",
    r"[ab]*a[ab]{200}(\b\B){8}|(\B){8}c",
    r"(?m)(^|$|\b|\B|[ab]){8}a[ab]{500}c",
    "|".join(f"^{dense(seed, 6)}[ab]*x$" for seed in range(60)),
]
NAMES_WORST = [
    dense(1),
    dense(2),
    "a" * NAME_CHARS_MAX,
    "a" * (NAME_CHARS_MAX - 1) + "b",
    "ab" * (NAME_CHARS_MAX // 2),
    "a b\n" * (NAME_CHARS_MAX // 4),
    "".join(chr(0x4E00 + index) for index in range(NAME_CHARS_MAX)),
    "".join(chr(0x400 + index) for index in range(NAME_CHARS_MAX)),
]

STEPS_PER_CHARACTER = STATES_MAX // 4 + LOOKS_MAX + CONDITIONS_MAX + 24 * (LOOKS_MAX + 1)
"""Four positions at a time, one lookup in each automaton, conditions one by one, and few positions one by one."""


@pytest.mark.parametrize("pattern", WORST)
def test_no_name_makes_a_search_take_more_than_its_steps(pattern: str) -> None:
    ours = Pattern(pattern)
    for name in NAMES_WORST:
        before = ours.steps
        ours.search(name)
        assert ours.steps - before <= (len(name) + 1) * STEPS_PER_CHARACTER


@settings(max_examples=150, deadline=None)
@given(st.recursive(ATOMS, nested, max_leaves=12), st.integers(2, 200), st.sampled_from(NAMES_WORST))
def test_no_pattern_makes_a_search_take_more_than_its_steps(part: str, times: int, name: str) -> None:
    try:
        ours = Pattern(f"x?(?:{part}){{{times}}}c")
    except PatternError:
        return
    ours.search(name)
    assert ours.steps <= (len(name) + 1) * STEPS_PER_CHARACTER


def test_the_worst_of_all_takes_less_cpu_than_a_person_notices() -> None:
    """A step costs some 0.1 µs; the bound is generous because other work shares the machine's caches."""
    for pattern in WORST:
        begin = time.thread_time()
        ours = Pattern(pattern)
        for name in NAMES_WORST:
            ours.search(name)
        assert time.thread_time() - begin < 0.25 * len(NAMES_WORST), pattern


def test_what_is_remembered_is_bounded() -> None:
    ours = Pattern("[ab]*a[ab]{40}c")
    automaton = ours._matcher._automaton
    assert automaton is not None
    for seed in range(20):
        ours.search(dense(seed))
        ours.search("".join(chr(0x4E00 + seed * 1_024 + index) for index in range(NAME_CHARS_MAX)))
        assert len(automaton._states) <= 2 * EDGES_MAX + 2
        assert sum(len(state.edges) + len(state.closures) for state in automaton._states.values()) <= EDGES_MAX + 1
        assert len(automaton._alphabet._known) <= CHARACTERS_MAX
    assert ours.search("a" + "b" * 40 + "c")


@given(st.lists(st.sampled_from(["^a[bc]+d$", "x{40}y*", "lit", "^q[0-9]{1,9}$", "(a|bc)*d"]), max_size=30))
def test_a_cache_is_bounded_and_gives_the_pattern_asked_for(asked: list[str]) -> None:
    cache = PatternCache(patterns_max=3, states_max=48)
    for text in asked:
        assert cache.get(text).text == text
        assert len(cache._known) <= 3
        assert cache._states == sum(pattern.states for pattern in cache._known.values())
        assert cache._states <= 48 or len(cache._known) == 1


def test_literal_patterns_cost_no_states() -> None:
    for pattern in (".*", "^orders", "^orders$", r"\.DLQ$", "^(a|b)$", r"^(?!amq\.).*", "", "orders"):
        assert Pattern(pattern).states == 0, pattern
