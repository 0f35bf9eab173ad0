"""The report of a run: one HTML file with its plots inside, nothing loaded from elsewhere."""

import io
import platform
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import matplotlib as mpl

mpl.use("svg")  # before pyplot: no display here
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo.chaos import BROKER, LOYALTY, ORDER_SERVICE, SPARK
from demo.flight_recorder import Counter
from halfmq import __version__

if TYPE_CHECKING:
    from demo.orchestra import Outcome

_COLORS = {ORDER_SERVICE: "#c2410c", BROKER: "#7c3aed", LOYALTY: "#0f766e", SPARK: "#b45309"}
DEPARTMENTS_SHOWN = 12
#: Of a line in a plot; more only make the file larger.
POINTS_MAX = 600


def summary(outcome: "Outcome") -> list[str]:
    """The figures of the run, in lines for the terminal."""
    total = _totals(outcome)
    baskets = outcome.run.baskets
    restarts = outcome.broker_starts[1:]
    kills = outcome.kills
    open_at = [kill.open for kill in kills if kill.what in (ORDER_SERVICE, BROKER)]
    return [
        f"{baskets:,} baskets in {outcome.load_seconds:.1f} s ({baskets / outcome.load_seconds:.0f} a second),"
        f" {outcome.run.services} order services with {outcome.run.workers} transactions each;"
        f" settled {outcome.settle_seconds:.1f} s later",
        f"kill -9: {_count(outcome, ORDER_SERVICE)} order services, {_count(outcome, BROKER)} brokers,"
        f" {_count(outcome, LOYALTY)} loyalty services, {_count(outcome, SPARK)} Spark jobs; {sum(open_at)} transactions open at them, at most"
        f" {max(open_at, default=0)} at one",
        f"checks answered: {total[Counter.CHECKS_COMMIT]} COMMIT, {total[Counter.CHECKS_ROLLBACK]} ROLLBACK,"
        f" {total[Counter.CHECKS_UNKNOWN]} UNKNOWN; tombstones in the database: {outcome.markers.get('R', 0)};"
        f" attempts repeated: {total[Counter.REPEATED]}, COMMITs with unknown outcome: {total[Counter.UNKNOWN]}",
        f"broker back after kill -9 in {_seconds(restarts)}" if restarts else "the broker was not killed",
    ]


def _seconds(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} s (process start to listening)"


def _totals(outcome: "Outcome") -> dict[Counter, int]:
    return {counter: sum(one.counters[counter] for one in outcome.services) for counter in Counter}


def _count(outcome: "Outcome", what: str) -> int:
    return sum(kill.what == what for kill in outcome.kills)


def write(outcome: "Outcome") -> Path:
    """``report.html`` in the run's directory."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters["money"] = lambda cents: f"{cents / 100:,.2f}"
    environment.filters["count"] = lambda number: "" if number is None else f"{number:,}"
    text = environment.get_template("report.html.j2").render(
        outcome=outcome,
        result=outcome.result,
        totals={counter.name.lower(): value for counter, value in _totals(outcome).items()},
        summary=summary(outcome),
        plots=_plots(outcome),
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, halfmq {__version__}",
    )
    path = outcome.run.path / "report.html"
    path.write_text(text)
    return path


# --- plots -------------------------------------------------------------------------------------------------------


def _plots(outcome: "Outcome") -> list[tuple[str, str]]:
    """(caption, SVG)."""
    plots = [
        ("What was done when. Vertical lines are SIGKILLs.", _timeline(outcome)),
        ("Transactions that were open at each SIGKILL, by what the process was doing.", _open_at_kills(outcome)),
        ("Time of one order: local transaction, half messages, COMMIT, verdict.", _latencies(outcome)),
    ]
    if outcome.settings.with_spark:
        plots += [
            ("Revenue by department: source file, and what Spark wrote into the topic.", _by_department(outcome)),
            ("Revenue by day: source file (line), and what Spark wrote into the topic (dots).", _by_day(outcome)),
        ]
    return [(caption, _svg(figure)) for caption, figure in plots]


def _axes(height: float = 3.4) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _timeline(outcome: "Outcome") -> Figure:
    figure, axes = _axes()
    samples = outcome.samples[:: len(outcome.samples) // POINTS_MAX + 1]
    seconds = [sample.seconds for sample in samples]
    axes.plot(seconds, [one.orders + one.rejected for one in samples], label="baskets settled", color="#1d4ed8")
    axes.plot(seconds, [one.loyalty for one in samples], label="loyalty credited", color="#0f766e")
    if outcome.settings.with_spark:
        axes.step(seconds, [one.spark for one in samples], label="orders in Spark", color="#b45309", where="post")
    for what, color in _COLORS.items():
        for number, kill in enumerate(kill for kill in outcome.kills if kill.what == what):
            axes.axvline(
                kill.at_seconds, color=color, linewidth=0.9, linestyle="--",
                label=f"kill -9 {what}" if number == 0 else None,
            )  # fmt: skip
    axes.set_xlabel("seconds")
    axes.set_ylabel("baskets")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _open_at_kills(outcome: "Outcome") -> Figure:
    figure, axes = _axes(2.8)
    shown = [kill for kill in outcome.kills if kill.what in (ORDER_SERVICE, BROKER)]
    places = range(len(shown))
    bottom = [0] * len(shown)
    for phase, color in (("sending", "#93c5fd"), ("prepared", "#1d4ed8"), ("telling", "#b45309")):
        heights = [kill.phases.get(phase, 0) for kill in shown]
        axes.bar(places, heights, bottom=bottom, color=color, label=phase)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(list(places), [f"{kill.what.split()[0]}\n{kill.at_seconds:.0f} s" for kill in shown], fontsize=7)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("open")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _latencies(outcome: "Outcome") -> Figure:
    figure, axes = _axes(2.8)
    buckets = [sum(column) for column in zip(*(one.latency for one in outcome.services), strict=True)]
    used = [index for index, count in enumerate(buckets) if count]
    shown = range(used[0], used[-1] + 1) if used else range(0)
    axes.bar(list(shown), [buckets[index] for index in shown], color="#1d4ed8")
    axes.set_xticks(list(shown), [_duration(2**index) for index in shown], fontsize=8)
    axes.set_xlabel("from")
    axes.set_ylabel("orders")
    return figure


def _duration(microseconds: int) -> str:
    return f"{microseconds / 1000:.3g} ms" if microseconds < 1_000_000 else f"{microseconds / 1e6:.3g} s"


def _sums(cells: dict[tuple[Any, ...], int], place: int) -> dict[Any, float]:
    sums: dict[Any, float] = defaultdict(float)
    for key, cents in cells.items():
        sums[key[place]] += cents / 100
    return sums


def _by_department(outcome: "Outcome") -> Figure:
    figure, axes = _axes()
    expected, found = _sums(outcome.result.expected.revenue, 0), _sums(outcome.result.revenue, 0)
    names = sorted(expected, key=lambda name: -expected[name])[:DEPARTMENTS_SHOWN]
    places = range(len(names))
    axes.bar(
        [place - 0.2 for place in places], [expected[name] for name in names], 0.4, label="source", color="#94a3b8"
    )
    axes.bar(
        [place + 0.2 for place in places], [found.get(name, 0) for name in names], 0.4, label="Spark", color="#b45309"
    )
    axes.set_xticks(list(places), names, rotation=35, ha="right", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("dollars")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _by_day(outcome: "Outcome") -> Figure:
    figure, axes = _axes()
    expected, found = _sums(outcome.result.expected.revenue, 1), _sums(outcome.result.revenue, 1)
    days = sorted(expected)
    axes.plot(days, [expected[day] for day in days], color="#94a3b8", label="source")
    axes.scatter(sorted(found), [found[day] for day in sorted(found)], s=7, color="#b45309", label="Spark", zorder=3)
    axes.set_ylabel("dollars")
    axes.legend(fontsize=8, frameon=False)
    return figure
