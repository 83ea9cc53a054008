"""Running it with care: limits, a watch on the dead letters, health, and an end that is always reached.

Prints:

    observed: subscribe, publish
    dead: orders/bad: validation error
    dead letters so far: 1 kept: 1
    replayed: ['bad order']
    refused: MemoryLimitExceeded
    unhealthy, 1 topics, memory limit 2000
    and works again after draining: True
"""

import rookery

seen: list[str] = []

# Limits first: nothing grows without bound.
broker = rookery.Broker(
    memory_bytes_max=2_000,
    topics_max=100,
    subscribers_max=10,
    buffer_size=32,
    enable_dead_letter_queue=True,
    dead_letter_topic="dead",
    observer=lambda observation: seen.append(observation.operation),
)

# Always close the broker and cancel subscriptions: `with` does both, whatever happens inside.
with broker:
    with broker.subscribe("dead") as dead:
        broker.publish("orders/good", "order")
        print("observed:", ", ".join(seen))

        # Watch the dead letters: each has its topic and the reason.
        broker.publish_dead_letter("orders/bad", "bad order", "validation error")
        letter = dead.get()
        print(f"dead: {letter.topic.replace('.', '/')}: {letter.reason}")
        stats = broker.dead_letter_stats()
        print("dead letters so far:", stats["total_messages"], "kept:", stats["current_count"])

    # The bug is fixed: publish them again to the topics they were meant for.
    with broker.subscribe("orders/#") as orders:
        broker.replay_dead_letters()
        print("replayed:", [orders.get().data])

        # At a limit there is an error, never silence.
        queue = broker.queue("jobs")
        try:
            while True:
                queue.publish(b"x")
        except rookery.errors.MemoryLimitExceeded as error:
            print("refused:", type(error).__name__)
        health = broker.health()
        print(f"{health['status']}, {health['total_topics']} topics, memory limit {health['memory_limit']}")
        queue.settle(queue.claim(100))
        print("and works again after draining:", bool(queue.publish(b"x" * 500)))
