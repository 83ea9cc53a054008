"""`rookery insights`: what became of messages, from the tables that the lifecycle pipeline keeps in the lake."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from rookery.cli.commands import command, family, time_option
from rookery.cli.output import Columns, Output, size
from rookery.errors import NotFound
from rookery.lake.insights import GOLD, ROWS_MAX, gold_rows, lake_folder

app = family("What became of messages: tables, a report, a plan for dead letters.", otherwise="show")

Root = Annotated[
    Path, typer.Option("--root", envvar="ROOKERY_PIPELINES_DIR", help="The root of pipelines, with the lake in it.")
]
HERE: Final = Path("rookery-pipelines")
Since = Annotated[int, time_option("--since", "Look so far back, such as 24h.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]


def lake_in(root: Path) -> Path:
    """The root, if there are tables below it."""
    if not lake_folder(root).is_dir():
        raise NotFound(
            f"there are no insights below {root} yet: `rookery pipelines up --builtin` makes them; "
            "--root or ROOKERY_PIPELINES_DIR says where",
            argument="root",
        )
    return root


_WINDOW: Final[Columns] = {"window": lambda row: row["window_start"][:16].replace("T", " ")}
_TIMES: Final[Columns] = {
    f"{name} {label}": f"{name}_ms_{label}"
    for name in ("queue", "process", "end_to_end")
    for label in ("p50", "p95", "p99")
}
COLUMNS: Final[dict[str, Columns]] = {
    "queue_stats": {
        **_WINDOW,
        **{name: name for name in ("tenant", "queue", "published", "acked", "retried", "dead_lettered", "ready")},
        **_TIMES,
    },
    "tenant_usage": {
        **_WINDOW,
        "tenant": "tenant",
        "published": "published",
        "size": lambda row: size(row["published_bytes"]),
        **{name: name for name in ("unroutable", "queued", "delivered", "acked", "expired", "dead_lettered")},
    },
    "routing_stats": {
        **_WINDOW,
        **{name: name for name in ("tenant", "exchange", "scope", "routing_key", "published", "unroutable", "fan_out")},
    },
    "consumer_stats": {
        **_WINDOW,
        **{name: name for name in ("tenant", "queue", "consumer", "delivered", "acked", "retried", "lapsed")},
        **{f"process {label}": f"process_ms_{label}" for label in ("p50", "p95", "p99")},
    },
    "dlq_summary": {
        **_WINDOW,
        **{name: name for name in ("tenant", "queue", "outcome", "reason", "signature", "routing_key", "messages")},
    },
    "sla_breaches": {
        **_WINDOW,
        **{name: name for name in ("tenant", "queue", "measure", "limit_ms", "worst_ms", "messages")},
    },
    "route_outcomes": {**_WINDOW, **{name: name for name in ("tenant", "queue", "routing_key", "acked", "died")}},
}


@command(
    app,
    "show",
    "rookery insights show",
    "rookery insights show queue_stats --grain minute --since 1h",
    "rookery insights show dlq_summary --tenant default --json | jq '.dlq_summary[].signature'",
)
def show(
    out: Output,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One of the tables; without it, all.")] = None,
    grain: Annotated[
        Literal["minute", "hour", "day"] | None, typer.Option("--grain", help="Per minute, hour or day, as it has.")
    ] = None,
    since: Since = "24h",  # type: ignore[assignment]
    tenant: Tenant = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only of this queue.")] = None,
    max: Annotated[int, typer.Option("--max", min=1, max=ROWS_MAX, help="At most so many rows of each.")] = 50,
    root: Root = HERE,
) -> None:
    """The gold tables: counts and times of queues, use by tenants, routing, consumers, deaths, broken promises.

    All of them is also what `rookery insights` alone shows.
    """
    root = lake_in(root)
    since_ms = round(time.time() * 1000) - since
    found: dict[str, list[dict[str, Any]]] = {}
    for name in [table] if table is not None else GOLD:
        default = None if name in ("dlq_summary", "route_outcomes") else "hour"
        day = name in ("dlq_summary", "route_outcomes")
        found[name] = gold_rows(
            root,
            name,
            tenant=tenant,
            queue=queue if name not in ("tenant_usage", "routing_stats") else None,
            grain=grain if table is not None else default,
            # a day begins before what happens in it
            since_ms=since_ms - (86_400_000 if day or grain == "day" else 3_600_000),
            limit=max,
        )
    if out.as_json:
        out.json(found)
        return
    for name, rows in found.items():
        print(f"\n{name}: {GOLD[name]}")
        out.table(rows, COLUMNS[name], empty="Nothing yet.")


@command(app, "report", "rookery insights report", "rookery insights report --out today.html --since 24h")
def report(
    out: Output,
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("insights.html"),
    since: Since = "24h",  # type: ignore[assignment]
    tenant: Tenant = None,
    root: Root = HERE,
) -> None:
    """Write a page with plots that needs nothing but a browser: no server, no network."""
    from rookery.pipelines.builtin.report import write

    written = write(lake_in(root), file, since_ms=round(time.time() * 1000) - since, tenant=tenant)
    out.done(f"{file}: {written['plots']} plots", {"file": str(file), **written})


@command(
    app,
    "plan",
    "rookery insights plan --out plan.json",
    "rookery insights plan --queue jobs --all --out plan.json",
)
def plan(
    out: Output,
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the plan is written.")] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose dead letters.")] = "default",
    queue: Annotated[str | None, typer.Option("--queue", help="Only those that died in this queue.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Plan also for groups that somebody should look at first.")
    ] = False,
    root: Root = HERE,
) -> None:
    """Group dead letters by queue, reason, what was said and routing key, and plan which to redrive.

    `rookery dead-letters redrive --plan FILE` does what the plan says; read it before.
    """
    import msgspec

    from rookery.pipelines.builtin import letters

    found = letters.groups(lake_in(root), tenant, queue)
    made = letters.propose(found, tenant, everything=everything)
    if file is not None:
        letters.write_plan(made, file)
    rows = [msgspec.to_builtins(group) for group in found]
    if out.as_json:
        out.json({"groups": rows, "plan": msgspec.to_builtins(made)})
        return
    names = ("queue", "reason", "signature", "routing_key", "messages", "verdict", "why")
    out.table(rows, {name: name for name in names}, empty="Nothing has died.")
    print(f"{len(made.steps)} of {len(found)} groups to redrive{f', in {file}' if file is not None else ''}")
