"""Which targets does a message reach? The bindings of one exchange, as a structure that answers that question.

A matcher knows nothing of queues: targets are opaque and told apart by identity. What `match` returns depends only on
the bindings and the order in which they were added, never on a hash seed, a clock or chance: it is what trying the
bindings one after the other would give, each target once.

Every binding is held twice: by its target (`bindings`) and in the index of the matcher's kind (so that matching does
not look at bindings that cannot match).
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Final, final

from mypy_extensions import i64

from rookery.core.arguments import fingerprint, same
from rookery.core.bindings import Matcher, Owner, Place, Row, alive, cut
from rookery.errors import InvalidArgument

WEIGHT_MAX: Final = 10_000
"""The heaviest binding of a consistent-hash exchange."""

HASH_TARGETS_MAX: Final = 1_000
"""The targets of a consistent-hash exchange: each of them is asked for every key."""

REPEATS_MAX: Final = 300
"""How often a topic exchange may have one word, `*` or `#` behind a `#`: each is tried again at every word of a key."""

FEW_RULES: Final = 8
"""So many bindings of a headers exchange are tried one after the other; of more, only those that may match."""


@final
class DirectMatcher(Matcher):
    """The key is equal to the binding's."""

    def __init__(self) -> None:
        super().__init__(True)
        self._by_key: dict[str, list[Place]] = {}

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        places = self._by_key.get(key)
        return [] if places is None else alive(places)

    def _insert(self, place: Place) -> None:
        _put(self._by_key, place)

    def _delete(self, place: Place) -> None:
        _take(self._by_key, place)

    def _list_of(self, place: Place) -> list[Place] | None:
        return self._by_key[place.key]


@final
class FanoutMatcher(Matcher):
    """Every target, whatever the key."""

    def __init__(self) -> None:
        super().__init__(False)
        self._every: list[Place] = []

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        return alive(self._every)

    def _insert(self, place: Place) -> None:
        self._every.append(place)

    def _delete(self, place: Place) -> None:
        cut(self._every, place)

    def _list_of(self, place: Place) -> list[Place] | None:
        return self._every


@final
class _Node:
    """A place in the trie of patterns: what follows here, and the bindings whose pattern ends here."""

    def __init__(self, many: bool) -> None:
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.bindings: list[Place] = []
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
        super().__init__(True)
        self._exact: dict[str, list[Place]] = {}
        self._root = _Node(False)
        self._first: i64 = 0
        """The number of the first step of the present walk."""
        self._behind: dict[str, int] = {}
        """How many places of the trie behind a `#` are reached by each word."""

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        exact = self._exact.get(key)
        if self._root.is_end():
            return [] if exact is None else alive(exact)
        groups: list[list[Place]] = []
        if exact is not None:
            groups.append(exact)
        self._walk(key, groups)
        if not groups:
            return []
        if len(groups) == 1:
            return alive(groups[0])
        found: list[Place] = []
        for group in groups:
            found.extend(group)
        if len(found) > 8:
            found.sort(key=_order_of)
        else:
            _sort_few(found)
        return self._merged(found)

    def _walk(self, key: str, groups: list[list[Place]]) -> None:
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

    def _enter(self, node: _Node, places: list[_Node], groups: list[list[Place]]) -> None:
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

    def _insert(self, place: Place) -> None:
        words = _pattern(place.key)
        if words is None:
            _put(self._exact, place)
            return
        node = self._root
        behind = False
        for word in words:
            if behind and _child(node, word) is None:
                self._behind[word] = self._behind.get(word, 0) + 1
            node = _grow(node, word)
            behind = behind or word == "#"
        node.bindings.append(place)

    def refusal(self, key: str, target: object) -> str:
        words = _pattern(key)
        if words is None or "#" not in words[:-1]:
            return ""
        node: _Node | None = self._root
        more: dict[str, int] = {}
        behind = False
        for word in words:
            node = None if node is None else _child(node, word)
            if behind and node is None:
                more[word] = more.get(word, 0) + 1
                if self._behind.get(word, 0) + more[word] > REPEATS_MAX:
                    return f"{REPEATS_MAX} patterns with {word!r} behind a '#'"
            behind = behind or word == "#"
        return ""

    def _delete(self, place: Place) -> None:
        words = _pattern(place.key)
        if words is None:
            _take(self._exact, place)
            return
        path = self._path(words)
        cut(path[-1].bindings, place)
        for i in range(len(words) - 1, -1, -1):
            if path[i + 1].bindings or not path[i + 1].is_end():
                return
            _prune(path[i], words[i])
            if "#" in words[:i]:
                left = self._behind[words[i]] - 1
                if left:
                    self._behind[words[i]] = left
                else:
                    del self._behind[words[i]]

    def _list_of(self, place: Place) -> list[Place] | None:
        words = _pattern(place.key)
        return self._exact[place.key] if words is None else self._path(words)[-1].bindings

    def _path(self, words: list[str]) -> list[_Node]:
        """The nodes of a pattern that is bound, from the root on."""
        path = [self._root]
        for word in words:
            node = _child(path[-1], word)
            assert node is not None
            path.append(node)
        return path


@final
class _Rule:
    """What a binding asks of the headers, taken apart once."""

    def __init__(self, row: Row, owner: Owner) -> None:
        arguments = row.arguments if row.arguments is not None else {}
        mode = arguments.get("x-match", "all")
        with_x = mode == "all-with-x" or mode == "any-with-x"
        self.owner = owner
        self.order: i64 = row.order
        self.any: bool = mode == "any" or mode == "any-with-x"
        self.names: list[str] = []
        self.values: list[object] = []
        self.buckets: list[bytes] = []
        """Where the index has it: of the buckets that the headers of a matching message lead to, at least one."""
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
                holds = wanted is None or same(wanted, headers[name], 0)
            if holds == self.any:
                return self.any
        return not self.any


@final
class HeadersMatcher(Matcher):
    """The binding's arguments are found among the headers: all of them, or with x-match `any`, one.

    An argument without a value asks only that the header is there. Arguments that begin with `x-` are not compared,
    except with x-match `all-with-x` or `any-with-x`. Numbers are compared by value; a bool or a timestamp is no number.
    Without anything to compare, `all` matches every message and `any` none.

    A binding that asks for all of its arguments is found by one of them, that which the fewest others are found by; one
    that asks for any, by each. Only bindings that are found by a header of the message are tried.
    """

    def __init__(self) -> None:
        super().__init__(False)
        self.uses_headers = True
        self._rules: dict[int, _Rule] = {}
        self._buckets: dict[bytes, dict[int, _Rule]] = {}
        self._always: dict[int, _Rule] = {}

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        self._mark += 1
        mark = self._mark
        given: dict[str, object] = headers if headers is not None else {}
        targets: list[object] = []
        tried = list(self._rules.values()) if len(self._rules) <= FEW_RULES else self._candidates(given)
        for rule in tried:
            owner = rule.owner
            if owner.mark != mark and not owner.gone and rule.matches(given):
                owner.mark = mark
                targets.append(owner.target)
        return targets

    def _candidates(self, headers: dict[str, object]) -> list[_Rule]:
        """The bindings that a header leads to, in order; one may be there several times."""
        found: list[_Rule] = list(self._always.values())
        lists = 1 if found else 0
        for name, value in headers.items():
            present = self._buckets.get(_bucket(name, None))
            if present is not None:
                found.extend(present.values())
                lists += 1
            equal = None if value is None else self._buckets.get(_bucket(name, value))
            if equal is not None:
                found.extend(equal.values())
                lists += 1
        if lists > 1:
            found.sort(key=_rule_order)
        return found

    def _check(self, key: str, arguments: dict[str, object] | None) -> None:
        if arguments is not None and "x-match" in arguments:
            mode = arguments["x-match"]
            if mode != "all" and mode != "any" and mode != "all-with-x" and mode != "any-with-x":
                raise InvalidArgument("x-match must be all, any, all-with-x or any-with-x", argument="x-match")

    def _insert_row(self, row: Row, owner: Owner) -> None:
        rule = _Rule(row, owner)
        self._rules[row.order] = rule
        buckets = [_bucket(rule.names[i], rule.values[i]) for i in range(len(rule.names))]
        if not rule.any:
            if not buckets:
                self._always[row.order] = rule
            buckets = self._smallest(buckets)
        rule.buckets = buckets
        for bucket in buckets:
            rules = self._buckets.get(bucket)
            if rules is None:
                self._buckets[bucket] = {row.order: rule}
            else:
                rules[row.order] = rule

    def _smallest(self, buckets: list[bytes]) -> list[bytes]:
        """That bucket alone which holds the fewest bindings."""
        best: list[bytes] = []
        fewest: i64 = -1
        for bucket in buckets:
            rules = self._buckets.get(bucket)
            size: i64 = 0 if rules is None else len(rules)
            if fewest < 0 or size < fewest:
                fewest = size
                best = [bucket]
        return best

    def _delete_row(self, row: Row, owner: Owner) -> None:
        rule = self._rules.pop(row.order)
        self._always.pop(row.order, None)
        for bucket in rule.buckets:
            rules = self._buckets[bucket]
            rules.pop(row.order, None)
            if not rules:
                del self._buckets[bucket]


@final
class _Share:
    """A target's part of the keys: `first` and `second` are what its label hashes to."""

    def __init__(self, owner: Owner, label: str) -> None:
        hashed = hashlib.sha256(label.encode("utf-8", "surrogatepass")).digest()
        self.owner = owner
        self.label = label
        self.first: i64 = int.from_bytes(hashed[:4], "big")
        self.second: i64 = int.from_bytes(hashed[4:8], "big")
        self.weight: i64 = 0
        self.place: i64 = 0
        """Where it is in the list of shares."""


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
        super().__init__(False)
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
        self._by_owner: dict[int, _Share] = {}
        self._labels: set[str] = set()
        self._weights: dict[int, int] = {}
        """How many shares have each weight."""
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

    def refusal(self, key: str, target: object) -> str:
        if len(self._shares) >= HASH_TARGETS_MAX and not self.has_target(target):
            return f"{HASH_TARGETS_MAX} targets"
        return ""

    def _insert(self, place: Place) -> None:
        share = _Share(place.owner, self._label(place.owner.target))
        share.place = len(self._shares)
        self._shares.append(share)
        self._by_owner[id(place.owner)] = share
        self._labels.add(share.label)

    def _delete(self, place: Place) -> None:
        if not place.owner.gone:
            self._retire(place.owner)

    def _retire(self, owner: Owner) -> None:
        share = self._by_owner.pop(id(owner))
        self._labels.discard(share.label)
        last = self._shares.pop()
        if last is not share:
            last.place = share.place
            self._shares[share.place] = last
        self._count(share.weight, -1)

    def _insert_row(self, row: Row, owner: Owner) -> None:
        self._weigh(owner, int(row.key))

    def _delete_row(self, row: Row, owner: Owner) -> None:
        if id(owner) in self._by_owner:
            self._weigh(owner, -int(row.key))

    def _weigh(self, owner: Owner, more: i64) -> None:
        """The share of a target grows or shrinks."""
        share = self._by_owner[id(owner)]
        self._count(share.weight, -1)
        share.weight += more
        self._count(share.weight, 1)

    def _count(self, weight: i64, more: i64) -> None:
        """So many shares more have this weight; one that was never weighed has none."""
        if weight:
            left = self._weights.get(weight, 0) + more
            if left:
                self._weights[weight] = left
            else:
                del self._weights[weight]
            self._even = len(self._weights) <= 1

    def _label(self, target: object) -> str:
        """The name of a target, numbered so that no two are alike."""
        name = target if isinstance(target, str) else getattr(target, "name", None)
        base = name if isinstance(name, str) else ""
        number = 1
        while f"{base}#{number}" in self._labels:
            number += 1
        return f"{base}#{number}"


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


def _order_of(place: Place) -> i64:
    return place.order


def _rule_order(rule: _Rule) -> i64:
    return rule.order


def _bucket(name: str, value: object) -> bytes:
    """What bindings that ask for this header are found by; without a value, those that ask only whether it is there."""
    octets = name.encode("utf-8", "surrogatepass")
    return f"{len(octets)}:".encode() + octets + (b"" if value is None else fingerprint(value))


def _sort_few(places: list[Place]) -> None:
    """Put a handful of places in order, without a call for each."""
    for i in range(1, len(places)):
        moving = places[i]
        here: i64 = i
        while here > 0 and places[here - 1].order > moving.order:
            places[here] = places[here - 1]
            here -= 1
        places[here] = moving


def _put(index: dict[str, list[Place]], place: Place) -> None:
    places = index.get(place.key)
    if places is None:
        index[place.key] = [place]
    else:
        places.append(place)


def _take(index: dict[str, list[Place]], place: Place) -> None:
    places = index[place.key]
    cut(places, place)
    if not places:
        del index[place.key]


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


# Arguments of exchanges


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
