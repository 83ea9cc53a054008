"""Routing and settings as the documents state them, computed the slow way from plain names and dicts.

The ledger asks these what the core should have done. Nothing here is taken from the core, and nothing is cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile

FACES: dict[str, dict[str, object]] = {
    "embedded": {"max_attempts": 4},
    "s0": {"max_attempts": 3, "dead_letter_queue": "{queue}.DLQ"},
    "http": {
        "max_attempts": 6,
        "backoff": "exponential",
        "backoff_base_ms": 500,
        "dead_letter_queue": "{queue}.DLQ",
    },
    "line": {"max_attempts": 6, "backoff_base_ms": 30_000, "dead_letter_queue": "{queue}.DLQ", "ordered": False},
    "amqp": {"ordered": False},
    "dead-letter": {},
}

DEFAULTS: dict[str, object] = {
    "auto_delete": False,
    "expires_ms": 0,
    "ttl_ms": -1,
    "length_max": None,
    "bytes_max": None,
    "overflow": "drop-head",
    "dead_letter_exchange": None,
    "dead_letter_key": None,
    "dead_letter_queue": None,
    "declared": False,
    "max_attempts": 0,
    "backoff": "fixed",
    "backoff_base_ms": 0,
    "ordered": True,
    "priority_max": 0,
    "single_active": False,
    "distribution": "round-robin",
    "grouped": False,
    "dedup_window_ms": 86_400_000,
}


@dataclass(slots=True)
class Terms:
    """What holds for one queue."""

    auto_delete: bool
    expires_ms: int
    ttl_ms: int
    length_max: int | None
    bytes_max: int | None
    overflow: str
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    dead_letter_queue: str | None
    declared: bool
    max_attempts: int
    backoff: str
    backoff_base_ms: int
    ordered: bool
    priority_max: int
    single_active: bool
    distribution: str
    grouped: bool
    dedup_window_ms: int

    @property
    def bounded(self) -> bool:
        return self.length_max is not None or self.bytes_max is not None

    @property
    def trims(self) -> bool:
        return self.bounded and self.overflow == "drop-head"

    def pause_ms(self, attempts: int) -> int:
        """How long a message rests after its delivery number `attempts` failed."""
        if self.backoff == "exponential":
            return min(self.backoff_base_ms * 2 ** (attempts - 1), 3_600_000)
        return min(self.backoff_base_ms * (attempts if self.backoff == "linear" else 1), 3_600_000)


def terms_of(queue: str, face: str, policy: dict[str, object] | None, said: dict[str, object]) -> Terms:
    """Defaults of the face, then the policy, then the declarer's words; the last named dead-letter target counts."""
    merged = dict(DEFAULTS)
    for depth, layer in enumerate((FACES[face], policy or {}, said)):
        if "dead_letter_exchange" in layer:
            merged["dead_letter_queue"] = None
        elif "dead_letter_queue" in layer:
            merged["dead_letter_exchange"] = merged["dead_letter_key"] = None
        if depth and ("dead_letter_exchange" in layer or "dead_letter_queue" in layer):
            merged["declared"] = True
        merged.update({name: value for name, value in layer.items() if name in DEFAULTS})
    target = merged["dead_letter_queue"]
    if isinstance(target, str):
        target = target.replace("{queue}", queue)
        merged["dead_letter_queue"] = None if target == queue else target
    return Terms(**merged)  # type: ignore[arg-type]


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """`*` stands for one word, `#` for any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


@dataclass(slots=True)
class Link:
    """A binding; `to_queue` says whether `target` names a queue or an exchange."""

    key: str
    arguments: dict[str, object]
    target: str
    to_queue: bool


@dataclass(slots=True)
class Hub:
    """An exchange."""

    kind: str
    alternate: str = ""
    auto_delete: bool = False
    links: list[Link] = field(default_factory=list)
    durable: bool = True

    def matches(self, link: Link, key: str, headers: dict[str, object]) -> bool:
        if self.kind == "direct":
            return link.key == key
        if self.kind == "topic":
            return topic_matches(link.key.split("."), key.split("."))
        if self.kind == "headers":
            wanted = {name: value for name, value in link.arguments.items() if name != "x-match"}
            agree = [name in headers and headers[name] == value for name, value in wanted.items()]
            return any(agree) if link.arguments.get("x-match") == "any" else all(agree)
        return self.kind == "fanout"


class Topology:
    """Exchanges and bindings by name. The default exchange, whose name is empty, routes to the queue of the key."""

    def __init__(self) -> None:
        self.hubs: dict[str, Hub] = {}

    def bindings(self) -> int:
        return sum(len(hub.links) for hub in self.hubs.values())

    def find(self, source: str, link: Link) -> bool:
        return link in self.hubs[source].links

    def bind(self, source: str, link: Link) -> bool:
        links = self.hubs[source].links
        if link in links:
            return False
        links.append(link)
        return True

    def unbind(self, source: str, link: Link) -> bool:
        hub = self.hubs[source]
        if link not in hub.links:
            return False
        hub.links.remove(link)
        if hub.auto_delete and not hub.links:
            self.delete(source)
        return True

    def delete(self, name: str) -> None:
        del self.hubs[name]
        self.unbind_target(name, False)

    def unbind_target(self, target: str, to_queue: bool) -> None:
        """Take away what leads to a queue or exchange that is gone; auto-delete exchanges that lose all go too."""
        for name, hub in list(self.hubs.items()):
            rest = [link for link in hub.links if (link.target, link.to_queue) != (target, to_queue)]
            if len(rest) != len(hub.links):
                hub.links = rest
                if hub.auto_delete and not rest and name in self.hubs:
                    self.delete(name)

    def reach(self, exchange: str, key: str, headers: dict[str, object], queues: dict[str, object]) -> list[str]:
        """The queues a message gets to: through bindings, or where none matches through the alternate exchange."""
        found: list[str] = []
        seen: list[str] = []
        todo = [exchange]
        while todo:
            name = todo.pop(0)
            if name in seen:
                continue
            seen.append(name)
            if name == "":
                if key in queues and key not in found:
                    found.append(key)
                continue
            hub = self.hubs.get(name)
            if hub is None:
                continue
            matched = [link for link in hub.links if hub.matches(link, key, headers)]
            for link in matched:
                if not link.to_queue:
                    todo.append(link.target)
                elif link.target not in found:
                    found.append(link.target)
            if not matched and hub.alternate:
                todo.append(hub.alternate)
        return found


@dataclass(frozen=True, slots=True)
class Dying:
    """One line of a message's history."""

    queue: str
    reason: str
    count: int
    attempts: int
    first_ms: int
    last_ms: int
    exchange: str
    key: str
    expiration_ms: int


def history_with(newest: Dying, before: list[Dying]) -> list[Dying]:
    """The history, newest first: one line per queue and reason."""
    last = newest
    rest = []
    for line in before:
        if (line.queue, line.reason) == (newest.queue, newest.reason):
            # how it came is told of the first time
            last = replace(
                newest,
                count=line.count + 1,
                first_ms=line.first_ms,
                exchange=line.exchange,
                key=line.key,
                expiration_ms=line.expiration_ms,
            )
        else:
            rest.append(line)
    return [last, *rest]


def goes_round(history: list[Dying], target: str) -> bool:
    """Whether a letter that went to `target` now would have come back there without anybody rejecting it."""
    since = takewhile(lambda line: line.reason != "rejected", history)
    return any(line.queue == target for line in since)


class Marks:
    """The dedup keys of a tenant: which must be known, which must not, and which may be either.

    A mark whose window was over at some moment may or may not be known when the wall clock is set back later.
    """

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.marks: dict[tuple[str, str], tuple[int, int]] = {}
        self.doubtful: set[tuple[str, str]] = set()
        self.evicted: set[tuple[tuple[str, str], int]] = set()

    def see_time(self, wall_ms: int) -> None:
        for place, (_, until_ms) in self.marks.items():
            if until_ms <= wall_ms:
                self.doubtful.add(place)

    def find(self, place: tuple[str, str], wall_ms: int) -> tuple[int, bool]:
        """The message number that the key stands for (0: none), and whether that is certain."""
        mark = self.marks.get(place)
        if mark is None or mark[1] <= wall_ms:
            return 0, True
        return mark[0], place not in self.doubtful

    def remember(self, place: tuple[str, str], number: int, until_ms: int) -> None:
        if place in self.marks:
            self._evict(place)
        self.marks[place] = (number, until_ms)
        # Those whose window was over may have been cleared away or may still take room, so eviction is not certain.
        certain = 0
        for every, other in enumerate(reversed(list(self.marks)), 1):
            if certain >= self.keys_max:
                self._evict(other)
            elif every > self.keys_max:
                self.doubtful.add(other)
            elif other not in self.doubtful:
                certain += 1

    def _evict(self, place: tuple[str, str]) -> None:
        """Forget a key that a journal may still have."""
        self.evicted.add((place, self.marks[place][0]))
        self.forget(place)

    def forget(self, place: tuple[str, str]) -> None:
        self.marks.pop(place, None)
        self.doubtful.discard(place)

    def forget_scope(self, scope: str) -> None:
        for place in [place for place in self.marks if place[0] == scope]:
            self.forget(place)
        self.evicted = {(place, number) for place, number in self.evicted if place[0] != scope}
