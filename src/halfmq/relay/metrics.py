"""Metrics of ``halfmq relay``, as Prometheus reads them, and whether its relays are at work: on a port of HTTP of its own.

The counters are those of this process. What the outbox has is read from its database, at most once in ``FIGURES_S``, so that it does not
depend on how many scrape; a database that does not answer within ``DATABASE_S`` leaves its series out, and ``halfmq_outbox_shown`` is 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from halfmq.broker.metrics.exposition import CONTENT_TYPE, ProcessFigures, Rows, written
from halfmq.broker.metrics.families import COUNTER, GAUGE, Family
from halfmq.client.log import logger
from halfmq.client.marker_table import BoundRelay, RelayFigures
from halfmq.printable import printable
from halfmq.relay.rows import DatabaseAway

#: How old figures of an outbox may be, s: reading them counts the rows.
FIGURES_S: Final = 5.0
#: How long a scrape waits for a database, s. Prometheus waits ten.
DATABASE_S: Final = 4.0

_TEXT: Final = "text/plain; charset=utf-8"
_ONE: Final = ("outbox", "target")
_OUTBOX: Final = ("outbox",)
_TABLE: Final = (
    Family("halfmq_relay_published_messages_total", COUNTER, "messages", _ONE, "Messages that the target confirmed, since the start of this process."),
    Family("halfmq_relay_refused_messages_total", COUNTER, "messages", _ONE, "Attempts that the target refused. A message counts again when it is tried again."),
    Family("halfmq_relay_retried_messages_total", COUNTER, "messages", _ONE, "Messages of batches that an earlier attempt left unfinished, of this process or of another one, and that were taken up again."),
    Family("halfmq_relay_failed_batches_total", COUNTER, "batches", _ONE, "Batches for which the target did not answer. They are taken up again."),
    Family("halfmq_relay_last_success_timestamp_seconds", GAUGE, "seconds", _ONE, "When the target last confirmed a message, since 1970; 0: it has not, since the start of this process."),
    Family("halfmq_relay_ready", GAUGE, "", _ONE, "1: target and database answer; 0: the relay waits for one of them."),
    Family("halfmq_outbox_messages", GAUGE, "messages", (*_OUTBOX, "state"), "Rows of the outbox by their state, as `halfmq outbox status` says."),
    Family("halfmq_outbox_waiting_messages", GAUGE, "messages", _OUTBOX, "Rows that are due and not published, with those behind a refused one."),
    Family("halfmq_outbox_oldest_seconds", GAUGE, "seconds", _OUTBOX, "Age of the oldest row that is due and not published; 0: there is none."),
    Family("halfmq_outbox_shown", GAUGE, "", _OUTBOX, "1: with series of the outbox; 0: they are missing, since its database does not answer in time."),
)  # fmt: skip

FAMILIES: Final = {family.name: family for family in _TABLE}

log = logger("halfmq.relay")
Labels = tuple[str, ...]


class RelayMetrics:
    """The text of ``/metrics``, and what ``/readyz`` says."""

    def __init__(self, relays: Sequence[BoundRelay], states: Sequence[tuple[str, str]]) -> None:
        """``states``: each state of a row, as figures name it and as people read it."""
        self._relays = relays
        self._states = states
        self._process = ProcessFigures()
        self._figures = [_CachedFigures(one) for one in relays]

    def why_not(self) -> str:
        """Why a relay publishes nothing; empty: all are at work."""
        return "; ".join(f"{one.name}: {why}" for one in self._relays if (why := one.why_not()))

    def paths(self) -> dict[str, Callable[[], Awaitable[tuple[int, str, bytes]]]]:
        """What the port has: path -> status, content type and body."""
        return {"/metrics": self._series, "/healthz": self._alive, "/readyz": self._ready}

    async def _series(self) -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE, await self.text()

    async def _alive(self) -> tuple[int, str, bytes]:
        return 200, _TEXT, b"ok\n"

    async def _ready(self) -> tuple[int, str, bytes]:
        why = self.why_not()
        return (503, _TEXT, f"{printable(why)}\n".encode()) if why else (200, _TEXT, b"ok\n")

    async def text(self) -> bytes:
        """All series of now."""
        rows: dict[str, dict[Labels, float]] = {name: {} for name in FAMILIES}
        for one in self._relays:
            self._add_relay(rows, one)
        found = await asyncio.gather(*[cached.read() for cached in self._figures])
        for one, figures in zip(self._relays, found, strict=True):
            self._add_outbox(rows, one.outbox, figures)
        parts = [self._process.written()]
        for name, family in FAMILIES.items():
            of_family: Rows = dict(rows[name])
            parts += written(family, (), of_family)
        return b"".join(parts)

    def _add_relay(self, rows: dict[str, dict[Labels, float]], one: BoundRelay) -> None:
        labels = (one.outbox, one.target)
        for name, count in (
            ("halfmq_relay_published_messages_total", one.confirmed),
            ("halfmq_relay_refused_messages_total", one.refused),
            ("halfmq_relay_retried_messages_total", one.retried),
            ("halfmq_relay_failed_batches_total", one.failed_batches),
        ):
            rows[name][labels] = rows[name].get(labels, 0) + count  # an application may register two relays alike
        last = rows["halfmq_relay_last_success_timestamp_seconds"]
        last[labels] = max(last.get(labels, 0.0), one.confirmed_at_s)
        ready = rows["halfmq_relay_ready"]
        ready[labels] = min(ready.get(labels, 1), 0 if one.why_not() else 1)

    def _add_outbox(self, rows: dict[str, dict[Labels, float]], outbox: str, figures: RelayFigures | None) -> None:
        shown = rows["halfmq_outbox_shown"]
        shown[outbox,] = max(shown.get((outbox,), 0), 0 if figures is None else 1)
        if figures is None:
            return
        for state, name in self._states:
            rows["halfmq_outbox_messages"][outbox, name] = figures.rows.get(state, 0)
        rows["halfmq_outbox_waiting_messages"][outbox,] = figures.waiting
        rows["halfmq_outbox_oldest_seconds"][outbox,] = figures.oldest_s or 0.0


class _CachedFigures:
    """The figures of one outbox. One query at a time, also while the database does not answer."""

    def __init__(self, relay: BoundRelay) -> None:
        self._relay = relay
        self._reading: asyncio.Task[RelayFigures | None] | None = None
        self._read_at_s = 0.0

    async def read(self) -> RelayFigures | None:
        """None: the database does not answer in time."""
        now_s = asyncio.get_running_loop().time()
        reading = self._reading
        if reading is None or (reading.done() and now_s >= self._read_at_s + FIGURES_S):
            self._read_at_s = now_s
            reading = self._reading = asyncio.create_task(self._query())
        done, _ = await asyncio.wait({reading}, timeout=DATABASE_S)
        return reading.result() if done else None

    async def _query(self) -> RelayFigures | None:
        try:
            return await self._relay.figures()
        except DatabaseAway as error:
            log.debug("%s: %s", self._relay.name, error)
        except Exception:
            log.exception("%s: its outbox cannot be read for metrics", self._relay.name)
        return None
