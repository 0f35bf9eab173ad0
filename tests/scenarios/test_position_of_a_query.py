"""Where a Spark query is, as offsets of a consumer group at its broker: lag is seen where that of consumers is seen."""

import asyncio
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.waiting import until

from halfmq.errors import UsageError
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqStreamReader


async def test_position_is_committed_after_each_batch_and_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(10):
            assert (await client.send("T", b"x", queue=number % 2, queues=2)).code == 0
        given = {
            "url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "T", "startingOffsets": "earliest",
            "group": "revenue", "publishPosition": "true",
        }  # fmt: skip
        reader = HalfmqStreamReader(parse_options(given).for_stream())

        def one_batch() -> None:
            start = reader.initialOffset()
            reader.commit(reader.latestOffset(start, reader.getDefaultReadLimit()))

        await loop.run_in_executor(None, one_batch)
        topic_id = running.state.topics_by_name["T"].topic_id
        await until(lambda: (topic_id, 1) in running.state.offsets.get("revenue", {}))
        lag = await client.ask(208, {"consumerGroup": "revenue", "topic": "T"})
        assert lag.code == 0
        assert lag.body.count(b'"consumerOffset":5') == 2, lag.body
        reader.stop()
    async with serving(tmp_path) as running:
        assert running.state.offsets["revenue"] == {(topic_id, 0): 5, (topic_id, 1): 5}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"path": "/data", "group": "g"}, "url"),
        ({"url": "rocketmq://h:1"}, "group"),
        ({"url": "rocketmq://h:1", "group": "TOOLS_CONSUMER"}, "group"),
    ],
)
def test_it_needs_a_broker_and_a_group(given: dict[str, str], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({**given, "subscribe": "T", "publishPosition": "true"})
    assert hint in (caught.value.hint or "")
