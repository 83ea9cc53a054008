"""Memory per queued message: resident bytes beyond the body, for several kinds of message."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser

from bench.harness import BODY_BYTES, rss_bytes, start, table, title
from bench.world import PLAIN_PROPS, World
from rookery.core import publishing
from rookery.format.properties import Properties, encode

KINDS = {
    "plain": "plain: one priority, no properties of its own",
    "priorities": "10 priorities, mixed",
    "ttl": "each with a time to live",
    "delayed": "each delayed, by a time of its own",
    "properties": "properties of its own: message id and a header, 52 B encoded",
    "leased": "plain, all of them leased",
    "fanout": "plain, in 10 queues (per message)",
}


def own_properties(number: int) -> bytes:
    headers: dict[str, object] = {"tenant": f"customer-{number:09}"}
    return encode(Properties(delivery_mode=2, message_id=f"m-{number:012}", headers=headers))


def fill(kind: str, count: int) -> float:
    """Bytes per message beyond the body, of so many messages of one kind queued in this process."""
    world = World()
    shard, tenant = world.shard, world.tenant
    exchange = tenant.default
    queue = world.queue()
    if kind == "fanout":
        exchange = tenant.declare_exchange("all", "fanout")[0]
        for i in range(10):
            tenant.bind("all", world.queue(f"q{i}"), "q")
    way = tenant.way(exchange, "q")
    now = shard.wall_ms
    before = rss_bytes()
    for i in range(count):
        props = own_properties(i) if kind == "properties" else PLAIN_PROPS
        expires_ms = now + 1_000_000 + i if kind == "ttl" else 0
        due_ms = now + 1 + i * 7919 % count if kind == "delayed" else 0
        priority = i % 10 if kind == "priorities" else 0
        message = publishing.new_message(shard, tenant, way, props, bytes(BODY_BYTES), priority, expires_ms, 1)
        publishing.post(shard, tenant, way, message, due_ms, publishing.EACH)
    held = shard.claim(queue, count, 30_000) if kind == "leased" else []
    used = rss_bytes() - before - 8 * len(held)
    return used / count - BODY_BYTES


def main() -> None:
    parser = ArgumentParser(prog="bench/run memory")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages to queue (1,000,000)")
    parser.add_argument("--kind", choices=KINDS, help="fill in this process, and print only the bytes per message")
    if "--kind" in sys.argv:
        one = parser.parse_args()
        print(f"{fill(one.kind, one.messages):.1f}")
        return
    arguments = start("memory", parser)
    title(
        "Memory per queued message",
        f"""{arguments.messages:,} messages with a body of {BODY_BYTES} B each (every body its own object) in one queue
        as the embedded face declares it, each kind in a process of its own: resident memory after, less before, by the
        number of messages, less the {BODY_BYTES} B of the body. Properties of their own count as overhead too.""",
    )
    rows = []
    for kind, said in KINDS.items():
        command = [sys.executable, "-m", "bench.memory", "--kind", kind, "--messages", str(arguments.messages)]
        used = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append([said, f"{float(used):.0f}", "≤ 200" if kind == "plain" else ""])
    table(["kind", "bytes beyond the body", "aim"], rows)


if __name__ == "__main__":
    main()
