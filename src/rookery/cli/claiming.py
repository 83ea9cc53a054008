"""`rookery claim`, `settle` and `peek`."""

from __future__ import annotations

import base64
import sys
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from rookery.cli.commands import Max, command, single, time_option
from rookery.cli.completing import queue_names
from rookery.cli.output import NOT_THERE, Columns, ago
from rookery.cli.session import PAGE, Session
from rookery.errors import LeaseLost

claim = single()
settle = single()
peek = single()

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=queue_names)]
Outcome = Literal["ack", "retry", "release", "reject"]
CLAIM_MAX: Final = 1_000
WAIT_MAX_MS: Final = 60_000


@command(
    claim,
    "claim",
    "rookery claim jobs",
    "rookery claim jobs --max 10 --wait 30s --ack | jq -c .message",
    "rookery claim pictures --body --ack > logo.png",
)
def claim_(
    at: Session,
    queue: Name,
    max: Max = 1,
    wait: Annotated[int, time_option("--wait", "For the first message, such as 10s.")] = "0s",  # type: ignore[assignment]
    lease: Annotated[int | None, time_option("--lease", "How long they are yours, such as 30s.")] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Ack them once they are printed.")] = False,
    body: Annotated[bool, typer.Option("--body", help="Print bodies only, as they are.")] = False,
) -> None:
    """Take messages of a queue under lease; each is a JSON line on stdout.

    A message is yours until its lease lapses, and is then tried again: settle it before, with `rookery settle` and the
    `lease` of its line. With --ack it is acked when it has been printed. Exit code 3 when there was nothing to claim.
    """
    more = {} if lease is None else {"lease_ms": lease}
    count = 0
    while count < max:
        wait_ms = 0 if count else min(wait, WAIT_MAX_MS)
        wanted = {"max": min(max - count, CLAIM_MAX), "wait_ms": wait_ms, **more}
        found = at.post("/queues/{}/claim", queue, body=wanted, wait_ms=wait_ms)["deliveries"]
        wait -= wait_ms
        if not found and wait and not count:
            continue
        if not found:
            break
        for delivery in found:
            put(at, delivery, body, max == 1)
        if ack:
            settle_all(at, queue, [delivery["lease"] for delivery in found], {"outcome": "ack"})
        count += len(found)
    if not count:
        raise typer.Exit(NOT_THERE)


@command(
    settle,
    "settle",
    "rookery settle jobs LEASE",
    "rookery settle jobs LEASE --outcome retry --delay 30s",
    "rookery settle jobs LEASE --outcome reject --reason 'no stock'",
    "rookery claim jobs --max 100 | jq -r .lease | xargs rookery settle jobs",
)
def settle_(
    at: Session,
    queue: Name,
    leases: Annotated[list[str], typer.Argument(metavar="LEASE...", help="As `rookery claim` printed them.")],
    outcome: Annotated[Outcome, typer.Option("--outcome", "-o", help="What becomes of the messages.")] = "ack",
    delay: Annotated[int | None, time_option("--delay", "Of a retry; else the queue's backoff.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for a retry or reject.")] = "",
) -> None:
    """Settle leases: ack (done), retry (again later), release (untouched, at once) or reject (a dead letter now)."""
    wish: dict[str, Any] = {"outcome": outcome, "reason": reason}
    if delay is not None:
        wish["delay_ms"] = delay
    settled = settle_all(at, queue, leases, wish)
    at.out.done(f"{settled['settled']} settled", settled)


@command(
    peek, "peek", "rookery peek jobs", "rookery peek jobs --state delayed", "rookery peek jobs --json | jq .message"
)
def peek_(
    at: Session,
    queue: Name,
    state: Annotated[Literal["ready", "delayed", "leased"], typer.Option("--state", help="Which.")] = "ready",
    max: Max = 20,
) -> None:
    """Look at messages of a queue, in order, and leave them as they are. With --json, a line each."""
    found = at.pages("/queues/{}/messages", "messages", queue, state=state, limit=min(max, PAGE))
    show(at, list(islice(found, max)), f"Nothing is {state} in queue {queue}.")


def show(at: Session, messages: list[Any], empty: str) -> None:
    """Messages as a table, or as JSON lines."""
    if at.out.as_json:
        for message in messages:
            at.out.line(message)
        return
    columns: Columns = {
        "message id": "message_id",
        "attempt": "attempt",
        "since": lambda row: ago(row.get("enqueued_ms")),
        "due": lambda row: ago(row.get("due_ms")),
        "priority": lambda row: row.get("priority", 0),
        "routing key": "routing_key",
        "message": preview,
    }
    if not any(message.get("due_ms") for message in messages):
        del columns["due"]
    at.out.table(messages, columns, empty=empty)


def preview(row: Any) -> str:
    """The beginning of a message's body."""
    if row.get("message_base64") is not None:
        data = base64.b64decode(row["message_base64"])
        return f"{len(data)} bytes: {data[:24]!r}"
    value = row["message"]
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}…"


def put(at: Session, delivery: Any, body: bool, alone: bool) -> None:
    """Print a delivery: its line of JSON, or its body, which alone in a file is nothing but its bytes."""
    if not body:
        at.out.line(delivery)
        return
    end = b"" if alone and not sys.stdout.isatty() else b"\n"
    sys.stdout.buffer.write(body_of(delivery) + end)
    sys.stdout.buffer.flush()


def body_of(delivery: Any) -> bytes:
    """The bytes of a message's body; JSON is written anew."""
    coded = delivery.get("message_base64")
    if coded is not None:
        return base64.b64decode(coded)
    value = delivery["message"]
    is_text = isinstance(value, str) and "json" not in (delivery.get("content_type") or "")
    return value.encode() if is_text else msgspec.json.encode(value)


def settle_all(at: Session, queue: str, leases: list[str], wish: dict[str, Any]) -> Any:
    settled = at.post("/queues/{}/settle", queue, body={"leases": leases, **wish})
    if settled["lost"]:
        raise LeaseLost(f"{len(settled['lost'])} of {len(leases)} leases had ended: {', '.join(settled['lost'][:3])}")
    return settled
