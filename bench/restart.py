"""How long a restart takes by what is stored: definitions, keys and users at their limits. It should grow linearly.

Each kind is written to a journal in a temporary directory at a quarter, a half and the whole of its limit, and read
back by a new owner twice: once from the changes, once more with the state at the head of a new segment. CPU time of
reading, without imports.
"""

from __future__ import annotations

import gc
import os
import queue as waiting
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable

from bench.harness import start, table, title
from rookery.core import streams
from rookery.core.access import FULL, Access, PasswordHash
from rookery.core.groups import group_of
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.format.properties import EMPTY
from rookery.store.file import FileMedium
from rookery.store.journal import Journal

WALL_MS = 1_700_000_000_000


class Owner:
    """A shard and its journal, driven by hand."""

    def __init__(self, directory: str) -> None:
        self._calls: waiting.SimpleQueue[Callable[[], None]] = waiting.SimpleQueue()
        self.shard = Shard(b"of the benchmark", 1)
        self.shard.turn(WALL_MS, 1_000)
        self.access = Access(os.urandom)
        self.journal = Journal(
            self.shard, FileMedium(directory), post=self._calls.put, access=self.access, free_bytes_min=0
        )
        gc.collect()
        began = time.process_time()
        self.journal.open()
        self.cpu_s = time.process_time() - began

    def write(self) -> None:
        """Let everything so far be written."""
        log = self.shard.log
        wanted = log.horizon()
        while log.durable < wanted:
            log.urgent = True
            self.shard.flush()
            self.journal.pump()
            if log.durable < wanted:
                self._calls.get(timeout=60)()

    def tenant(self) -> Tenant:
        return self.shard.tenants.get("t") or self.shard.create_tenant("t")

    def close(self) -> None:
        self.write()
        self.journal.close()


def queues(owner: Owner, count: int) -> None:
    for i in range(count):
        owner.tenant().declare_queue(f"q{i}", {"max_attempts": 3}, "embedded")


def exchanges(owner: Owner, count: int) -> None:
    for i in range(count):
        owner.tenant().declare_exchange(f"e{i}", "topic")


def same_key(owner: Owner, count: int) -> None:
    queue = owner.tenant().declare_queue("q", {}, "embedded")[0]
    for i in range(count):
        owner.tenant().bind("amq.direct", queue, "k", {"n": i})


def other_keys(owner: Owner, count: int) -> None:
    queue = owner.tenant().declare_queue("q", {}, "embedded")[0]
    for i in range(count):
        owner.tenant().bind("amq.topic", queue, f"a.{i}.*")


def unbound(owner: Owner, count: int) -> None:
    """Every binding is made and taken away again, the oldest first."""
    queue = owner.tenant().declare_queue("q", {}, "embedded")[0]
    for i in range(count // 2):
        owner.tenant().bind("amq.direct", queue, "k", {"n": i})
    owner.write()
    for i in range(count // 2):
        owner.tenant().unbind("amq.direct", queue, "k", {"n": i})


def deleted(owner: Owner, count: int) -> None:
    """Every queue is bound to a fanout exchange, and deleted again."""
    tenant = owner.tenant()
    for i in range(count // 2):
        tenant.bind("amq.fanout", tenant.declare_queue(f"q{i}", {}, "embedded")[0], "")
    owner.write()
    for i in range(count // 2):
        tenant.delete_queue(f"q{i}")


def dedup_keys(owner: Owner, count: int) -> None:
    tenant = owner.tenant()
    tenant.declare_queue("q", {}, "embedded")
    for i in range(count):
        owner.shard.publish_once(tenant, "", "q", f"key-{i}", EMPTY, b"")
        if i % 10_000 == 9_999:
            owner.write()


def partitions(owner: Owner, count: int) -> None:
    for i in range(count // 4):
        streams.declare(owner.tenant(), f"s{i}", {"partitions": 4})


def groups(owner: Owner, count: int) -> None:
    for i in range(count):
        stream = streams.declare(owner.tenant(), f"s{i // 1_000}", {})[0]
        group_of(stream, f"g{i}").reset({0: 0})


def keys(owner: Owner, count: int) -> None:
    for _ in range(count):
        owner.access.create_key("t", WALL_MS)


def users(owner: Owner, count: int) -> None:
    password = PasswordHash(bytes(16), bytes(32), 1 << 14, 8, 1)
    for i in range(count):
        owner.access.set_user(f"u{i}", password=password, tenants={"t": FULL})


KINDS: dict[str, tuple[Callable[[Owner, int], None], int]] = {
    "queues": (queues, 20_000),
    "exchanges": (exchanges, 9_000),
    "bindings of one key": (same_key, 100_000),
    "bindings of different keys": (other_keys, 100_000),
    "bindings, made and removed": (unbound, 100_000),
    "bound queues, made and deleted": (deleted, 20_000),
    "dedup keys with messages": (dedup_keys, 1_000_000),
    "partitions of streams": (partitions, 20_000),
    "groups": (groups, 10_000),
    "keys": (keys, 10_000),
    "users": (users, 10_000),
}


def restarts(fill: Callable[[Owner, int], None], count: int) -> tuple[float, float]:
    """CPU seconds to read the changes, and the state that stands for them."""
    with tempfile.TemporaryDirectory(prefix="rookery-restart-") as directory:
        owner = Owner(directory)
        owner.tenant()
        owner.write()
        fill(owner, count)
        owner.close()
        # a new owner begins a new segment, with the state as it is
        from_changes = Owner(directory)
        from_changes.tenant().declare_queue("another", {}, "embedded")
        from_changes.close()
        from_state = Owner(directory)
        from_state.close()
        return from_changes.cpu_s, from_state.cpu_s


def main() -> None:
    parser = ArgumentParser(prog="bench/run restart")
    parser.add_argument("--only", default="", help="kinds whose name has this text")
    parser.add_argument("--scale", type=float, default=1.0, help="this part of each limit (1)")
    arguments = start("restart", parser)
    title(
        "Restart by what is stored",
        "CPU ms of Journal.open, from the changes and from changes and state, and µs for each thing at a quarter, a "
        "half and the whole of the limit: equal numbers mean that it grows linearly.",
    )
    rows: list[list[str]] = []
    for name, (fill, most) in KINDS.items():
        if arguments.only in name:
            for part in (4, 2, 1):
                count = int(most * arguments.scale) // part
                changes, state = restarts(fill, count)
                each = f"{changes / count * 1e6:.1f}"
                rows.append([name, f"{count:,}", f"{changes * 1e3:.0f}", each, f"{state * 1e3:.0f}"])
    table(["stored", "count", "CPU ms", "µs each", "with state, CPU ms"], rows)


if __name__ == "__main__":
    main()
