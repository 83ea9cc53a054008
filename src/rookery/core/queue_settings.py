"""The settings of a queue: one table, from which everything else that lists them is made.

A row says what a setting is called, which values it takes, its default in general and by face, whether a policy may
change it, and how `queue.declare` of AMQP says it. These are made from the rows:

- the checks of the core, the defaults of the faces and what a policy may change (`core.policy`)
- the body of HTTP requests and its OpenAPI schema (`wire.api.queue_options`)
- the arguments of AMQP, their checks and the order in which a redeclaration is compared (`wire.amqp.arguments`)
- the options of `DECLARE_QUEUE` in the line protocol (`wire.line.commands`)
- `rookery queues settings` and the completion of `--set` (`cli.queues`)
- by `tools/make_tables.py`: the types of `core.policy.QueueSettings` and `embed.options.QueueArguments`, which type
  checkers read, and the tables in `docs/queue-settings.md` and `docs/amqp.md`

So a new setting is a row here and its behavior in the core. This module imports nothing of the broker: the command
line reads it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TIME_MAX_MS: Final = 1 << 53
"""No delay, lease or time to live may be longer: 285,000 years."""
COUNT_MAX: Final = 1 << 53
TEXT_MAX_BYTES: Final = 255

FACES: Final = ("embedded", "s0", "http", "line", "amqp", "mqtt", "dead-letter")
"""Who creates queues, each with defaults of its own. Queues that hold dead letters are created with none."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """How `queue.declare` of AMQP says a setting.

    `place` is where RabbitMQ compares the argument when a queue is declared again: it names the first that differs.
    `smallest` and `largest` replace those of the setting. `values` are RabbitMQ's names for choices, where it has
    other ones or fewer. `added` is what the setting has more than the argument.
    """

    name: str
    place: int
    smallest: int = 0
    largest: int = TIME_MAX_MS
    values: Mapping[str, str] = field(default_factory=dict)
    added: int = 0
    help: str = ""
    """What to say instead of the setting's help."""


@dataclass(frozen=True, kw_only=True)
class QueueSetting:
    """One row. `largest` of a text is its length in UTF-8; `none` is what `default` means when it stands for "no"."""

    name: str
    type: type
    default: object
    help: str
    smallest: int | None = None
    largest: int | None = None
    choices: tuple[str, ...] = ()
    is_name: bool = False
    """The text is the name of a queue."""
    none: str = ""
    faces: Mapping[str, object] = field(default_factory=dict)
    """Defaults of faces that have another one."""
    by_policy: bool = True
    """A policy cannot change what a queue is made of."""
    argument: Argument | None = None
    flag: bool = False
    """`queue.declare` says it in a bit instead of an argument; a redeclaration compares it before all arguments."""


QUEUE_SETTINGS: Final[tuple[QueueSetting, ...]] = (
    QueueSetting(
        name="durable",
        type=bool,
        default=True,
        help="Keep the queue and its persistent messages across restarts.",
        by_policy=False,
        flag=True,
    ),
    QueueSetting(
        name="auto_delete",
        type=bool,
        default=False,
        help="Delete the queue when its last consumer leaves.",
        by_policy=False,
        flag=True,
    ),
    QueueSetting(
        name="expires_ms",
        type=int,
        smallest=1,
        largest=TIME_MAX_MS,
        default=0,
        none="never",
        help="Delete the queue when nobody has used it for this long.",
        argument=Argument(name="x-expires", place=1, smallest=1),
    ),
    QueueSetting(
        name="ttl_ms",
        type=int,
        smallest=0,
        largest=TIME_MAX_MS,
        default=-1,
        none="no limit",
        help="Expire messages that have waited for this long. With 0, a message is delivered at once or expires.",
        argument=Argument(name="x-message-ttl", place=2),
    ),
    QueueSetting(
        name="length_max",
        type=int,
        smallest=0,
        largest=COUNT_MAX,
        default=-1,
        none="no limit",
        help="Maximum number of waiting messages.",
        argument=Argument(name="x-max-length", place=5),
    ),
    QueueSetting(
        name="bytes_max",
        type=int,
        smallest=0,
        largest=COUNT_MAX,
        default=-1,
        none="no limit",
        help="Maximum size of the bodies of all waiting messages, in bytes.",
        argument=Argument(name="x-max-length-bytes", place=6),
    ),
    QueueSetting(
        name="overflow",
        type=str,
        choices=("drop-head", "reject-publish", "reject-publish-dead-letter", "drop-new", "close"),
        default="drop-head",
        help="What happens when a message arrives at a full queue: drop the oldest message, refuse the new one, refuse "
        "it and dead-letter it, drop it without an error, or delete the queue.",
        argument=Argument(
            name="x-overflow",
            place=8,
            values={
                "drop-head": "drop-head",
                "reject-publish": "reject-publish",
                "reject-publish-dlx": "reject-publish-dead-letter",
            },
            help="What happens when a message arrives at a full queue: drop the oldest message, refuse the new one, or "
            "refuse it and dead-letter it.",
        ),
    ),
    QueueSetting(
        name="dead_letter_exchange",
        type=str,
        largest=TEXT_MAX_BYTES,
        default=None,
        none="none",
        help="Exchange for messages that were rejected, expired, dropped, or used up their attempts.",
        argument=Argument(name="x-dead-letter-exchange", place=3),
    ),
    QueueSetting(
        name="dead_letter_key",
        type=str,
        largest=TEXT_MAX_BYTES,
        default=None,
        none="the message's own",
        help="Routing key of dead letters; requires `dead_letter_exchange`.",
        argument=Argument(
            name="x-dead-letter-routing-key",
            place=4,
            help="Routing key of dead letters; requires `x-dead-letter-exchange`.",
        ),
    ),
    QueueSetting(
        name="dead_letter_queue",
        type=str,
        largest=TEXT_MAX_BYTES,
        is_name=True,
        default=None,
        none="none",
        help="Queue for dead letters, instead of an exchange; `{queue}` stands for the queue's own name.",
        faces={"s0": "{queue}.DLQ", "http": "{queue}.DLQ", "line": "{queue}.DLQ"},
    ),
    QueueSetting(
        name="max_attempts",
        type=int,
        smallest=0,
        largest=1 << 30,
        default=0,
        none="no limit",
        help="Number of deliveries after which a message becomes a dead letter.",
        faces={"embedded": 4, "s0": 3, "http": 6, "line": 6},
        argument=Argument(
            name="x-delivery-limit",
            place=11,
            added=1,
            help="Number of redeliveries after which a message becomes a dead letter.",
        ),
    ),
    QueueSetting(
        name="backoff",
        type=str,
        choices=("fixed", "linear", "exponential"),
        default="fixed",
        help="How the pause before a retry grows with each attempt.",
        faces={"http": "exponential"},
    ),
    QueueSetting(
        name="backoff_base_ms",
        type=int,
        smallest=0,
        largest=TIME_MAX_MS,
        default=0,
        none="no pause",
        help="Pause before the first retry.",
        faces={"http": 500, "line": 30_000},
    ),
    QueueSetting(
        name="backoff_max_ms",
        type=int,
        smallest=0,
        largest=TIME_MAX_MS,
        default=3_600_000,
        help="Longest pause before a retry.",
    ),
    QueueSetting(
        name="backoff_jitter",
        type=float,
        smallest=0,
        largest=1,
        default=0.0,
        none="none",
        help="Share of the pause by which it varies at random, up and down.",
    ),
    QueueSetting(
        name="ordered",
        type=bool,
        default=True,
        help="Deliver messages with a higher priority first.",
        faces={"line": False, "amqp": False, "mqtt": False},
        by_policy=False,
    ),
    QueueSetting(
        name="priority_max",
        type=int,
        smallest=0,
        largest=COUNT_MAX,
        default=0,
        none="no limit",
        help="Highest priority that counts; higher ones are treated as this one.",
        argument=Argument(
            name="x-max-priority",
            place=7,
            largest=255,
            help="Deliver messages with a higher priority first, up to this one. Without it, priorities are ignored.",
        ),
    ),
    QueueSetting(
        name="single_active",
        type=bool,
        default=False,
        help="Deliver to one consumer only; the next one takes over when it leaves.",
        argument=Argument(name="x-single-active-consumer", place=9),
    ),
    QueueSetting(
        name="distribution",
        type=str,
        choices=("round-robin", "least-busy", "priority", "key-hash"),
        default="round-robin",
        help="Which consumer gets the next message: each in turn, the one with the fewest unsettled deliveries, the "
        "one with the highest priority, or always the same one for a routing key.",
    ),
    QueueSetting(
        name="grouped",
        type=bool,
        default=False,
        help="Deliver messages of the same group one after the other.",
    ),
    QueueSetting(
        name="lease_ms",
        type=int,
        smallest=1,
        largest=TIME_MAX_MS,
        default=30_000,
        help="How long a claimed message may be worked on, unless the claim says otherwise.",
        faces={"s0": 5_000},
    ),
    QueueSetting(
        name="dedup_window_ms",
        type=int,
        smallest=1,
        largest=TIME_MAX_MS,
        default=86_400_000,
        help="How long dedup keys are remembered.",
        argument=Argument(name="x-deduplication-window", place=14, smallest=1),
    ),
    QueueSetting(
        name="dedup",
        type=bool,
        default=False,
        help="Confirm a message whose dedup key was seen within the window, and do not store it again.",
        argument=Argument(name="x-message-deduplication", place=13),
    ),
    QueueSetting(
        name="queue_type",
        type=str,
        choices=("classic", "quorum"),
        default="classic",
        help="A quorum queue keeps every message as if it were persistent, and counts every delivery.",
        by_policy=False,
        argument=Argument(
            name="x-queue-type",
            place=10,
            help="A quorum queue keeps every message as if it were persistent, and counts deliveries in "
            "`x-delivery-count`.",
        ),
    ),
    QueueSetting(
        name="consumer_timeout_ms",
        type=int,
        smallest=0,
        largest=TIME_MAX_MS,
        default=0,
        none="no limit",
        help="Return a delivery of an AMQP consumer to the queue when it is not acknowledged in time; its late "
        "acknowledgement is ignored.",
        argument=Argument(
            name="x-consumer-timeout",
            place=12,
            smallest=1,
            help="Return a delivery to the queue when it is not acknowledged in time; its late acknowledgement is "
            "ignored.",
        ),
    ),
    QueueSetting(
        name="arguments",
        type=dict,
        default={},
        none="none",
        help="The `x-` arguments of an AMQP declaration, which a redeclaration must repeat.",
        by_policy=False,
    ),
)
"""The rows, in the order in which settings are shown."""
