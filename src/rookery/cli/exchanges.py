"""`rookery exchanges` and `rookery bindings`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from rookery.cli.commands import Prefix, Yes, command, family, pairs
from rookery.cli.completing import exchange_names, queue_names
from rookery.cli.output import Columns, confirm
from rookery.cli.session import Session
from rookery.errors import NotFound

app = family("List, show, create and delete exchanges.")
bindings = family("List, create and delete bindings.")

Name = Annotated[str, typer.Argument(metavar="EXCHANGE", help="The exchange's name.", autocompletion=exchange_names)]
Source = Annotated[str, typer.Argument(metavar="EXCHANGE", help="From.", autocompletion=exchange_names)]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="To.", autocompletion=queue_names)]
TargetKind = Annotated[Literal["queue", "stream", "exchange"], typer.Option("--to", help="What TARGET is.")]
BindingKey = Annotated[str, typer.Option("--routing-key", "-k", help="A key, or a pattern such as order.*")]
Kind = Literal["direct", "fanout", "topic", "headers", "consistent-hash"]
Arguments = Annotated[
    list[str], typer.Option("--argument", "-a", metavar="NAME=VALUE", help="Such as x-match=any; repeatable.")
]
EVERY_PAGE: Final = 1_000


@command(app, "list", "rookery exchanges list", "rookery exchanges list --json | jq -r '.[].name'")
def list_(at: Session, prefix: Prefix = "") -> None:
    """The exchanges that the key may read, with their counts."""
    columns: Columns = {
        "exchange": "name",
        "kind": "kind",
        "durable": "durable",
        "bindings": "stats.bindings",
        "published": "stats.published",
        "unroutable": "stats.unroutable",
        "alternate": "alternate",
    }
    at.out.table(at.pages("/exchanges", "exchanges", prefix=prefix), columns)


@command(app, "show", "rookery exchanges show orders")
def show(at: Session, exchange: Name) -> None:
    """An exchange with its counts."""
    at.out.record(at.get("/exchanges/{}", exchange))


@command(
    app,
    "create",
    "rookery exchanges create orders topic",
    "rookery exchanges create orders topic --alternate lost --transient",
)
def create(
    at: Session,
    exchange: Name,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="direct, fanout, topic, headers or consistent-hash.")],
    alternate: Annotated[str, typer.Option("--alternate", help="Where what nobody gets goes.")] = "",
    transient: Annotated[bool, typer.Option("--transient", help="Gone with the server.")] = False,
    auto_delete: Annotated[bool, typer.Option("--auto-delete", help="Gone with its last binding.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Published to by exchanges only.")] = False,
    argument: Arguments = [],  # noqa: B006
) -> None:
    """Make an exchange. The same again is fine, another of the name a conflict."""
    body = {
        "kind": kind,
        "durable": not transient,
        "auto_delete": auto_delete,
        "internal": internal,
        "alternate": alternate,
        "arguments": pairs(argument, "--argument"),
    }
    at.out.done(f"exchange {exchange} is there", at.put("/exchanges/{}", exchange, body=body))


@command(app, "delete", "rookery exchanges delete orders", "rookery exchanges delete orders --if-unused --yes")
def delete(
    at: Session,
    exchange: Name,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")] = False,
    yes: Yes = False,
) -> None:
    """Delete an exchange with its bindings."""
    confirm(f"Delete exchange {exchange} with its bindings?", yes)
    at.out.done(f"exchange {exchange} deleted", at.delete("/exchanges/{}", exchange, if_unused=if_unused))


@command(bindings, "list", "rookery bindings list", "rookery bindings list --source orders --json")
def list_bindings(
    at: Session,
    source: Annotated[str, typer.Option("--source", help="Of this exchange.", autocompletion=exchange_names)] = "",
    target: Annotated[str, typer.Option("--target", help="To this target.", autocompletion=queue_names)] = "",
) -> None:
    """The bindings whose ends the key may read; at most 1,000."""
    rows = at.get("/bindings", source=source, target=target, limit=EVERY_PAGE)["bindings"]
    columns: Columns = {"from": "source", "key": "key", "to": "target", "kind": "target_kind", "arguments": "arguments"}
    at.out.table(rows, columns, empty="There are no bindings.")


@command(
    bindings,
    "create",
    "rookery bindings create orders billing -k 'order.*'",
    "rookery bindings create orders audit --to stream -k '#'",
    "rookery bindings create files eu -a x-match=all -a region=eu",
)
def create_binding(
    at: Session,
    exchange: Source,
    target: Target,
    routing_key: BindingKey = "",
    to: TargetKind = "queue",
    argument: Arguments = [],  # noqa: B006
) -> None:
    """Let an exchange route to a queue, a stream or another exchange."""
    body = {
        "source": exchange,
        "target": target,
        "target_kind": to,
        "key": routing_key,
        "arguments": pairs(argument, "--argument"),
    }
    made = at.post("/bindings", body=body)
    at.out.done(f"{exchange} {'is now' if made['created'] else 'was already'} bound to {target}", made)


@command(bindings, "delete", "rookery bindings delete orders billing -k 'order.*'")
def delete_binding(
    at: Session,
    exchange: Source,
    target: Target,
    routing_key: BindingKey = "",
    to: TargetKind = "queue",
    argument: Arguments = [],  # noqa: B006
) -> None:
    """Take a binding away: the one with this key and these arguments."""
    import msgspec

    table = pairs(argument, "--argument")
    gone = at.delete(
        "/bindings",
        source=exchange,
        target=target,
        target_kind=to,
        key=routing_key,
        arguments=msgspec.json.encode(table).decode() if table else "",
    )
    if not gone["deleted"]:
        raise NotFound(f"{exchange} is not bound to {target} with key {routing_key!r}", argument="EXCHANGE")
    at.out.done(f"{exchange} is no longer bound to {target}", gone)
