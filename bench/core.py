"""The core alone, without loop or socket: publish + deliver + ack by claim, by mailbox, and fanned out.

Everything is called from interpreted Python, as an embedding program would; that loop is part of the numbers.
"""

from __future__ import annotations

from bench.harness import BATCH, BODY_BYTES, Case, measure, show, start, title
from bench.world import PLAIN_PROPS, World, bodies
from rookery.core.publishing import new_message, post

MESSAGES = 200_000
LEASE_MS = 30_000


def claiming(
    world: World,
    name: str,
    messages: int,
    aim_us: float | None = None,
    batch: int = BATCH,
    priorities: int = 1,
    ttl_ms: int = 0,
) -> Case:
    """Publish a batch, claim it, ack each."""
    queue = world.queue(name)
    shard, tenant = world.shard, world.tenant
    payloads = [(body, i % priorities) for i, body in enumerate(bodies(batch))]

    def run() -> int:
        way = tenant.way(tenant.default, name)
        claim, ack = shard.claim, queue.ack
        for _ in range(messages // batch):
            world.turn()
            expires_ms = world.now_ms + ttl_ms if ttl_ms else 0
            for body, priority in payloads:
                post(shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, body, priority, expires_ms, 1), 0)
            for lease in claim(queue, batch, LEASE_MS):
                ack(lease)
            shard.flush()
        return messages

    return Case(name, run, aim_us)


def subscribed(world: World, name: str, messages: int, aim_us: float | None = None, consumers: int = 1) -> Case:
    """Publish a batch to a queue with subscribers, empty their mailboxes, ack each."""
    queue = world.queue(name)
    shard, tenant = world.shard, world.tenant
    payloads = bodies(BATCH)
    mailboxes = [shard.subscribe(queue, 2 * BATCH, LEASE_MS) for _ in range(consumers)]

    def run() -> int:
        way = tenant.way(tenant.default, name)
        ack = queue.ack
        for _ in range(messages // BATCH):
            world.turn()
            for body in payloads:
                post(shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, body, 0, 0, 1), 0)
            shard.touched.clear()
            for mailbox in mailboxes:
                for lease in mailbox.take():
                    ack(lease)
            shard.flush()
        return messages

    return Case(name, run, aim_us)


def fan_out(world: World, name: str, messages: int, width: int) -> Case:
    """Publish to a fanout exchange with `width` queues; claim from each and ack each. A message counts once."""
    tenant, shard = world.tenant, world.shard
    exchange = tenant.declare_exchange(name, "fanout")[0]
    queues = [world.queue(f"{name} {i}") for i in range(width)]
    for queue in queues:
        tenant.bind(exchange.name, queue, "")
    payloads = bodies(BATCH)

    def run() -> int:
        way = tenant.way(exchange, "")
        claim = shard.claim
        for _ in range(messages // BATCH):
            world.turn()
            for body in payloads:
                post(shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, body, 0, 0, 1), 0)
            for queue in queues:
                ack = queue.ack
                for lease in claim(queue, BATCH, LEASE_MS):
                    ack(lease)
            shard.flush()
        return messages

    return Case(name, run)


def main() -> None:
    arguments = start("core")
    title(
        "Core, publish + deliver + ack",
        f"""{MESSAGES:,} messages of {BODY_BYTES} B a round in batches of {BATCH}; a batch is one turn: time is passed
        in, the batch is published, taken under leases of 30 s, each lease acked, the turn flushed. One message costs
        one publish, one delivery and one ack; in the fan-out (a tenth as many messages) one publish, ten deliveries and
        ten acks.""",
    )
    world = World()
    cases = [
        claiming(world, "claim", MESSAGES, 1.0),
        claiming(world, "claim, batches of 1", MESSAGES, batch=1),
        claiming(world, "claim, time to live", MESSAGES, ttl_ms=60_000),
        claiming(world, "claim, 10 priorities", MESSAGES, priorities=10),
        subscribed(world, "mailbox", MESSAGES, 1.0),
        subscribed(world, "mailbox, 10 subscribers", MESSAGES, consumers=10),
        fan_out(world, "fan-out to 10 queues", MESSAGES // 10, 10),
    ]
    measure(cases, arguments.rounds)
    show(cases)


if __name__ == "__main__":
    main()
