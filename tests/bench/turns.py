"""Brokers under the same load in turns: one turn of one broker, and the ratios between brokers in each round."""

import asyncio
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.bench.cpu import cpu_seconds

from halfmq.bench import load
from halfmq.bench.load import Counts, LoadConnection, Plan
from halfmq.runtime.interpreter import build
from halfmq.wire.remoting.acl import sign_frame

LOAD_SHARE: Final = "load's share of a core"

#: Of a turn or another measurement, by its name.
Figures = dict[str, float]
#: Of a round, by side.
Round = dict[str, Figures]


class SignedConnection(LoadConnection):
    """A connection of the load that signs each request, as RocketMQ's clients do."""

    def __init__(
        self, plan: Plan, number: int, threads: int, counts: Counts, done: Callable[[], None], user: str, secret: str
    ) -> None:
        super().__init__(plan, number, threads, counts, done)
        self._user = user
        self._secret = secret.encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(_Signing(transport, self._user, self._secret))  # type: ignore[arg-type]


class _Signing:
    """A transport that signs each frame."""

    def __init__(self, transport: asyncio.Transport, user: str, secret: bytes) -> None:
        self._transport = transport
        self._user = user
        self._secret = secret

    def write(self, data: bytes) -> None:
        self._transport.write(sign_frame(data, self._user, self._secret))

    def abort(self) -> None:
        self._transport.abort()


async def turn(
    connection: LoadConnection, finished: asyncio.Event, process: int, seconds: float, lead_seconds: float = 0.3
) -> Figures:
    """Load of one connection, from its start to its end, for ``seconds`` after ``lead_seconds``. ``process``: the broker's.

    The load's share of a core says how near it is to its own limit, which is 1.

    Raises:
        AssertionError: the broker refused something.
    """
    connection.start()
    await asyncio.sleep(lead_seconds)
    cpu, own, began = cpu_seconds(process), time.process_time(), time.perf_counter()
    connection.measuring = True
    await asyncio.sleep(seconds)
    connection.measuring = False
    took, own, cpu = time.perf_counter() - began, time.process_time() - own, cpu_seconds(process) - cpu
    connection.stopping = True
    await asyncio.wait_for(finished.wait(), 30)
    await load.close(connection.transport)
    counts = connection.counts
    assert not counts.refused, counts.refusals
    assert counts.committed, "nothing was committed"
    return {
        "a second": counts.committed / took,
        "cpu us": cpu / counts.committed * 1e6,
        LOAD_SHARE: own / took,
    }


def compared(rounds: list[Round], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """By figure: the median of each side, and of each pair the ratio of the first to the second, in the median and in each round.

    Of the load's own share there is no ratio.
    """
    found: dict[str, Any] = {}
    pairs = list(pairs)
    for figure in next(iter(rounds[0].values())):
        medians = {side: round(statistics.median(one[side][figure] for one in rounds), 3) for side in rounds[0]}
        found[figure] = medians
        if figure != LOAD_SHARE:
            found[figure] |= {f"{over} / {under}": _ratio(rounds, figure, over, under) for over, under in pairs}
    return found


def _ratio(rounds: list[Round], figure: str, over: str, under: str) -> dict[str, Any]:
    each = [one[over][figure] / one[under][figure] for one in rounds]
    return {"median": round(statistics.median(each), 3), "of each round": [round(ratio, 3) for ratio in each]}


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "python_build": str(build()),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }
