"""The bindings of one exchange: by target, so that adding is idempotent and a target can be removed at once.

A target's bindings that match alike share one `Place`, and are told apart by a digest of what else they say; so adding,
removing and matching cost the same however many there are. `routing` has the kinds of exchanges, each with an index of
places.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rookery.core.arguments import digest, size_of

SWEEP_ROWS: Final[i64] = 500
"""How many bindings of removed targets are taken out of the index in one go."""

BINDING_BYTES: Final[i64] = 450
"""About how much memory a binding takes beside its key and arguments."""


@final
class Row:
    """One binding; `order` rises with every binding added to the matcher, `name` tells it from others of its place."""

    def __init__(self, key: str, arguments: dict[str, object] | None, order: i64, name: bytes, size: i64) -> None:
        self.key = key
        self.arguments = arguments
        self.order: i64 = order
        self.name = name
        self.bytes: i64 = size


@final
class Place:
    """Where a target stands in the index: all its bindings that match alike, of which the first decides its order."""

    def __init__(self, owner: Owner, key: str, first: Row) -> None:
        self.owner = owner
        self.key = key
        self.first = first
        self.order: i64 = first.order
        """The order under which the place is in the index: that of its first binding."""
        self.others: dict[bytes, Row] | None = None
        """The other bindings, which differ from the first in what the index does not look at."""
        self._following: list[Row] = []
        self._next: i64 = 0
        """The others in their order from `_next` on, and among them some that are gone."""

    def find(self, name: bytes) -> Row | None:
        if self.first.name == name:
            return self.first
        return None if self.others is None else self.others.get(name)

    def add(self, row: Row) -> None:
        if self.others is None:
            self.others = {}
        self.others[row.name] = row
        self._following.append(row)

    def drop(self, row: Row) -> bool:
        """Take a binding out; False when it was the last."""
        others = self.others
        if others is None:
            return False
        if row is not self.first:
            del others[row.name]
        else:
            following = self._following[self._next]
            while others.get(following.name) is not following:
                self._next += 1
                following = self._following[self._next]
            self._next += 1
            self.first = following
            del others[following.name]
        if not others:
            self.others = None
            self._following = []
            self._next = 0
        elif len(self._following) > 2 * len(others) + 8:
            self._following = [row for row in self._following[self._next :] if others.get(row.name) is row]
            self._next = 0
        return True

    def pop_other(self) -> Row | None:
        """Take any binding out but the first; None when that is the only one."""
        if not self.others:
            return None
        return self.others.popitem()[1]


@final
class Owner:
    """A target, its places, and how many bindings it has. `mark` is the number of the last match that took it."""

    def __init__(self, target: object) -> None:
        self.target = target
        self.places: dict[str, Place] = {}
        self.count: i64 = 0
        self.bytes: i64 = 0
        self.mark: i64 = 0
        self.gone = False
        """Removed; what the index still has of it is taken out piece by piece, and matches nothing."""


class Matcher:
    """The bindings of an exchange. The kinds differ in `match` and in the index behind it.

    Where the key decides, the bindings of one key and target are one place of the index (`keyed`); else all bindings of
    a target are. So nothing here costs more when a target is bound with one key and many different arguments.
    """

    def __init__(self, keyed: bool) -> None:
        self.count: i64 = 0
        """How many bindings there are."""
        self.uses_headers: bool = False
        """Whether `match` looks at headers: then its result may not be cached by key."""
        self._keyed = keyed
        self.bytes: i64 = 0
        """About how much memory they take."""
        self._owners: dict[int, Owner] = {}
        self._rows: dict[Row, Owner] = {}
        """Every binding in the order they were added, also those of removed targets that are not taken out yet."""
        self._litter: list[Place] = []
        self._order: i64 = 0
        self._mark: i64 = 0

    def match(self, key: str, headers: dict[str, object] | None) -> list[object]:
        """The targets of a message, each once, in the order of the first binding that led to it."""
        raise NotImplementedError

    def add(self, key: str, arguments: dict[str, object] | None, target: object) -> bool:
        """Bind. False, and nothing changed, when the same key, arguments and target are bound already."""
        self._check(key, arguments)
        self.sweep(SWEEP_ROWS)
        name = self._name(key, arguments)
        place_key = key if self._keyed else ""
        owner = self._owners.get(id(target))
        if owner is None:
            owner = Owner(target)
            self._owners[id(target)] = owner
        place = owner.places.get(place_key)
        if place is not None and place.find(name) is not None:
            return False
        self._order += 1
        size: i64 = BINDING_BYTES + len(key)
        if arguments:
            size += size_of(arguments)
        row = Row(key, dict(arguments) if arguments else None, self._order, name, size)
        if place is None:
            place = Place(owner, place_key, row)
            owner.places[place_key] = place
            self._insert(place)
        else:
            place.add(row)
        self._rows[row] = owner
        self.count += 1
        self.bytes += size
        owner.count += 1
        owner.bytes += size
        self._insert_row(row, owner)
        return True

    def remove(self, key: str, arguments: dict[str, object] | None, target: object) -> bool:
        """Unbind. False when there is no such binding."""
        owner = self._owners.get(id(target))
        if owner is None:
            return False
        place_key = key if self._keyed else ""
        place = owner.places.get(place_key)
        row = None if place is None else place.find(self._name(key, arguments))
        if place is None or row is None:
            return False
        if not place.drop(row):
            self._delete(place)
            del owner.places[place_key]
            if not owner.places:
                del self._owners[id(target)]
        elif place.order != place.first.order:
            self._move(place)
        del self._rows[row]
        self.count -= 1
        self.bytes -= row.bytes
        owner.count -= 1
        owner.bytes -= row.bytes
        self._delete_row(row, owner)
        return True

    def remove_target(self, target: object) -> int:
        """Remove all bindings of a target; how many there were. Of many, the index is rid of little by little."""
        owner = self._owners.pop(id(target), None)
        if owner is None:
            return 0
        self._retire(owner)
        owner.gone = True
        self.count -= owner.count
        self.bytes -= owner.bytes
        self._litter.extend(owner.places.values())
        owner.places = {}
        self.sweep(SWEEP_ROWS)
        return owner.count

    def sweep(self, rows: i64) -> None:
        """Take so many bindings of removed targets out of the index. Until then they match nothing."""
        litter = self._litter
        while rows > 0 and litter:
            rows -= 1
            place = litter[-1]
            row = place.pop_other()
            if row is None:
                litter.pop()
                row = place.first
                self._delete(place)
            del self._rows[row]
            self._delete_row(row, place.owner)

    def has(self, key: str, arguments: dict[str, object] | None, target: object) -> bool:
        """Whether there is this very binding."""
        owner = self._owners.get(id(target))
        place = None if owner is None else owner.places.get(key if self._keyed else "")
        return place is not None and place.find(self._name(key, arguments)) is not None

    def has_target(self, target: object) -> bool:
        """Whether any binding leads there."""
        return id(target) in self._owners

    def refusal(self, key: str, target: object) -> str:
        """The limit of this kind that one more binding would exceed, in words; empty if there is none."""
        return ""

    def targets(self) -> list[object]:
        """Every target, each once, in no particular order."""
        return [owner.target for owner in self._owners.values()]

    def bindings(self) -> list[tuple[str, dict[str, object] | None, object]]:
        """Every binding as (key, arguments, target), in the order they were added; no arguments are None."""
        return [(row.key, row.arguments, owner.target) for row, owner in self._rows.items() if not owner.gone]

    def rows(self) -> list[Row]:
        """All bindings as they are now, in the order they were added, for `target_of`."""
        return list(self._rows)

    def target_of(self, row: Row) -> object | None:
        """Where a binding that `rows` returned leads, None when it has been removed."""
        owner = self._rows.get(row)
        return None if owner is None or owner.gone else owner.target

    def _name(self, key: str, arguments: dict[str, object] | None) -> bytes:
        """What tells a binding from the others of its place."""
        if self._keyed:
            return digest(arguments)
        octets = key.encode("utf-8", "surrogatepass")
        return f"{len(octets)}:".encode() + octets + digest(arguments)

    def _merged(self, places: list[Place]) -> list[object]:
        """The targets of places that are in order, each once."""
        self._mark += 1
        mark = self._mark
        targets: list[object] = []
        for place in places:
            owner = place.owner
            if owner.mark != mark and not owner.gone:
                owner.mark = mark
                targets.append(owner.target)
        return targets

    def _move(self, place: Place) -> None:
        """The first binding of a place has gone: it stands now where the next one was added."""
        places = self._list_of(place)
        if places is not None:
            cut(places, place)
            place.order = place.first.order
            places.insert(find(places, place.order), place)

    def _check(self, key: str, arguments: dict[str, object] | None) -> None:
        """Raise InvalidArgument for a binding this kind does not take."""

    def _retire(self, owner: Owner) -> None:
        """A target is removed, and its bindings will follow one by one."""

    def _insert(self, place: Place) -> None:
        """Put a new place, later than all others, into the index."""

    def _delete(self, place: Place) -> None:
        """Take a place out of the index."""

    def _list_of(self, place: Place) -> list[Place] | None:
        """The list in which the index has a place, in order."""
        return None

    def _insert_row(self, row: Row, owner: Owner) -> None:
        """Where single bindings matter: one was added."""

    def _delete_row(self, row: Row, owner: Owner) -> None:
        """Where single bindings matter: one has gone."""


def cut(places: list[Place], place: Place) -> None:
    """Remove a place from a list in order."""
    at = find(places, place.order)
    assert places[at] is place
    del places[at]


def find(places: list[Place], order: i64) -> i64:
    """Where in a list in order something of this order is, or belongs; found by halving."""
    low: i64 = 0
    high: i64 = len(places)
    while low < high:
        middle = (low + high) // 2
        if places[middle].order < order:
            low = middle + 1
        else:
            high = middle
    return low


def alive(places: list[Place]) -> list[object]:
    """The targets of places, of which no two have the same."""
    return [place.owner.target for place in places if not place.owner.gone]
