"""Dead letters: where they go, what they carry, and the way back."""

from __future__ import annotations

import pytest

from rookery.core import publishing
from rookery.core.dead_letters import DEPTH_MAX, bury_new, move, redrive, revive_to_topic
from rookery.core.entries import Entry
from rookery.core.queue import Queue
from rookery.errors import InvalidArgument, QueueNotFound
from rookery.format import properties
from rookery.format.model import DEAD, Message
from rookery.format.properties import Properties, encode
from tests.unit.core_world import BROKEN_HEADERS, World, a_world, bodies, waiting

world = pytest.fixture(a_world, name="world")


def bury(world: World, queue: Queue, count: int = 1) -> Queue:
    """Publish and reject; the queue they were buried in."""
    for i in range(count):
        world.publish(b"%d" % i, queue.name)
        world.settle(world.one(queue), "reject")
    return world.tenant.queue(queue.settings.dead_letter_queue or "")


def letters(queue: Queue) -> list[Message]:
    return [entry.message for entry in queue.ready_entries()]


# Burial


def test_a_rejected_message_is_buried_in_the_same_step_with_its_story(world: World) -> None:
    queue = world.queue(face="http")
    sent = world.publish(b"body", headers={"tenant": "eu"}, priority=7)
    world.advance(50)
    lease = world.one(queue)
    world.advance(20)
    assert queue.reject(lease, "does not parse")
    (letter,) = letters(world.tenant.queue("jobs.DLQ"))
    assert (letter.body, letter.priority, letter.public_id) == (b"body", 7, sent.id)
    assert letter.id != sent.id
    assert properties.headers(letter.props) == {"tenant": "eu"}
    (death,) = letter.route.deaths
    now = world.clock.wall_ms()
    assert death.as_dict() == {
        "queue": "jobs",
        "reason": "rejected",
        "detail": "does not parse",
        "exchange": "",
        "routing_key": "jobs",
        "attempts": 1,
        "first_ms": now,
        "last_ms": now,
        "count": 1,
    }
    assert (queue.rejected, queue.dead_lettered, queue.ready) == (1, 1, 0)
    assert world.tenant.queue("jobs.DLQ").dead_lettered_in == 1


def test_a_message_that_used_up_its_attempts_is_buried_in_the_same_step(world: World) -> None:
    queue = world.queue(face="s0")
    world.publish()
    for attempt in (1, 2, 3):
        lease = world.one(queue)
        assert lease.attempt == attempt
        queue.retry(lease, 0, f"failed {attempt}")
    (letter,) = letters(world.tenant.queue("jobs.DLQ"))
    death = letter.route.deaths[0]
    assert (death.reason, death.detail, death.attempts) == ("delivery_limit", "failed 3", 3)
    assert (queue.retried, queue.dead_lettered, queue.ready) == (2, 1, 0)


def test_a_lapse_counts_as_a_failure(world: World) -> None:
    queue = world.queue(face="s0", max_attempts=1)
    world.publish()
    world.one(queue, 5_000)
    world.advance(5_000)
    (letter,) = letters(world.tenant.queue("jobs.DLQ"))
    assert letter.route.deaths[0].detail == "ack timeout after 5000 ms"


@pytest.mark.parametrize("face", ["embedded", "amqp", "mqtt"])
def test_without_a_target_a_rejected_message_is_dropped_and_counted(world: World, face: str) -> None:
    queue = world.queue(face=face)
    world.publish()
    world.settle(world.one(queue), "reject")
    assert (queue.dropped, queue.dead_lettered) == (1, 0)
    assert list(world.tenant.queues) == ["jobs"]


def test_through_a_dead_letter_exchange_with_the_messages_own_key(world: World) -> None:
    world.tenant.declare_exchange("graves", "topic")
    eu, us = world.queue("eu"), world.queue("us")
    world.tenant.bind("graves", eu, "*.eu")
    world.tenant.bind("graves", us, "*.us")
    queue = world.queue(dead_letter_exchange="graves")
    world.tenant.bind("amq.topic", queue, "#")
    world.publish(b"1", "orders.eu", "amq.topic")
    world.publish(b"2", "orders.us", "amq.topic")
    for lease in world.claim(queue, 2):
        world.settle(lease, "reject")
    assert (waiting(eu), waiting(us)) == ([b"1"], [b"2"])
    (letter,) = letters(eu)
    assert (letter.route.exchange, letter.route.key) == ("graves", "orders.eu")
    assert (letter.route.deaths[0].exchange, letter.route.deaths[0].key) == ("amq.topic", "orders.eu")


def test_through_a_dead_letter_exchange_with_a_declared_key(world: World) -> None:
    graves = world.queue("graves")
    queue = world.queue(dead_letter_exchange="", dead_letter_key="graves")
    world.publish()
    world.settle(world.one(queue), "reject")
    assert graves.ready == 1


def test_a_letter_shares_out_over_all_queues_of_its_exchange(world: World) -> None:
    one, two = world.queue("one"), world.queue("two")
    for target in (one, two):
        world.tenant.bind("amq.fanout", target, "")
    queue = world.queue(dead_letter_exchange="amq.fanout")
    world.publish()
    world.settle(world.one(queue), "reject")
    assert (one.ready, two.ready, queue.dead_lettered) == (1, 1, 1)
    assert letters(one)[0] is letters(two)[0]


def test_a_dead_letter_exchange_may_route_by_headers(world: World) -> None:
    poison = world.queue("poison")
    world.tenant.bind("amq.headers", poison, "", {"kind": "poison"})
    queue = world.queue(dead_letter_exchange="amq.headers")
    world.publish(b"bad", headers={"kind": "poison"})
    world.publish(b"fine", headers={"kind": "other"})
    for lease in world.claim(queue, 2):
        world.settle(lease, "reject")
    assert waiting(poison) == [b"bad"]
    assert (queue.dead_lettered, queue.dropped) == (1, 1)


def test_headers_that_cannot_be_read_lead_nowhere(world: World) -> None:
    """They are looked at only now; the message must still leave in one piece."""
    queue = world.queue(dead_letter_exchange="amq.headers")
    world.tenant.bind("amq.headers", world.queue("graves"), "", {"x-match": "all", "a": 1})
    world.publish(props=BROKEN_HEADERS)
    world.settle(world.one(queue), "reject")
    assert (queue.dropped, queue.leased, queue.ready) == (1, 0, 0)


def test_a_missing_exchange_counts_as_dropped(world: World) -> None:
    queue = world.queue(dead_letter_exchange="nowhere")
    world.publish()
    world.settle(world.one(queue), "reject")
    assert (queue.dropped, queue.dead_lettered, world.tenant.dead_letters_lost) == (1, 0, 1)


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-new", "close", "reject-publish-dead-letter"])
def test_a_full_target_counts_as_dropped(world: World, overflow: str) -> None:
    graves = world.queue("graves", length_max=1, overflow=overflow)
    queue = world.queue(dead_letter_queue="graves")
    bury(world, queue, 2)
    assert waiting(graves) == [b"0"]
    assert (queue.dead_lettered, queue.dropped, world.tenant.dead_letters_lost) == (1, 1, 1)
    assert not graves.deleted


def test_a_full_target_that_drops_its_head_takes_the_letter(world: World) -> None:
    graves = world.queue("graves", length_max=1)
    queue = world.queue(dead_letter_queue="graves")
    bury(world, queue, 2)
    assert waiting(graves) == [b"1"]
    assert (queue.dead_lettered, graves.dropped) == (2, 1)


@pytest.mark.parametrize("outcome", ["reject", "lapse", "overflow", "attempts", "expiry"])
def test_a_target_that_cannot_be_made_counts_as_dropped(world: World, outcome: str) -> None:
    """The default name `<queue>.DLQ` may be too long, or there may be too many queues: the message still dies."""
    queue = world.queue(face="s0", max_attempts=1, dead_letter_queue="{queue}.DLQ", length_max=2)
    world.tenant.set_limits({"queues_max": 1})
    world.publish(ttl_ms=50 if outcome == "expiry" else 0)
    if outcome == "reject":
        world.settle(world.one(queue), "reject")
    elif outcome == "lapse":
        world.one(queue, 1_000)
        world.advance(1_000)
    elif outcome == "attempts":
        world.settle(world.one(queue), "retry")
    elif outcome == "overflow":
        world.fill(2)
    else:
        world.advance(50)
    assert queue.dropped + queue.expired == 1
    assert list(world.tenant.queues) == ["jobs"]
    assert world.tenant.death_depth == 0


def test_a_target_whose_name_is_too_long_counts_as_dropped(world: World) -> None:
    queue = world.queue("q" * 253, "http")
    world.publish(key=queue.name)
    world.settle(world.one(queue), "reject")
    assert (queue.dropped, world.tenant.dead_letters_lost) == (1, 1)


def test_a_dead_letter_queue_keeps_what_it_has(world: World) -> None:
    """It has no target, no attempts and no backoff of its own."""
    queue = world.queue(face="http")
    graves = bury(world, queue)
    for _ in range(20):
        world.settle(world.one(graves), "retry")
        assert graves.ready == 1
    world.settle(world.one(graves), "reject")
    assert (graves.dropped, graves.dead_lettered) == (1, 0)
    assert set(world.tenant.queues) == {"jobs", "jobs.DLQ"}


def test_a_dead_letter_queue_may_be_declared_with_a_target_of_its_own(world: World) -> None:
    world.queue("last")
    graves = world.queue("jobs.DLQ", dead_letter_queue="last", max_attempts=1)
    queue = world.queue(face="http")
    bury(world, queue)
    world.settle(world.one(graves), "retry")
    (letter,) = letters(world.tenant.queue("last"))
    assert [(d.queue, d.reason) for d in letter.route.deaths] == [("jobs.DLQ", "delivery_limit"), ("jobs", "rejected")]


# Expiry


def test_an_expired_message_goes_only_to_a_declared_target(world: World) -> None:
    default = world.queue("default", "http")
    declared = world.queue("declared", "http", dead_letter_queue="graves")
    expiring = encode(Properties(expiration="100", content_type="text/plain"))
    for queue in (default, declared):
        world.publish(key=queue.name, ttl_ms=100, props=expiring)
    world.advance(100)
    assert (default.expired, default.dead_lettered) == (1, 0)
    assert "default.DLQ" not in world.tenant.queues
    assert (declared.expired, declared.dead_lettered) == (0, 1)
    (letter,) = letters(world.tenant.queue("graves"))
    assert letter.expires_ms == 0
    assert properties.decode(letter.props).as_dict() == {"content_type": "text/plain"}
    death = letter.route.deaths[0]
    assert (death.reason, death.attempts) == ("expired", 0)
    assert death.as_dict()["expiration_ms"]
    world.advance(10_000_000)
    assert world.tenant.queue("graves").ready == 1


def test_what_overflows_goes_only_to_a_declared_target(world: World) -> None:
    default = world.queue("default", "http", length_max=1)
    declared = world.queue("declared", "http", length_max=1, dead_letter_queue="graves")
    for queue in (default, declared):
        world.fill(2, queue.name)
    assert (default.dropped, declared.dropped) == (1, 0)
    assert letters(world.tenant.queue("graves"))[0].route.deaths[0].reason == "maxlen"


# Circles


def test_a_circle_without_a_rejection_is_cut(world: World) -> None:
    one = world.queue("one", ttl_ms=10, dead_letter_queue="two")
    two = world.queue("two", ttl_ms=10, dead_letter_queue="one")
    world.publish(key="one")
    world.advance(10)
    assert (one.dead_lettered, two.ready) == (1, 1)
    world.advance(10)
    assert (one.ready, two.ready, two.expired) == (0, 0, 1)


def test_a_circle_with_a_rejection_goes_on_and_is_counted(world: World) -> None:
    work = world.queue("work", dead_letter_queue="pause")
    world.queue("pause", ttl_ms=10, dead_letter_queue="work")
    world.publish(key="work")
    for _ in range(3):
        world.settle(world.one(work), "reject")
        world.advance(10)
    assert work.ready == 1
    (letter,) = letters(work)
    history = [(d.queue, d.reason, d.count) for d in letter.route.deaths]
    assert history == [("pause", "expired", 3), ("work", "rejected", 3)]
    assert letter.route.deaths[1].first_ms < letter.route.deaths[1].last_ms


def test_a_queue_that_overflows_into_itself_drops(world: World) -> None:
    queue = world.queue(length_max=2, dead_letter_exchange="", dead_letter_key="jobs")
    world.fill(5)
    assert waiting(queue) == [b"3", b"4"]
    assert queue.dropped == 3


def test_a_chain_of_full_queues_ends(world: World) -> None:
    count = int(DEPTH_MAX) + 10
    for i in range(count):
        world.queue(f"q{i}", length_max=0, dead_letter_queue=f"q{i + 1}")
    world.publish(key="q0")
    passed = [q for q in world.tenant.queues.values() if q.dead_lettered]
    assert len(passed) == DEPTH_MAX
    assert world.tenant.queue(f"q{int(DEPTH_MAX)}").dropped == 1
    assert world.tenant.death_depth == 0
    assert world.tenant.memory_bytes == 0


# Given up by the publisher


def test_a_publisher_may_bury_a_message_itself(world: World) -> None:
    graves, copies = world.queue("graves"), world.queue("copies")
    way = world.tenant.way(world.tenant.exchange("amq.topic"), "orders.new")
    message = publishing.new_message(world.shard, world.tenant, way, properties.EMPTY, b"x", 0, 0, 0)
    for target in (graves, copies):
        world.tenant.bind("amq.fanout", target, "")
    bury_new(
        world.tenant, world.tenant.way(world.tenant.exchange("amq.fanout"), ""), "orders", message, "validation error"
    )
    (letter,) = letters(graves)
    assert letters(copies) == [letter]
    death = letter.route.deaths[0]
    assert (death.queue, death.reason, death.detail) == ("orders", "rejected", "validation error")
    assert (death.exchange, death.key) == ("amq.topic", "orders.new")
    assert letter.public_id == message.id
    assert graves.origins == {"orders": 1}


def test_a_dead_letter_can_be_published_again_as_it_was_first(world: World) -> None:
    queue, graves = world.queue(dead_letter_queue="graves", ttl_ms=10), world.queue("graves", dead_letter_queue="end")
    world.tenant.bind("amq.topic", queue, "orders.#")
    world.publish(b"x", "orders.new", "amq.topic")
    world.advance(10)
    world.settle(world.one(graves), "reject")
    (letter,) = letters(world.tenant.queue("end"))
    assert revive_to_topic(world.tenant, letter, "amq.topic") == 1
    (again,) = letters(queue)
    assert (again.body, again.route.key, again.route.deaths) == (b"x", "orders.new", [])
    assert not again.flags & DEAD


# Redrive


def test_redrive_brings_all_back_in_order(world: World) -> None:
    queue, other = world.queue(face="http"), world.queue("other", "http", dead_letter_queue="jobs.DLQ")
    graves = bury(world, queue, 3)
    bury(world, other, 1)
    numbers = [letter.public_id for letter in letters(graves)]
    done = redrive(world.tenant, graves)
    assert [target for _, target in done] == ["jobs", "jobs", "jobs", "other"]
    assert waiting(queue) == [b"0", b"1", b"2"]
    assert waiting(other) == [b"0"]
    assert (graves.ready, graves.moved_out, queue.moved_in) == (0, 4, 3)
    assert [m.public_id for m in letters(queue) + letters(other)] == numbers


def test_a_redriven_message_starts_anew_and_keeps_its_history(world: World) -> None:
    queue = world.queue(face="s0")
    world.publish(b"x", "jobs")
    for _ in range(3):
        queue.retry(world.one(queue), 0, "")
    graves = world.tenant.queue("jobs.DLQ")
    redrive(world.tenant, graves)
    lease = world.one(queue)
    message = lease.entry.message
    assert lease.attempt == 1
    assert not lease.entry.redelivered
    assert not message.flags & DEAD
    assert (message.route.exchange, message.route.key) == ("", "jobs")
    assert message.route.deaths[0].count == 1
    queue.reject(lease, "")
    redrive(world.tenant, graves)
    assert [(d.reason, d.count) for d in letters(queue)[0].route.deaths] == [("rejected", 1), ("delivery_limit", 1)]


def test_redrive_some(world: World) -> None:
    queue = world.queue(face="http")
    graves = bury(world, queue, 6)

    def even(entry: Entry) -> bool:
        return int(entry.message.body) % 2 == 0

    assert len(redrive(world.tenant, graves, limit=2, chosen=even)) == 2
    assert waiting(queue) == [b"0", b"2"]
    assert waiting(graves) == [b"1", b"3", b"4", b"5"]


def test_a_dry_run_changes_nothing(world: World) -> None:
    queue = world.queue(face="http")
    graves = bury(world, queue, 3)
    before = (world.shard.last_id, graves.ready, graves.moved_out, queue.moved_in)
    done = redrive(world.tenant, graves, limit=2, dry_run=True)
    assert [(entry.message.body, target) for entry, target in done] == [(b"0", "jobs"), (b"1", "jobs")]
    assert (world.shard.last_id, graves.ready, graves.moved_out, queue.moved_in) == before


def test_redrive_to_another_queue(world: World) -> None:
    queue, repair = world.queue(face="http"), world.queue("repair")
    graves = bury(world, queue, 2)
    assert len(redrive(world.tenant, graves, target="repair")) == 2
    assert (waiting(repair), queue.ready) == ([b"0", b"1"], 0)


def test_what_was_redriven_elsewhere_is_no_dead_letter_there(world: World) -> None:
    queue, repair = world.queue(face="http"), world.queue("repair")
    graves = bury(world, queue, 2)
    redrive(world.tenant, graves, target="repair")
    assert redrive(world.tenant, repair) == []
    assert (repair.ready, queue.ready) == (2, 0)


def test_letters_without_a_home_stay(world: World) -> None:
    queue = world.queue(face="http")
    graves = bury(world, queue, 2)
    world.publish(b"never died", "jobs.DLQ")
    world.tenant.delete_queue("jobs")
    assert redrive(world.tenant, graves) == []
    world.queue(face="http", length_max=1, overflow="reject-publish")
    assert len(redrive(world.tenant, graves)) == 1
    assert waiting(graves) == [b"1", b"never died"]


@pytest.mark.parametrize(("limit", "target", "argument"), [(-1, None, "limit"), (0, "nowhere", "queue")])
def test_bad_arguments_redrive_nothing(world: World, limit: int, target: str | None, argument: str) -> None:
    graves = bury(world, world.queue(face="http"))
    with pytest.raises((InvalidArgument, QueueNotFound)) as caught:
        redrive(world.tenant, graves, limit=limit, target=target)
    assert getattr(caught.value, "argument", None) == argument
    assert graves.ready == 1


def test_redriven_messages_reach_waiting_consumers(world: World) -> None:
    queue = world.queue(face="http")
    graves = bury(world, queue, 2)
    mailbox = world.mailbox(queue, credit=1)
    redrive(world.tenant, graves)
    assert bodies(mailbox.take()) == [b"0"]
    assert waiting(queue) == [b"1"]


# Move


def test_move_keeps_the_order(world: World) -> None:
    queue, target = world.queue(), world.queue("target")
    world.publish(b"low", priority=1)
    world.publish(b"high", priority=2)
    world.publish(b"delayed", delay_ms=100)
    world.publish(b"taken", priority=3)
    lease = world.one(queue)
    assert move(world.tenant, queue, target) == 2
    assert waiting(target) == [b"high", b"low"]
    assert (queue.ready, queue.delayed, queue.leased, queue.moved_out, target.moved_in) == (0, 1, 1, 2, 2)
    world.settle(lease)


def test_move_some(world: World) -> None:
    queue, target = world.queue(), world.queue("target", length_max=3, overflow="reject-publish")
    world.fill(10)
    assert move(world.tenant, queue, target, limit=2, chosen=lambda e: int(e.message.body) > 4) == 2
    assert waiting(target) == [b"5", b"6"]
    assert move(world.tenant, queue, target) == 1
    assert waiting(target) == [b"5", b"6", b"0"]
    assert queue.ready == 7


def test_a_moved_message_keeps_its_expiry(world: World) -> None:
    queue, target = world.queue(), world.queue("target")
    world.publish(ttl_ms=100)
    world.advance(60)
    move(world.tenant, queue, target)
    world.advance(40)
    assert target.expired == 1


def test_bad_arguments_move_nothing(world: World) -> None:
    queue, target = world.queue(), world.queue("target")
    world.fill(1)
    with pytest.raises(InvalidArgument) as caught:
        move(world.tenant, queue, queue)
    assert caught.value.argument == "target"
    with pytest.raises(InvalidArgument) as caught:
        move(world.tenant, queue, target, limit=-1)
    assert caught.value.argument == "limit"
    assert queue.ready == 1
