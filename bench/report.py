"""A benchmark's report in the documentation: tables between two marks of a page, and a plot drawn as SVG."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from math import log10
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "img" / "amqp.svg"
BEGIN = "<!-- bench/run amqp --write puts its report between here -->"
END = "<!-- and here -->"

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 290, 70, 38, 64
_COLOURS = {"rabbitmq": "#b8b3c9", "rookery": "#2f6f8f", "aim": "#b3402a"}


@dataclass(frozen=True)
class Section:
    title: str
    how: str
    head: list[str]
    rows: list[list[str]]


class Compared(Protocol):
    """What the plot shows of a mode."""

    said: str
    aim: float

    def cpu_us(self, server: str) -> list[float]: ...


def number(value: float) -> str:
    """Three digits, more or less."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write(sections: Sequence[Section], modes: Sequence[Compared], servers: str, arguments: Sequence[str]) -> None:
    """Replace what the last run left on the page, and the plot."""
    page = PAGE.read_text()
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{PAGE} has no place for the report")
    parts = [_wrapped(_facts(servers, arguments))]
    if modes:
        PLOT.parent.mkdir(exist_ok=True)
        PLOT.write_text(plot(modes))
        parts.append("![CPU per message of RabbitMQ and Rookery, by mode](img/amqp.svg)")
    for section in sections:
        parts += [f"### {section.title}", _wrapped(section.how), _markdown(section.head, section.rows)]
    parts.append("In every run each message came once and in its publisher's order.")
    PAGE.write_text(before + mark + "\n\n" + "\n\n".join(parts) + "\n\n" + end + after)
    print(f"written: {PAGE.relative_to(ROOT)}, {PLOT.relative_to(ROOT)}")


def _facts(servers: str, arguments: Sequence[str]) -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    load = os.getloadavg()[1]
    return (
        f"{date.today():%d %B %Y}, commit {commit}: {servers}, Python {platform.python_version()}, Linux "  # noqa: DTZ011
        f"{platform.release().partition('-')[0]}, {os.cpu_count()} cores with a load of {load:.0f} from neighbours and "
        f"the run itself. Again: `bench/run {' '.join(['amqp', *arguments])}`."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def plot(modes: Sequence[Compared]) -> str:
    """Two bars for each mode on a logarithmic scale, with the aim as a mark."""
    pairs = [(mode, {s: statistics.median(mode.cpu_us(s)) for s in ("rabbitmq", "rookery")}) for mode in modes]
    decades = (0.1, 1.0, 10.0, 100.0, 1000.0)
    height = _TOP + _ROW * len(pairs) + 40
    width = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        share = log10(value / decades[0]) / log10(decades[-1] / decades[0])
        return _LEFT + width * min(1.0, max(0.0, share))

    heading = "Server CPU per message, µs (logarithmic; less is better)"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="15" font-weight="bold">{heading}</text>',
    ]
    legend = (("rabbitmq", "RabbitMQ"), ("rookery", "Rookery"), ("aim", "aim: at most here"))
    for i, (name, said) in enumerate(legend):
        out.append(f'<rect x="{16 + 120 * i}" y="36" width="12" height="12" fill="{_COLOURS[name]}"/>')
        out.append(f'<text x="{34 + 120 * i}" y="47" font-size="13">{said}</text>')
    for value in decades:
        at = f"{x(value):.1f}"
        out.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{height - 28}" stroke="#dddddd"/>')
        out.append(
            f'<text x="{at}" y="{height - 10}" text-anchor="middle" font-size="13" fill="#555555">{value:g}</text>'
        )
    for i, (mode, cpu) in enumerate(pairs):
        y = _TOP + 6 + _ROW * i
        out.append(f'<text x="{_LEFT - 10}" y="{y + 18}" text-anchor="end" font-size="13">{escape(mode.said)}</text>')
        for j, server in enumerate(("rabbitmq", "rookery")):
            out.append(
                f'<rect x="{_LEFT}" y="{y + 14 * j}" width="{x(cpu[server]) - _LEFT:.1f}" height="12" '
                f'fill="{_COLOURS[server]}"/>'
            )
            ink = "#ffffff" if server == "rookery" else "#222222"
            label = number(cpu[server])
            out.append(f'<text x="{_LEFT + 5}" y="{y + 14 * j + 10}" font-size="11" fill="{ink}">{label}</text>')
        aim = f"{x(cpu['rabbitmq'] * mode.aim):.1f}"
        out.append(
            f'<line x1="{aim}" y1="{y + 12}" x2="{aim}" y2="{y + 28}" stroke="{_COLOURS["aim"]}" stroke-width="2"/>'
        )
    return "\n".join([*out, "</svg>", ""])
