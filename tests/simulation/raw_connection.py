"""One connection with raw frames in the simulated network: for RocketMQ-like clients, operators and readers."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from halfmq.model.address import Address
from halfmq.wire.remoting.frame import FrameSplitter
from tests.simulation.machine import BROKER_PORT
from tests.support.faulty_network import FaultyNetwork
from tests.support.raw_client import Answer, command
from tests.support.virtual_loop import ProcessLoop


class LineLost(Exception):
    """No response: the connection is lost, or the time is over."""


class RawLine(asyncio.Protocol):
    """``open`` creates one. ``on_push`` is called with requests of the broker."""

    def __init__(self, process: ProcessLoop, on_push: Callable[["RawLine", Answer], None] | None = None) -> None:
        self.lost = False
        self._process = process
        self._on_push = on_push
        self._transport: asyncio.Transport
        self._splitter = FrameSplitter()
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    @classmethod
    async def open(
        cls,
        process: ProcessLoop,
        network: FaultyNetwork,
        machine: str,
        on_push: Callable[["RawLine", Answer], None] | None = None,
        timeout_s: float = 2.0,
    ) -> "RawLine":
        """
        Raises:
            LineLost: refused, or nobody responds.
        """
        line = cls(process, on_push)
        try:
            async with asyncio.timeout(timeout_s):
                await network.connector(process, machine).connect(Address("10.0.0.1", BROKER_PORT), lambda: line)
        except (OSError, TimeoutError) as error:
            raise LineLost(str(error)) from error
        return line

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Answer:
        """
        Raises:
            LineLost: no response; it may have been executed.
        """
        if self.lost:
            raise LineLost("the connection is gone")
        opaque = next(self._opaques)
        answer = self._waiting[opaque] = self._process.create_future()
        self._transport.write(command(code, opaque, ext, body))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise LineLost("no answer in time") from error
        finally:
            self._waiting.pop(opaque, None)

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a one-way request."""
        if not self.lost:
            self._transport.write(command(code, next(self._opaques), ext, body, oneway=True))

    def close(self) -> None:
        self._transport.close()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            stop = 4 + int.from_bytes(frame[1:4], "big")
            header: dict[str, Any] = json.loads(frame[4:stop])
            answer = Answer(
                header["code"], header["opaque"], header.get("flag", 0), header.get("remark"),
                header.get("extFields") or {}, frame[stop:],
            )  # fmt: skip
            if answer.flag & 1:
                waiting = self._waiting.pop(answer.opaque, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            elif self._on_push is not None:
                self._on_push(self, answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(LineLost("the connection was lost"))
