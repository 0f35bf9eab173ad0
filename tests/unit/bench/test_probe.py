"""The latency probe against a real broker: every probe transaction is seen by the held pull, and timed."""

import asyncio
from pathlib import Path

import pytest

from halfmq.bench import measured_process, probe

pytestmark = pytest.mark.slow


async def test_each_commit_wakes_the_parked_pull(tmp_path: Path) -> None:
    server = await asyncio.to_thread(measured_process.broker, tmp_path / "data", "--durability", "memory")
    try:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, stop.set)
        latencies = await asyncio.wait_for(probe.measure("127.0.0.1", server.port, stop), 20)
    finally:
        await asyncio.to_thread(server.stop)
    assert len(latencies) > 5
    assert all(0 < latency < 5_000_000 for latency in latencies)
