"""What happens in a simulated world of streams; each move says what it does, does it, and tells the books."""

from __future__ import annotations

from collections.abc import Callable

from rookery.core import ranges, retention, streams
from rookery.core.groups import Group, delete_group, group_of
from rookery.core.staging import NOBODY, Row
from rookery.core.stream import Partition, Stream
from rookery.errors import ChunkNotFound, GroupFenced, NotFound, StaleEpoch
from rookery.format.properties import EMPTY, Properties, encode
from rookery.sealed.history import Reading
from tests.contract.faulty import Fault
from tests.simulation.accounts import Violation
from tests.simulation.streams_ledger import Book, Commit
from tests.simulation.streams_world import ENDS, Plan, World

QUEUE = "work"
EXCHANGE = "jobs"
CONSUMERS = ("spark", "flink")
GROUPS = ("g", "h")
PRODUCERS = ("p", "q")
KEYED = tuple(encode(Properties(headers={"x-key": key})) for key in ("a", "b", "c"))

Move = Callable[[World], None]


def furnish(world: World) -> None:
    tenant = world.process.home
    streams.declare(tenant, "log", world.plan.settings)
    tenant.declare_exchange(EXCHANGE, "fanout")
    tenant.declare_queue(QUEUE, {"max_attempts": 0}, "embedded")
    tenant.bind(EXCHANGE, tenant.queues[QUEUE], "")
    tenant.bind("amq.topic", tenant.streams["log"], "log.#")
    world.process.settle_down()
    world.look()


def _log(world: World) -> Stream:
    return world.process.home.streams["log"]


def _partition(world: World) -> Partition:
    return world.rng.choice(_log(world).partitions)


def _props(world: World) -> bytes:
    return world.rng.choice((EMPTY, *KEYED))


# Publishing


def publish(world: World) -> None:
    stream = _log(world)
    for _ in range(world.rng.randint(1, 5)):
        body = world.body("r")
        before = [int(partition.end) for partition in stream.partitions]
        if world.rng.random() < 0.3:
            world.shard.publish(world.process.home, "amq.topic", "log.x", _props(world), body)
        else:
            world.shard.publish(world.process.home, "", "log", _props(world), body)
        for partition, end in zip(stream.partitions, before, strict=True):
            if partition.end > end:
                world.ledger.books.setdefault(int(partition.number), Book()).asked[end] = body
                world.say(f"publish {body!r} to {partition.index}@{end}")


def send(world: World) -> None:
    """Something for the queue."""
    body = world.body("m")
    world.say(f"send {body!r}")
    world.ledger.perhaps.add(body)
    world.shard.publish(world.process.home, EXCHANGE, "", EMPTY, body)
    world.shard.log.when_durable(lambda: world.ledger.entered.add(body))


# Staging


def stage_and_commit(world: World) -> None:
    """A writer that happens exactly once: it does the same again until it is answered."""
    ledger = world.ledger
    producer = world.rng.choice(PRODUCERS)
    epoch = max((n for name, n in ledger.commits if name == producer), default=-1)
    commit = ledger.commits.get((producer, epoch))
    if commit is None or commit.answered:
        kind = "q" if world.rng.random() < 0.3 else "s"
        rows = [world.body(kind) for _ in range(world.rng.randint(1, 6))]
        commit = Commit(producer, epoch + 1, rows, kind == "q")
        ledger.commits[producer, epoch + 1] = commit
        ledger.staged.update(rows)
        if commit.to_queue:
            ledger.perhaps.update(rows)
    _stage(world, commit)
    if world.rng.random() < 0.8:
        world.process.settle_down()
    if world.rng.random() < 0.8:
        _commit(world, commit)


def _chunks(commit: Commit) -> list[tuple[str, list[bytes]]]:
    half = len(commit.rows) // 2
    parts = [part for part in (commit.rows[:half], commit.rows[half:]) if part]
    return [(f"{commit.producer}-{commit.epoch}-{i}", part) for i, part in enumerate(parts)]


def _stage(world: World, commit: Commit) -> None:
    if commit.asked:
        return
    stream, exchange = ("", EXCHANGE) if commit.to_queue else ("log", "")
    for chunk, bodies in _chunks(commit):
        world.say(f"stage {chunk} {bodies}")
        rows = [Row("log", EMPTY, body) for body in bodies]
        # every other epoch owns its rows
        owner = (commit.producer, commit.epoch) if commit.epoch % 2 else NOBODY
        world.shard.staging.stage(world.process.home, chunk, stream, exchange, rows, owner)


def _commit(world: World, commit: Commit) -> None:
    ledger = world.ledger
    chunks = [chunk for chunk, _ in _chunks(commit)]
    world.say(f"commit {commit.producer} {commit.epoch} {chunks}")
    try:
        result = world.shard.staging.commit(world.process.home, commit.producer, commit.epoch, chunks)
    except ChunkNotFound:
        if commit.asked:
            raise Violation("staging", f"{commit.producer}'s epoch {commit.epoch} happened and is refused") from None
        return
    if commit.asked and commit.result is not None and result != commit.result:
        raise Violation("staging", f"{commit.producer}'s epoch {commit.epoch} again: {result}, not {commit.result}")
    commit.asked = True
    commit.result = result
    ledger.staged.difference_update(commit.rows)

    def answered() -> None:
        commit.answered = True
        if commit.to_queue:
            ledger.entered.update(set(commit.rows) - ledger.left)

    world.shard.log.when_durable(answered)


def commit_again(world: World) -> None:
    """A zombie says once more what was done long ago."""
    done = [commit for commit in world.ledger.commits.values() if commit.answered]
    if not done:
        return
    commit = world.rng.choice(done)
    latest = max(n for name, n in world.ledger.commits if name == commit.producer)
    world.say(f"commit {commit.producer} {commit.epoch} once more")
    newest = world.shard.staging.producers[world.process.home.name, commit.producer]["epoch"]
    try:
        result = world.shard.staging.commit(world.process.home, commit.producer, commit.epoch, ["x"])
    except StaleEpoch:
        if newest == commit.epoch:
            raise Violation("staging", "the newest epoch is called stale") from None
    except ChunkNotFound:
        raise Violation("staging", f"{commit.producer}'s epoch {commit.epoch} is forgotten") from None
    else:
        if commit.epoch < newest <= latest or result != commit.result:
            raise Violation("staging", f"{commit.producer}'s epoch {commit.epoch} is taken for {result}")


def drop_chunks(world: World) -> None:
    for commit in world.ledger.commits.values():
        if not commit.asked:
            for chunk, _ in _chunks(commit):
                world.say(f"drop {chunk}")
                world.shard.staging.drop(world.process.home, chunk)
            return


# Groups


def _group(world: World) -> Group:
    return group_of(_log(world), world.rng.choice(GROUPS))


def commit_group(world: World) -> None:
    group, partition = _group(world), _partition(world)
    offset = world.rng.randint(0, int(partition.visible))
    index = int(partition.index)
    place = world.ledger.place("log", group.name, index)
    world.say(f"group {group.name} commits {index}@{offset}")
    if group.members:
        name = world.rng.choice(sorted(group.members))
        stale = world.rng.random() < 0.3
        mine = index in group.members[name].partitions
        try:
            group.commit({index: offset}, name, group.generation - stale)
        except GroupFenced:
            if mine and not stale:
                raise
            return
        if stale or not mine:
            raise Violation("groups", f"{name} commits for {index}, which is not its own")
    else:
        group.commit({index: offset})
    _asked(world, group, index, max(place.asked[-1], offset))


def _asked(world: World, group: Group, index: int, offset: int) -> None:
    place = world.ledger.place("log", group.name, index)
    if offset == place.asked[-1]:
        return
    number = place.ask(offset)
    world.shard.log.when_durable(lambda: place.answered(number))


def reset_group(world: World) -> None:
    group, partition = _group(world), _partition(world)
    if group.members:
        return
    offset = world.rng.randint(0, int(partition.visible))
    world.say(f"group {group.name} is reset to {partition.index}@{offset}")
    group.reset({int(partition.index): offset})
    place = world.ledger.place("log", group.name, int(partition.index))
    number = place.ask(offset)
    world.shard.log.when_durable(lambda: place.answered(number))


def members_change(world: World) -> None:
    group = _group(world)
    name = world.rng.choice(("m1", "m2", "m3"))
    if name in group.members and world.rng.random() < 0.6:
        world.say(f"{name} leaves {group.name}")
        group.leave(name)
    else:
        world.say(f"{name} joins {group.name}")
        group.join(name, world.rng.choice((500, 30_000)))
    owners = [index for member in group.members.values() for index in member.partitions]
    if group.members and sorted(owners) != list(range(len(group.stream.partitions))):
        raise Violation("groups", f"the partitions of {group.name} are shared out as {owners}")


def forget_group(world: World) -> None:
    group = _group(world)
    if group.members or any(position >= 0 for position in group.committed):
        return
    places = [world.ledger.place("log", group.name, i) for i in range(len(group.committed))]
    if any(len(place.asked) > 1 for place in places):
        return
    world.say(f"group {group.name} is deleted")
    delete_group(group.stream, group.name)


# The queue and its cuts


def _queue_bodies(world: World) -> list[bytes]:
    queue = world.process.home.queues[QUEUE]
    entries = [*queue.ready_entries(), *(lease.entry for lease in queue.leases()), *queue.delayed_entries()]
    return [entry.message.body for entry in entries]


def look_at_queue(world: World) -> None:
    world.ledger.look_at_queue(_queue_bodies(world), bool(world.shard.staging.spools))


def cut(world: World) -> None:
    """Take the next cut, or one that is open once more."""
    queue = world.process.home.queues[QUEUE]
    consumer = world.rng.choice(CONSUMERS)
    ledger = world.ledger
    known = sorted(number for name, number in ledger.cuts if name == consumer)
    state = world.shard.cuts.of(queue).get(consumer)
    last = state.last if state is not None else ledger.acked.get(consumer, 0)
    after = world.rng.choice([number - 1 for number in known]) if known and world.rng.random() < 0.5 else last
    number, leases = world.shard.cuts.cut(queue, consumer, after, world.rng.randint(1, 5))
    bodies = [lease.entry.message.body for lease in leases]
    world.say(f"{consumer} takes the cut after {after}: {number} {bodies}")
    if number == after:
        return
    expected = ledger.cuts.get((consumer, number))
    if expected is not None and bodies != expected:
        raise Violation("cuts", f"{consumer}'s cut {number} holds {bodies}, and held {expected}")
    for (name, other), taken in ledger.cuts.items():
        if (name, other) != (consumer, number) and not set(taken).isdisjoint(bodies):
            raise Violation("cuts", f"cut {number} of {consumer} shares {bodies} with cut {other} of {name}")
    if number > last:
        world.shard.log.when_durable(lambda: ledger.cuts.update({(consumer, number): bodies}))


def ack_cuts(world: World) -> None:
    queue = world.process.home.queues[QUEUE]
    ledger = world.ledger
    consumer = world.rng.choice(CONSUMERS)
    known = sorted(number for name, number in ledger.cuts if name == consumer)
    if not known:
        return
    upto = world.rng.choice(known)
    world.say(f"{consumer} acknowledges up to {upto}")
    done = [ledger.cuts.pop((consumer, number)) for number in known if number <= upto]
    bodies = [body for taken in done for body in taken]
    count = world.shard.cuts.ack(queue, consumer, upto)
    if count != len(bodies):
        raise Violation("cuts", f"{count} messages were settled with {bodies}")
    ledger.leaving.update(bodies)

    def answered() -> None:
        ledger.left.update(bodies)
        ledger.leaving.difference_update(bodies)
        ledger.entered.difference_update(bodies)
        ledger.acked[consumer] = max(upto, ledger.acked.get(consumer, 0))

    world.shard.log.when_durable(answered)


def release_cuts(world: World) -> None:
    queue = world.process.home.queues[QUEUE]
    consumer = world.rng.choice(CONSUMERS)
    if consumer not in world.shard.cuts.of(queue):
        return
    world.process.settle_down()
    world.say(f"{consumer} gives everything back")
    world.shard.cuts.release(queue, consumer)
    world.ledger.cuts = {key: taken for key, taken in world.ledger.cuts.items() if key[0] != consumer}
    world.ledger.acked.pop(consumer, None)
    world.process.settle_down()


def take(world: World) -> None:
    """Somebody else takes from the queue what is in no cut."""
    queue = world.process.home.queues[QUEUE]
    ledger = world.ledger
    for lease in queue.claim(world.rng.randint(1, 3), 1_000_000_000):
        body = lease.entry.message.body
        if any(body in taken for taken in ledger.cuts.values()):
            raise Violation("cuts", f"{body!r} is in a cut, and somebody else got it")
        world.say(f"take {body!r}")
        queue.ack(lease)
        ledger.leaving.add(body)
        world.shard.log.wants_sync = True
        world.shard.log.urgent = True

        def answered(body: bytes = body) -> None:
            ledger.left.add(body)
            ledger.leaving.discard(body)
            ledger.entered.discard(body)

        world.shard.log.when_durable(answered)


# Sealing, plans, letting go


def seal(world: World) -> None:
    partition = _partition(world)
    world.say(f"seal {partition.index} up to {partition.visible}")
    world.process.history.seal(partition, lambda error: None)


def go_on_sealing(world: World) -> None:
    """The work that is under way ends: well, or not, and perhaps everything ends with it."""
    process = world.process
    job = process.history._job
    if job is None:
        return
    end = world.rng.choice(ENDS)
    world.say(f"{'merging' if job.replaced else 'sealing'} of {job.partition.index} ends: {end}")
    settle = process.finish(end)
    fate = world.rng.choice((*["lives"] * 10, "unheard", "unwritten", "unwritten", "undeleted"))
    if fate != "unheard":
        before = process.history.sealed
        if fate == "unwritten":
            # the record of it takes its time, and that of the history goes on
            process.watched.script(Fault.SLOW)
        settle()
        world.sealed += process.history.sealed - before
        world.merged += bool(job.replaced) and process.history.sealed > before
    if fate == "unwritten":
        process.pass_ms(1_000)
        world.look()
    if fate == "undeleted":
        process.settle_down()
    if fate != "lives":
        crash(world)


def read_by_plan(world: World) -> None:
    """Plan a range, let things happen, read it: all of it is there as long as the plan holds."""
    partition = _partition(world)
    first, visible = int(partition.first), int(partition.visible)
    start = world.rng.randint(first, visible)
    stop = world.rng.randint(start, visible)
    process = world.process
    pieces = ranges.plan(partition, start, stop)
    reading = Reading(partition, pieces, process.history.read, process.root, ["offset", "value"], "")
    world.say(f"plan {partition.index}@{start}-{stop} over {sorted(reading.paths())}")
    process.journal.hold()
    process.history.lease(reading.plan, reading.paths(), 60_000)
    world.ledger.leased[reading.plan] = (process.mono_ms + 60_000, reading.paths())
    deaths = world.deaths
    moves = [publish, write, pass_moment, trim, roll, retire, seal, go_on_sealing, compact, stage_and_commit]
    for _ in range(world.rng.randint(0, 6)):
        world.rng.choice(moves)(world)
        world.look()
        if world.deaths > deaths:
            return
        if world.rng.random() < 0.5:
            process.history.renew(reading.plan, 60_000)
            world.ledger.leased[reading.plan] = (process.mono_ms + 60_000, reading.paths())
    book = world.ledger.books[int(partition.number)]
    rows = reading.table().to_pylist()
    expected = [{"offset": offset, "value": book.records[offset]} for offset in range(start, stop)]
    if rows != expected:
        raise Violation("plans", f"a planned read of {start} to {stop} gave {rows}, not {expected}")
    del world.ledger.leased[reading.plan]
    process.history.release(reading.plan)
    process.journal.release()


def plan_lapses(world: World) -> None:
    """Somebody plans to read everything that is sealed, and is not heard of again."""
    paths = frozenset(file.path for file in _partition(world).files)
    name = f"plan-{len(world.trace)}"
    world.say(f"{name} names {len(paths)} files")
    lease_ms = world.rng.choice((20_000, 100_000_000))
    world.process.history.lease(name, paths, lease_ms)
    world.ledger.leased[name] = (world.process.mono_ms + lease_ms, paths)
    if world.rng.random() < 0.3:
        world.process.history.release(name)
        del world.ledger.leased[name]
        try:
            world.process.history.renew(name)
        except NotFound:
            return
        raise Violation("plans", f"{name} has ended, and was renewed")


def trim(world: World) -> None:
    partition = _partition(world)
    floor = world.rng.randint(int(partition.first), int(partition.visible))
    if world.rng.random() < 0.3:
        floor = int(partition.visible)
    world.say(f"trim {partition.index} up to {floor}")
    book = world.ledger.books[int(partition.number)]
    book.floor = max(book.floor, floor)
    before = {file.path for file in partition.files}
    retention.release(partition, floor)
    for path in before - {file.path for file in partition.files}:
        world.ledger.grace[path] = world.process.wall_ms + retention.GRACE_MS


def redeclare(world: World) -> None:
    """Delete the stream; another one takes its name."""
    world.say("delete the stream, and declare it again")
    process = world.process
    commits = world.ledger.commits.values()
    process.settle_down()
    for commit in commits:
        if not commit.asked and not commit.to_queue:
            return
    numbers = [int(partition.number) for partition in _log(world).partitions]
    streams.delete(process.home, "log")
    streams.declare(process.home, "log", world.plan.settings)
    process.home.bind("amq.topic", _log(world), "log.#")
    ledger = world.ledger
    # records of the old one are not expected anywhere any more
    for number in numbers:
        del ledger.books[number]
    for place in [place for place in ledger.places if place[0] == "log"]:
        del ledger.places[place]
    for commit in [commit for commit in commits if not commit.to_queue]:
        commit.rows = []
    process.settle_down()


# The journal, time, and the end of a process


def write(world: World) -> None:
    world.say("write")
    world.process.settle_down()


def roll(world: World) -> None:
    world.process.settle_down()
    if world.process.busy:
        return
    world.say("roll")
    size = world.process.journal.segment_bytes
    world.process.journal.segment_bytes = 0
    world.process.home.set_limits({})
    world.process.journal.pump()
    world.process.journal.segment_bytes = size


def retire(world: World) -> None:
    world.process.settle_down()
    world.say("retire")
    for _ in range(3):
        world.process.journal._tidy_soon = True
        world.process.settle_down()
        world.process.turn()


def compact(world: World) -> None:
    """Have the oldest segment written again, whatever that is worth."""
    from rookery.store.journal import _Retiring

    world.process.settle_down()
    journal = world.process.journal
    if journal._retiring is not None or len(journal.segments) < 2 or world.process.busy:
        return
    world.say(f"compact segment {journal.segments[0].number}")
    journal._retiring = _Retiring(journal, journal.segments[0], scan=True)
    journal._retiring._counting = False
    for _ in range(50):
        if journal._retiring is None:
            return
        world.process.turn()
        world.process.settle_down()


def pass_moment(world: World) -> None:
    ms = world.rng.choice((1, 100, 1_000, 3_000))
    world.say(f"{ms} ms pass")
    world.process.pass_ms(ms)


def pass_hours(world: World) -> None:
    """Time enough for graces, chunks and days to end."""
    if world.days >= 4:
        return
    ms = world.rng.choice((61_000, 4_000_000, 90_000_000))
    world.days += ms > 80_000_000
    world.say(f"{ms} ms pass")
    world.process.pass_ms(ms)


def crash(world: World) -> None:
    world.die(world.rng.random() < 0.7)
    found = _queue_bodies(world)
    ledger = world.ledger
    for body in ledger.left.intersection(found):
        raise Violation("cuts", f"{body!r} was settled and is back")
    spooling = bool(world.shard.staging.spools)
    ledger.look_at_queue(found, spooling)
    if not spooling:
        ledger.queue_restarted(found)
    queue = world.process.home.queues[QUEUE]
    states = world.shard.cuts.of(queue)
    for (consumer, number), bodies in list(ledger.cuts.items()):
        state = states.get(consumer)
        if state is None or number not in state.open:
            raise Violation("cuts", f"cut {number} of {consumer} is forgotten")
        leases = world.shard.cuts.read(queue, consumer, number)
        if [lease.entry.message.body for lease in leases] != bodies:
            raise Violation("cuts", f"cut {number} of {consumer} holds other messages than before")
    for consumer, state in states.items():
        for number in state.open:
            if number <= ledger.acked.get(consumer, 0):
                raise Violation("cuts", f"cut {number} of {consumer} was acknowledged and is back")
            # a cut that nobody was answered is there too
            taken = [lease.entry.message.body for lease in world.shard.cuts.read(queue, consumer, number)]
            ledger.cuts.setdefault((consumer, number), taken)


def audit(world: World) -> None:
    world.say("audit")
    world.ledger.audit(world.process)
    look_at_queue(world)


MOVES: tuple[tuple[Move, float, str], ...] = (
    (publish, 12, "publish"),
    (write, 6, ""),
    (pass_moment, 8, ""),
    (pass_hours, 1, ""),
    (roll, 2, ""),
    (retire, 2, ""),
    (compact, 1.5, ""),
    (stage_and_commit, 5, "stage"),
    (commit_again, 1, "stage"),
    (drop_chunks, 0.5, "stage"),
    (commit_group, 4, ""),
    (reset_group, 0.7, ""),
    (members_change, 1, ""),
    (forget_group, 0.3, ""),
    (send, 4, "queue"),
    (cut, 4, "queue"),
    (ack_cuts, 2, "queue"),
    (release_cuts, 0.3, "queue"),
    (take, 1, "queue"),
    (look_at_queue, 1, "queue"),
    (seal, 5, "seal"),
    (go_on_sealing, 8, "seal"),
    (read_by_plan, 2, "seal"),
    (plan_lapses, 1.5, "seal"),
    (trim, 1, "seal"),
    (redeclare, 0.4, ""),
    (crash, 2, "crash"),
    (audit, 1.5, ""),
)


def chosen(plan: Plan) -> list[tuple[Move, float]]:
    return [(move, weight * plan.heat.get(heat, 1.0)) for move, weight, heat in MOVES]


def drain(world: World) -> None:
    """The end: no more faults, all that is open is finished, and everything is looked at once more."""
    process = world.process
    process.watched._script.clear()
    process.settle_down()
    world.look()
    while process.history._job is not None:
        process.finish("done")()
        process.settle_down()
    for commit in list(world.ledger.commits.values()):
        if not commit.answered:
            _stage(world, commit)
            process.settle_down()
            _commit(world, commit)
            process.settle_down()
            # what is shown may be let go of in the next moment
            world.look()
    for _ in range(10):
        process.pass_ms(10)
        process.settle_down()
        world.look()
        if process.history._job is not None:
            process.finish("done")()
    world.look()
    audit(world)
    crash(world)
    look_at_queue(world)
    unanswered = [commit for commit in world.ledger.commits.values() if not commit.answered]
    if unanswered:
        raise Violation("staging", f"{len(unanswered)} commits were never answered")
