"""Lines over a logarithmic axis, drawn as SVG, and a report put between two marks of a page."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from html import escape
from math import log10
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 300, 70, 30, 66, 44
_COLOURS = ("#2f6f8f", "#b3402a", "#7a9a3a", "#b8b3c9")


@dataclass
class Line:
    """One thing that was measured at several sizes."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Plot:
    heading: str
    lines: list[Line]


def draw(plots: Sequence[Plot]) -> str:
    """Plots one below the other; sizes on a logarithmic axis, values from 0 on."""
    height = _HEIGHT * len(plots)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, plot in enumerate(plots):
        out += _plot(plot, number * _HEIGHT)
    return "\n".join([*out, "</svg>", ""])


def _plot(plot: Plot, top: int) -> list[str]:
    sizes = sorted({x for line in plot.lines for x, _ in line.points})
    most = max(y for line in plot.lines for _, y in line.points) * 1.15
    inner = _HEIGHT - _TOP - _BOTTOM
    low, high = log10(sizes[0]), log10(sizes[-1])

    def at_x(size: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (log10(size) - low) / (high - low)

    def at_y(value: float) -> float:
        return top + _TOP + inner * (1 - value / most)

    out = [f'<text x="16" y="{top + 24}" font-size="15" font-weight="bold">{escape(plot.heading)}</text>']
    for i, line in enumerate(plot.lines):
        out.append(f'<rect x="{16 + 230 * i}" y="{top + 36}" width="12" height="12" fill="{_COLOURS[i]}"/>')
        out.append(f'<text x="{34 + 230 * i}" y="{top + 47}" font-size="13">{escape(line.name)}</text>')
    for size in sizes:
        x = f"{at_x(size):.1f}"
        out.append(f'<line x1="{x}" y1="{top + _TOP}" x2="{x}" y2="{top + _HEIGHT - _BOTTOM}" stroke="#dddddd"/>')
        label = f"{size:,.0f}"
        out.append(_label(x, top + _HEIGHT - _BOTTOM + 18, label, "middle"))
    for share in (0, 0.5, 1):
        y = at_y(most * share)
        out.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(_label(_LEFT - 8, y + 4, f"{most * share:.3g}", "end"))
    for i, line in enumerate(plot.lines):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line.points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{_COLOURS[i]}" stroke-width="2"/>')
        for x, y in line.points:
            out.append(f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="4" fill="{_COLOURS[i]}"/>')
    return out


def _label(x: object, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}" font-size="13" fill="#555555">{text}</text>'


def put(page: Path, begin: str, end: str, command: Sequence[str], parts: Sequence[str]) -> None:
    """Replace what the last run left on a page, and say when, where and how this one was made."""
    before, mark, rest = page.read_text().partition(begin)
    _, close, after = rest.partition(end)
    if not mark or not close:
        raise SystemExit(f"{page} has no place for the report")
    wrapped = [part if part[:1] in "#|!" else textwrap.fill(part, 120, break_on_hyphens=False) for part in parts]
    facts = textwrap.fill(_facts(page.parent, command), 120, break_on_hyphens=False)
    page.write_text(before + mark + "\n\n" + "\n\n".join([facts, *wrapped]) + "\n\n" + close + after)
    print(f"written: {page}")


def _facts(folder: Path, command: Sequence[str]) -> str:
    said = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(said, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return (
        f"{date.today():%d %B %Y}, commit {commit}: Python {platform.python_version()}, Linux "  # noqa: DTZ011
        f"{platform.release().partition('-')[0]}, {os.cpu_count()} shared cores with a load of "
        f"{os.getloadavg()[1]:.0f} from neighbours and the run itself. Again: "
        f"`bench/run {' '.join([*command, *sys.argv[1:]])}`."
    )
