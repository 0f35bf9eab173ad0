"""What one sees while it runs: bars on a terminal, a line every few seconds elsewhere."""

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from demo.chaos import Kill

LINE_SECONDS = 5.0


@dataclass
class Sample:
    """What was done at a moment, for the plots."""

    seconds: float
    orders: int
    rejected: int
    loyalty: int
    spark: int


class Progress:
    def __init__(self, console: Console, baskets: int, *, with_spark: bool) -> None:
        self._console = console
        self._bars = RichProgress(
            TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._baskets = baskets
        self._placed = self._bars.add_task("baskets settled", total=baskets)
        self._credited = self._bars.add_task("loyalty credited", total=baskets)
        self._rows = self._bars.add_task("Spark orders", total=baskets, visible=with_spark)
        self._last_line = 0.0
        self._kills = 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def show(self, sample: Sample) -> None:
        accepted = self._baskets - sample.rejected
        self._bars.update(self._placed, completed=sample.orders + sample.rejected)
        self._bars.update(self._credited, completed=sample.loyalty, total=accepted)
        self._bars.update(self._rows, completed=sample.spark, total=accepted)
        if not self._console.is_terminal and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self.say(
                f"{sample.seconds:6.1f} s  orders {sample.orders:,}  rejected {sample.rejected:,}"
                f"  loyalty {sample.loyalty:,}  Spark {sample.spark:,}"
            )

    def killed(self, kill: Kill) -> None:
        self._kills += 1
        phases = ", ".join(f"{count} {phase}" for phase, count in kill.phases.items())
        self.say(
            f"{kill.at_seconds:6.1f} s  kill -9 #{self._kills}: {kill.victim} after {kill.done:,} baskets;"
            f" transactions open: {kill.open}" + (f" ({phases})" if phases else "")
        )
