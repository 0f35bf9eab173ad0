"""How long one request keeps the event loop of a broker: the CPU time of the longest callback until it is answered.

The broker runs in the test's process. A request comes in reads of the size that a socket gives, each in a callback of its own. CPU time of
the loop's thread, not wall time, so that another process or a slow disk adds nothing. It is given in units of a loop that is calibrated
beside it, so that a slow or a shared machine gives the same figure.
"""

import asyncio
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import pytest

from halfmq.broker.broker import Broker
from halfmq.broker.remoting.gateway import Connection
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode
from tests.support.raw_client import command
from tests.support.waiting import until

#: What asyncio reads of a socket at once.
READ_BYTES: Final = 262_144
#: CPU time of ``_unit`` on the machine of the figures in decision 0058 while nothing else ran, ms.
_UNIT_MS: Final = 5.5


class LongestCallback:
    """While it is installed: the longest callback of all loops of this thread, in ms of CPU."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.count = 0

    @contextmanager
    def installed(self) -> Iterator["LongestCallback"]:
        run = events.Handle._run
        clock = time.thread_time_ns

        def measured(handle: events.Handle) -> None:
            began = clock()
            run(handle)
            took_ms = (clock() - began) / 1e6
            self.count += 1
            if took_ms > self.ms:
                self.ms = took_ms

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(events.Handle, "_run", measured)
            yield self


def machine_factor() -> float:
    """How much slower this machine is at the moment than the one of the figures; at least 1. Other processes share its caches and cores."""
    return max(1.0, median([_unit() for _ in range(3)]) / _UNIT_MS)


def _unit() -> float:
    """Objects are made, sorted and looked up, as in a decision."""
    began = time.thread_time_ns()
    rows = [(number * 7_919 % 10_007, str(number), (number,)) for number in range(12_000)]
    table = {name: row for row, name, _ in rows}
    rows.sort()
    assert sum([table[name] for _, name, _ in rows]) > 0
    return (time.thread_time_ns() - began) / 1e6


class _Transport(asyncio.Transport):
    """Takes what the broker writes, and splits it into frames."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self._address = address
        self._splitter = FrameSplitter()
        self.frames: list[bytes] = []
        self.closed = False
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._address if name == "peername" else default

    def write(self, data: Any) -> None:
        self.frames += self._splitter.feed(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close


class Requester:
    """A connection without a socket: what it sends is read by the broker in callbacks, and answers are collected."""

    _ports = 40_000

    def __init__(self, broker: Broker) -> None:
        Requester._ports += 1
        self._broker = broker
        self.transport = _Transport(("127.0.0.1", Requester._ports))
        self.connection = Connection(broker._gateway, broker._peers.next_number())
        self.connection.connection_made(self.transport)

    async def ask(self, frame: bytes) -> tuple[int, int]:
        """(response code, bytes of the answer); (-1, 0): the broker closed the connection."""
        transport, loop = self.transport, asyncio.get_running_loop()
        transport.frames.clear()
        pieces = [frame[at : at + READ_BYTES] for at in range(0, len(frame), READ_BYTES)]
        while pieces and not transport.closed:
            await until(lambda: transport.reading or transport.closed)
            loop.call_soon(self.connection.data_received, pieces.pop(0))
            await asyncio.sleep(0)
        await until(lambda: bool(transport.frames) or transport.closed, "an answer")
        await self.settled()
        if not transport.frames:
            return -1, 0
        answer = transport.frames[0]
        return decode(answer).code, len(answer)

    async def settled(self) -> None:
        """What the request caused is done."""
        sequencer, connection = self._broker._sequencer, self.connection
        await until(lambda: sequencer.idle and not (sequencer._write_scheduled or connection.awaits_turn))

    async def offset(self, topic: str, queue: int) -> int:
        """The offset after the last visible message of a queue."""
        ext = {"topic": topic, "queueId": str(queue)}
        await self.ask(command(RequestCode.GET_MAX_OFFSET, 1, ext))
        return int(decode(self.transport.frames[0]).ext["offset"])

    def close(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


async def longest_callback_ms(broker: Broker, make: Callable[[], bytes], runs: int) -> tuple[float, int, int]:
    """(the longest callback, response code, bytes of the answer) of the request that ``make`` encodes: the shortest of ``runs`` runs."""
    best, code, size = 1e9, 0, 0
    for _ in range(runs):
        frame = make()
        requester = Requester(broker)
        with LongestCallback().installed() as longest:
            code, size = await requester.ask(frame)
        requester.close()
        best = min(best, longest.ms)
    return best, code, size
