"""What becomes of messages that died: burial in a dead-letter target with their history, and redrive back to life.

A dead letter is a new message with the old body: its route carries one `Death` per (queue, reason), newest first, and
its expiration is taken off and kept in the history. A letter does not go round in circles: it is not buried in a
queue that it has died in already, unless somebody rejected it on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64

from rookery.core import history, publishing
from rookery.core.delays import hold_back
from rookery.core.entries import PARKED, READY
from rookery.errors import InvalidArgument, RookeryError
from rookery.format import properties
from rookery.format.model import DEAD, FLAGS_MASK, Death, Message, Route

if TYPE_CHECKING:
    from rookery.core.entries import Entry
    from rookery.core.queue import Queue
    from rookery.core.stream import Stream
    from rookery.core.topology import Tenant, Way

DEPTH_MAX: Final[i64] = 64
"""How many burials one step may cause in a chain of full queues."""

DECLARED_ONLY: Final = ("expired", "maxlen")
"""Reasons that bury only where a target was declared, not in a face's default dead-letter queue."""


def bury(tenant: Tenant, queue: Queue, message: Message, attempts: i64, reason: str, detail: str) -> bool:
    """Put a dead message into the queue's dead-letter target; False when it arrived nowhere."""
    settings = queue.settings
    streams: list[Stream] = []
    delays = False
    if tenant.death_depth >= DEPTH_MAX or (reason in DECLARED_ONLY and not settings.dead_letter_declared):
        return False
    if settings.dead_letter_exchange is not None:
        exchange = tenant.exchanges.get(settings.dead_letter_exchange)
        if exchange is None:
            tenant.dead_letters_lost += 1
            return False
        key = message.route.key if settings.dead_letter_key is None else settings.dead_letter_key
        copies = history.copies_of(message.props) if settings.dead_letter_key is None else []
        try:
            way = tenant.joined(exchange, [key, *copies], message.props)
            targets = way.queues
            streams = way.streams
        except InvalidArgument:
            targets = []
        name = exchange.name
        delays = exchange.delays
    elif settings.dead_letter_queue is not None:
        name = ""
        key = settings.dead_letter_queue
        try:
            targets = [tenant.declare_queue(key, {}, "dead-letter")[0]]
        except RookeryError:
            tenant.dead_letters_lost += 1
            return False
    else:
        return False
    letter = _letter(tenant, queue, message, attempts, reason, detail, name, key)
    due_ms = hold_back(letter, queue.shard.wall_ms) if delays else 0
    targets = [target for target in targets if not _goes_round(letter, target.name)]
    tenant.death_depth += 1
    arrived = publishing.bring(targets, streams, letter, False, due_ms)
    tenant.death_depth -= 1
    if not arrived:
        tenant.dead_letters_lost += 1
    return arrived > 0


def _letter(
    tenant: Tenant, queue: Queue, message: Message, attempts: i64, reason: str, detail: str, exchange: str, key: str
) -> Message:
    route = Route(exchange, key)
    route.origin_id = message.public_id
    route.deaths = _history(queue, message, attempts, reason, detail)
    props = message.props
    if message.expires_ms:
        props = properties.without_expiration(props)
    if queue.settings.dead_letter_key is not None and history.copies_of(props):
        props = properties.with_headers(props, {history.COPIES_HEADER: None})
    flags: i32 = (message.flags & FLAGS_MASK) | DEAD
    return Message(route, props, message.body, tenant.shard.new_id(), message.priority, 0, flags)


def _history(queue: Queue, message: Message, attempts: i64, reason: str, detail: str) -> list[Death]:
    now = queue.shard.wall_ms
    route = message.route
    before = route.deaths or history.told(message.props)
    newest = Death(queue.name, reason, detail or reason, route.exchange, route.key, attempts, now, now, 1)
    newest.order = len(before)
    newest.copies = history.copies_of(message.props)
    if message.expires_ms:
        newest.expiration_ms = properties.expiration_ms(message.props)
    rest: list[Death] = []
    for death in before:
        if death.queue == queue.name and death.reason == reason:
            # how it came, and with what time to live, is told of its first death here
            newest.count = death.count + 1
            newest.first_ms = death.first_ms
            newest.exchange = death.exchange
            newest.key = death.key
            newest.copies = death.copies
            newest.expiration_ms = death.expiration_ms
            newest.order = death.order
        else:
            rest.append(death)
    rows = history.rearranged(before, newest)
    return [newest, *[death.at(rows[death.order]) for death in rest]]


def _goes_round(letter: Message, target: str) -> bool:
    """Whether burial in `target` would close a circle in which nobody rejected the message."""
    for death in letter.route.deaths:
        if death.reason == "rejected":
            return False
        if death.queue == target:
            return True
    return False


def bury_new(tenant: Tenant, way: Way, origin: str, message: Message, detail: str) -> None:
    """A message that its publisher gives up on enters what a way leads to, as a dead letter of `origin`."""
    route = Route("", "")
    route.origin_id = message.public_id
    now = tenant.shard.wall_ms
    came = message.route
    route.deaths = [Death(origin, "rejected", detail, came.exchange, came.key, 0, now, now, 1)]
    flags: i32 = (message.flags & FLAGS_MASK) | DEAD
    letter = Message(route, message.props, message.body, message.id, message.priority, 0, flags)
    targets = tenant.queues_for(way, letter.props)
    publishing.bring(targets, tenant.streams_met, letter)


def revive_to_topic(tenant: Tenant, message: Message, exchange: str) -> int:
    """Publish a dead letter again as it was published first; how many queues it reached."""
    first = message.route.deaths[-1]
    way = tenant.way(tenant.exchange(exchange), first.key)
    flags: i32 = message.flags & FLAGS_MASK & ~DEAD
    again = Message(way.route, message.props, message.body, tenant.shard.new_id(), message.priority, 0, flags)
    return publishing.post(tenant.shard, tenant, way, again, 0, publishing.EACH)


def _in_turn(queue: Queue) -> Iterator[Entry]:
    """The ready entries in order, each when its turn comes: what was done with those before it may have sent letters
    here, which pushed it out, had it delivered, or had it paged out.
    """
    last = queue.seq
    seen: set[int] = set()
    found = queue.ready_entries()
    at = 0
    while at < len(found):
        entry = found[at]
        at += 1
        if entry.seq > last or entry.seq in seen:
            continue
        if entry.state == READY or entry.state == PARKED:
            seen.add(entry.seq)
            yield entry
        elif queue.lines.place_of(entry.seq):
            found = queue.ready_entries()
            at = 0


def redrive(
    tenant: Tenant,
    queue: Queue,
    limit: int = 0,
    chosen: Callable[[Entry], bool] | None = None,
    dry_run: bool = False,
    target: str | None = None,
) -> list[tuple[Entry, str]]:
    """Send dead letters of `queue` back to the queue each died in last (or all to `target`), in one step.

    Returns what was (or with `dry_run` would be) redriven and where to. Letters whose origin no longer exists, or is
    full, stay where they are. A redriven message starts with no attempts; its history stays.
    """
    return [
        (entry, name) for entry, name in redriving(tenant, queue, limit, chosen, dry_run, target) if name is not None
    ]


def redriving(
    tenant: Tenant,
    queue: Queue,
    limit: int = 0,
    chosen: Callable[[Entry], bool] | None = None,
    dry_run: bool = False,
    target: str | None = None,
) -> Iterator[tuple[Entry, str | None]]:
    """The same one letter at a time, with turns between them if need be: each, and where it went, None if nowhere."""
    if limit < 0:
        raise InvalidArgument("limit must not be negative", argument="limit")
    if target is not None:
        tenant.queue(target)
    done = 0
    for entry in _in_turn(queue):
        if limit and done >= limit:
            break
        message = entry.message
        deaths = message.route.deaths
        if not message.flags & DEAD or (chosen is not None and not chosen(entry)):
            yield entry, None
            continue
        origin = tenant.queues.get(deaths[0].queue if target is None else target)
        if origin is None or origin is queue or not origin.has_room_for(1, len(message.body)):
            yield entry, None
            continue
        if not dry_run:
            _revive(tenant, queue, entry, origin)
        done += 1
        yield entry, origin.name


def _revive(tenant: Tenant, queue: Queue, entry: Entry, origin: Queue) -> None:
    message = entry.message
    death = message.route.deaths[0]
    route = Route(death.exchange, death.key)
    route.origin_id = message.public_id
    route.deaths = list(message.route.deaths)
    flags: i32 = message.flags & FLAGS_MASK & ~DEAD
    revived = Message(route, message.props, message.body, tenant.shard.new_id(), message.priority, 0, flags)
    queue.remove(entry)
    queue.moved_out += 1
    publishing.bring([origin], [], revived, True)


def move(
    tenant: Tenant, queue: Queue, target: Queue, limit: int = 0, chosen: Callable[[Entry], bool] | None = None
) -> int:
    """Move ready messages to another queue of the tenant, in order; stops when the target is full. Returns how many."""
    count = 0
    for moved in moving(queue, target, limit, chosen):
        count += moved
    return count


def moving(
    queue: Queue, target: Queue, limit: int = 0, chosen: Callable[[Entry], bool] | None = None
) -> Iterator[bool]:
    """The same one message at a time, with turns between them if need be: whether each was moved."""
    if target is queue:
        raise InvalidArgument("a queue cannot be moved into itself", argument="target")
    if limit < 0:
        raise InvalidArgument("limit must not be negative", argument="limit")
    moved = 0
    for entry in _in_turn(queue):
        if limit and moved >= limit:
            break
        if chosen is not None and not chosen(entry):
            yield False
            continue
        message = entry.message
        if target.deleted or not target.has_room_for(1, len(message.body)):
            break
        # a message is written once, so what moves is a new one
        again = Message(
            message.route,
            message.props,
            message.body,
            message.id,
            message.priority,
            message.expires_ms,
            message.flags & FLAGS_MASK,
        )
        queue.remove(entry)
        queue.moved_out += 1
        publishing.bring([target], [], again, True)
        moved += 1
        yield True


def purging(queue: Queue) -> Iterator[int]:
    """Remove every entry that is ready now, one at a time, with turns between them if need be: how many each time."""
    ready = int(queue.ready)
    entries = queue.purge_paged()
    yield ready - int(queue.ready)
    for entry in entries:
        if entry.state == READY or entry.state == PARKED:
            queue.remove(entry)
            queue.purged += 1
            yield 1
