"""Streams by chance through the sink (``tests.support.random_batches``): each row once and in the order of its key, or the query says why
it stops.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import random_batches
from tests.support.amount import amount, seed_of_commit
from tests.support.served import Served

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES: Final = amount(gate=10, everything=200, variable="HALFMQ_TEST_BATCHES")


@pytest.mark.timeout(600)
def test_some_batches(spark: Any, tmp_path: Path) -> None:
    broker = Served(tmp_path / "data", tmp_path / "broker.log")
    broker.start()
    seed = seed_of_commit()
    print(f"seed {seed}")
    try:
        figures = random_batches.tell(spark, broker, tmp_path, min(BATCHES, 10), seed)
    finally:
        broker.stop()
    print(random_batches.report(figures))
    assert sum(number for (_, what), number in figures.items() if what.startswith(("stopped", "restored"))) >= 2


@pytest.mark.thorough
@pytest.mark.java
@pytest.mark.timeout(3_600)
def test_many_batches_also_of_kafka() -> None:
    """A process of its own: Spark's Kafka source must be there when a session begins."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven, which fetches the jars of Kafka, is not installed: apt install maven")
    words = ["-m", "tests.support.random_batches", "--kafka", "--batches", str(BATCHES)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "src:."}
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
