"""``halfmq bench tx``: transactions per second, latencies and CPU of the broker, compared with the baseline server."""

import asyncio
import dataclasses
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from halfmq.bench import load, measured_process, probe
from halfmq.bench.load import Counts, Plan
from halfmq.bench.measured_process import MeasuredProcess
from halfmq.errors import EnvironmentFailed
from halfmq.runtime.interpreter import build


def _percentile(values: list[int], share: float) -> int | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def _index_bytes(directory: Path) -> int:
    """Allocated bytes of all files but segments: index files may be sparse, and segments are preallocated."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file() and path.suffix != ".seg")


async def _drive(server: MeasuredProcess, plan: Plan, with_probe: bool) -> dict[str, Any]:
    connections, counts, finished = await load.connect(plan, "127.0.0.1", server.port)
    stop = asyncio.Event()
    probing = asyncio.create_task(probe.measure("127.0.0.1", server.port, stop)) if with_probe else None
    try:
        for connection in connections:
            connection.start()
        await asyncio.sleep(plan.warmup_seconds)
        cpu = server.cpu_seconds()
        started = time.perf_counter()
        for connection in connections:
            connection.measuring = True
        await asyncio.sleep(plan.seconds)
        for connection in connections:
            connection.measuring = False
        elapsed = time.perf_counter() - started
        cpu = server.cpu_seconds() - cpu
        for connection in connections:
            connection.stopping = True
        stop.set()
        await asyncio.wait_for(finished.wait(), 30)
        latencies = await asyncio.wait_for(probing, 30) if probing else []
    finally:
        if probing is not None:
            probing.cancel()
            await asyncio.wait((probing,))
        await load.close(*[connection.transport for connection in connections])
    return _figures(counts, elapsed, cpu, latencies)


def _figures(counts: Counts, elapsed: float, cpu: float, latencies: list[int]) -> dict[str, Any]:
    ended = counts.committed + counts.rolled_back + counts.unknown
    return {
        "committed_tx_per_s": round(counts.committed / elapsed, 1),
        "transactions_per_s": round(ended / elapsed, 1),
        "committed": counts.committed,
        "rolled_back": counts.rolled_back,
        "unknown": counts.unknown,
        "refused": counts.refused,
        "refusals": counts.refusals,
        "checks": counts.checks,
        "prepare_p50_us": _percentile(counts.prepare_us, 0.50),
        "prepare_p99_us": _percentile(counts.prepare_us, 0.99),
        "commit_p50_us": _percentile(counts.commit_us, 0.50),
        "commit_p99_us": _percentile(counts.commit_us, 0.99),
        "commit_to_consumer_p50_us": _percentile(latencies, 0.50),
        "commit_to_consumer_p99_us": _percentile(latencies, 0.99),
        "cpu_us_per_tx": round(cpu / ended * 1e6, 2) if ended else None,
        "cpu_share": round(cpu / elapsed, 3),
        "seconds": round(elapsed, 2),
    }


def run_baseline(plan: Plan) -> dict[str, Any]:
    """Measure the baseline server."""
    server = measured_process.baseline()
    try:
        figures: dict[str, Any] = load.run(_drive(server, plan, with_probe=False))
    finally:
        server.stop()
    return figures


def run_broker(plan: Plan, durability: str, directory: Path | None = None, *options: str) -> dict[str, Any]:
    """Measure a new broker on an empty store; ``options`` go to ``halfmq serve``."""
    data = Path(tempfile.mkdtemp(prefix="halfmq-bench-", dir=directory))
    try:
        server = measured_process.broker(data, "--durability", durability, *options)
        try:
            figures: dict[str, Any] = load.run(_drive(server, plan, with_probe=True))
            figures["rss_anon_mb"] = round(server.anonymous_bytes() / 1e6, 1)
            figures["start_s"] = round(server.ready_seconds, 3)
        finally:
            server.stop()
        figures.update(_disk(data, plan))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    figures["durability"] = durability
    return figures


def _disk(data: Path, plan: Plan) -> dict[str, Any]:
    """Bytes of log and indexes per byte of message bodies in the log."""
    from halfmq.runtime.disk import RealDisk
    from halfmq.store.consume_queue import ConsumeQueues
    from halfmq.store.open_files import OpenFiles
    from halfmq.store.topics_file import read_topics
    from halfmq.store.watermark_page import Watermark, read_watermark_page

    disk, shard = RealDisk(), data / "shard-0"
    page = read_watermark_page(disk, shard / "published")
    if not isinstance(page, Watermark):
        raise EnvironmentFailed(f"{shard} has no high watermark: {page}")
    files = OpenFiles(disk, writable=False)
    try:
        queues = ConsumeQueues(disk, shard / "queues", files)
        queues.load(page.position, page.log_start)
        halves = sum(
            queues.bounds(topic.topic_id, queue_id)[1]
            for topic in read_topics(disk, shard / "topics.json")[1]
            for queue_id in range(topic.read_queues)
            if topic.name == plan.topic
        )
    finally:
        files.close()
    log_bytes = page.position - page.log_start
    index_bytes = _index_bytes(data)
    bodies = max(1, halves * plan.body_bytes)
    return {
        "log_bytes": log_bytes,
        "index_bytes": index_bytes,
        "disk_bytes_per_body_byte": round((log_bytes + index_bytes) / bodies, 3),
    }


def compare(
    plan: Plan, durabilities: list[str], rounds: int, directory: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the baseline and then the broker in each round. The result is the median over rounds of the CPU ratio.

    Raises:
        EnvironmentFailed: a broker did not start, or no transaction ended in time.
    """
    runs: dict[str, list[dict[str, Any]]] = {"baseline": [], **{name: [] for name in durabilities}}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds} ...")
        runs["baseline"].append(run_baseline(plan))
        for durability in durabilities:
            runs[durability].append(run_broker(plan, durability, directory))
            if runs[durability][-1]["cpu_us_per_tx"] is None:
                raise EnvironmentFailed(f"no transaction ended in {plan.seconds:g} s", hint="use a larger --seconds")
    ratios = {
        name: [
            round(run["cpu_us_per_tx"] / baseline["cpu_us_per_tx"], 2)
            for run, baseline in zip(runs[name], runs["baseline"], strict=True)
        ]
        for name in durabilities
    }
    return {
        "machine": {"python": platform.python_version(), "python_build": str(build()), "system": platform.platform()},
        "plan": dataclasses.asdict(plan),
        "ratio_to_baseline": {name: statistics.median(found) for name, found in ratios.items()},
        "ratios_to_baseline": ratios,
        "runs": runs,
    }


#: Columns of the printed table: heading, key of the figure.
_COLUMNS: Final = (
    ("tx/s", "committed_tx_per_s"),
    ("cpu us/tx", "cpu_us_per_tx"),
    ("prepare p50 us", "prepare_p50_us"),
    ("p99", "prepare_p99_us"),
    ("commit p50 us", "commit_p50_us"),
    ("p99", "commit_p99_us"),
    ("to consumer p50 us", "commit_to_consumer_p50_us"),
    ("p99", "commit_to_consumer_p99_us"),
    ("disk B/body B", "disk_bytes_per_body_byte"),
    ("RssAnon MB", "rss_anon_mb"),
    ("checks", "checks"),
)


def table(figures: dict[str, Any]) -> list[str]:
    """Medians over the rounds as a text table, one line per element."""
    rows = [["", *(heading for heading, _ in _COLUMNS), "x baseline"]]
    for name, taken in figures["runs"].items():
        row = [name]
        for _, key in _COLUMNS:
            values = [run[key] for run in taken if run.get(key) is not None]
            row.append(f"{statistics.median(values):g}" if values else "-")
        row.append(str(figures["ratio_to_baseline"].get(name, "1")))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
