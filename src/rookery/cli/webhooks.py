"""`rookery webhooks`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rookery.cli.commands import Max, Yes, command, family, time_option
from rookery.cli.completing import queue_names
from rookery.cli.output import FAILED, Columns, ago, confirm
from rookery.cli.session import Session

app = family("Endpoints that messages of queues, topics and streams are POSTed to.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
Format = Literal["raw", "cloudevents", "cloudevents-binary"]


@command(app, "list", "rookery webhooks list", "rookery webhooks list --json | jq -r '.[].endpoint'")
def list_(at: Session) -> None:
    """The webhooks, and how they are doing."""
    columns: Columns = {
        "id": "id",
        "of": lambda row: f"{row['kind']} {row['target']}",
        "endpoint": "endpoint",
        "state": "state",
        "in flight": "in_flight",
        "delivered": "delivered",
        "failed": "failed",
    }
    at.out.table(at.get("/webhooks")["webhooks"], columns, empty="There are no webhooks.")


@command(app, "show", "rookery webhooks show ID")
def show(at: Session, id: Id) -> None:
    """One webhook, and how it is doing."""
    at.out.record(at.get("/webhooks/{}", id))


@command(
    app,
    "create",
    "rookery webhooks create jobs https://example.org/hook",
    "rookery webhooks create orders https://example.org/hook --to topic --pattern 'order.*'",
    "rookery webhooks create clicks https://example.org/hook --to stream --format cloudevents --concurrency 1",
)
def create(
    at: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A queue (or see --to).", autocompletion=queue_names)],
    endpoint: Annotated[str, typer.Argument(metavar="URL", help="Where to POST each message.")],
    to: Annotated[Literal["queue", "topic", "stream"], typer.Option("--to", help="What NAME is.")] = "queue",
    pattern: Annotated[str, typer.Option("--pattern", "-k", help="Of routing keys, for topics.")] = "#",
    secret: Annotated[str | None, typer.Option("--secret", help="To sign with; else one is made.")] = None,
    format: Annotated[Format, typer.Option("--format", help="What a call looks like.")] = "raw",
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Calls at a time.")] = None,
    limit: Annotated[int | None, time_option("--call-timeout", "For each call, such as 15s.")] = None,
) -> None:
    """Have messages POSTed to an endpoint. The secret that signs the calls is shown this once."""
    said = {"secret": secret, "concurrency": concurrency, "timeout_ms": limit}
    body: dict[str, Any] = {"endpoint": endpoint, "format": format}
    body |= {field: value for field, value in said.items() if value is not None}
    if to == "topic":
        made = at.post("/topics/{}/subscriptions", name, body={**body, "mode": "webhook", "routing_key": pattern})
    else:
        made = at.post(f"/{to}s/{{}}/webhooks", name, body=body)
    at.out.record(made)


@command(app, "delete", "rookery webhooks delete ID --yes")
def delete(at: Session, id: Id, yes: Yes = False) -> None:
    """End a webhook; of a topic, what waits for it is gone."""
    confirm(f"End webhook {id}?", yes)
    at.out.done(f"webhook {id} ended", at.delete("/webhooks/{}", id))


@command(app, "test", "rookery webhooks test ID")
def test(at: Session, id: Id) -> None:
    """Call the endpoint once with {"test":true} and tell how that went. Exit code 1 when it failed."""
    result = at.post("/webhooks/{}/test", id, wait_ms=60_000)
    at.out.record(result)
    if result["outcome"] != "ack":
        raise typer.Exit(FAILED)


@command(app, "deliveries", "rookery webhooks deliveries ID --max 20")
def deliveries(at: Session, id: Id, max: Max = 100) -> None:
    """The last calls of a webhook, newest first."""
    columns: Columns = {
        "when": lambda row: ago(row["time_ms"]),
        "message id": "message_id",
        "attempt": "attempt",
        "outcome": "outcome",
        "status": "status",
        "ms": "ms",
        "answer": "text",
    }
    rows = at.get("/webhooks/{}/deliveries", id, max=min(max, 1_000))["deliveries"]
    at.out.table(rows, columns, empty="It has not been called yet.")
