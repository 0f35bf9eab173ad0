"""The programs of docs/spark-pipelines.md, each run twice against a broker: what the first run has written, the second does not write
again.

Each is a process of its own, since a process that has a session of Spark cannot have one of Spark Connect.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.documents.blocks import blocks_of
from tests.documents.pages import Block
from tests.support.half_batches import bodies
from tests.support.raw_client import RawClient
from tests.support.served import Served

from halfmq.client.sync import Client
from halfmq.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[2]
_HERE: Final = "tests/spark/test_pipelines.py"
_CONNECT: Final = f"{_HERE}::test_stream_over_spark_connect"
_PIPELINE: Final = f"{_HERE}::test_pipeline_with_a_table_and_a_sink"
#: What the page names; the test has its own.
_URL: Final = "rocketmq://127.0.0.1:9876"
_WORK: Final = "/tmp/guide"
_QUEUES: Final = 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log")
    served.start()
    yield served
    served.stop()


def write_files(named: list[Block], broker: Served, directory: Path) -> list[str]:
    """Write the blocks of the page whose first line is the name of a file; their names."""
    names = []
    for block in named:
        name = block.first.removeprefix("# ")
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text.replace(_URL, broker.url).replace(_WORK, str(directory)))
        names.append(name)
    return names


def execute(directory: Path, *command: str) -> str:
    """What it prints."""
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }  # fmt: skip
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    return done.stdout


def send(broker: Served, *numbers: int) -> None:
    with Client(broker.url, group="shop") as mq:
        for number in numbers:
            mq.send("orders", {"id": number, "cents": 100 * number}, key=number)


def visible(broker: Served, topic: str) -> list[int]:
    """The numbers of all orders of a topic."""

    async def read() -> list[int]:
        client = await RawClient.connect(broker.port)
        try:
            return [json.loads(body)["id"] for queue in range(_QUEUES) for body in await bodies(client, topic, queue)]
        finally:
            await client.close()

    return sorted(asyncio.run(read()))


def test_stream_over_spark_connect(broker: Served, tmp_path: Path) -> None:
    (name,) = write_files(blocks_of(_CONNECT), broker, tmp_path)
    for copied, numbers in ((3, (1, 2, 3)), (5, (4, 5))):
        send(broker, *numbers)
        printed = execute(tmp_path, sys.executable, name, broker.url, str(tmp_path / "checkpoint"))
        assert f"{copied} orders are copied" in printed


def test_pipeline_with_a_table_and_a_sink(broker: Served, tmp_path: Path) -> None:
    """The second run has the catalog of the first."""
    *named, shell = blocks_of(_PIPELINE)
    write_files(named, broker, tmp_path)
    command = shell.text.strip()
    for numbers in ((4, 5, 6), (3, 7)):
        send(broker, *numbers)
        assert "Run is COMPLETED" in execute(tmp_path, *command.split())
    assert visible(broker, "large-orders") == [5, 6, 7]
