"""Consumers that leave it to the broker who reads which queue (400), and who asks for another mode (401)."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient


async def assigned(client: RawClient, me: str, topic: str = "T", **more: str) -> Any:
    asked = {"topic": topic, "consumerGroup": "C", "clientId": me, "strategyName": "AVG", "messageModel": "CLUSTERING"}
    answer = await client.ask(400, {}, json.dumps({**asked, **more}).encode())
    assert answer.code == 0
    return json.loads(answer.body).get("messageQueueAssignments")


async def test_the_members_of_a_group_share_the_queues_out_and_pull(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first, second = [await running.client() for _ in range(2)]
        await first.send("T", b"m", queues=4)
        assert await assigned(first, "one") is None, "nobody is a member yet"
        await first.heartbeat("one", consumers={"C": ["T"]})
        await second.heartbeat("two", consumers={"C": ["T"]})
        found = [await assigned(client, me) for client, me in ((first, "one"), (second, "two"))]
        queue = {"brokerName": "halfmq", "queueId": 0, "topic": "T"}
        assert found[0][0] == {"messageQueue": queue, "mode": "PULL"}
        assert [[item["messageQueue"]["queueId"] for item in items] for items in found] == [[0, 1], [2, 3]]
        everything = await assigned(first, "one", messageModel="BROADCASTING")
        assert [item["messageQueue"]["queueId"] for item in everything] == [0, 1, 2, 3]
        assert await assigned(first, "one", topic="Other") is None
        assert await assigned(first, "stranger") == []


async def test_pop_is_refused_by_name_in_the_answer_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def mode(mode: str) -> Answer:
        asked = {"topic": "T", "consumerGroup": "C", "mode": mode, "popShareQueueNum": 0}
        return await client.ask(401, {}, json.dumps(asked).encode())

    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await mode("PULL")).code == 0
        assert not [record for record in caplog.records if record.name == "halfmq.unsupported_requests"]
        answer = await mode("POP")
        assert answer.code == 3
        assert "PULL mode" in str(answer.remark)
        (said,) = [record for record in caplog.records if record.name == "halfmq.unsupported_requests"]
        assert said.levelno == logging.WARNING
        assert "group C: consuming topic T in mode POP" in said.getMessage()


async def test_a_body_that_is_none_is_answered_and_the_connection_lives(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for code in (400, 401):
            assert (await client.ask(code, {}, b"{}")).code == 1
