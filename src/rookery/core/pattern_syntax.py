"""Regular expressions as text: the parser that turns a pattern into a tree of nodes.

The syntax is that of Python's `re` on text. Backreferences, conditionals, atomic groups and possessive quantifiers are
refused, because no automaton can decide them in linear time: the error names the construct and what to write instead.
Capturing and laziness do not change whether a text matches, so groups leave no trace in the tree.
"""

from __future__ import annotations

import unicodedata
from typing import Final, final

CHARS_MAX: Final = 1_024
DEPTH_MAX: Final = 64
"""Groups inside groups; the walks over the tree are recursive."""
ENDLESS: Final = -1
_COUNT_MAX: Final = (1 << 32) - 2

EMPTY: Final = 0
CHAR: Final = 1
CAT: Final = 2
ALT: Final = 3
REPEAT: Final = 4
LOOK: Final = 5
AT: Final = 6

# Places in a text: the kinds of an AT node.
BEGIN: Final = 0
END: Final = 1
TEXT_END: Final = 2
LINE_BEGIN: Final = 3
LINE_END: Final = 4
WORD: Final = 5
NOT_WORD: Final = 6
WORD_ASCII: Final = 7
NOT_WORD_ASCII: Final = 8

_SPACE: Final = " \t\n\r\v\f"
_DIGITS: Final = "0123456789"
_OCTAL: Final = "01234567"
_HEX: Final = "0123456789abcdefABCDEF"
_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
# Characters that `re` takes for equal when case is ignored, and that their upper and lower cases do not bring together.
_ALIKE: Final = (
    "Ii\u0130\u0131",
    "Kk\u212a",
    "Ss\u017f",
    "\xb5\u039c\u03bc",
    "\xc5\xe5\u212b",
    "\xdf\u1e9e",
    "\u0345\u0399\u03b9\u1fbe",
    "\u0390\u1fd3",
    "\u0392\u03b2\u03d0",
    "\u0395\u03b5\u03f5",
    "\u0398\u03b8\u03d1\u03f4",
    "\u039a\u03ba\u03f0",
    "\u03a0\u03c0\u03d6",
    "\u03a1\u03c1\u03f1",
    "\u03a3\u03c2\u03c3",
    "\u03a6\u03c6\u03d5",
    "\u03a9\u03c9\u2126",
    "\u03b0\u1fe3",
    "\u0412\u0432\u1c80",
    "\u0414\u0434\u1c81",
    "\u041e\u043e\u1c82",
    "\u0421\u0441\u1c83",
    "\u0422\u0442\u1c84\u1c85",
    "\u042a\u044a\u1c86",
    "\u0462\u0463\u1c87",
    "\u1c88\ua64a\ua64b",
    "\u1e60\u1e61\u1e9b",
    "\ufb05\ufb06",
)


class PatternError(ValueError):
    """A pattern that is malformed, not supported or too large; the text says which and where."""


@final
class Chars:
    """A set of characters: ranges of code points and categories (`d`, `W`, …), perhaps all others instead."""

    def __init__(
        self, ranges: list[tuple[int, int]], categories: str, negated: bool, ignore: bool, ascii: bool
    ) -> None:
        self.ranges = ranges
        self.categories = categories
        self.negated = negated
        self.ignore = ignore
        self.ascii = ascii


@final
class Node:
    """A part of a pattern. What a field means depends on the kind.

    CHAR: one character out of `chars`. CAT, ALT: `parts` in sequence, or one of them. REPEAT: the only part, `low` to
    `high` times. LOOK: the only part must (or, `negated`, must not) match from here on or, `behind`, up to here.
    AT: the place `low`. EMPTY: nothing.
    """

    def __init__(self, kind: int, parts: list[Node] | None = None, low: int = 0, high: int = 0) -> None:
        self.kind = kind
        self.parts: list[Node] = [] if parts is None else parts
        self.low = low
        self.high = high
        self.chars: Chars | None = None
        self.behind = False
        self.negated = False
        # filled in by `measure`
        self.size = 0
        self.work = 0
        self.nullable = False
        self.first = 0

    def literal(self) -> str:
        """The one character this node stands for, or an empty text."""
        chars = self.chars
        if chars is None or chars.negated or chars.ignore or chars.categories or len(chars.ranges) != 1:
            return ""
        low, high = chars.ranges[0]
        return chr(low) if low == high else ""


@final
class Flags:
    """The flags in force for a part of the pattern."""

    def __init__(self, ignore: bool, lines: bool, dot_all: bool, verbose: bool, ascii: bool) -> None:
        self.ignore = ignore
        self.lines = lines
        self.dot_all = dot_all
        self.verbose = verbose
        self.ascii = ascii


def cat(parts: list[Node]) -> Node:
    """The parts in sequence."""
    if not parts:
        return Node(EMPTY)
    return parts[0] if len(parts) == 1 else Node(CAT, parts)


def parse(pattern: str) -> Node:
    """The tree of a pattern; raises PatternError."""
    if len(pattern) > CHARS_MAX:
        raise PatternError(f"the pattern is longer than {CHARS_MAX} characters")
    return Parser(pattern).parse()


@final
class Parser:
    """One pattern and how far it has been read."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.names: set[str] = set()
        self.depth = 0

    def parse(self) -> Node:
        flags = Flags(False, False, False, False, False)
        node = self._alternatives(flags)
        if self.at < len(self.text):
            raise self._error("unbalanced parenthesis", self.at)
        return node

    # Reading

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _take(self) -> str:
        c = self._peek()
        self.at += len(c)
        return c

    def _skip(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.at):
            self.at += len(wanted)
            return True
        return False

    def _while(self, allowed: str, most: int) -> str:
        begin = self.at
        while self.at < len(self.text) and self.at - begin < most and self.text[self.at] in allowed:
            self.at += 1
        return self.text[begin : self.at]

    def _until(self, end: str, what: str) -> str:
        begin = self.at
        found = self.text.find(end, begin)
        if found < 0:
            raise self._error(f"missing {end}, unterminated {what}", begin)
        self.at = found + 1
        return self.text[begin:found]

    def _error(self, problem: str, at: int) -> PatternError:
        return PatternError(f"{problem} at position {at}")

    def _unsupported(self, construct: str, at: int, instead: str) -> PatternError:
        return PatternError(f"{construct} at position {at} is not supported: {instead}")

    # Structure

    def _alternatives(self, flags: Flags) -> Node:
        top = self.depth == 0
        branches = [self._sequence(flags, top)]
        while self._skip("|"):
            branches.append(self._sequence(flags, False))
        return branches[0] if len(branches) == 1 else Node(ALT, branches)

    def _sequence(self, flags: Flags, first: bool) -> Node:
        """Parts up to `|`, `)` or the end. Flags for the whole pattern may stand only before the `first` part."""
        parts: list[Node] = []
        # whether the last part may not be repeated, and why
        fixed = ""
        while self.at < len(self.text):
            c = self._peek()
            if c in "|)":
                break
            at = self.at
            if flags.verbose and self._skip_space():
                continue
            if c in "*+?{":
                bounds = self._bounds()
                if bounds is not None:
                    if not parts or fixed == "place":
                        raise self._error("nothing to repeat", at)
                    if fixed == "repeat":
                        raise self._error("multiple repeat", at)
                    parts[-1] = Node(REPEAT, [parts[-1]], bounds[0], bounds[1])
                    self._greed(at)
                    fixed = "repeat"
                    continue
            if self.text.startswith("(?", at):
                if self._skip_comment():
                    continue
                if self._global_flags(flags, first and not parts):
                    continue
            node = self._atom(flags)
            parts.append(node)
            fixed = "place" if node.kind == AT and self.text[at] != "(" else ""
        return cat(parts)

    def _skip_space(self) -> bool:
        c = self._peek()
        if c in _SPACE:
            self.at += 1
        elif c == "#":
            self._skip_to("\n")
        else:
            return False
        return True

    def _skip_comment(self) -> bool:
        begin = self.at
        if not self._skip("(?#"):
            return False
        if not self._skip_to(")"):
            raise self._error("missing ), unterminated comment", begin)
        return True

    def _skip_to(self, end: str) -> bool:
        """Skip a comment up to a character that no backslash precedes; False when there is none."""
        while self.at < len(self.text):
            c = self._take()
            if c == end:
                return True
            if c == "\\" and not self._take():
                raise self._error("bad escape (end of pattern)", self.at - 1)
        return False

    def _bounds(self) -> tuple[int, int] | None:
        """A quantifier; None for a brace that is only a brace."""
        begin = self.at
        c = self._take()
        if c == "*":
            return 0, ENDLESS
        if c == "+":
            return 1, ENDLESS
        if c == "?":
            return 0, 1
        if self._peek() != "}":
            low = self._while(_DIGITS, CHARS_MAX)
            comma = self._skip(",")
            high = self._while(_DIGITS, CHARS_MAX) if comma else low
            if self._skip("}"):
                least = int(low) if low else 0
                most = int(high) if high else ENDLESS
                if max(least, most) > _COUNT_MAX:
                    raise self._error("the repetition number is too large", begin)
                if high and most < least:
                    raise self._error("min repeat greater than max repeat", begin)
                return least, most
        self.at = begin
        return None

    def _greed(self, at: int) -> None:
        """A lazy quantifier finds the same; a possessive one does not."""
        if self._skip("?"):
            return
        if self._peek() == "+":
            raise self._unsupported("the possessive quantifier", at, "leave out the second +")

    # Atoms

    def _atom(self, flags: Flags) -> Node:
        at = self.at
        c = self._take()
        if c == "(":
            return self._group(flags, at)
        if c == "[":
            return self._set(flags, at)
        if c == "\\":
            return self._escape(flags, at)
        if c == ".":
            return _char([] if flags.dot_all else [(10, 10)], "", True, flags)
        if c == "^":
            return Node(AT, None, LINE_BEGIN if flags.lines else BEGIN)
        if c == "$":
            return Node(AT, None, LINE_END if flags.lines else END)
        return _char([(ord(c), ord(c))], "", False, flags)

    def _group(self, flags: Flags, at: int) -> Node:
        look = ""
        if self._skip("?"):
            if self._skip("P"):
                self._name(at)
            elif self._skip(":"):
                pass
            elif self._skip("=") or self._skip("!"):
                look = self.text[self.at - 1]
            elif self._skip("<=") or self._skip("<!"):
                look = self.text[self.at - 2 : self.at]
            elif self._skip("("):
                raise self._unsupported("the conditional group", at, "write both cases as alternatives with |")
            elif self._skip(">"):
                raise self._unsupported("the atomic group", at, "write (?:…)")
            elif self._skip("<"):
                raise self._error("unknown extension ?<, write (?P<name>…) for a named group,", at)
            else:
                flags = self._scoped_flags(flags, at)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise PatternError(f"groups are nested deeper than {DEPTH_MAX}")
        inner = self._alternatives(flags)
        self.depth -= 1
        if not self._skip(")"):
            raise self._error("missing ), unterminated group", at)
        if not look:
            return inner
        node = Node(LOOK, [inner])
        node.negated = look[-1] == "!"
        node.behind = look[0] == "<"
        return node

    def _name(self, at: int) -> None:
        if self._skip("="):
            raise self._unsupported("the backreference (?P=…)", at, "repeat the group's expression")
        if not self._skip("<"):
            raise self._error("unknown extension ?P", at)
        name = self._until(">", "name")
        if not name.isidentifier():
            raise self._error(f"bad character in group name {name!r}", at)
        if name in self.names:
            raise self._error(f"the group name {name!r} is used twice", at)
        self.names.add(name)

    def _global_flags(self, flags: Flags, allowed: bool) -> bool:
        """Flags for the whole pattern, such as `(?i)`."""
        end = self.at + 2
        while end < len(self.text) and self.text[end] in "aiLmsux":
            end += 1
        if end == self.at + 2 or not self.text.startswith(")", end):
            return False
        if not allowed:
            raise self._error("global flags not at the start of the expression", self.at)
        letters = self.text[self.at + 2 : end]
        # both may also come from two groups of flags, but `u` is the default and changes nothing
        self._check_flags(letters, self.at)
        _set_flags(flags, letters, True)
        self.at = end + 1
        return True

    def _scoped_flags(self, flags: Flags, at: int) -> Flags:
        """Flags for one group, such as `(?i:…)` or `(?-i:…)`."""
        on = self._while("aiLmsux", 16)
        off = ""
        self._check_flags(on, at)
        if self._skip("-"):
            off = self._while("imsx", 16)
            if not off:
                raise self._error("missing flag", self.at)
        if not self._skip(":"):
            raise self._error("unknown extension or flag", at)
        if set(on) & set(off):
            raise self._error("a flag is turned on and off", at)
        inner = Flags(flags.ignore, flags.lines, flags.dot_all, flags.verbose, flags.ascii)
        _set_flags(inner, on, True)
        _set_flags(inner, off, False)
        return inner

    def _check_flags(self, letters: str, at: int) -> None:
        if "L" in letters:
            raise self._error("the flag L is for bytes, not for text,", at)
        if "a" in letters and "u" in letters:
            raise self._error("the flags a and u exclude each other", at)

    # Characters

    def _escape(self, flags: Flags, at: int) -> Node:
        c = self._peek()
        if c and c in "AZzbB":
            self.at += 1
            return Node(AT, None, _place(c, flags))
        if c and c in "dDsSwW":
            self.at += 1
            return _char([], c, False, flags)
        if c and c in "123456789":
            digits = self.text[self.at : self.at + 3]
            if len(digits) < 3 or not all(d in _OCTAL for d in digits):
                raise self._unsupported(f"the backreference \\{c}", at, "repeat the group's expression")
        code = self._code(at)
        return _char([(code, code)], "", False, flags)

    def _code(self, at: int) -> int:
        """The character that an escape stands for, inside a set or outside."""
        c = self._take()
        if not c:
            raise self._error("bad escape (end of pattern)", at)
        if c in _ESCAPES:
            return ord(_ESCAPES[c])
        if c in _HEX_DIGITS:
            digits = self._while(_HEX, _HEX_DIGITS[c])
            if len(digits) != _HEX_DIGITS[c] or int(digits, 16) > 0x10FFFF:
                raise self._error(f"incomplete or bad escape \\{c}{digits}", at)
            return int(digits, 16)
        if c == "N":
            name = self._until("}", "character name") if self._skip("{") else ""
            try:
                return ord(unicodedata.lookup(name))
            except (KeyError, TypeError):
                raise self._error(f"undefined character name {name!r}", at) from None
        if c in _OCTAL:
            digits = c + self._while(_OCTAL, 2)
            if int(digits, 8) > 0o377:
                raise self._error(f"octal escape \\{digits} is outside of 0-0o377", at)
            return int(digits, 8)
        if (c.isascii() and c.isalpha()) or c in "89":
            raise self._error(f"bad escape \\{c}", at)
        return ord(c)

    def _set(self, flags: Flags, at: int) -> Node:
        """A set in brackets."""
        ranges: list[tuple[int, int]] = []
        categories = ""
        negated = self._skip("^")
        begin = self.at
        while True:
            place = self.at
            if place > begin and self._skip("]"):
                break
            low, category = self._member(at)
            if category:
                categories += category
            if self._peek() == "-" and not self.text.startswith("-]", self.at):
                self.at += 1
                high, other = self._member(at)
                if category or other or high < low:
                    raise self._error(f"bad character range {self.text[place : self.at]}", place)
                ranges.append((low, high))
            elif not category:
                ranges.append((low, low))
        return _char(ranges, categories, negated, flags)

    def _member(self, at: int) -> tuple[int, str]:
        """A character of a set, or a category."""
        c = self._take()
        if not c:
            raise self._error("unterminated character set", at)
        if c != "\\":
            return ord(c), ""
        escaped = self._peek()
        if escaped and escaped in "dDsSwW":
            self.at += 1
            return 0, escaped
        if escaped == "b":
            self.at += 1
            return 8, ""
        return self._code(self.at - 1), ""


def _char(ranges: list[tuple[int, int]], categories: str, negated: bool, flags: Flags) -> Node:
    node = Node(CHAR)
    ignore = flags.ignore
    if ignore and not categories and not negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        c = chr(ranges[0][0])
        ignore = len(variants(c, flags.ascii)) > 1
    node.chars = Chars(ranges, categories, negated, ignore, flags.ascii)
    return node


def _place(letter: str, flags: Flags) -> int:
    if letter == "A":
        return BEGIN
    if letter in "Zz":
        return TEXT_END
    if letter == "b":
        return WORD_ASCII if flags.ascii else WORD
    return NOT_WORD_ASCII if flags.ascii else NOT_WORD


def _set_flags(flags: Flags, letters: str, on: bool) -> None:
    for letter in letters:
        if letter == "i":
            flags.ignore = on
        elif letter == "m":
            flags.lines = on
        elif letter == "s":
            flags.dot_all = on
        elif letter == "x":
            flags.verbose = on
        elif letter == "a":
            flags.ascii = True
        else:
            flags.ascii = False


def variants(c: str, ascii: bool) -> list[str]:
    """The character and all that are equal to it when case is ignored."""
    found = [c]
    if ascii:
        if c.isascii():
            other = c.swapcase()
            if other != c:
                found.append(other)
        return found
    for alike in _ALIKE:
        if c in alike:
            return list(alike)
    for other in (c.lower(), c.upper(), c.title(), c.casefold()):
        if len(other) == 1 and other not in found:
            found.append(other)
            back = other.upper()
            if len(back) == 1 and back not in found:
                found.append(back)
    return found
