"""The real broker on the test's own event loop, on free ports and a real directory, with its sync thread or a manual one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from halfmq.broker.broker import Broker, Ports
from halfmq.broker.config import BrokerConfig
from halfmq.broker.offload import Offload
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import Clock, SystemClock
from halfmq.runtime.disk import Disk, RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.group_flush import Job, Syncer
from halfmq.store.store import Durability
from tests.support.hand_flush import HandFlush
from tests.support.raw_client import RawClient

#: Small, so that tests reach several segments and files are cheap.
SEGMENT_BYTES = 1 << 20


def config(directory: Path, **changes: Any) -> BrokerConfig:
    settings = changes.pop("settings", BrokerSettings())
    values: dict[str, Any] = {
        "port": 0, "name_port": 0, "segment_bytes": SEGMENT_BYTES, "durability": Durability.MEMORY, "drain_ms": 10,
        "checkpoint_interval_ms": 3_600_000, "disk_reserve_bytes": 0, **changes,
    }  # fmt: skip
    return BrokerConfig(directory, settings=settings, **values)


class Hand:
    """``make_syncer`` of a broker whose disk syncs only when the test calls ``flush.run()``."""

    flush: HandFlush

    def __call__(self, job: Job) -> HandFlush:
        self.flush = HandFlush(job)
        return self.flush


class ShiftedClock(SystemClock):
    """A clock that the test can advance, in addition to real time."""

    passed_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.passed_ms


class Running:
    """A running broker, and clients that are closed with it."""

    def __init__(self, broker: Broker, ports: Ports, directory: Path) -> None:
        self.broker = broker
        self.ports = ports
        self.directory = directory
        self._clients: list[RawClient] = []

    async def client(self, *, version: int = 409, names: bool = False) -> RawClient:
        client = await RawClient.connect(self.ports.names if names else self.ports.broker, version=version)
        self._clients.append(client)
        return client

    async def close_clients(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()

    @property
    def state(self) -> Any:
        return self.broker._sequencer.engine.state

    def log_bytes(self) -> bytes:
        """Every byte of the log's files, in order."""
        return b"".join(path.read_bytes() for path in sorted((self.directory / "shard-0" / "log").iterdir()))


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    make_syncer: Callable[[Job], Syncer] | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
    offload: Offload | None = None,
    **changes: Any,
) -> AsyncIterator[Running]:
    """A broker on ``directory`` of ``disk``, by default the real one. At the end it is stopped as by a kill: no drain, no
    checkpoint."""
    broker = Broker(
        config(directory, **changes), disk or RealDisk(), clock or SystemClock(), SystemEntropy(), asyncio.get_running_loop(),
        make_syncer=make_syncer, offload=offload,
    )  # fmt: skip
    running = None
    try:
        running = Running(broker, await broker.start(), directory)
        yield running
    finally:
        if running is not None:
            await running.close_clients()
        broker.close()
