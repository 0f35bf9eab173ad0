"""How far the streaming job is, from Spark's checkpoint."""

import json
from pathlib import Path

from demo.run import ORDERS_TOPIC


def checkpoint(directory: Path) -> Path:
    return directory / "spark-checkpoint"


def orders_read(directory: Path) -> int:
    """Of a run's directory: orders in the batches that are over, from the checkpoint."""
    done = [int(path.name) for path in (checkpoint(directory) / "commits").glob("[0-9]*")]
    if not done:
        return 0
    lines = (checkpoint(directory) / "offsets" / str(max(done))).read_text().splitlines()
    queues = json.loads(lines[-1])["queues"].get(ORDERS_TOPIC, {})
    return sum(queues.values())
