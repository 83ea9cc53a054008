#!/usr/bin/env python3
"""Make a small data directory that holds some of everything, for the tests that open directories of earlier formats.

    PYTHONPATH=src python tools/make_journal_fixture.py tests/fixtures/journal-1

It was run once for each format of the journal. What it made is never made again: a later version of the broker must
open it as it is and find what `content.json` beside it says.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from rookery.core import definitions
from rookery.core.access import Access
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.format.properties import EMPTY, Properties, Timestamp, encode
from rookery.store.file import FileMedium
from rookery.store.journal import Journal

WALL_MS = 1_700_000_000_000
SEGMENT_BYTES = 1_500
YEAR_MS = 31_536_000_000


class Owner:
    """Drives a journal by hand."""

    def __init__(self, directory: Path) -> None:
        drawn = iter(range(1, 1 << 16))
        self.access = Access(lambda count: bytes(next(drawn) & 255 for _ in range(count)))
        self.shard = Shard(b"the secret of a fixture", 1)
        self.shard.turn(WALL_MS, 1_000)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        medium = FileMedium(directory, segment_bytes=0, reserve_bytes=0)
        self.journal = Journal(
            self.shard,
            medium,
            post=self._calls.put,
            access=self.access,
            segment_bytes=SEGMENT_BYTES,
            compress_min=200,
        )
        self.journal.open()

    def write(self) -> None:
        log = self.shard.log
        wanted = log.horizon()
        while log.durable < wanted:
            log.urgent = True
            self.journal.pump()
            self._calls.get(timeout=30)()

    def close(self) -> None:
        self.write()
        while not self._calls.empty():
            self._calls.get()()
        self.journal.close()


def fill(owner: Owner) -> dict[str, Any]:
    """Put some of everything in, in several batches and segments; returns what the directory does not say."""
    shard = owner.shard
    tenant = shard.create_tenant("acme", {"queues_max": 500})
    tenant.set_face_defaults("s0", {"max_attempts": 9})
    tenant.set_policy(Policy("slow", "^slow", {"lease_ms": 60_000}, 2))
    jobs, _ = tenant.declare_queue("jobs", {"max_attempts": 2, "dead_letter_queue": "jobs.dead"}, "http")
    slow, _ = tenant.declare_queue("slow", {"priority_max": 9, "length_max": 1_000}, "embedded")
    shard.create_tenant("other").declare_queue("jobs", {}, "s0")
    table = {
        "bytes": b"\x00\xff",
        "decimal": Decimal("1.50"),
        "time": Timestamp(1_600_000_000),
        "list": [1, True, None],
    }
    tenant.declare_exchange("events", "headers", alternate="amq.fanout", arguments=table)
    tenant.bind("events", jobs, "", {"x-match": "any", "kind": b"\x01", "rate": Decimal("0.1")})
    tenant.bind("amq.topic", slow, "a.#")
    tenant.bind("amq.fanout", jobs, "")
    tenant.bind("amq.fanout", slow, "")
    key = owner.access.create_key("acme", WALL_MS, note="of the fixture")
    owner.access.set_user("ann", password="fixture password", tenants={})
    owner.write()
    props = encode(Properties(content_type="text/plain", headers={"n": 1, "text": "ä"}))
    for n in range(12):
        shard.publish(tenant, "", "jobs", props, b"job %d" % n)
        owner.write()
    shard.publish(tenant, "amq.topic", "a.b", EMPTY, b"priority", priority=5)
    shard.publish(tenant, "", "slow", EMPTY, b"delayed", due_ms=WALL_MS + 100 * YEAR_MS)
    shard.publish(tenant, "", "slow", EMPTY, b"expires", expires_ms=WALL_MS + 100 * YEAR_MS)
    shard.publish(tenant, "", "slow", EMPTY, b"compressed " * 100)
    shard.publish(tenant, "amq.fanout", "all", EMPTY, b"to both")
    shard.publish_once(tenant, "", "jobs", "dedup key", EMPTY, b"once", due_ms=0)
    owner.write()
    leases = jobs.claim(8, 60_000)
    for lease in leases[:5]:
        jobs.ack(lease)
    jobs.reject(leases[5], "unfit")
    jobs.retry(leases[6], 0, "again")
    jobs.retry(leases[7], 100 * YEAR_MS, "much later")
    owner.write()
    dropped, _ = tenant.declare_queue("dropped", {}, "embedded")
    shard.publish(tenant, "", "dropped", EMPTY, b"gone")
    owner.write()
    tenant.delete(dropped, "deleted")
    tenant.unbind("amq.topic", slow, "a.#")
    tenant.bind("amq.topic", slow, "b.*")
    owner.write()
    return {"key": key.text, "kid": key.record.kid}


def describe(shard: Shard) -> dict[str, Any]:
    """What is in a shard, in plain JSON values."""
    return {
        "definitions": definitions.export(shard),
        "dedup": {name: [list(mark) for mark in tenant.dedup.marks()] for name, tenant in shard.tenants.items()},
        "messages": {
            f"{tenant.name}/{queue.name}": _messages(queue)
            for tenant in shard.tenants.values()
            for queue in tenant.queues.values()
        },
    }


def _messages(of: Queue) -> list[dict[str, Any]]:
    entries = [*of.ready_entries(), *of.delayed_entries()]
    return [
        {
            "id": of.shard.ids.uuid(int(entry.message.public_id)),
            "seq": int(entry.seq),
            "body": entry.message.body.decode(),
            "props": entry.message.props.hex(),
            "exchange": entry.message.route.exchange,
            "key": entry.message.route.key,
            "deaths": [death.as_dict() for death in entry.message.route.deaths],
            "priority": int(entry.message.priority),
            "expires_ms": int(entry.message.expires_ms),
            "enqueued_ms": int(entry.enqueued_ms),
            "due_ms": int(entry.due_ms),
            "attempts": int(entry.attempts),
            "redelivered": entry.redelivered,
        }
        for entry in entries
    ]


def main() -> None:
    directory = Path(sys.argv[1])
    if directory.exists():
        sys.exit(f"{directory} is there already; a fixture is made once")
    owner = Owner(directory)
    kept = fill(owner)
    content = describe(owner.shard)
    owner.close()
    (directory / "lock").unlink()
    text = json.dumps({**kept, "wall_ms": WALL_MS, **content}, indent=1, ensure_ascii=False)
    (directory / "content.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
