"""Patterns from outside, matched in linear time: which names a policy applies to and a right grants.

A pattern is a regular expression in Python's syntax, *searched* for in a name. What it means is what `re.search` says,
but the time it takes grows with the length of the name only, never with how often a part could match in another way
(`^(a+)+$`). The limits below bound it: pattern × name is at most some 300,000 steps, a few milliseconds.

Most patterns in use are literal (`^orders\\.`, `^(a|b)$`, `.*`) and are decided by comparing strings; look-aheads right
after `^`, as in `^(?!amq\\.).*`, are patterns of their own that are asked first. All others become automata.
"""

from __future__ import annotations

from typing import Final, final

from rookery.core.automata import STATES_MAX, Automaton, backwards, measure
from rookery.core.pattern_syntax import (
    ALT,
    AT,
    BEGIN,
    CAT,
    CHAR,
    CHARS_MAX,
    EMPTY,
    END,
    LOOK,
    TEXT_END,
    Node,
    PatternError,
    cat,
    parse,
)

__all__ = ["CHARS_MAX", "CONDITIONS_MAX", "LOOKS_MAX", "STATES_MAX", "Pattern", "PatternCache", "PatternError"]

LOOKS_MAX: Final = 10
"""Look-arounds of a pattern; each reads the name once more."""
CONDITIONS_MAX: Final = 32
"""Look-arounds, word boundaries and anchors of lines, after counted repeats are written out."""

_LITERALS_MAX: Final = 64

# How a pattern is decided.
_ALWAYS: Final = 0
_BEGINS: Final = 1
_EQUALS: Final = 2
_ENDS: Final = 3
_CONTAINS: Final = 4
_AUTOMATON: Final = 5


@final
class Pattern:
    """A regular expression that can be searched for. Raises PatternError for a text that is none.

    `states` says how much a search may cost: 0 when strings are compared, else the positions of all automata.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._matcher = Matcher(parse(text))
        self.states = self._matcher.states()
        looks, conditions = self._matcher.conditions()
        if self.states > STATES_MAX:
            raise PatternError(f"the pattern needs {self.states} states, more than {STATES_MAX}: repeat less")
        if looks > LOOKS_MAX:
            raise PatternError(f"the pattern has {looks} look-arounds, more than {LOOKS_MAX}: join them with |")
        if conditions > CONDITIONS_MAX:
            raise PatternError(
                f"the pattern has {conditions} word boundaries, line anchors and look-arounds, "
                f"more than {CONDITIONS_MAX}: use fewer, or repeat them less"
            )

    def search(self, name: str) -> bool:
        """Whether some part of `name` matches."""
        return self._matcher.search(name)

    @property
    def steps(self) -> int:
        """What all searches so far have cost, in steps of some 0.1 µs."""
        return self._matcher.steps()


@final
class Matcher:
    """Decides one tree, by the cheapest means that will do."""

    def __init__(self, root: Node) -> None:
        measure(root)
        parts = list(root.parts) if root.kind == CAT else [root]
        while parts and parts[-1].nullable:
            parts.pop()
        while parts and parts[0].nullable:
            parts.pop(0)
        self._guards: list[Matcher] = []
        self._wanted: list[bool] = []
        self._automaton: Automaton | None = None
        self._looks: list[Look] = []
        self._literals: tuple[str, ...] = ("",)
        anchored = False
        while parts and parts[0].kind == AT and parts[0].low == BEGIN:
            anchored = True
            parts.pop(0)
            while parts and parts[0].kind == LOOK and not parts[0].behind:
                look = parts.pop(0)
                self._guards.append(Matcher(cat([Node(AT, None, BEGIN), look.parts[0]])))
                self._wanted.append(not look.negated)
        self._how = self._choose(parts, anchored)

    def _choose(self, parts: list[Node], anchored: bool) -> int:
        """How to decide what is left after the guards; literals or an automaton are made for it."""
        ending = parts[-1].low if parts and parts[-1].kind == AT else -1
        ends = ending in (END, TEXT_END)
        self._before_newline = ending == END
        literals = _literals(parts[:-1] if ends else parts)
        if literals is not None and (anchored or ends or len(literals) == 1):
            self._literals = tuple(literals)
            if anchored:
                return _EQUALS if ends else _BEGINS if literals != [""] else _ALWAYS
            return _ENDS if ends else _CONTAINS if literals != [""] else _ALWAYS
        if anchored:
            self._literals = (_prefix(parts),)
            parts = [Node(AT, None, BEGIN), *parts]
        self._automaton = Automaton(cat(parts))
        for node in self._automaton.looks:
            self._looks.append(Look(node))
        return _AUTOMATON

    def states(self) -> int:
        found = 0 if self._automaton is None else self._automaton.size
        for guard in self._guards:
            found += guard.states()
        for look in self._looks:
            found += look.states()
        return found

    def conditions(self) -> tuple[int, int]:
        """How many look-arounds there are, and how many positions with a condition."""
        looks = len(self._guards)
        conditions = 0 if self._automaton is None else self._automaton.busy
        inner = [guard.conditions() for guard in self._guards] + [look.conditions() for look in self._looks]
        for more_looks, more_conditions in inner:
            looks += more_looks
            conditions += more_conditions
        return looks, conditions

    def steps(self) -> int:
        found = 0 if self._automaton is None else self._automaton.steps
        for guard in self._guards:
            found += guard.steps()
        for look in self._looks:
            found += look.steps()
        return found

    def search(self, name: str) -> bool:
        how = self._how
        if self._guards:
            for guard, wanted in zip(self._guards, self._wanted, strict=True):
                if guard.search(name) is not wanted:
                    return False
        if how == _ALWAYS:
            return True
        if how == _BEGINS:
            return name.startswith(self._literals)
        if how == _EQUALS:
            return name in self._literals or (self._cut(name) and name[:-1] in self._literals)
        if how == _ENDS:
            return name.endswith(self._literals) or (self._cut(name) and name[:-1].endswith(self._literals))
        if how == _CONTAINS:
            return self._literals[0] in name
        automaton = self._automaton
        assert automaton is not None
        if not name.startswith(self._literals):
            return False
        return automaton.matches(name, [look.indexes(name) for look in self._looks])

    def _cut(self, name: str) -> bool:
        """Whether a `$` also matches before the newline that ends the name."""
        return self._before_newline and name.endswith("\n")


@final
class Look:
    """A look-around somewhere in a pattern."""

    def __init__(self, node: Node) -> None:
        self._behind = node.behind
        self._negated = node.negated
        body = node.parts[0]
        self._automaton = Automaton(body if node.behind else backwards(body), everywhere=True)
        self._looks: list[Look] = []
        for inner in self._automaton.looks:
            self._looks.append(Look(inner))

    def states(self) -> int:
        found = self._automaton.size
        for look in self._looks:
            found += look.states()
        return found

    def conditions(self) -> tuple[int, int]:
        looks, conditions = 1, self._automaton.busy
        for look in self._looks:
            more_looks, more_conditions = look.conditions()
            looks += more_looks
            conditions += more_conditions
        return looks, conditions

    def steps(self) -> int:
        found = self._automaton.steps
        for look in self._looks:
            found += look.steps()
        return found

    def indexes(self, name: str) -> list[bool]:
        """For each index of the name, whether the look-around holds there."""
        found = self._automaton.indexes(name, [look.indexes(name) for look in self._looks], self._behind)
        return [not holds for holds in found] if self._negated else found


def _literals(parts: list[Node]) -> list[str] | None:
    """The texts that these parts in sequence stand for, if they are few and plain."""
    found = [""]
    for part in parts:
        more = _literals_of(part)
        if more is None or len(found) * len(more) > _LITERALS_MAX:
            return None
        found = [begin + end for begin in found for end in more]
    return found


def _literals_of(node: Node) -> list[str] | None:
    if node.kind == CHAR:
        literal = node.literal()
        return [literal] if literal else None
    if node.kind == CAT:
        return _literals(node.parts)
    if node.kind == EMPTY:
        return [""]
    if node.kind != ALT:
        return None
    found: list[str] = []
    for part in node.parts:
        more = _literals_of(part)
        if more is None or len(found) + len(more) > _LITERALS_MAX:
            return None
        found += more
    return found


def _prefix(parts: list[Node]) -> str:
    """What every match begins with."""
    found = ""
    for part in parts:
        literal = part.literal() if part.kind == CHAR else ""
        if not literal:
            break
        found += literal
    return found


@final
class PatternCache:
    """Patterns in use, least recently used first; bounded by their number and by their states."""

    def __init__(self, patterns_max: int, states_max: int) -> None:
        self._patterns_max = patterns_max
        self._states_max = states_max
        self._states = 0
        self._known: dict[str, Pattern] = {}

    def get(self, text: str) -> Pattern:
        """The pattern of this text; raises PatternError."""
        pattern = self._known.pop(text, None)
        if pattern is None:
            pattern = Pattern(text)
            self._states += pattern.states
        self._known[text] = pattern
        while len(self._known) > 1 and (len(self._known) > self._patterns_max or self._states > self._states_max):
            oldest = next(iter(self._known))
            self._states -= self._known.pop(oldest).states
        return pattern
