"""Bugs that the simulator must find: small changes to the source, each of which breaks one law.

A bug is applied to a copy of the package and caught by the ledger in ordinary runs; nothing in the simulator knows
about any of them. `old` must occur exactly once in its file, so a bug whose place in the source has changed is
noticed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    old: str
    new: str
    part: str = "core"
    kept: bool = False
    """Whether it takes a journal to notice."""


BUGS = (
    # leases
    Bug(
        "a settle after the lapse is accepted",
        "queue.py",
        "            return False\n        holder = lease.holder\n        entry = self.end(lease)\n"
        "        self.acked += 1",
        "            pass\n        holder = lease.holder\n        entry = self.end(lease)\n        self.acked += 1",
    ),
    Bug(
        "a token of an earlier delivery opens the current lease",
        "shard.py",
        "return lease if lease is not None and lease.grant == int(parts[3]) else None",
        "return lease",
    ),
    Bug(
        "a token of an earlier owner is accepted",
        "shard.py",
        "if queue is None or int(parts[2]) != self.epoch:",
        "if queue is None:",
    ),
    Bug(
        "an extended lease lapses when it first would have",
        "timing.py",
        "            if lease.live and lease.due_ms <= now:",
        "            if lease.live:",
    ),
    Bug(
        "a lapse does not count as a failure",
        "timing.py",
        '                queue.fail(entry, 0, f"ack timeout after {lasted} ms")',
        "                entry.attempts -= 1\n                queue.fail(entry, 0, '')",
    ),
    # attempts and dead letters
    Bug(
        "the attempt of a redelivery is not counted",
        "queue.py",
        "        entry.attempts += 1\n        if entry.redelivered:\n            self.redelivered += 1\n"
        "        self.delivered += 1\n        subscription.delivered += 1",
        "        if entry.redelivered:\n            self.redelivered += 1\n"
        "        else:\n            entry.attempts += 1\n"
        "        self.delivered += 1\n        subscription.delivered += 1",
    ),
    Bug("a release counts an attempt", "queue.py", "        entry.attempts -= 1\n", ""),
    Bug(
        "max_attempts is off by one",
        "queue.py",
        "        if self.max_attempts and i64(entry.attempts) >= self.max_attempts:\n"
        '            self.leave(entry, "delivery_limit", detail)',
        "        if self.max_attempts and i64(entry.attempts) > self.max_attempts:\n"
        '            self.leave(entry, "delivery_limit", detail)',
    ),
    Bug(
        "a dead letter is lost",
        "publishing.py",
        "        if queue.accept(message, moved, due_ms):",
        "        if not moved or queue.accept(message, moved, due_ms):",
    ),
    Bug(
        "a dead-letter cycle is not cut",
        "dead_letters.py",
        "        if death.queue == target:\n            return True",
        "        if death.queue == target:\n            return False",
    ),
    Bug(
        "a dead letter keeps its expiration",
        "dead_letters.py",
        "        props = properties.without_expiration(props)",
        "        pass",
    ),
    Bug(
        "a dead letter forgets where it died before",
        "dead_letters.py",
        "    return [newest, *[death.at(rows[death.order]) for death in rest]]",
        "    return [newest]",
    ),
    Bug(
        "an undeclared target takes what expired",
        "dead_letters.py",
        "(reason in DECLARED_ONLY and not settings.dead_letter_declared)",
        "(reason in DECLARED_ONLY and not settings.dead_letter_queue)",
    ),
    # order
    Bug(
        "higher priorities go last",
        "lines.py",
        "while at < len(self.order) and self.order[at].priority > priority:",
        "while at < len(self.order) and self.order[at].priority < priority:",
    ),
    Bug(
        "a returned message loses its place",
        "entries.py",
        "        if entry.seq > self.last_seq:\n            self.last_seq = entry.seq",
        "        if entry.redelivered or entry.seq > self.last_seq:\n            self.last_seq = entry.seq",
    ),
    Bug(
        "a group is delivered to several at once",
        "parking.py",
        "        elif holder is not entry:",
        "        elif holder is not entry and holder.state != LEASED:",
    ),
    # time
    Bug(
        "a delay is ignored",
        "queue.py",
        "        if due_ms > now:\n            entry.enqueued_ms = due_ms\n            self.timing.delay(",
        "        if due_ms > now + 100:\n            entry.enqueued_ms = due_ms\n            self.timing.delay(",
    ),
    Bug(
        "only the head of the queue expires",
        "timing.py",
        "            if entry.state != LEASED and entry.state != GONE and self.expiry_of(entry) <= now:",
        "            if entry in queue.ready_entries()[:1] and self.expiry_of(entry) <= now:",
    ),
    Bug(
        "a leased message expires",
        "timing.py",
        "            if entry.state != LEASED and entry.state != GONE and self.expiry_of(entry) <= now:",
        "            if entry.state == LEASED:\n                entry.state = 0\n                queue.ready += 1\n"
        "                queue.leased -= 1\n            if entry.state != GONE and self.expiry_of(entry) <= now:",
    ),
    Bug(
        "expiry is not checked on return",
        "queue.py",
        "        if expiry and expiry <= now:\n            self.leave",
        "        if expiry and expiry <= now and not self.ready:\n            self.leave",
    ),
    Bug(
        "delays run on the monotonic clock",
        "queue.py",
        "            self.timing.delay(entry, now + delay_ms)",
        "            self.timing.delay(entry, self.shard.mono_ms + 1_699_999_000_000 + delay_ms)",
    ),
    Bug(
        "a change of the queue's ttl reaches only later messages",
        "queue.py",
        "etimed = self.ttl_ms != settings.ttl_ms",
        "etimed = False",
    ),
    Bug(
        "the owner sleeps past a lapse",
        "shard.py",
        "        if mono != NEVER and mono - self.mono_ms < wait:",
        "        if mono != NEVER and wait == NEVER:",
    ),
    Bug(
        "an unused queue expires although it was used",
        "queue.py",
        "        self.unused_since_ms = self.shard.mono_ms\n        if self.expires_ms:",
        "        if self.expires_ms:",
    ),
    # consumers
    Bug(
        "credit is exceeded by one",
        "consumers.py",
        "        if self.inflight >= self.limit or self.paused:",
        "        if self.inflight > self.limit or self.paused:",
    ),
    Bug(
        "shared credit is not looked at",
        "consumers.py",
        "        return shared is None or shared.inflight < shared.limit",
        "        return True",
    ),
    Bug(
        "somebody else than the active consumer is served",
        "consumers.py",
        "            return first if first.has_credit() else None",
        "            if first.has_credit():\n                return first",
    ),
    Bug(
        "consumer priority is ignored",
        "consumers.py",
        "            if s.priority != self.all[0].priority:",
        "            if s.priority != s.priority:",
    ),
    Bug(
        "a waiting claim misses what comes back",
        "queue.py",
        "            self.line_up(entry)\n            self.mark_dirty()\n        if self.journaled",
        "            self.line_up(entry)\n        if self.journaled",
    ),
    Bug(
        "a settle does not free credit for what waits",
        "queue.py",
        "            if self.ready and not self.dirty:\n                self.mark_dirty()",
        "            pass",
    ),
    Bug(
        "a mailbox does not say that it has something",
        "consumers.py",
        "        self.leases.append(lease)\n        self._touch()",
        "        self.leases.append(lease)\n        if not self.once:\n            self._touch()",
    ),
    # limits
    Bug(
        "drop-head drops the tail",
        "queue.py",
        "            entry = self.lines.pop()\n            if entry is None:\n"
        "                entry = self.timing.pop_delayed()",
        '            if self.ready:\n                self.drop_waiting(self.ready_entries()[-1], "maxlen")\n'
        "                continue\n            entry = self.timing.pop_delayed()\n            if entry is None:",
    ),
    Bug(
        "a full queue that rejects takes one more",
        "queue.py",
        "        return waiting + count <= self.length_max and",
        "        return waiting + count <= self.length_max + 1 and",
    ),
    Bug(
        "a dropped publish is not counted",
        "queue.py",
        "        self.dropped += 1\n        return DISCARDED",
        "        return DISCARDED",
    ),
    # counts and memory
    Bug(
        "a dead letter leaves uncounted",
        "queue.py",
        "        if arrived:\n            self.dead_lettered += 1\n        elif reason",
        "        if arrived:\n            pass\n        elif reason",
    ),
    Bug(
        "memory of a message in several queues is not given back",
        "queue.py",
        "        message.refs -= 1\n        if message.refs == 0:\n"
        "            self.tenant.unhold(message)\n        if message.flags",
        "        message.refs -= 1\n        if message.refs == 0 and not message.route.exchange:\n"
        "            self.tenant.unhold(message)\n        if message.flags",
    ),
    Bug(
        "peeking marks messages as redelivered",
        "queue.py",
        "        for level in self.lines.order:\n            found.extend(level.entries())",
        "        for level in self.lines.order:\n            found.extend(level.entries())\n"
        "        for seen in found:\n            seen.redelivered = True",
    ),
    Bug(
        "a purge takes what is delayed too",
        "queue.py",
        "        for entry in self.purge_paged():\n            self.remove(entry)",
        "        for entry in self.purge_paged() + self.delayed_entries():\n            self.remove(entry)",
    ),
    Bug(
        "a redrive starts with no history",
        "dead_letters.py",
        "    route.deaths = list(message.route.deaths)",
        "    route.deaths = []",
    ),
    # routing
    Bug(
        "a cached route outlives a new binding",
        "topology.py",
        "        self.bindings += 1\n        self.version += 1",
        "        self.bindings += 1",
    ),
    Bug(
        "a cached route outlives an unbinding",
        "topology.py",
        "        self.bindings -= 1\n        self.version += 1",
        "        self.bindings -= 1",
    ),
    Bug(
        "the alternate exchange is also used when a binding matches",
        "topology.py",
        "            if not targets and here.alternate:",
        "            if here.alternate:",
    ),
    # dedup and transactions
    Bug(
        "a dedup key is forgotten at once",
        "dedup.py",
        "        marks.put(scope, key, number, now_ms + window_ms)",
        "        marks.put(scope, key, number, now_ms + (window_ms if len(marks.all) % 2 else 0))",
    ),
    Bug(
        "a dedup key counts in every queue",
        "dedup.py",
        '    return "exchange:" + exchange if exchange else "queue:" + key',
        '    return "exchange:" + exchange if exchange else "queue:"',
    ),
    Bug(
        "a transaction is applied up to its first failure",
        "transactions.py",
        "    _check(shard, tenant, operations)\n    numbers: list[int] = []\n    for operation in operations:\n",
        "    numbers: list[int] = []\n    for operation in operations:\n        _check(shard, tenant, [operation])\n",
    ),
    Bug(
        "a transaction looks only at its first operation beforehand",
        "transactions.py",
        "    _check(shard, tenant, operations)\n    numbers: list[int] = []",
        "    for first in operations[:1]:\n        _check(shard, tenant, [first])\n    numbers: list[int] = []",
    ),
    Bug(
        "a transaction does not time out",
        "transactions.py",
        "        for transaction in [t for t in self._open.values() if t.due_ms <= now]:",
        "        for transaction in [t for t in self._open.values() if t.due_ms <= now and not t.operations]:",
    ),
)
