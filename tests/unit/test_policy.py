"""Queue settings: what may be said, what the faces say by default, and what policies make of queues that exist."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.policy import FACES, SETTINGS, Policy, QueueSettings, check_settings, effective
from rookery.core.queue_settings import TIME_MAX_MS
from rookery.errors import InvalidArgument, InvalidType, LimitExceeded, NotFound, RookeryError
from tests.unit.core_world import World, a_world, bodies, waiting

world = pytest.fixture(a_world, name="world")

BAD_SETTINGS: list[tuple[str, object, type[RookeryError]]] = [
    ("colour", 1, InvalidArgument),
    ("ttl", 5, InvalidArgument),
    ("ttl_ms", -1, InvalidArgument),
    ("ttl_ms", TIME_MAX_MS + 1, InvalidArgument),
    ("ttl_ms", "5", InvalidType),
    ("ttl_ms", 5.0, InvalidType),
    ("ttl_ms", True, InvalidType),
    ("expires_ms", 0, InvalidArgument),
    ("expires_ms", -5, InvalidArgument),
    ("length_max", -1, InvalidArgument),
    ("length_max", 1 << 60, InvalidArgument),
    ("bytes_max", -1, InvalidArgument),
    ("overflow", "explode", InvalidArgument),
    ("overflow", 1, InvalidType),
    ("max_attempts", -1, InvalidArgument),
    ("max_attempts", 1.5, InvalidType),
    ("backoff", "random", InvalidArgument),
    ("backoff_base_ms", -1, InvalidArgument),
    ("backoff_max_ms", -1, InvalidArgument),
    ("backoff_jitter", -0.1, InvalidArgument),
    ("backoff_jitter", 1.1, InvalidArgument),
    ("backoff_jitter", float("nan"), InvalidArgument),
    ("priority_max", -1, InvalidArgument),
    ("durable", 1, InvalidType),
    ("auto_delete", "yes", InvalidType),
    ("ordered", 0, InvalidType),
    ("single_active", [], InvalidType),
    ("grouped", {}, InvalidType),
    ("distribution", "random", InvalidArgument),
    ("lease_ms", 0, InvalidArgument),
    ("lease_ms", -1, InvalidArgument),
    ("dedup_window_ms", 0, InvalidArgument),
    ("dead_letter_exchange", 5, InvalidType),
    ("dead_letter_exchange", "x" * 256, InvalidArgument),
    ("dead_letter_queue", "x" * 256, InvalidArgument),
    ("dead_letter_queue", "", InvalidArgument),
    ("dead_letter_queue", "a\nb", InvalidArgument),
    ("dead_letter_queue", "\ud800", InvalidArgument),
    ("dead_letter_key", "k", InvalidArgument),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD_SETTINGS)
def test_a_bad_setting_is_refused_by_name_and_makes_no_queue(
    world: World, name: str, value: object, error: type[RookeryError]
) -> None:
    version = world.tenant.version
    with pytest.raises(error) as caught:
        world.tenant.declare_queue("jobs", {name: value}, "embedded")
    assert getattr(caught.value, "argument", None) == name
    assert world.tenant.queues == {}
    assert world.tenant.said == {}
    assert world.tenant.version == version


def test_a_queue_has_one_dead_letter_target() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_settings({"dead_letter_exchange": "", "dead_letter_queue": "graves"})
    assert caught.value.argument == "dead_letter_queue"


def test_none_counts_as_not_said() -> None:
    assert check_settings({"ttl_ms": None, "length_max": 5}) == {"length_max": 5}


def test_every_setting_has_a_default_and_is_shown() -> None:
    shown = QueueSettings().as_dict()
    assert shown.keys() == SETTINGS.keys()
    assert shown["lease_ms"] == 30_000
    assert shown["dedup_window_ms"] == 86_400_000


@pytest.mark.row("S2-34")
@pytest.mark.parametrize(
    ("strategy", "pauses"),
    [("fixed", [500, 500, 500]), ("linear", [500, 1000, 1500]), ("exponential", [500, 1000, 2000])],
)
def test_backoff_maths(world: World, strategy: str, pauses: list[int]) -> None:
    """Retry n becomes visible after exactly that pause, and not a millisecond sooner."""
    queue = world.queue(backoff=strategy, backoff_base_ms=500, max_attempts=10)
    world.publish()
    for pause in pauses:
        assert world.settle(world.one(queue), "retry")
        world.advance(pause - 1)
        assert world.claim(queue) == []
        assert queue.delayed == 1
        world.advance(1)
        assert queue.ready == 1
    assert queue.retried == 3


def test_backoff_stops_at_its_maximum() -> None:
    settings = effective("q", "http", FACES["http"], None, {"backoff_max_ms": 3_000})
    assert [settings.backoff_ms(n, 1) for n in range(1, 6)] == [500, 1_000, 2_000, 3_000, 3_000]
    assert settings.backoff_ms(10_000, 1) == 3_000


def test_no_base_means_no_pause() -> None:
    settings = effective("q", "embedded", {}, None, {"backoff": "exponential"})
    assert settings.backoff_ms(7, 1) == 0


@given(st.integers(1, 50), st.integers(0, 1 << 40), st.floats(0, 1))
def test_jitter_stays_within_its_share_and_repeats_itself(attempt: int, salt: int, jitter: float) -> None:
    settings = QueueSettings()
    settings.backoff = "linear"
    settings.backoff_base_ms = 1_000
    settings.backoff_jitter = jitter
    pause = settings.backoff_ms(attempt, salt)
    assert abs(pause - 1_000 * attempt) <= 1_000 * attempt * jitter
    assert settings.backoff_ms(attempt, salt) == pause


def test_jitter_spreads_neighbours() -> None:
    settings = QueueSettings()
    settings.backoff_base_ms = 1_000
    settings.backoff_jitter = 0.5
    pauses = {settings.backoff_ms(1, seq) for seq in range(200)}
    assert len(pauses) > 100
    assert min(pauses) < 600
    assert max(pauses) > 1_400


# The layers


def test_words_beat_policy_beats_face() -> None:
    policy = Policy("p", ".*", {"max_attempts": 9, "ttl_ms": 70})
    settings = effective("q", "http", FACES["http"], policy, {"ttl_ms": 5})
    assert (settings.ttl_ms, settings.max_attempts, settings.backoff_base_ms) == (5, 9, 500)


@pytest.mark.parametrize(
    ("face", "expected"),
    [
        ("s0", {"max_attempts": 3, "lease_ms": 5_000, "dead_letter_queue": "q.DLQ", "ordered": True}),
        ("http", {"max_attempts": 6, "backoff_base_ms": 500, "dead_letter_queue": "q.DLQ", "ordered": True}),
        ("embedded", {"max_attempts": 4, "backoff_base_ms": 0, "dead_letter_queue": None, "ordered": True}),
        ("line", {"max_attempts": 6, "backoff_base_ms": 30_000, "dead_letter_queue": "q.DLQ", "ordered": False}),
        ("amqp", {"max_attempts": 0, "backoff_base_ms": 0, "dead_letter_queue": None, "ordered": False}),
        ("mqtt", {"max_attempts": 0, "dead_letter_queue": None, "ordered": False}),
        ("dead-letter", {"max_attempts": 0, "dead_letter_queue": None, "ordered": True}),
    ],
)
def test_defaults_of_the_faces(world: World, face: str, expected: dict[str, object]) -> None:
    shown = world.queue("q", face).settings.as_dict()
    assert {name: shown[name] for name in expected} == expected
    assert not world.tenant.queue("q").settings.dead_letter_declared


def test_a_declared_exchange_replaces_the_faces_dead_letter_queue() -> None:
    settings = effective("q", "http", FACES["http"], None, {"dead_letter_exchange": "graves"})
    assert (settings.dead_letter_exchange, settings.dead_letter_queue) == ("graves", None)
    assert settings.dead_letter_declared


def test_a_declared_dead_letter_queue_replaces_the_policys_exchange() -> None:
    policy = Policy("p", "", {"dead_letter_exchange": "graves", "dead_letter_key": "k"})
    settings = effective("q", "http", FACES["http"], policy, {"dead_letter_queue": "{queue}-dead"})
    assert (settings.dead_letter_exchange, settings.dead_letter_key) == (None, None)
    assert settings.dead_letter_queue == "q-dead"


def test_a_queue_is_not_its_own_dead_letter_queue() -> None:
    assert effective("q", "amqp", {}, None, {"dead_letter_queue": "q"}).dead_letter_queue is None


def test_other_face_defaults_reach_queues_that_exist(world: World) -> None:
    old = world.queue("old", "http")
    world.tenant.set_face_defaults("http", {"max_attempts": 2})
    new = world.queue("new", "http")
    assert (old.max_attempts, new.max_attempts) == (2, 2)
    assert old.settings.backoff_base_ms == 500
    with pytest.raises(InvalidArgument) as caught:
        world.tenant.set_face_defaults("carrier pigeon", {})
    assert caught.value.argument == "face"
    with pytest.raises(InvalidArgument):
        world.tenant.set_face_defaults("http", {"max_attempts": -1})
    assert old.max_attempts == 2


# Policies


BAD_POLICIES: list[tuple[dict[str, object], str]] = [
    ({"name": "", "pattern": "x"}, "policy"),
    ({"name": "p" * 256, "pattern": "x"}, "policy"),
    ({"name": 5, "pattern": "x"}, "policy"),
    ({"name": None, "pattern": "x"}, "policy"),
    ({"name": "p", "pattern": "("}, "pattern"),
    ({"name": "p", "pattern": 5}, "pattern"),
    ({"name": "p", "pattern": "x", "settings": {"colour": 1}}, "colour"),
    ({"name": "p", "pattern": "x", "settings": {"ttl_ms": -1}}, "ttl_ms"),
    ({"name": "p", "pattern": "x", "settings": {"durable": True}}, "durable"),
    ({"name": "p", "pattern": "x", "settings": {"auto_delete": True}}, "auto_delete"),
    ({"name": "p", "pattern": "x", "settings": {"ordered": True}}, "ordered"),
    ({"name": "p", "pattern": "x", "priority": "high"}, "priority"),
]


@pytest.mark.parametrize(("policy", "argument"), BAD_POLICIES)
def test_a_bad_policy_is_refused_by_name(world: World, policy: dict[str, object], argument: str) -> None:
    queue = world.queue()
    before = queue.settings.as_dict()
    arguments = {"settings": {}, **policy}
    with pytest.raises(InvalidArgument) as caught:
        world.tenant.set_policy(Policy(**arguments))  # type: ignore[arg-type]
    assert caught.value.argument == argument
    assert world.tenant.policies == {}
    assert queue.settings.as_dict() == before


def test_the_policy_of_highest_priority_counts(world: World) -> None:
    queue = world.queue("orders.eu")
    world.tenant.set_policy(Policy("low", "^orders", {"ttl_ms": 10}, priority=1))
    world.tenant.set_policy(Policy("high", "eu$", {"length_max": 5}, priority=2))
    world.tenant.set_policy(Policy("equal", "^orders", {"ttl_ms": 20}, priority=2))
    world.tenant.set_policy(Policy("lowest", "^orders", {"ttl_ms": 30}, priority=-5))
    world.tenant.set_policy(Policy("other", "^bills", {"ttl_ms": 99}, priority=9))
    assert (queue.ttl_ms, queue.settings.length_max) == (-1, 5)
    for gone, ttl_ms in (("high", 20), ("equal", 10), ("low", 30), ("lowest", -1)):
        world.tenant.delete_policy(gone)
        assert (queue.ttl_ms, queue.settings.length_max) == (ttl_ms, -1)
    with pytest.raises(NotFound) as caught:
        world.tenant.delete_policy("low")
    assert caught.value.argument == "policy"


def test_a_policy_takes_no_part_in_redeclaring(world: World) -> None:
    world.tenant.set_policy(Policy("p", "jobs", {"ttl_ms": 10}))
    queue = world.queue(length_max=5)
    assert world.tenant.declare_queue("jobs", {"length_max": 5}, "http", exact=True) == (queue, False)


def test_a_time_to_live_reaches_messages_that_wait(world: World) -> None:
    queue = world.queue()
    world.fill(2)
    world.publish(b"late", delay_ms=500)
    world.advance(50)
    world.tenant.set_policy(Policy("p", "jobs", {"ttl_ms": 100}))
    world.advance(49)
    assert queue.ready == 2
    world.advance(1)
    assert (queue.ready, queue.delayed, queue.expired) == (0, 1, 2)
    world.advance(499)
    assert waiting(queue) == [b"late"]
    world.tenant.delete_policy("p")
    world.advance(1_000)
    assert waiting(queue) == [b"late"]


def test_a_length_reaches_messages_that_wait(world: World) -> None:
    queue = world.queue()
    world.fill(5)
    world.tenant.set_policy(Policy("p", "jobs", {"length_max": 2}))
    assert waiting(queue) == [b"3", b"4"]
    assert queue.dropped == 3


def test_fewer_attempts_reach_messages_that_had_more(world: World) -> None:
    queue = world.queue(face="http", backoff_base_ms=0)
    world.fill(2)
    world.settle(world.one(queue), "retry")
    world.settle(world.one(queue), "retry")
    world.tenant.set_policy(Policy("p", "jobs$", {"max_attempts": 2}))
    assert bodies(world.claim(queue, 5)) == [b"1"]
    assert queue.dead_lettered == 1
    assert world.tenant.queue("jobs.DLQ").ready == 1


def test_a_policy_does_not_let_a_group_have_two_messages_in_work(world: World) -> None:
    queue = world.queue(grouped=True)
    for body in (b"1", b"2"):
        world.publish(body, headers={"x-group-id": "g"})
    lease = world.one(queue)
    world.tenant.set_policy(Policy("p", "jobs", {"distribution": "least-busy"}))
    assert world.claim(queue, 5) == []
    world.tenant.delete_policy("p")
    assert world.claim(queue, 5) == []
    world.settle(lease)
    assert bodies(world.claim(queue, 5)) == [b"2"]


def test_a_dead_letter_target_reaches_queues_that_exist(world: World) -> None:
    queue = world.queue(face="amqp")
    graves = world.queue("graves", "amqp")
    world.tenant.set_policy(Policy("p", "^jobs", {"dead_letter_exchange": "", "dead_letter_key": "graves"}))
    world.publish()
    world.settle(world.one(queue), "reject")
    assert graves.ready == 1


def test_single_active_and_expiry_reach_queues_that_exist(world: World) -> None:
    queue = world.queue()
    first, second = world.mailbox(queue), world.mailbox(queue)
    world.tenant.set_policy(Policy("p", "jobs", {"single_active": True, "expires_ms": 100}))
    world.fill(4)
    assert (len(first.take()), len(second.take())) == (4, 0)
    queue.unsubscribe(first)
    queue.unsubscribe(second)
    world.advance(100)
    assert queue.deleted


@pytest.mark.parametrize("setting", [{"distribution": "key-hash"}, {"grouped": True}])
def test_what_a_policy_held_back_is_delivered_when_it_ends(world: World, setting: dict[str, object]) -> None:
    queue = world.queue()
    world.tenant.set_policy(Policy("p", "jobs", setting))
    mailbox = world.mailbox(queue, credit=1, name="a")
    for i in range(3):
        world.publish(b"%d" % i, headers={"x-group-id": "g"})
    world.tenant.delete_policy("p")
    seen = []
    for _ in range(3):
        for lease in mailbox.take():
            seen.append(lease.entry.message.body)
            world.settle(lease)
    assert seen == [b"0", b"1", b"2"]


# Which policy governs

RULES = st.tuples(
    st.sampled_from(["p", "q", "r", "s"]),
    st.sampled_from(["a", "^b", "c$", "[ab]c", ".*", "(?!b)^"]),
    st.integers(-1, 1),
)
STEPS = st.lists(
    st.one_of(
        RULES.map(lambda rule: ("set", rule)),
        st.sampled_from(["p", "q", "r", "s"]).map(lambda name: ("end", name)),
        st.text("abc", min_size=1, max_size=3).map(lambda name: ("queue", name)),
        st.text("abc", min_size=1, max_size=3).map(lambda name: ("drop", name)),
        st.sampled_from([1, 2, 3]).map(lambda ms: ("defaults", ms)),
        st.just(("turn", 1)),
    ),
    max_size=25,
)


@given(STEPS, st.sampled_from([1, 300, 50_000]))
def test_what_is_remembered_of_policies_is_what_asking_all_of_them_would_say(
    steps: list[Any], slice_steps: int
) -> None:
    """Whatever changed in which order, and however few queues a turn reached."""
    world = World()
    tenant = world.tenant
    world.shard.policy_steps = slice_steps
    for number, (what, value) in enumerate(steps):
        if what == "set":
            tenant.set_policy(Policy(value[0], value[1], {"ttl_ms": number + 100}, value[2]))
        elif what == "end" and value in tenant.policies:
            tenant.delete_policy(value)
        elif what == "queue":
            tenant.declare_queue(value, {}, "http")
        elif what == "drop" and value in tenant.queues:
            tenant.delete_queue(value)
        elif what == "defaults":
            tenant.set_face_defaults("http", {"length_max": value})
        elif what == "turn":
            world.advance(value)
    while world.shard.applying:
        assert world.shard.next_due_ms() == 0
        world.advance(1)
    for name, queue in tenant.queues.items():
        matching = [policy for policy in tenant.policies.values() if policy.matches(name)]
        best = max(matching, key=lambda policy: policy.priority, default=None)
        assert tenant.policy_for(name) is best
        assert queue.ttl_ms == (-1 if best is None else best.settings["ttl_ms"])
        assert queue.settings.length_max == tenant.face_defaults.get("http", {}).get("length_max", -1)


def test_a_policy_for_many_queues_reaches_them_in_slices(world: World) -> None:
    for number in range(1_000):
        world.tenant.declare_queue(f"q{number}", {}, "http")
    world.tenant.set_policy(Policy("p", "^q", {"ttl_ms": 5}))

    def reached() -> int:
        return sum(queue.ttl_ms == 5 for queue in world.tenant.queues.values())

    counts = [reached()]
    assert 0 < counts[0] < 1_000
    assert world.tenant.declare_queue("q-new", {}, "http")[0].ttl_ms == 5
    while world.shard.applying:
        world.advance(1)
        counts.append(reached())
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(steps) <= world.shard.policy_steps // 250 + 1
    assert counts[-1] == 1_001
    world.shard.delete_tenant("acme")


def test_a_change_of_settings_alone_matches_no_pattern_again(world: World) -> None:
    for number in range(50):
        world.tenant.declare_queue(f"q{number}", {}, "http")
    first = Policy("p", "^q[0-9]+$", {"ttl_ms": 5})
    world.tenant.set_policy(first)
    second = Policy("p", "^q[0-9]+$", {"ttl_ms": 6})
    world.tenant.set_policy(second)
    assert second.steps == 0
    assert {queue.ttl_ms for queue in world.tenant.queues.values()} == {6}


def test_policies_are_limited_in_number(world: World) -> None:
    world.tenant.set_limits({"policies_max": 2})
    world.tenant.set_policy(Policy("a", "x", {}))
    world.tenant.set_policy(Policy("b", "x", {}))
    with pytest.raises(LimitExceeded) as caught:
        world.tenant.set_policy(Policy("c", "x", {}))
    assert str(caught.value) == "tenant 'acme' reached its limit of 2 policies (policies_max)"
    assert list(world.tenant.policies) == ["a", "b"]
    world.tenant.set_policy(Policy("b", "y", {}))
    world.tenant.set_limits({"policies_max": 0})
    world.tenant.set_policy(Policy("c", "x", {}))


def test_policies_are_limited_by_what_their_patterns_cost(world: World) -> None:
    world.tenant.set_limits({"policy_states_max": 150})
    world.tenant.set_policy(Policy("a", "[ab]*a[ab]{100}c", {}))
    with pytest.raises(LimitExceeded) as caught:
        world.tenant.set_policy(Policy("b", "[ab]*a[ab]{100}d", {}))
    assert caught.value.argument == "pattern"
    assert "(policy_states_max)" in str(caught.value)
    world.tenant.set_policy(Policy("literal", "^orders", {}))
    world.tenant.set_policy(Policy("a", "[ab]{20}c", {}))
    world.tenant.set_policy(Policy("b", "[ab]*a[ab]{100}d", {}))
    world.tenant.set_limits({"policy_states_max": 10})
    world.tenant.set_policy(Policy("b", "[ab]*a[ab]{90}d", {}))  # less than before is never refused
    world.tenant.delete_policy("b")
    world.tenant.delete_policy("a")
    assert world.tenant.policy_table.states == 0


def test_a_pattern_that_took_forever_is_decided_at_once(world: World) -> None:
    world.tenant.set_policy(Policy("p", "^(a+)+$", {"ttl_ms": 5}))
    assert world.queue("a" * 200 + "b").ttl_ms == -1
    assert world.queue("a" * 200).ttl_ms == 5


def test_a_stored_policy_whose_pattern_is_not_supported_matches_nothing(world: World) -> None:
    queue = world.queue("aa")
    world.tenant.set_policy(Policy("p", r"(a)\1", {"ttl_ms": 5}, stored=True))
    assert queue.ttl_ms == -1
    assert "backreference" in world.tenant.policies["p"].problem
    with pytest.raises(InvalidArgument) as caught:
        Policy("p", r"(a)\1", {"ttl_ms": 5})
    assert str(caught.value) == (
        r"pattern is not valid: the backreference \1 at position 3 is not supported: repeat the group's expression"
    )


def test_policies_that_take_too_long_at_a_restart_reach_the_rest_of_the_queues_in_slices(world: World) -> None:
    world.shard.recovering = True
    for number in range(30):
        world.queue(f"q{number}")
    world.tenant.set_policy(Policy("p", "^q", {"ttl_ms": 5}))
    queues = world.tenant.queues.values()
    assert all(queue.ttl_ms == -1 for queue in queues)
    world.shard.recovery_policy_steps = 1_000
    world.shard.end_recovery()
    assert 0 < sum(queue.ttl_ms == 5 for queue in queues) < 30
    while world.shard.applying:
        world.advance(1)
    assert all(queue.ttl_ms == 5 for queue in queues)
