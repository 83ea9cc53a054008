"""What changes the shape of the world: queues, exchanges, bindings, policies, and calls that must be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery import errors
from rookery.core.policy import Policy
from tests.simulation import known
from tests.simulation.accounts import Violation
from tests.simulation.naive import Hub, Link
from tests.simulation.traffic import COLOURS, KEYS

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.world import Plan, World

QUEUES = ("q0", "q1", "q2", "q3", "d0", "d1")
BRIEF = ("e0", "a0")
"""The first expires when it is not used, the second goes with its last consumer."""
EXCHANGES = ("x0", "x1", "x2", "x3")
KINDS = ("direct", "topic", "fanout", "headers")
PATTERNS = ("a", "b", "a.b", "a.*", "#", "b.#", "*.a.*", "a.#.b")
OVERFLOWS = ("drop-head", "drop-head", "reject-publish", "reject-publish-dead-letter", "drop-new")
CLOSING = ("q2", "q3")
"""Those that may close when full: not dead-letter queues, which would be made again in the same step."""


# Queues


def _limits(rng: Random, may_close: bool) -> dict[str, object]:
    said: dict[str, object] = {"overflow": rng.choice((*OVERFLOWS, "close") if may_close else OVERFLOWS)}
    if rng.random() < 0.75:
        said["length_max"] = rng.choice((0, 1, 2, 3, 3, 5))
    else:
        said["bytes_max"] = rng.choice((8, 30, 60, 150))
    return said


def _target(rng: Random, plan: Plan) -> dict[str, object]:
    if plan.exchanges and rng.random() < 0.4:
        said: dict[str, object] = {"dead_letter_exchange": rng.choice((*EXCHANGES, ""))}
        if rng.random() < 0.5:
            said["dead_letter_key"] = rng.choice((*KEYS, *QUEUES))
        return said
    return {"dead_letter_queue": rng.choice(("d0", "d0", "d1", "q0", "q1", "{queue}.DLQ"))}


def settings(world: World, name: str) -> dict[str, object]:
    """What a declarer may say."""
    rng, plan = world.rng, world.plan
    said: dict[str, object] = {}
    if plan.ttl and rng.random() < 0.3:
        said["ttl_ms"] = rng.choice((1, 60, 300, 1_500))
    if plan.bounded and rng.random() < 0.5 and not name.startswith("e"):
        # what a queue drops in the turn in which it expires is seen by nobody
        said |= _limits(rng, name in CLOSING)
    if plan.dead_letters and rng.random() < 0.6:
        said |= _target(rng, plan)
    if known.KNOWN_LETTERS_COME_BACK and said.get("overflow") == "drop-head" and "dead_letter_exchange" in said:
        del said["dead_letter_exchange"]
        said.pop("dead_letter_key", None)
    if known.KNOWN_LETTERS_COME_BACK and said.get("overflow") == "drop-head" and "dead_letter_queue" in said:
        said["dead_letter_queue"] = "{queue}.DLQ"
    if plan.attempts and rng.random() < 0.5:
        said["max_attempts"] = rng.choice((1, 2, 3))
    if rng.random() < 0.3:
        said["backoff"] = rng.choice(("fixed", "linear", "exponential"))
        said["backoff_base_ms"] = rng.choice((0, 10, 120))
    if plan.priorities and rng.random() < 0.4:
        said["ordered"] = rng.random() < 0.7
    if plan.priorities and rng.random() < 0.2:
        said["priority_max"] = 5
    if plan.single_active and rng.random() < 0.5:
        said["single_active"] = True
    elif plan.key_hash and rng.random() < 0.5:
        said["distribution"] = "key-hash"
        if known.KNOWN_KEY_HASH_PLACES:
            said["ordered"] = False
    elif rng.random() < 0.3:
        said["distribution"] = rng.choice(("least-busy", "priority", "round-robin"))
    if plan.groups and rng.random() < 0.6 and said.get("distribution") != "key-hash":
        # a key-hash queue keeps groups together by itself
        said["grouped"] = True
    if plan.dedup and rng.random() < 0.5:
        said["dedup_window_ms"] = rng.choice((50, 500, 5_000))
    if name.startswith("e"):
        said["expires_ms"] = rng.choice((40, 300, 1_000))
    if name.startswith("a"):
        said["auto_delete"] = True
    if plan.passing and rng.random() < 0.2:
        said["durable"] = False
    return said


def declare_queue(world: World) -> None:
    rng = world.rng
    name = rng.choice((*QUEUES, *BRIEF) if world.plan.brief else QUEUES)
    account = world.ledger.accounts.get(name)
    wrong: tuple[type[errors.RookeryError], ...] = ()
    if account is None:
        face, said = rng.choice(("embedded", "embedded", "amqp", "http", "s0")), settings(world, name)
        if world.plan.queues_max and len(world.ledger.accounts) >= world.plan.queues_max:
            wrong = (errors.LimitExceeded,)
    else:
        face, said = account.face, dict(account.said)
        if rng.random() < 0.3:
            said["lease_ms"] = 77
            wrong = (errors.Conflict,)
    world.say(f"declare queue {name} ({face}) {said}")
    result = world.call(lambda: world.tenant.declare_queue(name, said, face), wrong)
    if result is not None:
        if result[1] is (account is not None):
            raise Violation("declare", f"queue {name} is said to be {'new' if result[1] else 'known'}")
        world.ledger.declared(name, face, said)
    world.done()


def delete_queue(world: World) -> None:
    account = world.some_account()
    if account is None:
        return
    if_unused, if_empty = world.rng.random() < 0.3, world.rng.random() < 0.3
    name = account.name
    words = ("if unused ", "if empty ")
    world.say(f"delete queue {name} {words[0] * if_unused}{words[1] * if_empty}")
    wrong: tuple[type[errors.RookeryError], ...] = ()
    if if_unused and any(not c.once for c in account.consumers):
        wrong = (errors.InUse,)
    elif if_empty and account.waiting():
        wrong = (errors.NotEmpty,)
    ready = len(account.ready())
    removed = world.call(lambda: world.tenant.delete_queue(name, if_unused, if_empty), wrong)
    if removed is not None:
        if removed != ready:
            raise Violation("9 conservation", f"{removed} were ready in {name} when it was deleted, not {ready}")
        world.ledger.deleted(account, "deleted")
    world.done()


# Exchanges


def declare_exchange(world: World) -> None:
    rng = world.rng
    name = rng.choice(EXCHANGES)
    hub = world.ledger.topology.hubs.get(name)
    wrong: tuple[type[errors.RookeryError], ...] = ()
    if hub is None:
        alternate = rng.choice((*EXCHANGES, "", "", ""))
        wanted = Hub(rng.choice(KINDS), "" if alternate == name else alternate, rng.random() < 0.15)
        wanted.durable = not (world.plan.passing and rng.random() < 0.2)
    else:
        wanted = Hub(hub.kind, hub.alternate, hub.auto_delete, durable=hub.durable)
        if rng.random() < 0.3:
            wanted.auto_delete = not hub.auto_delete
            wrong = (errors.Conflict,)
    world.say(f"declare exchange {name} {wanted.kind} alternate {wanted.alternate!r} auto_delete {wanted.auto_delete}")
    result = world.call(
        lambda: world.tenant.declare_exchange(
            name, wanted.kind, wanted.durable, wanted.auto_delete, alternate=wanted.alternate
        ),
        wrong,
    )
    if result is not None and hub is None:
        world.ledger.topology.hubs[name] = wanted
        world.ledger.altered |= wanted.durable
    world.done()


def delete_exchange(world: World) -> None:
    topology = world.ledger.topology
    if not topology.hubs:
        return
    name = world.rng.choice(list(topology.hubs))
    if_unused = world.rng.random() < 0.4
    world.say(f"delete exchange {name} {'if unused' * if_unused}")
    wrong = (errors.InUse,) if if_unused and topology.hubs[name].links else ()
    world.call(lambda: world.tenant.delete_exchange(name, if_unused), wrong)
    if not wrong:
        world.ledger.altered |= topology.hubs[name].durable
        topology.delete(name)
        world.ledger.reshaped()
    world.done()


def _some_link(world: World, source: str) -> Link | None:
    rng, topology = world.rng, world.ledger.topology
    hub = topology.hubs[source]
    to_queue = rng.random() < 0.8
    names = list(world.ledger.accounts) if to_queue else [name for name in topology.hubs if name != source]
    if not names:
        return None
    arguments: dict[str, object] = {}
    if hub.kind == "headers":
        arguments = {"x-match": rng.choice(("any", "all")), "colour": rng.choice(COLOURS)}
        if rng.random() < 0.5:
            arguments["size"] = 2
    return Link(rng.choice(PATTERNS if hub.kind == "topic" else KEYS), arguments, rng.choice(names), to_queue)


def bind(world: World) -> None:
    topology = world.ledger.topology
    if not topology.hubs:
        return
    source = world.rng.choice(list(topology.hubs))
    link = _some_link(world, source)
    if link is None:
        return
    world.say(f"bind {source} -{link.key}-> {link.target} {link.arguments or ''}")
    target = world.tenant.queues[link.target] if link.to_queue else world.tenant.exchanges[link.target]
    new = world.call(lambda: world.tenant.bind(source, target, link.key, link.arguments))
    world.ledger.altered |= bool(new) and world.ledger.lasts(source, link)
    if new != topology.bind(source, link):
        raise Violation("topology", f"binding {source} -{link.key}-> {link.target} is said to be new: {new}")
    world.done()


def unbind(world: World) -> None:
    topology = world.ledger.topology
    if not topology.hubs:
        return
    source = world.rng.choice(list(topology.hubs))
    links = topology.hubs[source].links
    link = world.rng.choice(links) if links and world.rng.random() < 0.9 else _some_link(world, source)
    if link is None:
        return
    world.say(f"unbind {source} -{link.key}-> {link.target} {link.arguments or ''}")
    target = world.tenant.queues[link.target] if link.to_queue else world.tenant.exchanges[link.target]
    there = world.call(lambda: world.tenant.unbind(source, target, link.key, link.arguments))
    world.ledger.altered |= bool(there) and world.ledger.lasts(source, link)
    if there != topology.unbind(source, link):
        raise Violation("topology", f"binding {source} -{link.key}-> {link.target} is said to have been there: {there}")
    world.ledger.reshaped()
    world.done()


# Policies


def set_policy(world: World) -> None:
    rng, plan = world.rng, world.plan
    name = rng.choice(("p0", "p1"))
    pattern = rng.choice(("^q", "q0", "d", "^[adq]", "1$"))
    said: dict[str, object] = {}
    if plan.ttl and rng.random() < 0.4:
        said["ttl_ms"] = rng.choice((20, 30, 400))
    if plan.bounded and rng.random() < 0.4 and not known.KNOWN_LETTERS_COME_BACK:
        said |= _limits(rng, False)
    if plan.dead_letters and rng.random() < 0.4 and not known.KNOWN_LETTERS_COME_BACK:
        said |= _target(rng, plan)
        if said.get("dead_letter_queue") == "{queue}.DLQ":
            # a policy for every name would give each dead-letter queue one of its own, without end
            said["dead_letter_queue"] = "d1"
    attempts = plan.attempts and not plan.bounded and not (known.KNOWN_KEY_HASH_PLACES and plan.key_hash)
    if attempts and rng.random() < 0.5:
        # where queues drop their head too, it could not be told which of the two ended a message
        said["max_attempts"] = rng.choice((0, 1, 2))
    priority = {"p0": 1, "p1": 2}[name]
    world.say(f"policy {name} for {pattern!r} priority {priority} {said}")
    world.call(lambda: world.tenant.set_policy(Policy(name, pattern, said, priority)))
    world.ledger.policies[name] = (priority, pattern, said)
    world.ledger.reconfigured()
    world.done()


def delete_policy(world: World) -> None:
    if world.ledger.policies:
        drop_policy(world, world.rng.choice(list(world.ledger.policies)))


def drop_policy(world: World, name: str) -> None:
    world.say(f"delete policy {name}")
    world.call(lambda: world.tenant.delete_policy(name))
    del world.ledger.policies[name]
    world.ledger.reconfigured()
    world.done()


# Calls that must be refused


def nonsense(world: World) -> None:
    """What is refused changes nothing."""
    account = world.some_account()
    if account is None:
        return
    shard, tenant, queue = world.shard, world.tenant, account.core
    calls = (
        (lambda: shard.claim(queue, 0, 100), errors.InvalidArgument),
        (lambda: shard.claim(queue, 1, 0), errors.InvalidArgument),
        (lambda: tenant.declare_queue("", {}, "embedded"), errors.InvalidName),
        (lambda: tenant.declare_queue("new", {"ttl": 1}, "embedded"), errors.InvalidArgument),
        (lambda: tenant.declare_queue("new", {"length_max": "1"}, "embedded"), errors.InvalidType),
        (lambda: tenant.declare_queue(account.name, {}, "embedded", create=True), errors.AlreadyExists),
        (lambda: tenant.delete_queue("nobody"), errors.QueueNotFound),
        (lambda: tenant.bind("", queue, "k"), errors.InvalidArgument),
        (lambda: tenant.delete_policy("nobody"), errors.NotFound),
        (lambda: tenant.delete_exchange("amq.topic"), errors.InvalidArgument),
        (lambda: tenant.set_limits({"queues_max": -1}), errors.InvalidArgument),
        (lambda: shard.transactions.begin(tenant, ""), errors.InvalidArgument),
    )
    call, wrong = world.rng.choice(calls)
    world.say(f"nonsense, {wrong.__name__}")
    world.call(call, (wrong,))
    for other in world.accounts():
        world.ledger.touch(other)
    world.done()
