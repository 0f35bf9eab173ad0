"""The real broker on the test's own event loop, on free ports and a real directory, with its sync thread or a manual one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halfmq.broker.broker import Broker, Ports
from halfmq.broker.config import BrokerConfig
from halfmq.broker.maintenance import Maintenance
from halfmq.broker.offload import Offload
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import Clock, SystemClock
from halfmq.runtime.disk import Disk, RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.group_flush import Job, Syncer
from halfmq.store.store import Durability
from tests.support.hand_flush import HandFlush
from tests.support.raw_client import RawClient
from tests.support.waiting import soon, turns, until

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

    async def sync(self) -> bool:
        """Sync what was requested, and let the loop deliver what that releases. False: nothing was requested."""
        done = self.flush.run()
        await turns()
        return done


class Calls:
    """Counts the calls of a method: a test waits for what was done, not for time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.seen = 0
        real = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.seen += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    async def more(self, count: int) -> None:
        enough = self.seen + count
        await until(lambda: self.seen >= enough, f"{count} more calls")


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

    @property
    def maintenance(self) -> Maintenance:
        assert self.broker._maintenance is not None
        return self.broker._maintenance

    async def offloaded(self) -> None:
        """What was given to the thread for slow work is done, and its results are taken."""
        done = asyncio.get_running_loop().create_future()
        self.broker._offload.run(lambda: None, lambda _: done.set_result(None))
        await soon(done)

    def log_bytes(self) -> bytes:
        """Every byte of the log's files, in order."""
        return b"".join(path.read_bytes() for path in sorted((self.directory / "shard-0" / "log").iterdir()))


def make_broker(directory: Path, *, disk: Disk | None = None, clock: Clock | None = None, **changes: Any) -> Broker:
    """A broker that is not started, on ``directory`` of ``disk``, by default the real one."""
    options = {name: changes.pop(name) for name in ("make_syncer", "offload", "bind") if name in changes}
    return Broker(
        config(directory, **changes), disk or RealDisk(), clock or SystemClock(), SystemEntropy(), asyncio.get_running_loop(),
        **options,
    )  # fmt: skip


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
    """``make_broker``, started. At the end it is stopped as by a kill: no drain, no checkpoint."""
    broker = make_broker(directory, disk=disk, clock=clock, make_syncer=make_syncer, offload=offload, **changes)
    running = None
    try:
        running = Running(broker, await broker.start(), directory)
        yield running
    finally:
        if running is not None:
            await running.close_clients()
        broker.close()


@asynccontextmanager
async def serving_by_hand(directory: Path, **changes: Any) -> AsyncIterator[tuple[Running, Hand]]:
    """``serving`` on a disk that syncs when the test says so; what the start wrote is synced."""
    hand = Hand()
    async with serving(directory, make_syncer=hand, durability=Durability.FSYNC, **changes) as running:
        await hand.sync()
        yield running, hand
