"""Cuts: a queue read repeatably. A consumer takes cut 1, 2, 3 …, each durable and the same when it is asked for again.

A cut is a run of leases that never lapse and outlive a restart. Asking for the cut after `k` gives cut `k + 1`, made if
it is not there; acknowledging up to `k` settles every cut so far. Nobody else gets what is in a cut, and it does not
count as a failed delivery. What was not persistent is not in the cut after a crash of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rookery.core.topology import check_name
from rookery.errors import InvalidArgument, LimitExceeded, NotFound

if TYPE_CHECKING:
    from rookery.core.entries import Lease
    from rookery.core.queue import Queue
    from rookery.core.shard import Shard

CUT_MAX: Final = 100_000
OPEN_MAX: Final = 1_000
CONSUMERS_MAX: Final = 1_000
"""Messages of a cut, cuts of a consumer, consumers of a queue."""


class Cutting:
    """One consumer of a queue: how far it has acknowledged, and the sequences of its open cuts."""

    def __init__(self, acked: int) -> None:
        self.acked = acked
        self.open: dict[int, list[int]] = {}

    @property
    def last(self) -> int:
        return max(self.open, default=self.acked)


class Cuts:
    """All cuts of a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # by the queue's number in the journal, or, where it has none, by its name
        self._queues: dict[tuple[str, str], dict[str, Cutting]] = {}

    def of(self, queue: Queue) -> dict[str, Cutting]:
        return self._queues.get((queue.tenant.name, queue.name), {})

    def cut(self, queue: Queue, consumer: str, after: int, count: int) -> tuple[int, list[Lease]]:
        """The cut that follows cut `after`, with up to `count` messages if it has to be made; (after, []) when there
        is nothing to be had.
        """
        check_name(consumer, "consumer")
        if not 1 <= count <= CUT_MAX:
            raise InvalidArgument(f"a cut has 1 to {CUT_MAX} messages", argument="max")
        consumers = self._queues.setdefault((queue.tenant.name, queue.name), {})
        cutting = consumers.get(consumer)
        if cutting is None:
            if len(consumers) >= CONSUMERS_MAX:
                raise LimitExceeded(f"queue {queue.name!r} is cut by {CONSUMERS_MAX} consumers", argument="consumer")
            # a consumer may know more than the broker does: after a reset it goes on where it was
            cutting = consumers[consumer] = Cutting(after)
        if after + 1 in cutting.open:
            return after + 1, self._leases(queue, cutting.open[after + 1])
        if after != cutting.last:
            raise InvalidArgument(
                f"consumer {consumer!r} has its cuts up to {cutting.last}: none follows {after}", argument="after"
            )
        if len(cutting.open) >= OPEN_MAX:
            raise LimitExceeded(f"consumer {consumer!r} has {OPEN_MAX} open cuts", argument="consumer")
        leases = queue.claim(count, 0)
        if not leases:
            return after, []
        seqs = [int(lease.entry.seq) for lease in leases]
        cutting.open[after + 1] = seqs
        self._note("cut", queue, {"consumer": consumer, "cut": after + 1, "seqs": runs(seqs)})
        return after + 1, leases

    def read(self, queue: Queue, consumer: str, number: int) -> list[Lease]:
        """What is in an open cut."""
        cutting = self._cutting(queue, consumer)
        if number not in cutting.open:
            raise NotFound(f"consumer {consumer!r} has no open cut {number}", argument="cut")
        return self._leases(queue, cutting.open[number])

    def ack(self, queue: Queue, consumer: str, upto: int) -> int:
        """Settle every cut up to this one; how many messages that were."""
        cutting = self._cutting(queue, consumer)
        if upto > cutting.last:
            raise InvalidArgument(f"consumer {consumer!r} has its cuts up to {cutting.last}", argument="cut")
        done = sorted(number for number in cutting.open if number <= upto)
        count = 0
        for number in done:
            for lease in self._leases(queue, cutting.open.pop(number)):
                count += queue.ack(lease)
        if upto > cutting.acked:
            cutting.acked = upto
            self._note("ack-cuts", queue, {"consumer": consumer, "upto": upto})
        return count

    def release(self, queue: Queue, consumer: str) -> int:
        """Give everything back and forget the consumer; how many messages that were."""
        cutting = self._cutting(queue, consumer)
        count = 0
        for seqs in cutting.open.values():
            for lease in self._leases(queue, seqs):
                count += queue.release(lease)
        del self._queues[(queue.tenant.name, queue.name)][consumer]
        self._note("drop-cuts", queue, {"consumer": consumer})
        return count

    def describe(self, queue: Queue) -> list[dict[str, Any]]:
        """What is shown of the cuts of a queue."""
        return [
            {
                "consumer": name,
                "acked": cutting.acked,
                "cuts": {number: len(seqs) for number, seqs in sorted(cutting.open.items())},
            }
            for name, cutting in sorted(self.of(queue).items())
        ]

    def _cutting(self, queue: Queue, consumer: str) -> Cutting:
        cutting = self.of(queue).get(consumer)
        if cutting is None:
            raise NotFound(f"{consumer!r} has no cuts of queue {queue.name!r}", argument="consumer")
        return cutting

    def _leases(self, queue: Queue, seqs: list[int]) -> list[Lease]:
        found = (queue.lease_of(seq) for seq in seqs)
        return [lease for lease in found if lease is not None]

    def _note(self, operation: str, queue: Queue, row: dict[str, Any]) -> None:
        if queue.number:
            self._shard.log.change(operation, queue.tenant.name, {"queue": queue.name, **row})

    def forget(self, tenant: str, queue: str) -> None:
        """The queue is gone."""
        self._queues.pop((tenant, queue), None)

    # Writing down and coming back

    def state(self) -> list[list[Any]]:
        return [
            [tenant, queue, name, cutting.acked, [[number, runs(seqs)] for number, seqs in cutting.open.items()]]
            for (tenant, queue), consumers in self._queues.items()
            for name, cutting in consumers.items()
        ]

    def restore(self, rows: list[list[Any]]) -> None:
        self._queues.clear()
        for tenant, queue, name, acked, open_cuts in rows:
            cutting = Cutting(acked)
            cutting.open = {number: sequences(seqs) for number, seqs in open_cuts}
            self._queues.setdefault((tenant, queue), {})[name] = cutting

    def replay(self, operation: str, tenant: str, row: dict[str, Any]) -> None:
        """Make one change again; the leases are taken when the messages are back."""
        consumers = self._queues.setdefault((tenant, row["queue"]), {})
        if operation == "cut":
            cutting = consumers.setdefault(row["consumer"], Cutting(row["cut"] - 1))
            cutting.open[row["cut"]] = sequences(row["seqs"])
        elif operation == "ack-cuts":
            cutting = consumers.setdefault(row["consumer"], Cutting(row["upto"]))
            cutting.acked = row["upto"]
            cutting.open = {number: seqs for number, seqs in cutting.open.items() if number > row["upto"]}
        else:
            consumers.pop(row["consumer"], None)

    def held(self) -> dict[int, set[int]]:
        """The sequences that are to be leased again, by the number of their queue."""
        found: dict[int, set[int]] = {}
        for (tenant, name), consumers in self._queues.items():
            home = self._shard.tenants.get(tenant)
            queue = None if home is None else home.queues.get(name)
            if queue is not None:
                seqs = found.setdefault(int(queue.number), set())
                for cutting in consumers.values():
                    for cut in cutting.open.values():
                        seqs.update(cut)
        return found


def runs(seqs: list[int]) -> list[list[int]]:
    """Sequences as (first, how many), in the order given."""
    found: list[list[int]] = []
    for seq in seqs:
        if found and found[-1][0] + found[-1][1] == seq:
            found[-1][1] += 1
        else:
            found.append([seq, 1])
    return found


def sequences(found: list[list[int]]) -> list[int]:
    return [seq for first, count in found for seq in range(first, first + count)]
