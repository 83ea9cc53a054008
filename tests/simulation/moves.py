"""The operations of the world, how often each comes, the furniture a run starts with, and its end.

An operation chooses what to do by the world's random numbers, works out which errors must come, calls the core once,
and tells the ledger what that call means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation import operating, shapes, traffic, transacting
from tests.simulation.accounts import Violation

if TYPE_CHECKING:
    from tests.simulation.world import Plan, World

MOVES: dict[str, Callable[[World], None]] = {
    "publish": traffic.publish,
    "publish_once": traffic.publish_once,
    "claim": traffic.claim,
    "wait_claim": traffic.wait_claim,
    "subscribe": traffic.subscribe,
    "unsubscribe": traffic.unsubscribe,
    "crash": traffic.crash,
    "pause": traffic.pause,
    "settle": traffic.settle,
    "late_settle": traffic.late_settle,
    "strange_token": traffic.strange_token,
    "extend": traffic.extend,
    "flush": traffic.flush,
    "time": traffic.time,
    "fault": traffic.fault,
    "peek": operating.peek,
    "purge": operating.purge,
    "move": operating.move,
    "redrive": operating.redrive,
    "apply": transacting.apply_at_once,
    "begin": transacting.begin,
    "add": transacting.add,
    "commit": transacting.commit,
    "rollback": transacting.rollback,
    "declare_queue": shapes.declare_queue,
    "delete_queue": shapes.delete_queue,
    "declare_exchange": shapes.declare_exchange,
    "delete_exchange": shapes.delete_exchange,
    "bind": shapes.bind,
    "unbind": shapes.unbind,
    "set_policy": shapes.set_policy,
    "delete_policy": shapes.delete_policy,
    "nonsense": shapes.nonsense,
}


def chosen(plan: Plan) -> list[tuple[str, float]]:
    """The operations of a run with their weights."""
    heat = plan.heat
    weights = {
        "publish": 30 * heat["publish"],
        "publish_once": 10 * heat["publish"] * plan.dedup,
        "claim": 14 * heat["take"] * plan.claims,
        "wait_claim": 6 * heat["take"] * plan.claims,
        "subscribe": 5 * heat["take"] * plan.consumers,
        "unsubscribe": 1.5 * heat["take"] * plan.consumers,
        "crash": 1 * heat["take"] * plan.consumers,
        "pause": 2 * plan.consumers,
        "settle": 26 * heat["settle"],
        "late_settle": 4,
        "strange_token": 1,
        "extend": 3,
        "flush": 8,
        "time": 16 * heat["time"],
        "peek": 2,
        "purge": 0.7 * plan.operator,
        "move": 1.2 * plan.operator,
        "redrive": 1.5 * plan.operator * plan.dead_letters,
        "apply": 6 * plan.transactions,
        "begin": 2 * plan.transactions,
        "add": 5 * plan.transactions,
        "commit": 2 * plan.transactions,
        "rollback": 0.7 * plan.transactions,
        "declare_queue": 2 * heat["shape"],
        "delete_queue": 0.8 * heat["shape"],
        "declare_exchange": 1 * heat["shape"] * plan.exchanges,
        "delete_exchange": 0.4 * heat["shape"] * plan.exchanges,
        "bind": 3 * heat["shape"] * plan.exchanges,
        "unbind": 1.5 * heat["shape"] * plan.exchanges,
        "set_policy": 2 * heat["shape"] * plan.policies,
        "delete_policy": 0.7 * heat["shape"] * plan.policies,
        "nonsense": 1,
        "fault": 1 * plan.faults,
    }
    return [(name, weight) for name, weight in weights.items() if weight]


def furnish(world: World) -> None:
    """A few queues and exchanges, so that a run is about messages from the start."""
    for _ in range(world.rng.randint(2, 4)):
        shapes.declare_queue(world)
    if world.plan.exchanges:
        for _ in range(3):
            shapes.declare_exchange(world)
        for _ in range(8):
            shapes.bind(world)


def drain(world: World) -> None:
    """Everybody leaves, everything is settled or expires, every message is taken: nothing may be left over."""
    world.calm()
    world.flush()
    for account in world.accounts():
        for consumer in list(account.consumers):
            world.leave(consumer, "the run ends")
    for name in list(world.ledger.policies):
        shapes.drop_policy(world, name)
    world.flush()
    for orphan in list(world.ledger.orphans.values()):
        traffic.settle_orphan(world, orphan)
    while (hand := world.some_hand()) is not None:
        traffic.settle_hand(world, hand, "ack")
    for _ in range(400):
        if not any(account.records for account in world.accounts()):
            break
        world.pass_time(40_000)
        for account in world.accounts():
            if any(record.state == "ready" for record in account.records.values()):
                traffic.claim_from(world, account, 1_000, 30_000)
        while (hand := world.some_hand()) is not None:
            traffic.settle_hand(world, hand, "ack")
    else:
        left = {account.name: list(account.records.values()) for account in world.accounts() if account.records}
        raise Violation("1 nothing is lost", f"cannot be drained: {left}")
    if world.ledger.memory_bytes or world.shard.memory_bytes:
        raise Violation("memory", f"{world.shard.memory_bytes} bytes are held by nobody")
