"""Topic routing: what a key costs when its way is cached and when it is not, by the number of bindings."""

from __future__ import annotations

from bench.harness import Case, measure, show, start, title
from bench.world import World
from rookery.core.topology import WAYS_MAX, Exchange

LOOKUPS = 200_000
QUEUES = 100
KEYS = 1_000
SIZES = (1_000, 10_000, 100_000)
WILDCARDS = ("*.eu.#", "sensor.*.temperature.*", "#.alarm", "sensor.eu.#")


def key_of(number: int) -> str:
    return f"sensor.{('eu', 'us', 'asia')[number % 3]}.temperature.n{number}"


def topic(world: World, name: str, exact: int, wildcards: bool) -> Exchange:
    """A topic exchange with so many bindings without a wildcard, spread over the queues, and perhaps four with one."""
    exchange = world.tenant.declare_exchange(name, "topic")[0]
    queues = [world.queue(f"q{i}") for i in range(QUEUES)]
    for number in range(exact):
        world.tenant.bind(name, queues[number % QUEUES], key_of(number))
    if wildcards:
        for i, pattern in enumerate(WILDCARDS):
            world.tenant.bind(name, queues[i], pattern)
    return exchange


def cached(world: World, name: str, exchange: Exchange, aim_us: float) -> Case:
    """The same thousand keys again and again, as publishers do."""
    keys = [key_of(number) for number in range(KEYS)]
    way = world.tenant.way

    def run() -> int:
        for _ in range(LOOKUPS // KEYS):
            for key in keys:
                way(exchange, key)
        return LOOKUPS

    return Case(name, run, aim_us)


def matched(name: str, exchange: Exchange, bound: int) -> Case:
    """The matcher itself, which has no cache; every key has a binding of its own."""
    keys = [key_of(number * 7919 % bound) for number in range(KEYS)]

    def run() -> int:
        match = exchange.matcher.match
        for _ in range(LOOKUPS // KEYS):
            for key in keys:
                match(key, None)
        return LOOKUPS

    return Case(name, run)


def uncached(world: World, name: str, exchange: Exchange) -> Case:
    """Twice as many keys as the cache holds, in turn, so that each is gone when it comes again."""
    keys = [key_of(number) for number in range(2 * WAYS_MAX)]
    way = world.tenant.way

    def run() -> int:
        for _ in range(LOOKUPS // len(keys)):
            for key in keys:
                way(exchange, key)
        return LOOKUPS

    return Case(name, run)


def main() -> None:
    arguments = start("routing")
    world = World()
    exact = {size: topic(world, f"exact{size}", size, False) for size in SIZES}
    mixed = {size: topic(world, f"mixed{size}", size, True) for size in SIZES}
    title(
        "Topic routing, cached way",
        f"""{LOOKUPS:,} calls of Tenant.way a round over {KEYS:,} keys of four words, on a topic exchange with so many
        bindings without a wildcard to {QUEUES} queues, and four with one ({", ".join(WILDCARDS)}).""",
    )
    cases = [cached(world, f"{size:,} bindings + 4 wildcards", mixed[size], 0.3) for size in SIZES]
    measure(cases, arguments.rounds)
    show(cases, "CPU µs/lookup")

    title(
        "Topic routing, the matcher itself",
        f"""{LOOKUPS:,} calls of Matcher.match a round over {KEYS:,} keys, each of which has a binding of its own;
        nothing is cached. Exact bindings are one lookup, so that their number shows only in the processor's caches;
        wildcards are walked.""",
    )
    cases = [matched(f"{size:,} exact bindings", exact[size], size) for size in SIZES]
    cases += [matched(f"{size:,} exact + 4 wildcards", mixed[size], size) for size in SIZES]
    measure(cases, arguments.rounds)
    show(cases, "CPU µs/lookup")

    title(
        "Topic routing, a key that is not in the cache",
        f"""Tenant.way over the same {2 * WAYS_MAX:,} keys in turn, twice what the cache holds, so that every call
        matches, makes a way and stores it. All keys match wildcards; so many of them as there are exact bindings have
        one of their own too.""",
    )
    cases = [uncached(world, f"{size:,} exact + 4 wildcards", mixed[size]) for size in SIZES]
    measure(cases, arguments.rounds)
    show(cases, "CPU µs/lookup")


if __name__ == "__main__":
    main()
