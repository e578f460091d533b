"""A plot of stacked bars as an SVG file: seconds by phase for each of several recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, BAR, GAP, LEFT, RIGHT = 720, 26, 14, 150, 90
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f")


def write_plot(path: Path, rows: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> None:
    """One bar per row, one stretch per part, with the sum behind it."""
    most = max(sum(values[part] for part in parts) for values in rows.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    height = 40 + len(rows) * (BAR + GAP) + 10
    size = f'width="{WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" role="img">',
        f'<rect {size} fill="white"/>',
    ]
    for place, part in enumerate(parts):
        left = LEFT + 110 * place
        lines.append(f'<rect x="{left}" y="10" width="12" height="12" fill="{COLOURS[place]}"/>')
        lines.append(f'<text x="{left + 18}" y="21">{escape(part)}</text>')
    for row, (name, values) in enumerate(rows.items()):
        y, x = 40 + row * (BAR + GAP), float(LEFT)
        lines.append(f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{escape(name)}</text>')
        for place, part in enumerate(parts):
            width = values[part] * scale
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[place]}"/>')
            x += width
        total = sum(values[part] for part in parts)
        lines.append(f'<text x="{x + 8:.1f}" y="{y + 18}">{total:.1f} s</text>')
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")
