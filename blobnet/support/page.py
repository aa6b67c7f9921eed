"""Pieces of HTML pages that need nothing else: no script, no file beside them, no network. Text in, text out.

A page is light or dark as its reader's system is, and what is too wide scrolls in a box of its own.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

_STYLE = """\
:root { color-scheme: light dark; --text: #1c2733; --soft: #5b6875; --line: #d5dce3; --ground: #f5f7f9; --card: #fff;
  --a: #1668b8; --b: #c2570c; --cell: 22, 104, 184 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9ee; --soft: #9aa7b4; --line: #36414c; --ground: #12171c;
  --card: #1b2229; --a: #6cb2f5; --b: #f2a35c; --cell: 108, 178, 245 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--ground); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: .3rem 0 1rem; overflow-wrap: anywhere }
h2 { font-size: 1.1rem; margin: 0 0 .7rem }
section { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem;
  margin: 0 0 1rem }
p { margin: .4rem 0; max-width: 70ch }
.soft, figcaption, summary { color: var(--soft); font-size: .87rem }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .15rem 1rem; margin: 0 }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
.scroll, section > div { overflow: auto; max-width: 100% }
.matrix td, .matrix th { text-align: center; border: 1px solid var(--line); padding: .15rem .35rem }
section > * + * { margin-top: .8rem }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 1rem }
figure { margin: 0 }
svg { width: 100%; height: auto; display: block }
svg text { font-size: 10px; fill: var(--soft) }
.samples { display: grid; gap: 1rem .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--wide)), 1fr)) }
.images { display: flex; gap: 3px }
.images > * { flex: 1 1 0; min-width: 0; max-width: 11rem; align-self: flex-start }
.images img { width: 100%; height: auto; image-rendering: pixelated }
figcaption { overflow-wrap: anywhere; line-height: 1.3; margin-top: .25rem }
figcaption b { color: var(--text); font-weight: 600 }
.bar { display: grid; grid-template-columns: minmax(7rem, 18rem) 1fr; gap: .1rem .8rem; font-size: .87rem;
  margin: .25rem 0 }
.bar > span { overflow-wrap: anywhere }
.bar i { display: block; background: var(--a); height: .5rem; border-radius: .2rem }
"""
#: Nothing is fetched, whatever stands in the page.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
#: The size of a chart in units of its own, and the room around what is drawn.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 320, 190, 42, 8, 8, 20
#: About how many lines a chart has across.
_LINES = 4
_COLOURS = "var(--a)", "var(--b)"


def document(title: str, sections: Sequence[str], refresh: int | None = None) -> str:
    """Return a page.

    Args:
        title: of it.
        sections: as :func:`section` gives them; empty ones are left out.
        refresh: seconds after which the reader loads it again.
    """
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{again}'
        f"<title>{escaped(title)}</title><style>\n{_STYLE}</style></head>\n<body><h1>{escaped(title)}</h1>\n"
        + "\n".join(filter(None, sections))
        + "\n</body></html>\n"
    )


def escaped(text: object) -> str:
    """Return text as HTML; names of files may be any bytes."""
    return html.escape(str(text).encode("utf-8", "backslashreplace").decode())


def section(name: str, heading: str, *parts: str) -> str:
    """Return a section with a name of its own; none without parts."""
    inside = "\n".join(filter(None, parts))
    return f'<section id="{name}"><h2>{escaped(heading)}</h2>\n{inside}</section>' if inside else ""


def note(text: str) -> str:
    """Return a sentence."""
    return f'<p class="soft">{escaped(text)}</p>' if text else ""


def facts(values: Mapping[str, object]) -> str:
    """Return names with what is said of each; those without any are left out."""
    rows = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in values.items() if value)
    return f"<dl>{rows}</dl>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; the cells of the first column are names."""
    head, *body = ("".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in (header, *rows))
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    head = head.replace("td>", "th>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def folded(summary: str, inside: str) -> str:
    """Return what is seen when its summary is chosen."""
    return f"<details><summary>{escaped(summary)}</summary>\n{inside}</details>"


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return how many of each class (row) were taken for each class (column), in colours by parts of a row."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    lines = []
    for name, row in zip(names, counts, strict=True):
        whole = max(1, sum(row))
        cells = "".join(
            f'<td style="background: rgba(var(--cell), {0.75 * count / whole:.3f})">{count}</td>' for count in row
        )
        lines.append(f"<tr><th>{escaped(name)}</th>{cells}</tr>")
    head = f"<tr><th>class \\ taken for</th>{head}</tr>"
    return f'<div class="scroll"><table class="matrix">{head}{"".join(lines)}</table></div>'


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Return bars: of each its name, its length, and what is said of it."""
    longest = max((length for _, length, _ in rows), default=0) or 1
    return "".join(
        f'<div class="bar"><span>{escaped(name)}</span>'
        f'<span>{escaped(words)}<i style="width: {100 * length / longest:.2f}%"></i></span></div>'
        for name, length, words in rows
    )


@dataclass(frozen=True)
class Pictured:
    """Pictures of a sample, side by side, with words below them.

    Attributes:
        images: HTML of each, see :func:`image` and :func:`boxed`.
        words: the lines below: what stands before, what is strong, and what stands after it.
        name: of the sample.
    """

    images: Sequence[str]
    words: Sequence[tuple[str, str, str]]
    name: str = ""


def samples(items: Sequence[Pictured]) -> str:
    """Return samples in as many columns as there is room for."""
    wide = max((len(item.images) for item in items), default=1)
    figures = []
    for item in items:
        lines = [f"{escaped(start)}<b>{escaped(words)}</b>{escaped(end)}" for start, words, end in item.words]
        lines += [escaped(item.name)] if item.name else []
        images = f'<div class="images">{"".join(item.images)}</div>' if item.images else ""
        figures.append(f"<figure>{images}<figcaption>{'<br>'.join(lines)}</figcaption></figure>")
    return f'<div class="samples" style="--wide: {3 + 4.5 * wide:g}rem">{"".join(figures)}</div>' if items else ""


def image(png: bytes, title: str) -> str:
    """Return a picture."""
    return f'<img src="{_url(png)}" alt="{escaped(title)}" title="{escaped(title)}">'


def boxed(png: bytes, size: tuple[int, int], boxes: Sequence[tuple[Sequence[float], str, bool]]) -> str:
    """Return a picture of a height and a width with boxes over it.

    Each has left, top, right and bottom as parts of the picture, what is said of it, and whether it is dashed.
    """
    height, width = size
    drawn = [f'<image href="{_url(png)}" width="{width}" height="{height}"/>']
    for (left, top, right, bottom), words, is_dashed in boxes:
        place = (left * width, top * height, max(0, right - left) * width, max(0, bottom - top) * height)
        x, y, across, down = (f"{value:.2f}" for value in place)
        style = f'fill="none" stroke="{_COLOURS[not is_dashed]}" stroke-width="2" vector-effect="non-scaling-stroke"'
        dashes = ' stroke-dasharray="5 3"' if is_dashed else ""
        title = f"<title>{escaped(words)}</title>"
        drawn.append(f'<rect x="{x}" y="{y}" width="{across}" height="{down}" {style}{dashes}>{title}</rect>')
    return f'<svg viewBox="0 0 {width} {height}">{"".join(drawn)}</svg>'


def _url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


# -- charts ------------------------------------------------------------------------------------------------------------


def charts(*found: str) -> str:
    """Return charts in as many columns as there is room for."""
    return f'<div class="charts">{"".join(found)}</div>' if any(found) else ""


def curves(title: str, series: Mapping[str, Sequence[float]], first: int = 1) -> str:
    """Return a chart of a line for each name, over numbers from ``first`` on; NaN is a gap."""
    last = first + max(1, max(map(len, series.values()), default=0) - 1)
    known = [value for values in series.values() for value in values if math.isfinite(value)]
    if not known:
        return ""
    frame = _Frame((first, last), (min(known), max(known)))
    lines, keys = [], []
    for (name, values), colour in zip(series.items(), _COLOURS, strict=False):
        places = [frame.place(first + number, value) for number, value in enumerate(values)]
        for is_known, some in groupby(zip(places, values, strict=True), lambda item: math.isfinite(item[1])):
            points = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _ in some) if is_known else ""
            style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"'
            # A line to itself is a dot.
            lines.append(f'<polyline points="{points} {points.split()[-1]}" {style}/>' if points else "")
        ends = [value for value in values if math.isfinite(value)]
        keys.append(f'<b style="color: {colour}">{escaped(name)}</b> {ends[-1]:.4g}' if ends else "")
    return _chart(title, frame, lines, ", ".join(filter(None, keys)))


def dots(title: str, points: Sequence[tuple[float, float]], words: str) -> str:
    """Return a chart of points, and the line on which both of their numbers are the same."""
    points = [point for point in points if all(map(math.isfinite, point))]
    if not points:
        return ""
    low, high = min(map(min, points)), max(map(max, points))
    frame = _Frame((low, high), (low, high))
    (x1, y1), (x2, y2) = frame.place(low, low), frame.place(high, high)
    lines = [f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_COLOURS[1]}"/>']
    for point in points:
        x, y = frame.place(*point)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{_COLOURS[0]}" fill-opacity=".6"/>')
    return _chart(title, frame, lines, escaped(words))


class _Frame:
    """The place of numbers in a chart."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        # Numbers that hardly differ, or are hardly numbers of a chart any more.
        low, high = (max(-1e300, min(1e300, float(value))) for value in up)
        least = max(1e-9 * max(abs(low), abs(high)), 1e-300)
        up = (low, high) if high - low >= least or low == high else (low - least, high + least)
        self.across = across if across[1] > across[0] else (across[0] - 1, across[0] + 1)
        step = _step(up[1] - up[0] or abs(up[0]) or 1)
        self.ticks = [step * number for number in range(math.floor(up[0] / step), math.ceil(up[1] / step) + 1)]
        self.ticks = self.ticks if len(self.ticks) > 1 else [self.ticks[0], self.ticks[0] + step]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies."""
        (left, right), bottom, top = self.across, self.ticks[0], self.ticks[-1]
        along, high = (x - left) / (right - left), (y - bottom) / (top - bottom)
        wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + along * wide, _HEIGHT - _BOTTOM - high * tall


def _step(size: float) -> float:
    """Return 1, 2 or 5 times a power of ten, which is about a part of ``size``."""
    power = 10.0 ** math.floor(math.log10(size / _LINES))
    return next((power * times for times in (1, 2, 5) if power * times * _LINES >= size), 10 * power)


def _chart(title: str, frame: _Frame, lines: Sequence[str], words: str) -> str:
    ground = []
    for tick in frame.ticks:
        _, y = frame.place(frame.across[0], tick)
        ground.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
        ground.append(f'<text x="{_LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{tick:.4g}</text>')
    for value, anchor in zip(frame.across, ("start", "end"), strict=True):
        x, _ = frame.place(value, frame.ticks[0])
        ground.append(f'<text x="{x:.1f}" y="{_HEIGHT - 5}" text-anchor="{anchor}">{value:.4g}</text>')
    drawn = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escaped(title)}</title>'
    return (
        f"<figure>{drawn}{''.join([*ground, *lines])}</svg><figcaption>{escaped(title)}: {words}</figcaption></figure>"
    )
