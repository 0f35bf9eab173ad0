"""`halfmq bench tx`: transactions per second, latencies and the broker's CPU, beside the bare sketch in the same run."""

import asyncio
import dataclasses
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from halfmq.bench import load, measured_process, probe
from halfmq.bench.load import Counts, Plan
from halfmq.bench.measured_process import MeasuredProcess


def _percentile(values: list[int], share: float) -> int | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def _files_bytes(directory: Path) -> int:
    """Bytes that the store has written: allocated blocks of its files, since segments are preallocated with zeros."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and path.suffix != ".seg")


async def _drive(server: MeasuredProcess, plan: Plan, with_probe: bool) -> dict[str, Any]:
    connections, counts, finished = await load.connect(plan, "127.0.0.1", server.port)
    stop = asyncio.Event()
    probing = asyncio.create_task(probe.measure("127.0.0.1", server.port, stop)) if with_probe else None
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


def _new_loop_run(main: Any) -> Any:
    try:
        import uvloop

        return uvloop.run(main)
    except ImportError:
        return asyncio.run(main)


def run_sketch(plan: Plan) -> dict[str, Any]:
    server = measured_process.sketch()
    try:
        figures: dict[str, Any] = _new_loop_run(_drive(server, plan, with_probe=False))
    finally:
        server.stop()
    return figures


def run_broker(plan: Plan, durability: str, directory: Path | None = None, *options: str) -> dict[str, Any]:
    """One run against a broker of its own on a fresh directory."""
    data = Path(tempfile.mkdtemp(prefix="halfmq-bench-", dir=directory))
    try:
        server = measured_process.broker(data, "--durability", durability, *options)
        try:
            figures: dict[str, Any] = _new_loop_run(_drive(server, plan, with_probe=True))
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
    """Bytes written to log and derived files, per byte of body that was sent."""
    from halfmq.store.reader import StoreReader

    reader = StoreReader.open(data)
    log_bytes = reader.position - reader.log_start
    derived = _files_bytes(data)
    return {
        "log_bytes": log_bytes,
        "derived_bytes": derived,
        "messages_in_log": reader.half_count if hasattr(reader, "half_count") else None,
        "body_bytes": plan.body_bytes,
    }


def compare(plan: Plan, durabilities: list[str], rounds: int, directory: Path | None = None) -> dict[str, Any]:
    """Sketch and broker in turn, ``rounds`` times; ratios are of the medians of one run."""
    runs: dict[str, list[dict[str, Any]]] = {"sketch": [], **{name: [] for name in durabilities}}
    for _ in range(rounds):
        runs["sketch"].append(run_sketch(plan))
        for durability in durabilities:
            runs[durability].append(run_broker(plan, durability, directory))
    cost = {name: statistics.median(run["cpu_us_per_tx"] for run in taken) for name, taken in runs.items()}
    return {
        "machine": {"python": platform.python_version(), "system": platform.platform()},
        "plan": dataclasses.asdict(plan),
        "cpu_us_per_tx": cost,
        "ratio_to_sketch": {name: round(cost[name] / cost["sketch"], 2) for name in durabilities},
        "runs": runs,
    }
