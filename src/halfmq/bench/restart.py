"""``halfmq bench restart``: start times with an empty store, after kill -9, and without snapshots.

The load generator fills the store over one connection with durability ``memory``; then the broker is killed.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfmq.bench import load, measured_process
from halfmq.bench.load import Plan
from halfmq.bench.measured_process import MeasuredProcess
from halfmq.errors import EnvironmentFailed


async def _fill(server: MeasuredProcess, plan: Plan) -> None:
    connections, counts, finished = await load.connect(plan, "127.0.0.1", server.port)
    for connection in connections:
        connection.start()
    await finished.wait()
    await load.close(*[connection.transport for connection in connections])
    if counts.refused:
        raise EnvironmentFailed(f"{counts.refused} half messages were rejected: {counts.refusals}")


def measure(
    messages: int, undecided: int, body_bytes: int, directory: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Start times in seconds until the broker listens, and RssAnon in MB. ``say`` gets progress messages.

    Raises:
        EnvironmentFailed: the broker did not start, or rejected messages.
    """
    data = Path(tempfile.mkdtemp(prefix="halfmq-bench-", dir=directory)) / "data"
    options = ("--durability", "memory", "--check-immunity-ms", "3600000")
    figures: dict[str, Any] = {"messages": messages, "undecided": undecided, "body_bytes": body_bytes}
    try:
        server = measured_process.broker(data, *options)
        try:
            figures["start_empty_s"] = round(server.ready_seconds, 3)
            say(f"committing {messages:,} messages ...")
            asyncio.run(_fill(server, Plan(threads=64, body_bytes=body_bytes, transactions_max=messages)))
            figures["rss_anon_mb_before_undecided"] = round(server.anonymous_bytes() / 1e6, 1)
            say(f"leaving {undecided:,} transactions undecided ...")
            asyncio.run(
                _fill(server, Plan(threads=64, body_bytes=body_bytes, transactions_max=undecided, unknown_share=1.0))
            )
            figures["rss_anon_mb_with_undecided"] = round(server.anonymous_bytes() / 1e6, 1)
        finally:
            server.stop(signal.SIGKILL)
        say("starting after kill -9 ...")
        server = measured_process.broker(data, *options)
        figures["start_after_kill_s"] = round(server.ready_seconds, 3)
        figures["rss_anon_mb_after_restart"] = round(server.anonymous_bytes() / 1e6, 1)
        server.stop(signal.SIGKILL)
        say("starting with all snapshots deleted ...")
        shard = data / "shard-0"
        shutil.rmtree(shard / "snapshots", ignore_errors=True)
        (shard / "checkpoint").unlink(missing_ok=True)
        server = measured_process.broker(data, *options, timeout_seconds=600)
        figures["start_without_snapshots_s"] = round(server.ready_seconds, 3)
        server.stop()
    finally:
        shutil.rmtree(data.parent, ignore_errors=True)
    return figures
