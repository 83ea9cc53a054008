"""The insights as one page of HTML with plots: everything it needs is in it, so it can be mailed and kept."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rookery.errors import SparkUnavailable
from rookery.lake.insights import GOLD, gold_rows

QUEUES_MAX: Final = 12
ROWS_MAX: Final = 50

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1f2933; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .25rem .6rem; border-bottom: 1px solid #dde; }
th { text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; } h2 { margin-top: 2.5rem; }
.figures { display: flex; gap: 2rem; flex-wrap: wrap; } .figures b { display: block; font-size: 1.6rem; }
"""


def write(root: Path, file: Path, *, since_ms: int, tenant: str | None = None) -> dict[str, Any]:
    """Write the page; how many plots and rows are in it."""
    try:
        import plotly.graph_objects as go
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SparkUnavailable("the report needs plotly: pip install 'rookery[ui]'") from None
    day_ms = since_ms - 86_400_000
    minutes = gold_rows(root, "queue_stats", tenant=tenant, grain="minute", since_ms=since_ms)
    parts: list[str] = [_figures(minutes)]
    plots = 0
    for title, figure in _plots(go, root, minutes, tenant, since_ms):
        parts.append(f"<h2>{html.escape(title)}</h2>{figure.to_html(full_html=False, include_plotlyjs=False)}")
        plots += 1
    rows = 0
    for name in ("dlq_summary", "sla_breaches", "tenant_usage", "routing_stats"):
        grain = None if name == "dlq_summary" else "hour"
        found = gold_rows(root, name, tenant=tenant, grain=grain, since_ms=day_ms, limit=ROWS_MAX)
        rows += len(found)
        parts.append(f"<h2>{name}</h2><p>{html.escape(GOLD[name])}</p>{_table(found)}")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    whose = f"tenant {tenant}" if tenant else "all tenants"
    file.write_text(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Rookery: insights</title>"
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body><h1>Insights</h1>"
        f"<p>{html.escape(whose)}, made {made}. Counts are exact; times are those of the messages that were told of, "
        f"each counted for as many as it stands for.</p>{''.join(parts)}</body></html>",
        encoding="utf-8",
    )
    return {"plots": plots, "rows": rows}


def _figures(rows: list[dict[str, Any]]) -> str:
    names = ("published", "acked", "retried", "expired", "dead_lettered", "dropped")
    shown = "".join(f"<div><b>{sum(row[name] or 0 for row in rows):,}</b>{name}</div>" for name in names)
    return f"<div class=figures>{shown}</div>"


def _plots(
    go: Any, root: Path, minutes: list[dict[str, Any]], tenant: str | None, since_ms: int
) -> list[tuple[str, Any]]:
    totals: dict[str, int] = {}
    for row in minutes:
        label = f"{row['tenant']}/{row['queue']}"
        totals[label] = totals.get(label, 0) + (row["published"] or 0) + (row["end_to_end_ms_n"] or 0)
    busiest = sorted(totals, key=lambda label: -totals[label])[:QUEUES_MAX]
    series = {label: [row for row in minutes[::-1] if f"{row['tenant']}/{row['queue']}" == label] for label in busiest}

    def lines(column: str, dash: str | None = None) -> Any:
        figure = go.Figure()
        for label, found in series.items():
            times, values = [row["window_start"] for row in found], [row[column] for row in found]
            figure.add_scatter(x=times, y=values, name=label, mode="lines+markers", line={"dash": dash})
        return _laid_out(figure)

    found = [
        ("Messages into queues, per minute", lines("published")),
        ("Messages done, per minute", lines("acked")),
        ("Messages waiting", lines("ready")),
        ("End to end, 95th percentile, ms", lines("end_to_end_ms_p95")),
        ("Waiting for the first delivery, 95th percentile, ms", lines("queue_ms_p95")),
        ("Work, 95th percentile, ms", lines("process_ms_p95")),
    ]
    deaths: dict[str, int] = {}
    for row in gold_rows(root, "dlq_summary", tenant=tenant, since_ms=since_ms - 86_400_000):
        label = f"{row['queue']}: {row['reason']} {row['signature']}".strip()[:80]
        deaths[label] = deaths.get(label, 0) + row["messages"]
    if deaths:
        top = sorted(deaths, key=lambda label: deaths[label])[-15:]
        bars = go.Figure(go.Bar(x=[deaths[label] for label in top], y=top, orientation="h"))
        found.append(("Why messages died", _laid_out(bars)))
    return found


def _laid_out(figure: Any) -> Any:
    figure.update_layout(template="plotly_white", height=340, margin={"l": 40, "r": 20, "t": 10, "b": 40})
    return figure


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "<p>Nothing yet.</p>"
    names = [name for name in rows[0] if name not in ("examples", "grain") and not name.endswith("_seen_ms")]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(row[name]) for name in names) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"<td class=n>{value:,}</td>"
    return f"<td>{html.escape('' if value is None else str(value))}</td>"
