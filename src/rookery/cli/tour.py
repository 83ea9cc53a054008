"""`rookery tour`: the main ideas on a broker inside this process, which is gone afterwards.

Each step is a function: its docstring is what is said, its body is shown and then run. What a newcomer reads is so what
happens.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from rookery.cli.commands import command, single
from rookery.cli.output import Output, console

app = single()

Step = Callable[[Any], None]


def work(broker: Any) -> None:
    """A queue holds work. Publish to it, claim from it: a claimed message is yours until its lease lapses. Ack it when
    it is done, and it is gone.
    """
    jobs = broker.queue("jobs", max_attempts=2, dead_letter_queue="jobs.dead")
    jobs.publish({"task": "resize", "image": 7})
    (delivery,) = jobs.claim()
    print("claimed", delivery.data, "attempt", delivery.attempt)
    delivery.ack()
    print("ready now:", jobs.stats()["ready"])


def failure(broker: Any) -> None:
    """What fails is tried again, and when its attempts are used up it becomes a dead letter: kept in a queue of its
    own, with the reason and its history, until somebody sends it back.
    """
    jobs = broker.queue("jobs", max_attempts=2, dead_letter_queue="jobs.dead")
    jobs.publish({"task": "resize", "image": "broken"})
    for _ in range(2):
        (delivery,) = jobs.claim()
        print("attempt", delivery.attempt, "of 2")
        delivery.retry(reason="cannot read it")
    (letter,) = broker.queue("jobs.dead").peek()
    print("dead:", letter.data, letter.deaths[0]["reason"])
    print("sent back to life:", len(broker.queue("jobs.dead").redrive()))


def order(broker: Any) -> None:
    """Higher priority comes first. A message may wait for its time, or be worthless after it; both are exact, whatever
    else is in the queue. A key that was seen before adds nothing, so a publisher may safely try again.
    """
    from rookery import Message

    mail = broker.queue("mail")
    mail.publish("a newsletter")
    mail.publish(Message("a password reset", priority=9))
    mail.publish(Message("a reminder", delay_ms=3_600_000))
    mail.publish(Message("a receipt", dedup_key="order-42"))
    mail.publish(Message("a receipt", dedup_key="order-42"))
    print([delivery.data for delivery in mail.claim(10)])
    print("waits for its time:", mail.stats()["delayed"])


def routing(broker: Any) -> None:
    """An exchange routes to every queue whose binding matches the routing key: * is one word, # any number. Publishers
    need not know who listens.
    """
    orders = broker.exchange("orders", "topic")
    broker.queue("billing").bind("orders", "order.created")
    broker.queue("audit").bind("orders", "order.#")
    orders.publish("order.created", {"order": 42})
    orders.publish("order.shipped.eu", {"order": 42})
    for name in ("billing", "audit"):
        print(name, "got", broker.queue(name).stats()["ready"])


def streams(broker: Any) -> None:
    """A stream keeps its records. Any number of readers read it, each from where it likes, again if need be; a group
    remembers how far it has come. Old records become Parquet files, which Spark and DuckDB read as a table.
    """
    clicks = broker.stream("clicks")
    for page in ("/", "/prices", "/signup"):
        clicks.publish({"page": page})
    print("from the start:", [record.data["page"] for record in clicks.read(0)])
    print("from offset 2: ", [record.data["page"] for record in clicks.read(2)])
    billing = clicks.group("billing")
    billing.commit({0: 2})
    print("records that the group has not read yet:", billing.info()["lag"])


def durability(broker: Any) -> None:
    """Given a directory, a broker writes a journal, and what it has confirmed is on disk. Nothing else is needed: no
    database, no second server.
    """
    import rookery

    with tempfile.TemporaryDirectory() as path:
        with rookery.Broker(enable_persistence=True, persistence_path=path) as first:
            first.queue("bills").publish({"total": 12})
        with rookery.Broker(enable_persistence=True, persistence_path=path) as second:
            print("after a restart:", second.queue("bills").claim()[0].data)


STEPS: Final[tuple[tuple[str, Step], ...]] = (
    ("Queues: work that is done once", work),
    ("Failures: retries and dead letters", failure),
    ("Order: priorities, delays, keys", order),
    ("Exchanges: who gets what", routing),
    ("Streams: what happened, to be read again", streams),
    ("Durability: a directory, and nothing else", durability),
)

COMMANDS: Final = """\
rookery serve                                    # AMQP, HTTP and lines of text; data in ./rookery-data
rookery publish jobs '{"task": "resize"}'        # from a second terminal
rookery claim jobs --ack
rookery subscribe jobs --exec 'cat'
rookery stats"""
LAST: Final = """\
The same broker is a server: its words are the same in Python, over HTTP, over AMQP 0-9-1 (pika, Celery …) and in the
shell. To go on:"""


@command(app, "tour", "rookery tour", "rookery tour --no-pause | less")
def tour(
    out: Output,
    no_pause: Annotated[bool, typer.Option("--no-pause", help="Do not wait for Enter between steps.")] = False,
) -> None:
    """Show the main ideas on a throw-away broker: needs no server, leaves nothing behind, takes two minutes."""
    import rookery

    pause = not no_pause and sys.stdin.isatty() and sys.stdout.isatty()
    shown: list[dict[str, Any]] = []
    with rookery.Broker() as broker:
        for number, (title, step) in enumerate(STEPS, 1):
            source = source_of(step)
            if out.as_json:
                shown.append({"title": title, "text": said(step), "code": source, "output": _captured(step, broker)})
                continue
            _title(f"{number} of {len(STEPS)} · {title}")
            print(said(step) + "\n")
            _code(source, "python")
            print()
            step(broker)
            if pause:
                input("\nEnter goes on, Ctrl-C ends … ")
            print()
    if out.as_json:
        out.json(shown)
        return
    _title("And now")
    print(LAST + "\n")
    _code(COMMANDS, "bash")


def said(step: Step) -> str:
    return textwrap.fill(" ".join((step.__doc__ or "").split()), 100)


def source_of(step: Step) -> str:
    """The body of a function, without its docstring."""
    lines = inspect.getsource(step).splitlines()
    ends = [index for index, line in enumerate(lines) if line.rstrip().endswith('"""')]
    return textwrap.dedent("\n".join(lines[ends[-1] + 1 :])).strip()


def _captured(step: Step, broker: Any) -> list[str]:
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        step(broker)
    return printed.getvalue().splitlines()


def _title(text: str) -> None:
    if sys.stdout.isatty():
        from rich.rule import Rule

        console().print(Rule(text, align="left", style="bold"))
    else:
        print(f"== {text}")


def _code(source: str, language: str) -> None:
    if sys.stdout.isatty():
        from rich.padding import Padding
        from rich.syntax import Syntax

        console().print(Padding(Syntax(source, language, background_color="default"), (0, 0, 0, 2)))
    else:
        print(textwrap.indent(source, "    "))
