"""Automata over the characters of a text: what a pattern becomes so that matching takes linear time.

Each character, place (`^`, `\\b`) and look-around of a pattern is a *position*, one bit of an integer. `follow[p]` is
the set of positions that may come after position p, and one bit past the last position means "matched". A set of
positions is all the memory a match needs, so a text is read once, whatever the pattern: there is nothing to go back to.

Sets that were met, and where a character leads from them, are kept as `State` objects up to a limit, then forgotten.
So a text that is like others costs one lookup a character, and one that is unlike any costs one step of the sets.

A place is passed without a character: `close` follows those that hold at the current index. Whether a look-around
holds is found for all indexes beforehand, by an automaton of its own: forwards for a look-behind, and backwards over
the reversed pattern for a look-ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final

from rookery.core.pattern_syntax import (
    ALT,
    AT,
    BEGIN,
    CAT,
    CHAR,
    END,
    ENDLESS,
    LINE_BEGIN,
    LINE_END,
    LOOK,
    NOT_WORD,
    NOT_WORD_ASCII,
    REPEAT,
    TEXT_END,
    WORD,
    WORD_ASCII,
    Chars,
    Node,
    PatternError,
    variants,
)

STATES_MAX: Final = 1_024
"""Positions of a pattern after its counted repeats are written out; a pattern without those never has more."""
WORK_MAX: Final = 16 * STATES_MAX
"""Nodes visited to write the repeats out."""
EDGES_MAX: Final = 512
"""Transitions that an automaton remembers."""
CHARACTERS_MAX: Final = 512
"""Characters that an automaton remembers the positions of."""

_FEW: Final = 24  # below this, bit by bit is cheaper than by tables of four bits


def measure(node: Node) -> None:
    """Find how many positions a node has, whether it matches nothing at all, and the positions it may begin with."""
    kind = node.kind
    for part in node.parts:
        if kind != LOOK:
            measure(part)
    node.size, node.work, node.nullable, node.first = 0, 1, True, 0
    if kind in (CHAR, AT, LOOK):
        node.size, node.nullable, node.first = 1, False, 1
    elif kind == REPEAT:
        part = node.parts[0]
        if part.nullable:
            node.low = 0
        copies = max(node.low, 1) if node.high == ENDLESS else node.high
        node.size = part.size * copies
        node.work += part.work * copies if part.size else 0
        check_size(node)
        node.nullable = node.low == 0
        node.first = part.first if copies else 0
    elif kind == ALT:
        node.nullable = False
        for part in node.parts:
            node.nullable = node.nullable or part.nullable
            node.first |= part.first << node.size
            node.size += part.size
            node.work += part.work
            check_size(node)
    elif kind == CAT:
        for part in node.parts:
            if node.nullable:
                node.first |= part.first << node.size
            node.nullable = node.nullable and part.nullable
            node.size += part.size
            node.work += part.work
            check_size(node)


def check_size(node: Node) -> None:
    if node.size > STATES_MAX:
        raise PatternError(f"the pattern needs more than {STATES_MAX} states: repeat less, or with * or +")
    if node.work > WORK_MAX:
        raise PatternError("the pattern repeats too many groups within groups: repeat less, or with * or +")


def backwards(node: Node) -> Node:
    """The tree of the reversed texts."""
    if node.kind not in (CAT, ALT, REPEAT):
        return node
    parts = [backwards(part) for part in node.parts]
    if node.kind == CAT:
        parts.reverse()
    return Node(node.kind, parts, node.low, node.high)


def is_word(c: str) -> bool:
    return c.isalnum() or c == "_"


def _in_category(c: str, category: str, ascii: bool) -> bool:
    kind = category.lower()
    if ascii and not c.isascii():
        found = False
    elif kind == "d":
        found = c.isdecimal()
    elif kind == "w":
        found = is_word(c)
    else:
        found = c in " \t\n\r\f\v" if ascii else c.isspace()
    return found == (kind == category)


@final
class Alphabet:
    """Which positions take a character."""

    def __init__(self) -> None:
        self._sets: dict[int, Chars] = {}
        self._positions: dict[int, int] = {}
        self._known: dict[str, int] = {}
        self._points: list[int] = []
        self._between: list[int] = []
        self._ignoring = 0
        self._ignoring_ascii = 0
        self._negated = 0
        self._categories: list[tuple[str, bool, int]] = []

    def add(self, chars: Chars, bit: int) -> None:
        key = id(chars)
        self._sets[key] = chars
        self._positions[key] = self._positions.get(key, 0) | bit

    def finish(self) -> None:
        """All were added: cut the code points where a range of a set begins or ends."""
        changes: dict[int, int] = {}
        categories: dict[tuple[str, bool], int] = {}
        for key, chars in self._sets.items():
            bits = self._positions[key]
            if chars.negated:
                self._negated |= bits
            if chars.ignore and chars.ascii:
                self._ignoring_ascii |= bits
            elif chars.ignore:
                self._ignoring |= bits
            for category in set(chars.categories):
                which = (category, chars.ascii)
                categories[which] = categories.get(which, 0) | bits
            end = -1
            for low, high in sorted(chars.ranges):
                low = max(low, end)
                if low <= high:
                    changes[low] = changes.get(low, 0) ^ bits
                    changes[high + 1] = changes.get(high + 1, 0) ^ bits
                    end = high + 1
        self._categories = [(category, narrow, bits) for (category, narrow), bits in sorted(categories.items())]
        here = 0
        self._between.append(0)
        for point in sorted(changes):
            here ^= changes[point]
            self._points.append(point)
            self._between.append(here)

    def positions(self, c: str) -> int:
        known = self._known.get(c)
        if known is None:
            if len(self._known) >= CHARACTERS_MAX:
                self._known.clear()
            known = self._find(c)
            self._known[c] = known
        return known

    def _find(self, c: str) -> int:
        found = self._in_ranges(c)
        if self._ignoring:
            for other in variants(c, False):
                found |= self._in_ranges(other) & self._ignoring
        if self._ignoring_ascii:
            for other in variants(c, True):
                found |= self._in_ranges(other) & self._ignoring_ascii
        for category, narrow, bits in self._categories:
            if _in_category(c, category, narrow):
                found |= bits
        return found ^ self._negated

    def _in_ranges(self, c: str) -> int:
        return self._between[bisect_right(self._points, ord(c))]


@final
class State:
    """A set of positions, and where characters and places lead from it."""

    def __init__(self, bits: int, accepts: bool) -> None:
        self.bits = bits
        self.accepts = accepts
        self.decided = accepts or bits == 0
        self.edges: dict[str, State] = {}
        self.closures: dict[int, State] = {}


@final
class Automaton:
    """One pattern, or the inside of one look-around (then `everywhere`: it may begin at every index)."""

    def __init__(self, root: Node, everywhere: bool = False) -> None:
        measure(root)
        self.size = root.size
        self.steps = 0
        self.looks: list[Node] = []
        self._look_bits: list[int] = []
        self._follow: list[int] = [0] * root.size
        self._alphabet = Alphabet()
        self._places: list[int] = [0] * (NOT_WORD_ASCII + 1)
        self._accept = 1 << root.size
        self._lay(root, 0, self._accept)
        self._alphabet.finish()
        self._tables: list[dict[str, int]] = []
        for _ in range(root.size // 4 + 1):
            self._tables.append({})
        self._states: dict[int, State] = {}
        self._edges = 0
        start = root.first | (self._accept if root.nullable else 0)
        self._start = start
        anchored = not everywhere and start & ~self._places[BEGIN] == 0
        self._entering = 0 if anchored else start
        self._end_bits = self._places[END] | self._places[TEXT_END]
        # positions whose condition has to be asked for at every index
        self.busy = 0
        for bits in self._look_bits:
            self.busy += bits.bit_count()
        for kind in range(LINE_BEGIN, NOT_WORD_ASCII + 1):
            self.busy += self._places[kind].bit_count()
        self._placed = any(self._places[BEGIN:WORD])
        self._worded = any(self._places[WORD:])
        self._conditional = self._placed or self._worded or bool(self._look_bits)
        self._begun = self._close(State(start, start & self._accept != 0), self._places[BEGIN])
        self.steps = 0

    # Making

    def _lay(self, node: Node, base: int, then: int) -> None:
        """Give the node the positions from `base`; after it comes one of `then`."""
        kind = node.kind
        if kind == CHAR:
            assert node.chars is not None
            self._follow[base] = then
            self._alphabet.add(node.chars, 1 << base)
        elif kind == AT:
            self._follow[base] = then
            self._places[node.low] |= 1 << base
        elif kind == LOOK:
            self._follow[base] = then
            self._add_look(node, 1 << base)
        elif kind == ALT:
            for part in node.parts:
                self._lay(part, base, then)
                base += part.size
        elif kind == CAT:
            base += node.size
            for part in reversed(node.parts):
                base -= part.size
                self._lay(part, base, then)
                then = part.first << base | (then if part.nullable else 0)
        elif kind == REPEAT and node.size:
            self._lay_copies(node, base, then)

    def _lay_copies(self, node: Node, base: int, then: int) -> None:
        part = node.parts[0]
        copies = node.size // part.size
        for copy in range(copies):
            after = base + part.size
            if copy + 1 < copies:
                following = part.first << after | (then if copy + 1 >= node.low else 0)
            else:
                following = then | (part.first << base if node.high == ENDLESS else 0)
            self._lay(part, base, following)
            base = after

    def _add_look(self, node: Node, bit: int) -> None:
        for index, known in enumerate(self.looks):
            if known is node:
                self._look_bits[index] |= bit
                return
        self.looks.append(node)
        self._look_bits.append(bit)

    # Stepping

    def _state(self, bits: int) -> State:
        state = self._states.get(bits)
        if state is None:
            state = State(bits, bits & self._accept != 0)
            self._states[bits] = state
        return state

    def _count_edge(self) -> None:
        """Forget everything when there is too much of it; states point at each other, so they are taken apart."""
        self._edges += 1
        if self._edges > EDGES_MAX:
            self._edges = 0
            for state in self._states.values():
                state.edges.clear()
                state.closures.clear()
            self._states.clear()
            self._begun.edges.clear()
            self._begun.closures.clear()

    def _advance(self, state: State, c: str) -> State:
        self._count_edge()
        after = self._state(self._union(state.bits & self._alphabet.positions(c)) | self._entering)
        state.edges[c] = after
        return after

    def _union(self, bits: int) -> int:
        """All that may follow these positions."""
        found = 0
        if bits.bit_count() <= _FEW:
            while bits:
                low = bits & -bits
                bits ^= low
                found |= self._follow[low.bit_length() - 1]
                self.steps += 1
            return found
        digits = f"{bits:x}"
        index = len(digits)
        self.steps += index
        for digit in digits:
            index -= 1
            if digit != "0":
                more = self._tables[index].get(digit)
                if more is None:
                    more = self._fill(index, digit)
                found |= more
        return found

    def _fill(self, index: int, digit: str) -> int:
        found = 0
        bits = int(digit, 16)
        for offset in range(4):
            if bits >> offset & 1:
                found |= self._follow[index * 4 + offset]
        self._tables[index][digit] = found
        return found

    def _close(self, state: State, holding: int) -> State:
        """Pass the places that hold here, also those that come after them."""
        closed = state.closures.get(holding)
        if closed is None:
            bits = state.bits
            passed = 0
            todo = bits & holding
            while todo:
                low = todo & -todo
                passed |= low
                bits |= self._follow[low.bit_length() - 1]
                todo = bits & holding & ~passed
                self.steps += 1
            self._count_edge()
            closed = self._state(bits)
            state.closures[holding] = closed
        return closed

    # Matching

    def matches(self, text: str, holds: list[list[bool]]) -> bool:
        """Whether some part of the text matches. `holds` says for each of `looks` at which indexes it does."""
        if self.busy or not text or text[-1] == "\n":
            return self._matches_slowly(text, holds)
        state = self._begun
        if state.decided:
            return state.accepts
        self.steps += len(text)
        for c in text:
            after = state.edges.get(c)
            if after is None:
                after = self._advance(state, c)
            state = after
            if state.decided:
                return state.accepts
        if self._end_bits:
            state = self._close(state, self._end_bits)
        return state.accepts

    def _matches_slowly(self, text: str, holds: list[list[bool]]) -> bool:
        """As `matches`, for conditions that have to be asked for at every index."""
        state = self._state(self._start)
        length = len(text)
        self.steps += length
        for index in range(length + 1):
            holding = self._holding(text, index, holds)
            if holding:
                state = self._close(state, holding)
            if state.decided:
                return state.accepts
            if index < length:
                after = state.edges.get(text[index])
                state = self._advance(state, text[index]) if after is None else after
        return False

    def indexes(self, text: str, holds: list[list[bool]], behind: bool) -> list[bool]:
        """For each index, whether what is before it (`behind`) or after it matches up to there, or from there."""
        length = len(text)
        result = [False] * (length + 1)
        self.steps += length
        state = self._state(self._start)
        for passed in range(length + 1):
            index = passed if behind else length - passed
            if self._conditional:
                holding = self._holding(text, index, holds)
                if holding:
                    state = self._close(state, holding)
            result[index] = state.accepts
            if passed < length:
                c = text[index if behind else index - 1]
                after = state.edges.get(c)
                state = self._advance(state, c) if after is None else after
        return result

    def _holding(self, text: str, index: int, holds: list[list[bool]]) -> int:
        """The places and look-arounds that hold at an index."""
        places = self._places
        length = len(text)
        found = 0
        if self._placed:
            if index == 0:
                found |= places[BEGIN] | places[LINE_BEGIN]
            elif text[index - 1] == "\n":
                found |= places[LINE_BEGIN]
            if index == length:
                found |= places[END] | places[TEXT_END] | places[LINE_END]
            elif text[index] == "\n":
                found |= places[LINE_END]
                if index == length - 1:
                    found |= places[END]
        for bits, holding in zip(self._look_bits, holds, strict=True):
            if holding[index]:
                found |= bits
        if self._worded:
            before = text[index - 1] if index else " "
            after = text[index] if index < length else " "
            found |= places[WORD if is_word(before) != is_word(after) else NOT_WORD]
            word_before = before.isascii() and is_word(before)
            word_after = after.isascii() and is_word(after)
            found |= places[WORD_ASCII if word_before != word_after else NOT_WORD_ASCII]
        return found
