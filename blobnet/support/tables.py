"""Tables for people: as text for a terminal, as HTML for a notebook."""

from __future__ import annotations

import html
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blobnet.errors import printable

#: The meaning of ``floor >100 %``: see :func:`floor_percent`.
ABOVE_FLOOR = "floor >100 %: data stayed in a cache, or minimal filtering needed fewer operations than the floor counts"
_STYLES = {"<": "left", ">": "right"}
#: A long table gets a scroll bar instead of pushing everything else off the page.
_FRAME = "max-height: 36em; overflow: auto; display: inline-block"


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header, and what they come to.

    Attributes:
        header: the names of the columns.
        rows: a cell for each column.
        sides: for each column ``<`` if its cells are aligned to the left, ``>`` to the right.
        total: a last row, below a rule; None for none.
        facts: what is said below the table, by name.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    sides: str
    total: Sequence[str] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [[printable(cell, "") for cell in row] for row in (self.header, *self.rows, *filter(None, [self.total]))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.header))]
        columns = [f"{{:{side}{width}}}" for side, width in zip(self.sides, widths, strict=True)]
        lines = [row_text(columns, row) for row in rows]
        rule = "-" * min(sum(widths) + 2 * len(widths) - 2, terminal_width() or sys.maxsize)
        ends = [lines.pop(), ""] if self.total else []
        width = max(map(len, self.facts), default=0) + 2
        facts = [f"{name:<{width}}{text}" for name, text in self.facts.items()]
        return "\n".join([lines[0], rule, *lines[1:], rule, *ends, *facts]).rstrip("\n")

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str = "td") -> str:
            styled = zip(cells, self.sides, strict=True)
            return "".join(
                f'<{tag} style="text-align: {_STYLES[side]}">{html.escape(cell)}</{tag}>' for cell, side in styled
            )

        head, body = row(self.header, "th"), "".join(f"<tr>{row(cells)}</tr>" for cells in self.rows)
        foot = f"<tfoot><tr>{row(self.total, 'th')}</tr></tfoot>" if self.total else ""
        facts = "".join(
            f'<tr><th style="text-align: left">{html.escape(name)}</th>'
            f'<td style="text-align: left">{html.escape(text)}</td></tr>'
            for name, text in self.facts.items()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>"
        return f'<div style="{_FRAME}">{table}</div>' + (f"<table>{facts}</table>" if facts else "")


def row_text(columns: Sequence[str], cells: Sequence[object], gap: str = "  ") -> str:
    """Return a row of a table whose columns have these formats.

    If the terminal is too narrow, the first cell has a line of its own, and the others as many as they need.
    """
    room = terminal_width() or sys.maxsize
    texts = [column.format(cell) for column, cell in zip(columns, cells, strict=True)]
    widths = [len(column.format("")) for column in columns]
    lines = [gap.join(texts)]
    if sum(widths) + len(gap) * (len(widths) - 1) > room:
        lines = [texts[0], ""]
        for text, width in zip(texts[1:], widths[1:], strict=True):
            if lines[-1] and len(lines[-1]) + 1 + width > room:
                lines.append("")
            lines[-1] += f" {text}" if lines[-1] else f"  {text}"
    return "\n".join(line.rstrip() for line in lines if line.strip())


def terminal_width() -> int | None:
    """The columns of the terminal that is printed to; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def floor_percent(floor: float, seconds: float) -> str:
    """Return the floor in percent of a time; ``>100`` if the time is less, so that the floor was none.

    Floors are bytes by the bandwidth of memory, or a direct convolution's operations by the peak (bench/roofline.py):
    what stays in a cache, and minimal filtering, need less.
    """
    return ">100" if floor > seconds else f"{100 * floor / seconds:.0f}"
