"""What a journal brings back: exactly the state of the last batch, over every medium.

Here one process ends (it is killed, or closes) and the next one starts; `picture` is all that must be the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from rookery.core import definitions
from rookery.core.access import Access
from rookery.core.policy import Policy
from rookery.core.publishing import Publish
from rookery.core.transactions import Settle, apply
from rookery.errors import InvalidArgument, StoreLocked, Unauthenticated
from rookery.format.model import PRIORITY_MAX, PRIORITY_MIN
from rookery.format.properties import EMPTY, Properties, Timestamp, encode
from rookery.format.records import DEFINE, EXIT, MARK, PUT
from tests.contract.journal_world import HOUR_MS, SITES, FileSite, Site, World, count_records, new_access, picture
from tests.unit.core_world import publish_once


@pytest.fixture(params=list(SITES.values()), ids=list(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: Site = request.param(tmp_path)
    yield made
    made.stop()


def killed(site: Site, world: World) -> World:
    """Another process after this one was killed; it must find what was written."""
    world.write()
    before = picture(world)
    again = site.restart(world)
    assert before == picture(again)
    return again


# Messages


@pytest.mark.row("S3-9")
def test_an_empty_journal_is_an_empty_broker(site: Site) -> None:
    world = site.start()
    assert not world.shard.tenants
    assert world.recovery.batches == 0
    world = site.reopen(world)
    assert not world.shard.tenants


@pytest.mark.row("S3-9", "S4-28")
def test_messages_come_back_in_order_with_all_they_are_made_of(site: Site) -> None:
    world = site.start()
    world.queue()
    props = encode(Properties(content_type="text/plain", headers={"n": 1, "t": Timestamp(7)}))
    world.shard.publish(world.tenant(), "", "q", props, b"\x00\xff" * 50)
    for priority in (0, 5, -5, PRIORITY_MAX, PRIORITY_MIN, 5):
        world.publish(b"%d" % priority, priority=priority)
    world.publish(b"")
    world = killed(site, world)
    order = [PRIORITY_MAX, 5, 5, 0, -5, PRIORITY_MIN]
    assert [b for b in world.bodies() if b[-1:].isdigit()] == [b"%d" % priority for priority in order]
    assert world.queue().restored == 8
    assert world.queue().ready_entries()[3].message.props == props


def test_one_process_after_another_finds_the_same(site: Site) -> None:
    world = site.start()
    world.queue()
    for n in range(5):
        world.publish(b"%d" % n)
        world = killed(site, world)
        before = picture(world)
        world = site.reopen(world)
        assert before == picture(world)
    assert world.bodies() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.row("S3-6")
def test_what_was_acked_never_comes_back(site: Site) -> None:
    world = site.start()
    world.queue()
    for n in range(6):
        world.publish(b"%d" % n)
    world.write()
    assert world.ack(2) == [b"0", b"1"]
    world = killed(site, world)
    assert world.bodies() == [b"2", b"3", b"4", b"5"]
    assert world.ack(4) == [b"2", b"3", b"4", b"5"]
    world = killed(site, world)
    assert world.queue().ready == 0
    world = killed(site, world)
    assert world.queue().ready == 0


def test_attempts_and_redelivered_come_back_as_they_were_when_the_lease_ended(site: Site) -> None:
    world = site.start()
    queue = world.queue()
    for body in (b"retried", b"released", b"leased", b"fresh"):
        world.publish(body)
    world.write()
    for _ in range(2):
        queue.retry(world.claim()[0], 0, "")
    first, second, _ = world.claim(3)
    queue.retry(first, 0, "")
    queue.release(second)
    world = killed(site, world)
    found = {e.message.body: (e.attempts, e.redelivered) for e in world.queue().ready_entries()}
    assert found[b"retried"] == (3, True)
    assert found[b"released"] == (0, True)
    assert found[b"leased"][0] in (0, 1)
    assert found[b"fresh"] == (0, False)
    assert world.bodies() == [b"retried", b"released", b"leased", b"fresh"]


def test_attempts_are_kept_when_they_were_made_before_the_message_was_written(site: Site) -> None:
    world = site.start()
    queue = world.queue()
    world.publish(b"hasty")
    queue.retry(world.claim()[0], 0, "")
    world = killed(site, world)
    (entry,) = world.queue().ready_entries()
    assert (entry.attempts, entry.redelivered) == (1, True)


def test_a_lease_of_an_earlier_process_is_worth_nothing(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"x")
    (lease,) = world.claim()
    token = lease.token()
    world = killed(site, world)
    (again,) = world.claim()
    assert again.token() != token
    assert world.shard.lease(world.tenant(), token) is None
    assert world.queue().ack(again)


def test_delays_end_when_they_would_have(site: Site) -> None:
    world = site.start()
    queue = world.queue()
    world.publish(b"published", due_ms=world.wall_ms + 5_000)
    world.publish(b"backed off")
    queue.retry(world.claim()[0], 3_000, "")
    world.publish(b"over", due_ms=world.wall_ms + 1_000)
    world = killed(site, world)
    assert [e.due_ms - world.wall_ms for e in world.queue().delayed_entries()] == [1_000, 3_000, 5_000]
    world.write()
    site.kill(world)
    world = site.start(wall_ms=world.wall_ms + 2_999)
    assert world.bodies() == [b"over"]
    world.pass_ms(1)
    assert world.bodies() == [b"backed off", b"over"]
    world.pass_ms(2_000)
    assert world.bodies() == [b"published", b"backed off", b"over"]


def test_a_delay_before_the_message_was_written(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"x")
    world.queue().retry(world.claim()[0], 7_000, "")
    world = killed(site, world)
    assert [e.due_ms for e in world.queue().delayed_entries()] == [world.wall_ms + 7_000]


def test_what_expired_meanwhile_is_gone_and_buried_where_that_was_declared(site: Site) -> None:
    world = site.start()
    world.queue("q", {"dead_letter_queue": "late"})
    world.queue("short", {"ttl_ms": 1_000})
    world.publish(b"by message", expires_ms=world.wall_ms + 1_000)
    world.publish(b"stays", expires_ms=world.wall_ms + 10_000)
    world.publish(b"by queue", "short")
    world = killed(site, world)
    site.kill(world)
    world = site.start(wall_ms=world.wall_ms + 1_000)
    world.pass_ms(0)
    assert world.bodies() == [b"stays"]
    assert world.bodies("short") == []
    (letter,) = world.queue("late").ready_entries()
    assert letter.message.route.deaths[0].reason == "expired"
    world = killed(site, world)
    assert world.bodies("late") == [b"by message"]


def test_dead_letters_keep_their_history_and_their_id(site: Site) -> None:
    world = site.start()
    world.queue("q", {"max_attempts": 2, "dead_letter_queue": "dead"})
    message = world.publish(b"bad", priority=3)
    text = world.shard.ids.uuid(message.id)
    for _ in range(2):
        world.queue().retry(world.claim()[0], 0, "no luck")
    world = killed(site, world)
    (letter,) = world.queue("dead").ready_entries()
    (death,) = letter.message.route.deaths
    assert (death.queue, death.reason, death.detail, death.attempts) == ("q", "delivery_limit", "no luck", 2)
    assert world.shard.ids.uuid(letter.message.public_id) == text
    assert world.queue("dead").origins == {"q": 1}
    world.queue("dead").reject(world.claim(1, "dead")[0], "")
    world = killed(site, world)
    assert world.queue("dead").ready == 0


def test_names_that_are_no_utf8_come_back(site: Site) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    world = site.start()
    world.queue(name, {"dead_letter_queue": name + ".dead", "max_attempts": 1})
    world.tenant().declare_exchange(name, "direct", arguments={name: name})
    world.tenant().bind(name, world.queue(name), name)
    world.publish(b"x", name, name)
    world.publish_once(name, b"y", name)
    world.queue(name).retry(world.claim(1, name)[0], 0, name)
    world = killed(site, world)
    (letter,) = world.queue(name + ".dead").ready_entries()
    assert letter.message.route.deaths[0].detail == name
    assert not world.publish_once(name, b"y", name)


# What is written


def test_a_message_acked_before_it_was_taken_is_never_written(site: Site) -> None:
    world = site.start()
    world.queue()
    world.write()
    world.publish(b"come and gone")
    horizon = world.shard.log.horizon()
    assert world.ack() == [b"come and gone"]
    world.write()
    assert world.shard.log.durable >= horizon
    site.kill(world)
    data = site.segment(1)
    assert b"come and gone" not in data
    assert count_records(data, PUT) == count_records(data, EXIT) == 0


def test_a_fan_out_is_written_once_and_shared_again(site: Site) -> None:
    world = site.start()
    tenant = world.tenant()
    for name in ("a", "b", "gone"):
        tenant.bind("amq.fanout", world.queue(name), "")
    tenant.bind("amq.fanout", world.queue("transient", {"durable": False}), "")
    world.publish(b"to all of them", exchange="amq.fanout")
    assert world.ack(1, "gone")
    assert world.queue("transient").ready == 1
    world = killed(site, world)
    assert world.bodies("a") == world.bodies("b") == [b"to all of them"]
    assert world.bodies("gone") == []
    assert "transient" not in world.tenant().queues
    a, b = world.queue("a").ready_entries()[0], world.queue("b").ready_entries()[0]
    assert a.message is b.message
    assert world.shard.memory_bytes == a.message.size_bytes()
    site.kill(world)
    assert site.segment(1).count(b"to all of them") == 1


def test_transient_messages_are_not_written(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"fleeting", persistent=False)
    world.publish(b"lasting")
    world = killed(site, world)
    assert world.bodies() == [b"lasting"]
    site.kill(world)
    assert b"fleeting" not in site.segment(1)


@pytest.mark.row("S1-51")
def test_compression_pays_and_can_be_off(site: Site) -> None:
    body = b"the same again, " * 640
    sizes = []
    for compression, compress_min in (("zlib", 0), ("none", 1024), ("zlib", 1024), ("zstd", 1024)):
        world = site.start(compression=compression, compress_min=compress_min)
        world.queue()
        world.publish(b"so that this process has a segment of its own")
        world.write()
        before = world.journal.segments[-1].size
        world.publish(body)
        world.write()
        sizes.append(world.journal.segments[-1].size - before)
        site.kill(world)
        world = site.start()
        assert world.bodies()[-1] == body
        site.kill(world)
    assert min(sizes[:2]) > 10_000
    assert max(sizes[2:]) < 2_000


def test_small_and_incompressible_bodies_are_written_as_they_are(site: Site) -> None:
    world = site.start(compress_min=100)
    world.queue()
    noise = bytes(range(256))
    world.publish(b"a" * 99)
    world.publish(noise)
    world = killed(site, world)
    site.kill(world)
    data = site.segment(1)
    assert b"a" * 99 in data
    assert noise in data


# Definitions


@pytest.mark.row("S4-28")
def test_definitions_come_back(site: Site) -> None:
    world = site.start()
    tenant = world.tenant()
    tenant.set_limits({"queues_max": 50, "message_bytes_max": 12_345})
    tenant.set_face_defaults("s0", {"max_attempts": 9})
    tenant.set_policy(Policy("p", "^q", {"ttl_ms": 60_000}, 3))
    tenant.declare_queue("q", {"length_max": 10, "overflow": "reject-publish"}, "http")
    tenant.declare_queue("by s0", {}, "s0")
    tenant.declare_queue("for now", {"durable": False}, "amqp")
    table = {"bytes": b"\x00\xff", "decimal": Decimal("1.50"), "time": Timestamp(9), "list": [1, {"$x": 2.5}]}
    tenant.declare_exchange("x", "headers", alternate="amq.fanout", arguments=table)
    tenant.declare_exchange("y", "topic", internal=True)
    tenant.declare_exchange("passing", "direct", durable=False)
    tenant.bind("x", tenant.queue("q"), "", {"x-match": "all", "b": b"\x01", "d": Decimal("0.1")})
    tenant.bind("x", tenant.exchange("y"), "a.b", {})
    tenant.bind("y", tenant.queue("q"), "a.*")
    tenant.bind("y", tenant.queue("for now"), "#")
    tenant.bind("passing", tenant.queue("q"), "k")
    world.shard.create_tenant("other", {"queues_max": 7}).declare_queue("q", {}, "line")
    world = killed(site, world)
    tenant = world.tenant()
    queue = tenant.queue("q")
    assert (queue.settings.ttl_ms, queue.settings.length_max, queue.settings.max_attempts) == (60_000, 10, 6)
    assert tenant.queue("by s0").settings.max_attempts == 9
    assert tenant.exchange("x").arguments == table
    assert sorted(tenant.queues) == ["by s0", "q"]
    assert "passing" not in tenant.exchanges
    assert tenant.limits.message_bytes_max == 12_345
    assert world.shard.tenant("other").queue("q").settings.max_attempts == 6


def test_policies_reach_the_queues_once_when_a_journal_was_read_back(site: Site) -> None:
    world = site.start()
    tenant = world.tenant()
    for number in range(60):
        tenant.declare_queue(f"q{number}", {}, "embedded")
    world.write()
    for number in range(40):
        tenant.set_policy(Policy(f"p{number}", f"^q{number}[a-z]*$", {"ttl_ms": HOUR_MS + number}, number))
    tenant.delete_policy("p39")
    world = killed(site, world)
    tenant = world.tenant()
    for number in range(60):
        assert tenant.queue(f"q{number}").ttl_ms == (HOUR_MS + number if number < 39 else -1)
    assert not world.shard.applying
    # each pattern was asked about each queue at most once, and read each name at most once
    assert sum(policy.steps for policy in tenant.policies.values()) < 60 * 40 * 10


def test_a_journal_with_patterns_that_are_refused_now_opens(site: Site) -> None:
    """As an earlier version wrote it: once as changes, and once at the head of a segment."""
    world = site.start()
    tenant = world.tenant()
    tenant.declare_queue("aa", {}, "embedded")
    world.write()
    tenant.set_policy(Policy("old", r"(a)\1", {"ttl_ms": HOUR_MS}, stored=True))
    for _ in range(2):
        world = killed(site, world)
        tenant = world.tenant()
        assert tenant.policies["old"].pattern == r"(a)\1"
        assert tenant.queue("aa").ttl_ms == -1
        assert [row["name"] for row in definitions.problems(world.shard)] == ["old"]
        with pytest.raises(InvalidArgument):
            Policy("new", r"(a)\1", {})


def test_changes_of_definitions_come_back(site: Site) -> None:
    world = site.start()
    tenant = world.tenant()
    for name in ("q", "gone", "kept"):
        tenant.declare_queue(name, {}, "embedded")
    tenant.declare_exchange("x", "direct")
    tenant.declare_exchange("y", "direct")
    tenant.bind("x", tenant.queue("q"), "1")
    tenant.bind("x", tenant.queue("q"), "2")
    tenant.set_policy(Policy("p", "q", {"ttl_ms": 1}))
    tenant.set_policy(Policy("r", "q", {"ttl_ms": 2}))
    world.shard.create_tenant("gone").declare_queue("q", {}, "embedded")
    world = killed(site, world)
    tenant = world.tenant()
    tenant.unbind("x", tenant.queue("q"), "1")
    tenant.delete_exchange("y")
    tenant.delete_queue("gone")
    tenant.delete_policy("p")
    tenant.set_policy(Policy("r", "q", {"ttl_ms": HOUR_MS}, 5))
    tenant.set_limits({"queues_max": 3})
    world.shard.delete_tenant("gone")
    world = killed(site, world)
    tenant = world.tenant()
    assert sorted(tenant.queues) == ["kept", "q"]
    assert tenant.queue("q").settings.ttl_ms == HOUR_MS
    assert sorted(world.shard.tenants) == ["default"]


def test_a_queue_deleted_with_its_messages_stays_away(site: Site) -> None:
    world = site.start()
    world.queue()
    for n in range(3):
        world.publish(b"%d" % n)
    world.write()
    world.claim()
    world.tenant().delete_queue("q")
    world = killed(site, world)
    assert not world.tenant().queues
    world.queue()
    world = killed(site, world)
    assert world.bodies() == []


@pytest.mark.parametrize("rolls", [False, True])
def test_a_queue_made_again_in_one_batch_has_only_its_own_messages(site: Site, rolls: bool) -> None:
    world = site.start()
    tenant = world.tenant()
    world.queue("q", {"max_attempts": 3})
    world.publish(b"of the first")
    if not rolls:
        world.write()
    tenant.delete_queue("q")
    world.queue("q", {"max_attempts": 5, "ttl_ms": HOUR_MS})
    world.publish(b"of the second")
    tenant.delete_queue("q")
    world.queue("q", {"max_attempts": 7})
    world.publish(b"of the third")
    tenant.declare_exchange("x", "direct")
    tenant.delete_exchange("x")
    tenant.declare_exchange("x", "fanout")
    tenant.bind("x", tenant.queue("q"), "")
    world = killed(site, world)
    assert world.bodies() == [b"of the third"]
    assert world.queue().max_attempts == 7
    assert world.tenant().exchange("x").kind == "fanout"


def test_queues_are_found_by_number_whatever_their_names_and_order(site: Site) -> None:
    world = site.start()
    names = ["c", "a", "d", "b"]
    for name in names:
        world.queue(name)
        world.queue(name, tenant="an earlier one")
    world.write()
    world.roll()
    for name in names:
        world.publish(b"for " + name.encode(), name)
    world.settle()
    assert 1 not in [segment.number for segment in world.journal.segments]
    world = killed(site, world)
    assert {name: world.bodies(name) for name in names} == {name: [b"for " + name.encode()] for name in names}


# Dedup keys


@pytest.mark.row("S2-42")
def test_a_dedup_key_survives_also_when_its_message_was_never_written(site: Site) -> None:
    world = site.start()
    world.queue()
    number, repeated = publish_once(world.shard, world.tenant(), "", "q", "k", EMPTY, b"once")
    assert not repeated
    assert world.ack() == [b"once"]
    for n in range(5):
        world.pass_ms(10)
        assert world.publish_once(f"other {n}", b"x")
    world = killed(site, world)
    assert publish_once(world.shard, world.tenant(), "", "q", "k", EMPTY, b"twice") == (number, True)
    assert all(not world.publish_once(f"other {n}", b"x") for n in range(5))
    world = killed(site, world)
    world.roll()
    world.roll()
    world = killed(site, world)
    assert not world.publish_once("k", b"thrice")
    assert world.queue().ready == 5


def test_a_dedup_key_lasts_for_its_window_and_no_longer(site: Site) -> None:
    world = site.start()
    world.queue("q", {"dedup_window_ms": 1_000})
    assert world.publish_once("k", b"x")
    world = killed(site, world)
    site.kill(world)
    world = site.start(wall_ms=world.wall_ms + 999)
    assert not world.publish_once("k", b"x")
    site.kill(world)
    world = site.start(wall_ms=world.wall_ms + 1)
    assert world.publish_once("k", b"x")


def test_a_dedup_key_of_a_tenant_made_in_the_same_batch(site: Site) -> None:
    world = site.start()
    world.queue()
    world.write()
    world.queue("q", tenant="new")
    tenant = world.tenant("new")
    publish_once(world.shard, tenant, "", "q", "k", EMPTY, b"x")
    world = killed(site, world)
    assert publish_once(world.shard, world.tenant("new"), "", "q", "k", EMPTY, b"x")[1]


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("what", ["queue", "exchange", "tenant"])
def test_a_queue_exchange_or_tenant_made_again_starts_without_keys(site: Site, what: str, rolls: bool) -> None:
    world = site.start()

    def make() -> None:
        tenant = world.tenant("t")
        tenant.declare_queue("q", {}, "embedded")
        tenant.declare_exchange("x", "fanout")
        tenant.bind("x", tenant.queue("q"), "")

    def publish(key: str) -> bool:
        exchange = "x" if what == "exchange" else ""
        return not publish_once(world.shard, world.tenant("t"), exchange, "q", key, EMPTY, b"x")[1]

    def drop() -> None:
        if what == "tenant":
            world.shard.delete_tenant("t")
        elif what == "queue":
            world.tenant("t").delete_queue("q")
        else:
            world.tenant("t").delete_exchange("x")
        make()

    make()
    assert publish("old")
    world.write()
    assert publish("before")
    drop()
    assert publish("after")
    if rolls:
        world.roll_now()
    world = killed(site, world)
    assert not publish("after")
    assert publish("before")
    assert publish("old")


def test_keys_of_a_transient_queue_end_with_it(site: Site) -> None:
    world = site.start()
    world.queue("q", {"durable": False})
    assert world.publish_once("k", b"x")
    world.write()
    site.kill(world)
    world = site.start()
    world.queue()
    assert world.publish_once("k", b"x")


# Transactions


def test_a_transaction_is_there_wholly(site: Site) -> None:
    world = site.start()
    world.queue()
    world.queue("r")
    for n in range(3):
        world.publish(b"%d" % n)
    world.write()
    first, second, third = world.claim(3)
    operations: list[Publish | Settle] = [
        Settle(first, "ack"),
        Publish("", "q", EMPTY, b"new", dedup_key="k"),
        Settle(second, "retry", 0),
        Publish("", "r", EMPTY, b"also new", priority=4),
        Settle(third, "release"),
    ]
    apply(world.shard, world.tenant(), operations)
    world = killed(site, world)
    assert world.bodies() == [b"1", b"2", b"new"]
    assert world.bodies("r") == [b"also new"]
    assert not world.publish_once("k", b"new")


# Numbers and ids


def test_text_ids_stay_and_numbers_are_never_used_again(site: Site) -> None:
    world = site.start(secret=b"the first process's")
    world.queue()
    used = [world.publish(b"kept").id]
    text = world.shard.ids.uuid(used[0])
    world.write()
    for n in range(4):
        # given out, and lost with the process
        used += [world.publish(b"", persistent=False).id, world.publish(b"unwritten").id]
        site.kill(world)
        world = site.start(secret=b"another process's")
        if n == 1:
            world.roll()
            world.roll()
            world.settle()
        new = world.publish(b"")
        assert new.id > max(used)
        used.append(new.id)
        world.ack(1)
        world.write()
    assert world.shard.ids.uuid(used[0]) == text
    assert len(set(used)) == len(used)


def test_numbers_are_not_used_again_when_the_segment_that_spoke_of_them_is_gone(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"x")
    world.write()
    world.ack(1)
    world.roll()
    world.settle()
    assert [segment.number for segment in world.journal.segments] == [2]
    last = [world.publish(b"", persistent=False).id for _ in range(3)][-1]
    world = site.restart(world)
    assert world.publish(b"").id > last


def test_sequences_are_not_used_again(site: Site) -> None:
    world = site.start()
    world.queue()
    world.write()
    for n in range(3):
        world.publish(b"%d" % n)
    world.write()
    world.queue().retry(world.claim()[0], 0, "")
    assert len(world.ack(3)) == 3
    world = killed(site, world)
    world.publish(b"new")
    world = killed(site, world)
    (entry,) = world.queue().ready_entries()
    assert (entry.seq, entry.attempts, entry.redelivered) == (4, 0, False)


# Access


@pytest.mark.row("S0-9")
def test_keys_and_users_come_back_and_no_secret_is_on_disk(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    access = new_access()
    world = site.start(access=access)
    world.tenant()
    issued = access.create_key("default", world.wall_ms)
    revoked = access.create_key("default", world.wall_ms)
    access.set_user("ann", password="correct horse battery", tenants={})
    access.revoke_key(revoked.record.kid)
    world.write()
    before = access.export()
    site.kill(world)
    for _ in range(2):
        access = Access(bytes)
        world = site.start(access=access)
        assert access.export() == before
        assert access.check_key(issued.text, world.wall_ms).tenant == "default"
        with pytest.raises(Unauthenticated):
            access.check_key(revoked.text, world.wall_ms)
        world.roll()
        world.close()
    kid, _, secret = issued.text.partition(".")
    found = b"".join(path.read_bytes() for path in site.directory.iterdir())
    assert kid.encode() in found
    for text in (secret, revoked.text.partition(".")[2], "correct horse battery"):
        assert text.encode() not in found


# Two processes


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    world = site.start()
    with pytest.raises(StoreLocked):
        site.start()
    world.close()


CHILD = """
import sys
from pathlib import Path
from tests.contract.journal_world import FileSite
world = FileSite(Path(sys.argv[1])).start(segment_bytes=20_000, laid_out=20_000)
world.queue()
n = 0
while True:
    bodies = [b"%d" % (n + i) for i in range(10)]
    for body in bodies:
        world.publish(body)
    world.write()
    print("published", n + 9, flush=True)
    world.ack(8)
    world.write()
    print("acked", n // 10, flush=True)
    n += 10
"""


@pytest.mark.row("S1-53", "S3-6", "S4-29")
def test_a_real_process_that_is_killed_loses_nothing_it_confirmed(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert child.stdout is not None
    said: dict[str, int] = {}
    for line in child.stdout:
        word, _, number = line.partition(" ")
        said[word] = int(number)
        if said.get("acked", 0) >= 30 and word == "published":
            child.kill()
            break
    for line in child.stdout:
        word, _, number = line.partition(" ")
        if number.endswith("\n"):
            said[word] = int(number)
    child.wait()
    child.stdout.close()
    world = site.start()
    bodies = [int(body) for body in world.bodies()]
    # eight of ten are acked each time, oldest first
    acked = 8 * (said["acked"] + 1)
    assert bodies[0] in (acked, acked + 8)
    assert bodies == list(range(bodies[0], bodies[-1] + 1))
    assert bodies[-1] >= said["published"]
    assert site.numbers()[-1] > 1
    world.close()


def test_records_of_a_batch_are_definitions_then_keys(site: Site) -> None:
    """The order that the reader relies on."""
    world = site.start()
    world.queue()
    world.write()
    world.publish_once("k", b"x")
    world.tenant().declare_exchange("x", "direct")
    world.write()
    site.kill(world)
    assert count_records(site.segment(1), MARK) == 1
    assert site.segment(1).index(b'"op":"exchange"') < site.segment(1).index(b'"queue:q"')
    assert count_records(site.segment(1), DEFINE) == 1


def test_numbers_of_a_process_that_wrote_nothing_are_not_used_again(site: Site) -> None:
    """Its messages may have been seen: they were delivered before they were durable."""
    world = site.start()
    world.queue()
    world.write()
    seen = set()
    for _ in range(3):
        world = site.restart(world)
        message = world.publish(b"delivered, never written")
        assert message.id not in seen
        seen.add(int(message.id))


def test_keys_of_a_transient_queue_are_not_those_of_a_durable_one_of_its_name(site: Site) -> None:
    world = site.start()
    world.queue(settings={"durable": False})
    assert world.publish_once("key", b"1")
    world.write()
    world = site.restart(world)
    world.queue()
    world = killed(site, world)
    assert world.publish_once("key", b"2")


def test_an_exchange_with_transient_bindings_only_is_kept(site: Site) -> None:
    """It goes with its last binding, and that was not the durable one."""
    world = site.start()
    tenant = world.tenant()
    tenant.declare_exchange("x", "fanout", auto_delete=True)
    for name, durable in (("durable", True), ("transient", False)):
        tenant.bind("x", world.queue(name, {"durable": durable}), "")
    tenant.delete_queue("durable")
    assert "x" in tenant.exchanges
    world = killed(site, world)
    assert "x" in world.tenant().exchanges


def test_the_oldest_keys_are_evicted_also_when_a_segment_retired(site: Site) -> None:
    world = site.start()
    world.tenant().set_limits({"dedup_keys_max": 2})
    world.queue()
    for key in ("first", "second"):
        assert world.publish_once(key, b"x")
        world.roll()
    world.retire(1)
    assert world.publish_once("third", b"x")
    world = killed(site, world)
    assert not world.publish_once("second", b"x")
    assert not world.publish_once("third", b"x")


@pytest.mark.parametrize("restart", [False, True])
def test_a_key_that_was_evicted_does_not_come_back_for_a_new_queue_of_the_name(site: Site, restart: bool) -> None:
    world = site.start()
    world.tenant().set_limits({"dedup_keys_max": 1})
    world.queue()
    world.queue("other")
    assert world.publish_once("key", b"x")
    assert world.publish_once("another", b"x", "other")
    if restart:
        world = killed(site, world)
    world.tenant().delete_queue("q")
    world.tenant().set_limits({"dedup_keys_max": 5})
    world.queue()
    world = killed(site, world)
    assert world.publish_once("key", b"x")


def test_a_return_before_a_message_was_written_again_counts_no_more(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"x")
    world.roll()
    (lease,) = world.claim()
    world.queue().retry(lease, 0, "")
    world.publish(b"keeps the segment of the return")
    world.roll()
    assert len(world.claim()) == 1
    world.retire(1)
    world = killed(site, world)
    assert [int(entry.attempts) for entry in world.queue().ready_entries()] == [2, 0]


def test_keys_of_a_transient_queue_stay_gone_when_the_clock_is_set_back(site: Site) -> None:
    world = site.start()
    began_ms = world.wall_ms
    world.queue("q", {"durable": False, "dedup_window_ms": 500})
    assert world.publish_once("key", b"x")
    world.write()
    site.kill(world)
    # the queue is gone, and the time of its key is over
    world = site.start(wall_ms=began_ms + 1_000)
    world.queue("q", {"dedup_window_ms": 500})
    world.write()
    site.kill(world)
    world = site.start(wall_ms=began_ms)
    assert world.publish_once("key", b"x")


def test_a_key_used_again_is_over_with_its_latest_use(site: Site) -> None:
    world = site.start()
    began_ms = world.wall_ms
    world.queue("q", {"dedup_window_ms": 500})
    world.write()
    site.kill(world)
    world = site.start(wall_ms=began_ms + 1_000)
    assert world.publish_once("key", b"first")
    world.write()
    site.kill(world)
    # the key is over; then the clock is set back, and it is used again
    world = site.start(wall_ms=began_ms + 2_000)
    world.pass_ms(-2_000)
    assert world.publish_once("key", b"second")
    world.write()
    site.kill(world)
    world = site.start(wall_ms=began_ms + 1_000)
    assert world.publish_once("key", b"third")
