"""Which targets does a message reach? The bindings of one exchange, as a structure that answers that question.

A matcher knows nothing of queues: targets are opaque and told apart by identity. What `match` returns depends only on
the bindings and the order in which they were added, never on a hash seed, a clock or chance: it is what trying the
bindings one after the other would give, each target once.

Every binding is held twice: by its target (so that adding is idempotent and a target can be removed at once) and in the
index of the matcher's kind (so that matching does not look at bindings that cannot match).
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Final, final

from mypy_extensions import i64

from rookery.errors import InvalidArgument
from rookery.properties import Timestamp

WEIGHT_MAX: Final = 10_000
"""The heaviest binding of a consistent-hash exchange."""

_DEPTH_MAX: Final = 32


@final
class _Binding:
    """One binding; `order` rises with every binding added to the matcher."""

    def __init__(self, key: str, arguments: dict[str, object] | None, owner: _Owner, order: i64) -> None:
        self.key = key
        self.arguments = arguments
        self.owner = owner
        self.order: i64 = order
        self.next: _Binding | None = None
        """The next binding of the same key and target, which then differs in its arguments."""


@final
class _Owner:
    """A target and its bindings by key. `mark` is the number of the last match that took it."""

    def __init__(self, target: object) -> None:
        self.target = target
        self.by_key: dict[str, _Binding] = {}
        self.mark: i64 = 0


class Matcher:
    """The bindings of an exchange. The kinds differ in `match` and in the index behind it."""

    def __init__(self) -> None:
        self.count: i64 = 0
        """How many bindings there are."""
        self.uses_headers: bool = False
        """Whether `match` looks at headers: then its result may not be cached by key."""
        self._owners: dict[int, _Owner] = {}
        self._order: i64 = 0
        self._mark: i64 = 0

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        """The targets of a message, each once, in the order of the first binding that led to it."""
        raise NotImplementedError

    def add(self, key: str, arguments: dict[str, object] | None, target: object) -> bool:
        """Bind. False, and nothing changed, when the same key, arguments and target are bound already."""
        self._check(key, arguments)
        owner = self._owners.get(id(target))
        if owner is None:
            owner = _Owner(target)
            self._owners[id(target)] = owner
        last: _Binding | None = None
        here = owner.by_key.get(key)
        while here is not None:
            if _same_table(here.arguments, arguments):
                return False
            last = here
            here = here.next
        self._order += 1
        binding = _Binding(key, dict(arguments) if arguments else None, owner, self._order)
        if last is None:
            owner.by_key[key] = binding
        else:
            last.next = binding
        self.count += 1
        self._insert(binding)
        return True

    def remove(self, key: str, arguments: dict[str, object] | None, target: object) -> bool:
        """Unbind. False when there is no such binding."""
        owner = self._owners.get(id(target))
        if owner is None:
            return False
        last: _Binding | None = None
        here = owner.by_key.get(key)
        while here is not None and not _same_table(here.arguments, arguments):
            last = here
            here = here.next
        if here is None:
            return False
        if last is not None:
            last.next = here.next
        elif here.next is not None:
            owner.by_key[key] = here.next
        else:
            del owner.by_key[key]
            if not owner.by_key:
                del self._owners[id(target)]
        self.count -= 1
        self._delete(here)
        return True

    def remove_target(self, target: object) -> int:
        """Remove all bindings of a target; how many there were."""
        owner = self._owners.pop(id(target), None)
        if owner is None:
            return 0
        removed: i64 = 0
        for first in owner.by_key.values():
            here: _Binding | None = first
            while here is not None:
                self._delete(here)
                removed += 1
                here = here.next
        owner.by_key.clear()
        self.count -= removed
        return removed

    def bindings(self) -> list[tuple[str, dict[str, object] | None, object]]:
        """Every binding as (key, arguments, target), in the order they were added; no arguments are None."""
        return [(b.key, b.arguments, b.owner.target) for b in self._in_order()]

    def _in_order(self) -> list[_Binding]:
        every: list[_Binding] = []
        for owner in self._owners.values():
            for first in owner.by_key.values():
                here: _Binding | None = first
                while here is not None:
                    every.append(here)
                    here = here.next
        every.sort(key=_order_of)
        return every

    def _targets(self, bindings: list[_Binding]) -> list[object]:
        """The targets of bindings that are in order, each once."""
        self._mark += 1
        mark = self._mark
        targets: list[object] = []
        for binding in bindings:
            owner = binding.owner
            if owner.mark != mark:
                owner.mark = mark
                targets.append(owner.target)
        return targets

    def _check(self, key: str, arguments: dict[str, object] | None) -> None:
        """Raise InvalidArgument for a binding this kind does not take."""

    def _insert(self, binding: _Binding) -> None:
        """Put a new binding, later than all others, into the index."""
        raise NotImplementedError

    def _delete(self, binding: _Binding) -> None:
        """Take a binding out of the index."""
        raise NotImplementedError


@final
class DirectMatcher(Matcher):
    """The key is equal to the binding's."""

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[str, list[_Binding]] = {}

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        bindings = self._by_key.get(key)
        return [] if bindings is None else self._targets(bindings)

    def _insert(self, binding: _Binding) -> None:
        _put(self._by_key, binding)

    def _delete(self, binding: _Binding) -> None:
        _take(self._by_key, binding)


@final
class FanoutMatcher(Matcher):
    """Every target, whatever the key."""

    def __init__(self) -> None:
        super().__init__()
        self._every: list[object] | None = []
        """All targets in order; None after a removal, until the next match needs it."""

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        every = self._every
        if every is None:
            every = self._targets(self._in_order())
            self._every = every
        return every.copy()

    def _insert(self, binding: _Binding) -> None:
        owner = binding.owner
        if self._every is not None and len(owner.by_key) == 1 and owner.by_key[binding.key] is binding:
            self._every.append(owner.target)

    def _delete(self, binding: _Binding) -> None:
        self._every = None


@final
class _Node:
    """A place in the trie of patterns: what follows here, and the bindings whose pattern ends here."""

    def __init__(self, many: bool) -> None:
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.bindings: list[_Binding] = []
        self.many = many
        """This place was reached by `#`: it takes any number of further words and stays where it is."""
        self.mark: i64 = 0
        """The number of the last step that reached this place."""

    def is_end(self) -> bool:
        return not self.words and self.star is None and self.hash is None


@final
class TopicMatcher(Matcher):
    """Words divided by dots; in a pattern `*` is exactly one word and `#` any number of words, also none.

    The empty key has no words; a dot divides two words, either of which may be empty. Patterns without wildcards are
    looked up as a whole, however many there are. The others form a trie, through which all matching paths are followed
    at once, one word of the key at a time: each place is visited at most once per word, so that no pattern costs more
    than its length times that of the key.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, list[_Binding]] = {}
        self._root = _Node(False)
        self._first: i64 = 0
        """The number of the first step of the present walk."""

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        exact = self._exact.get(key)
        if self._root.is_end():
            return [] if exact is None else self._targets(exact)
        groups: list[list[_Binding]] = []
        if exact is not None:
            groups.append(exact)
        self._walk(key, groups)
        if not groups:
            return []
        if len(groups) == 1:
            return self._targets(groups[0])
        found: list[_Binding] = []
        for group in groups:
            found.extend(group)
        if len(found) > 8:
            found.sort(key=_order_of)
        else:
            _sort_few(found)
        return self._targets(found)

    def _walk(self, key: str, groups: list[list[_Binding]]) -> None:
        """Collect the bindings of every pattern in the trie that matches."""
        self._mark += 1
        self._first = self._mark
        here: list[_Node] = []
        self._enter(self._root, here, groups)
        if key:
            for word in key.split("."):
                self._mark += 1
                there: list[_Node] = []
                for node in here:
                    if node.words:
                        child = node.words.get(word)
                        if child is not None:
                            self._enter(child, there, groups)
                    if node.star is not None:
                        self._enter(node.star, there, groups)
                    if node.many:
                        self._enter(node, there, groups)
                if not there:
                    return
                here = there
        groups.extend([node.bindings for node in here if node.bindings])

    def _enter(self, node: _Node, places: list[_Node], groups: list[list[_Binding]]) -> None:
        """Add a place, and the one behind its `#`, which may match no word, to those the walk goes on from."""
        if node.mark == self._mark:
            return
        node.mark = self._mark
        places.append(node)
        behind = node.hash
        if behind is not None:
            if behind.is_end():
                # Nothing can follow, so it matches whatever is left: collected here, once in this walk.
                if behind.mark < self._first:
                    behind.mark = self._first
                    groups.append(behind.bindings)
            else:
                self._enter(behind, places, groups)

    def _insert(self, binding: _Binding) -> None:
        words = _pattern(binding.key)
        if words is None:
            _put(self._exact, binding)
        else:
            node = self._root
            for word in words:
                node = _grow(node, word)
            node.bindings.append(binding)

    def _delete(self, binding: _Binding) -> None:
        words = _pattern(binding.key)
        if words is None:
            _take(self._exact, binding)
            return
        path = [self._root]
        for word in words:
            node = _child(path[-1], word)
            assert node is not None
            path.append(node)
        _cut(path[-1].bindings, binding)
        for i in range(len(words) - 1, -1, -1):
            if path[i + 1].bindings or not path[i + 1].is_end():
                return
            _prune(path[i], words[i])


@final
class _Rule:
    """What a binding asks of the headers, taken apart once."""

    def __init__(self, binding: _Binding) -> None:
        arguments = binding.arguments if binding.arguments is not None else {}
        mode = arguments.get("x-match", "all")
        with_x = mode == "all-with-x" or mode == "any-with-x"
        self.binding = binding
        self.any: bool = mode == "any" or mode == "any-with-x"
        self.names: list[str] = []
        self.values: list[object] = []
        for name, value in arguments.items():
            if name != "x-match" and (with_x or not name.startswith("x-")):
                self.names.append(name)
                self.values.append(value)

    def matches(self, headers: dict[str, object]) -> bool:
        for i in range(len(self.names)):
            name = self.names[i]
            wanted = self.values[i]
            if name not in headers:
                holds = False
            else:
                holds = wanted is None or _same(wanted, headers[name], 0)
            if holds == self.any:
                return self.any
        return not self.any


@final
class HeadersMatcher(Matcher):
    """The binding's arguments are found among the headers: all of them, or with x-match `any`, one.

    An argument without a value asks only that the header is there. Arguments that begin with `x-` are not compared,
    except with x-match `all-with-x` or `any-with-x`. Numbers are compared by value; a bool or a timestamp is no number.
    Without anything to compare, `all` matches every message and `any` none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uses_headers = True
        self._rules: list[_Rule] = []

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        self._mark += 1
        mark = self._mark
        given: dict[str, object] = headers if headers is not None else {}
        targets: list[object] = []
        for rule in self._rules:
            owner = rule.binding.owner
            if owner.mark != mark and rule.matches(given):
                owner.mark = mark
                targets.append(owner.target)
        return targets

    def _check(self, key: str, arguments: dict[str, object] | None) -> None:
        if arguments is not None and "x-match" in arguments:
            mode = arguments["x-match"]
            if mode != "all" and mode != "any" and mode != "all-with-x" and mode != "any-with-x":
                raise InvalidArgument("x-match must be all, any, all-with-x or any-with-x", argument="x-match")

    def _insert(self, binding: _Binding) -> None:
        self._rules.append(_Rule(binding))

    def _delete(self, binding: _Binding) -> None:
        for i in range(len(self._rules)):
            if self._rules[i].binding is binding:
                del self._rules[i]
                return


@final
class _Share:
    """A target's part of the keys: `first` and `second` are what its label hashes to."""

    def __init__(self, owner: _Owner, label: str) -> None:
        digest = hashlib.sha256(label.encode("utf-8", "surrogatepass")).digest()
        self.owner = owner
        self.label = label
        self.first: i64 = int.from_bytes(digest[:4], "big")
        self.second: i64 = int.from_bytes(digest[4:8], "big")
        self.weight: i64 = 0


@final
class HashMatcher(Matcher):
    """Each key goes to one target, always the same; the binding key is the target's weight.

    Every target draws a number from the key and its own label, stretched by its weight, and the highest takes the key
    (weighted rendezvous hashing). So a target gets its weight's share of the keys, and when one comes or goes, only the
    keys it takes or leaves move. The weights of several bindings of a target add up.

    The label is the target's name: the target itself when it is a str, else its attribute `name`. With the same names
    and weights every process places a key alike, whatever the order of binding. Targets without a name, or with the
    same one, are numbered in the order of binding.

    What is hashed is the routing key, or the header that `hash_header` names; or the property that `hash_property`
    names, which the caller then passes under that name among the headers. Messages without it share one target.
    """

    def __init__(self, arguments: dict[str, object] | None) -> None:
        super().__init__()
        self.hash_header: str | None = _named(arguments, "hash-header")
        self.hash_property: str | None = _named(arguments, "hash-property")
        if self.hash_header is not None and self.hash_property is not None:
            raise InvalidArgument("hash-header and hash-property exclude each other", argument="hash-property")
        if self.hash_property is not None and self.hash_property not in ("message_id", "correlation_id", "timestamp"):
            raise InvalidArgument(
                "hash-property must be message_id, correlation_id or timestamp", argument="hash-property"
            )
        self._source: str | None = self.hash_header if self.hash_header is not None else self.hash_property
        self.uses_headers = self._source is not None
        self._shares: list[_Share] = []
        self._even: bool = True
        """All weights are equal: then the numbers drawn need not be stretched."""

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        if not self._shares:
            return []
        value: object = key
        if self._source is not None:
            value = headers.get(self._source) if headers is not None else None
        hashed = _crc(value)
        best = self._shares[0]
        best_drawn: i64 = -1
        best_score: float = -1.0
        for share in self._shares:
            drawn = _mix(_mix(hashed ^ share.first) ^ share.second)
            if self._even:
                if drawn > best_drawn or (drawn == best_drawn and share.label < best.label):
                    best = share
                    best_drawn = drawn
            else:
                score = float(share.weight) / -math.log((float(drawn) + 0.5) / 4294967296.0)
                if score > best_score or (score == best_score and share.label < best.label):
                    best = share
                    best_score = score
        return [best.owner.target]

    def _check(self, key: str, arguments: dict[str, object] | None) -> None:
        if not (key.isascii() and key.isdigit() and len(key) <= 5 and 1 <= int(key) <= WEIGHT_MAX):
            raise InvalidArgument(f"the key must be a weight from 1 to {WEIGHT_MAX}", argument="key")

    def _insert(self, binding: _Binding) -> None:
        share = self._share(binding.owner)
        if share is None:
            share = _Share(binding.owner, self._label(binding.owner.target))
            self._shares.append(share)
        share.weight += int(binding.key)
        self._compare_weights()

    def _delete(self, binding: _Binding) -> None:
        share = self._share(binding.owner)
        assert share is not None
        share.weight -= int(binding.key)
        if share.weight == 0:
            self._shares.remove(share)
        self._compare_weights()

    def _share(self, owner: _Owner) -> _Share | None:
        for share in self._shares:
            if share.owner is owner:
                return share
        return None

    def _label(self, target: object) -> str:
        """The name of a target, numbered so that no two are alike."""
        name = target if isinstance(target, str) else getattr(target, "name", None)
        base = name if isinstance(name, str) else ""
        taken = {share.label for share in self._shares}
        number = 1
        while f"{base}#{number}" in taken:
            number += 1
        return f"{base}#{number}"

    def _compare_weights(self) -> None:
        self._even = True
        for share in self._shares:
            if share.weight != self._shares[0].weight:
                self._even = False


def matcher(kind: str, arguments: dict[str, object] | None) -> Matcher:
    """An empty matcher for an exchange of this kind, declared with these arguments."""
    if kind == "direct":
        return DirectMatcher()
    if kind == "fanout":
        return FanoutMatcher()
    if kind == "topic":
        return TopicMatcher()
    if kind == "headers":
        return HeadersMatcher()
    if kind == "consistent-hash" or kind == "x-consistent-hash":
        return HashMatcher(arguments)
    raise InvalidArgument(f"no exchange kind {kind!r}", argument="kind")


# Bindings in the order they were added


def _order_of(binding: _Binding) -> i64:
    return binding.order


def _sort_few(bindings: list[_Binding]) -> None:
    """Put a handful of bindings in order, without a call for each."""
    for i in range(1, len(bindings)):
        moving = bindings[i]
        place: i64 = i
        while place > 0 and bindings[place - 1].order > moving.order:
            bindings[place] = bindings[place - 1]
            place -= 1
        bindings[place] = moving


def _put(index: dict[str, list[_Binding]], binding: _Binding) -> None:
    bindings = index.get(binding.key)
    if bindings is None:
        index[binding.key] = [binding]
    else:
        bindings.append(binding)


def _take(index: dict[str, list[_Binding]], binding: _Binding) -> None:
    bindings = index[binding.key]
    _cut(bindings, binding)
    if not bindings:
        del index[binding.key]


def _cut(bindings: list[_Binding], binding: _Binding) -> None:
    """Remove a binding from a list in order, found by halving."""
    low: i64 = 0
    high: i64 = len(bindings)
    while low < high:
        middle = (low + high) // 2
        if bindings[middle].order < binding.order:
            low = middle + 1
        else:
            high = middle
    assert bindings[low] is binding
    del bindings[low]


# Patterns


def _pattern(key: str) -> list[str] | None:
    """The words of a pattern, a run of `#` as one; None when it has no wildcard."""
    if "*" not in key and "#" not in key:
        return None
    words: list[str] = []
    wild = False
    for word in key.split("."):
        if word == "#" and words and words[-1] == "#":
            continue
        if word == "#" or word == "*":
            wild = True
        words.append(word)
    return words if wild else None


def _child(node: _Node, word: str) -> _Node | None:
    if word == "*":
        return node.star
    if word == "#":
        return node.hash
    return node.words.get(word)


def _grow(node: _Node, word: str) -> _Node:
    child = _child(node, word)
    if child is None:
        child = _Node(word == "#")
        if word == "*":
            node.star = child
        elif word == "#":
            node.hash = child
        else:
            node.words[word] = child
    return child


def _prune(node: _Node, word: str) -> None:
    if word == "*":
        node.star = None
    elif word == "#":
        node.hash = None
    else:
        del node.words[word]


# Values


def _same_table(a: dict[str, object] | None, b: dict[str, object] | None) -> bool:
    """Whether two bindings have the same arguments; none and empty are the same."""
    return _same(a if a is not None else {}, b if b is not None else {}, 0)


def _same(a: object, b: object, depth: i64) -> bool:
    """Equal, with numbers by value, while a bool is only equal to a bool and a timestamp to a timestamp."""
    if a is b:
        return True
    if isinstance(a, str) or isinstance(b, str):
        return _octets(a) == _octets(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    if isinstance(a, Timestamp) != isinstance(b, Timestamp):
        return False
    if isinstance(a, dict):
        if not isinstance(b, dict) or len(a) != len(b) or depth >= _DEPTH_MAX:
            return False
        for name, value in a.items():
            if name not in b or not _same(value, b[name], depth + 1):
                return False
        return True
    if isinstance(a, list):
        if not isinstance(b, list) or len(a) != len(b) or depth >= _DEPTH_MAX:
            return False
        for i in range(len(a)):
            if not _same(a[i], b[i], depth + 1):
                return False
        return True
    return a == b


def _octets(value: object) -> object:
    """A text as it travels: a header may come as text or as bytes."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _named(arguments: dict[str, object] | None, argument: str) -> str | None:
    """The name an exchange's argument gives, None without that argument."""
    if arguments is None or argument not in arguments:
        return None
    name = arguments[argument]
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{argument} must name what is hashed", argument=argument)
    return name


# A hash that is the same everywhere


def _crc(value: object) -> i64:
    if isinstance(value, bytes):
        return zlib.crc32(value)
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _mix(word: i64) -> i64:
    """Every bit of the 32 depends on every bit of `word` (the finaliser of MurmurHash3)."""
    word = _times(word ^ word >> 16, 0x85EBCA6B)
    word = _times(word ^ word >> 13, 0xC2B2AE35)
    return word ^ word >> 16


def _times(a: i64, b: i64) -> i64:
    """a * b modulo 2**32, in steps that fit 64 bits: compiled numbers would wrap where Python's grow."""
    return (a * (b & 0xFFFF) + ((a * (b >> 16) & 0xFFFF) << 16)) & 0xFFFFFFFF
