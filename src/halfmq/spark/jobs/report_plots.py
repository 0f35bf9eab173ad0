"""Plots of a report as SVG text that stands in an HTML page: ids are unique in the page, nothing is loaded."""

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from halfmq.printable import printable
from halfmq.spark.jobs.report_figures import (
    CHECKS_SHOWN,
    LATENCY_EDGES_MS,
    PERCENTILES,
    Group,
    Interval,
    Latencies,
    Messages,
    Transactions,
    latency_place,
)

_COLORS: Final = ("#1d4ed8", "#b45309", "#0f766e", "#be185d", "#7c3aed", "#4d7c0f", "#0e7490", "#475569")
_TEXT: Final = "#1e293b"
_NAME_MAX: Final = 32
_GROUPS_SHOWN: Final = 12
#: So tall that counts of one are seen on a logarithmic axis.
_LOWEST: Final = 0.7
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10, "text.color": _TEXT, "axes.labelcolor": _TEXT, "xtick.color": _TEXT, "ytick.color": _TEXT, "axes.edgecolor": "#94a3b8",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e2e8f0",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 9, "svg.hashsalt": "halfmq", "text.parse_math": False,
}  # fmt: skip


def rates(found: Messages) -> str:
    with rc_context(_STYLE):
        figure, axes = _axes()
        names = list(found.series)
        shown = names[: len(_COLORS)] if len(names) <= len(_COLORS) else names[: len(_COLORS) - 1]
        lines = [(name, found.series[name]) for name in shown]
        left = [found.series[name] for name in names[len(shown) :]]
        if left:
            lines.append(
                (
                    f"{len(left) - (found.others > 0) + found.others} more topics",
                    [sum(one) for one in zip(*left, strict=True)],
                )
            )
        for (name, counts), color in zip(lines, _COLORS, strict=False):
            values = [count / found.interval.step for count in counts]
            axes.stairs(values, _edges(found.interval), color=color, linewidth=1.4, label=_short(name))
        _time_axis(axes)
        axes.set_ylabel("messages per second")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper left", ncols=3)
        return _svg(figure, "rates", f"Messages per second by topic: {', '.join(names[:5])}")


def undecided(found: Transactions) -> str:
    with rc_context(_STYLE):
        figure, axes = _axes()
        axes.stairs(found.undecided, _edges(found.interval), color=_COLORS[0], fill=True, alpha=0.25)
        axes.stairs(found.undecided, _edges(found.interval), color=_COLORS[0], linewidth=1.4)
        _time_axis(axes)
        axes.set_ylabel("undecided transactions")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0, top=max(1, *found.undecided) * 1.05)
        return _svg(figure, "undecided", "Undecided transactions over time")


def latencies(found: Latencies) -> str:
    with rc_context(_STYLE):
        figure, axes = _axes()
        used = [index for index, count in enumerate(found.counts) if count]
        shown = range(used[0], used[-1] + 1)
        axes.bar([one + 0.5 for one in shown], [found.counts[one] for one in shown], width=0.94, color="#93c5fd")
        for percent, value in zip(PERCENTILES, found.percentiles, strict=True):
            if percent in (50, 99):
                axes.axvline(latency_place(value), color=_COLORS[1], linewidth=1.2, linestyle="-" if percent == 50 else "--",
                             label=f"{percent} % up to {duration(value)}")  # fmt: skip
        ticks = [one for one in range(shown.start, shown.stop + 1) if one < len(LATENCY_EDGES_MS)]
        # Of many, 1, 10 and 100; the others would overlap.
        few = [one for one in ticks if len(ticks) <= 8 or (one - 1) % 3 == 0 or one == 0]
        axes.set_xticks(few, [_edge(LATENCY_EDGES_MS[one]) for one in few])
        axes.set_xticks(ticks, minor=True)
        axes.set_xlim(shown.start - 0.1, shown.stop + 0.1)
        axes.set_xlabel("time from the first half message to the verdict")
        _count_axis(axes, found.counts, "transactions")
        figure.legend(loc="outside upper left", ncols=2)
        return _svg(figure, "latencies", "Histogram of the time until a transaction is settled")


def rollbacks(groups: Sequence[Group]) -> str:
    with rc_context({**_STYLE, "axes.grid.axis": "x"}):
        shown = groups[:_GROUPS_SHOWN]
        figure, axes = _axes(1.3 + 0.34 * len(shown))
        places = range(len(shown))
        back = [100 * one.rolled_back / one.transactions for one in shown]
        open_ = [100 * one.undecided / one.transactions for one in shown]
        axes.barh(places, back, height=0.6, color=_COLORS[1], label="rolled back")
        axes.barh(places, open_, left=back, height=0.6, color="#94a3b8", label="undecided")
        axes.set_yticks(list(places), [_short(one.name) for one in shown])
        axes.invert_yaxis()
        axes.set_xlim(0, max(1, *(a + b for a, b in zip(back, open_, strict=True))) * 1.08)
        axes.set_xlabel("% of the group's transactions")
        figure.legend(loc="outside upper left", ncols=2)
        return _svg(figure, "rollbacks", "Share of rolled back and undecided transactions by producer group")


def checks(counts: Sequence[int]) -> str:
    with rc_context(_STYLE):
        figure, axes = _axes(2.6)
        axes.bar(range(len(counts)), counts, width=0.7, color="#93c5fd")
        axes.set_xticks(range(len(counts)), [*map(str, range(CHECKS_SHOWN)), f"{CHECKS_SHOWN} or more"])
        axes.set_xlabel("checks of the transaction")
        _count_axis(axes, counts, "transactions")
        return _svg(figure, "checks", "Transactions by number of checks")


def duration(milliseconds: float) -> str:
    """``5 ms``, ``1.2 s``, ``20 min``, ``5.6 h``."""
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:g} ms"


def _edge(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds // 1_000:,} s"


def _axes(height: float = 3.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, height), layout="constrained")
    return figure, figure.subplots()


def _edges(interval: Interval) -> list[datetime]:
    return [datetime.fromtimestamp(interval.start + n * interval.step, UTC) for n in range(interval.size + 1)]


def _time_axis(axes: Any) -> None:
    locator: Any = AutoDateLocator(minticks=3, maxticks=7, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time (UTC)")
    axes.margins(x=0.01)


def _count_axis(axes: Any, counts: Sequence[int], name: str) -> None:
    """Logarithmic if rare cases would not be seen beside frequent ones."""
    used = [count for count in counts if count]
    if used and max(used) > 100 * min(used):
        axes.set_yscale("log")
        axes.set_ylim(bottom=_LOWEST)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{name}, logarithmic")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(name)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _short(name: str) -> str:
    name = printable(name)
    text = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"
    return f" {text}" if text.startswith("_") else text  # or matplotlib leaves it out of the legend


def _svg(figure: Figure, name: str, label: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return in_page(text[text.index("<svg") :], name, label)


def in_page(svg: str, name: str, label: str) -> str:
    """``svg`` with ids that are its own in a page, and ``label`` for those who do not see it."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    quoted = printable(label).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{quoted}" ', 1)
