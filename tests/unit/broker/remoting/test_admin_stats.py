"""What administrators ask: 28, 201 to 204, 208, 300, 315, 317, 351, over raw frames."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import soon

from halfmq.broker.remoting import admin_stats
from halfmq.broker.services import stats
from halfmq.model.stored_message import decode
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.fields import ConsumeStatsFields
from halfmq.wire.remoting.header import Request

QUEUES = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}


def queue(queue_id: int, topic: str = "T") -> str:
    return java_json.key_text({"brokerName": "halfmq", "queueId": queue_id, "topic": topic})


def table(answer: Answer) -> Any:
    assert answer.code == 0, answer.remark
    return java_json.loads(answer.body)


async def commit(client: RawClient, offset: int, queue_id: int = 0, group: str = "C", topic: str = "T") -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    client.tell(15, ext)
    ask = {key: ext[key] for key in ("consumerGroup", "topic", "queueId")}
    assert (await client.ask(14, ask)).ext["offset"] == str(offset)


async def behind_by_seven(running: Running) -> tuple[RawClient, RawClient]:
    """(a member of group C that is at 3 of 10 in queue 0, an administrator); three messages are in queue 1."""
    member, admin = await running.client(), await running.client()
    await admin.ask(17, {"topic": "T", **QUEUES})
    for number in range(10):
        await member.send("T", b"x", unique=f"{number:032d}")
    for number in range(3):
        await member.send("T", b"x", queue=1, unique=f"1{number:031d}")
    await member.heartbeat("me", consumers={"C": ["T"]})
    await commit(member, 3)
    return member, admin


# --- progress


async def test_progress_of_a_group_in_all_topics_or_in_some(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await behind_by_seven(running)
        (third, *_) = decode((await member.pull("T", 2, count=1)).body)
        found = table(await admin.ask(208, {"consumerGroup": "C"}))
        assert found["offsetTable"] == {
            queue(0): {"brokerOffset": 10, "consumerOffset": 3, "lastTimestamp": third.store_time_ms, "pullOffset": 3},
            queue(1): {"brokerOffset": 3, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
        }
        assert found["consumeTps"] == 1 / 60
        for names, queues in (
            ({"topic": "T"}, 2),
            ({"topic": "U"}, 0),
            ({"topicList": "U;T"}, 2),
            ({"topicList": "U;V"}, 0),
        ):
            found = table(await admin.ask(208, {"consumerGroup": "C", **names}))
            assert len(found["offsetTable"]) == queues, names


async def test_progress_of_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        member, admin = await behind_by_seven(running)
        await member.heartbeat("me", consumers={"C": ["T"], "D": ["T"]})
        await commit(member, 3, queue_id=1, group="D")
        found = table(await admin.ask(317, {"isOrder": "false"}))
        assert (found["totalDiff"], found["totalInflightDiff"]) == (20, 0)
        assert [list(entry) for entry in found["consumeStatsList"]] == [["C"], ["D"]]
        (of_topic,) = found["consumeStatsList"][1]["D"]
        assert of_topic["offsetTable"][queue(1)]["consumerOffset"] == 3
        assert found["brokerAddr"] == f"127.0.0.1:{running.ports.broker}"
        monkeypatch.setattr(stats, "QUEUES_MAX", 1)
        for code, ext, instead in (
            (317, {"isOrder": "false"}, "one group at a time"),
            (208, {"consumerGroup": "C"}, "a topic"),
        ):
            refused = await admin.ask(code, ext)
            assert (refused.code, instead in str(refused.remark)) == (1, True)


# --- who is connected, topics and groups


async def test_who_is_connected_and_what_topics_have(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await behind_by_seven(running)
        await (await running.client(version=317)).heartbeat("old", producers=["P"])
        found = table(await admin.ask(203, {"consumerGroup": "C"}))
        (peer,) = found["connectionSet"]
        assert (peer["clientId"], peer["language"], peer["version"]) == ("me", "JAVA", 409)
        assert peer["clientAddr"].startswith("127.0.0.1:")
        assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert found["subscriptionTable"]["T"]["subString"] == "*"
        (peer,) = table(await admin.ask(204, {"producerGroup": "P"}))["connectionSet"]
        assert (peer["clientId"], peer["version"]) == ("old", 317)
        (last, *_) = decode((await member.pull("T", 9)).body)
        found = table(await admin.ask(202, {"topic": "T"}))
        assert found["offsetTable"][queue(0)] == {
            "lastUpdateTimestamp": last.store_time_ms, "maxOffset": 10, "minOffset": 0,
        }  # fmt: skip
        assert found["topicPutTps"] == 13 / 60
        found = table(await admin.ask(351, {"topic": "T", "lo": "true"}))
        assert (found["topicName"], found["readQueueNums"], found["writeQueueNums"], found["perm"]) == ("T", 2, 2, 6)
        assert table(await admin.ask(300, {"topic": "T"})) == {"groupList": ["C"]}
        assert table(await admin.ask(300, {"topic": "Nowhere"})) == {"groupList": []}
        for code, ext, refusal in (
            (202, {"topic": "Nowhere"}, 17),
            (203, {"consumerGroup": "Nobody"}, 206),
            (204, {"producerGroup": "Nobody"}, 1),
            (351, {"topic": "Nowhere"}, 17),
        ):
            assert (await admin.ask(code, ext)).code == refusal, code


async def test_settings_of_groups_all_or_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        _, admin = await behind_by_seven(running)
        await admin.ask(200, body=json.dumps({"groupName": "D", "retryMaxTimes": 3, "consumeEnable": False}).encode())
        found = table(await admin.ask(201))["subscriptionGroupTable"]
        assert list(found) == ["C", "D"]
        assert (found["D"]["retryMaxTimes"], found["D"]["consumeEnable"]) == (3, False)
        page = await admin.ask(201, {"groupSeq": "1", "maxGroupNum": "1"})
        assert (list(table(page)["subscriptionGroupTable"]), page.ext["totalGroupNum"]) == (["D"], "2")
        monkeypatch.setattr(admin_stats, "GROUP_CONFIGS_MAX", 1)
        assert (await admin.ask(201)).code == 1
        assert list(table(await admin.ask(201, {"maxGroupNum": "9"}))["subscriptionGroupTable"]) == ["C"]


# --- counters


async def test_counters_say_what_came_and_what_was_given(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await behind_by_seven(running)
        await member.pull("T", 3, count=4)
        came = table(await admin.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}))
        assert [came[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [13, 13, 13]
        given = table(await admin.ask(315, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@C"}))
        assert given["statsMinute"] == {"sum": 4, "tps": 4 / 60}
        for name, key in (("TOPIC_PUT_NUMS", "Nowhere"), ("GROUP_GET_NUMS", "T"), ("SNDBCK_PUT_NUMS", "T@C")):
            assert (await admin.ask(315, {"statsName": name, "statsKey": key})).code == 1
        rate = table(await admin.ask(208, {"consumerGroup": "C"}))["consumeTps"]
        assert rate == 4 / 60


async def test_figures_of_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await behind_by_seven(running)
        await member.half("T", b"x", unique="A" * 32)
        await member.pull("T", 0)
        found = table(await admin.ask(28))["table"]
        assert all(isinstance(value, str) for value in found.values())
        assert (found["msgPutTotalTodayNow"], found["msgGetTotalTodayNow"]) == ("13", "10")
        assert (found["brokerVersionDesc"], found["halfmqUndecided"]) == ("V4_9_8", "1")
        assert float(found["putTps"].split()[0]) > 0
        assert len(found["getTransferedTps"].split()) == 3
        assert int(found["commitLogMaxOffset"]) == running.state.session.published
        assert int(found["earliestMessageTimeStamp"]) >= int(found["bootTimestamp"]) - 1_000
        assert 0 <= float(found["commitLogDiskRatio"]) <= 1
        assert found["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, ")


async def test_questions_that_take_long_have_one_turn_each_and_everybody_comes_in_between(tmp_path: Path) -> None:
    """Goal: a read full of them holds nobody up for longer than one takes. Method: in which order answers are made."""
    async with serving(tmp_path) as running:
        asker, other = await running.client(), await running.client()
        await other.send("T", b"x", queues=4)
        made: list[str] = []
        answer = running.broker._gateway.answer

        def noted(connection: Any, request: Any, *rest: Any, **named: Any) -> None:
            made.append("long" if request.code == 202 else "short")
            answer(connection, request, *rest, **named)

        running.broker._gateway.answer = noted  # type: ignore[method-assign]
        asked = [asyncio.create_task(asker.ask(202, {"topic": "T"})) for _ in range(50)]
        await asyncio.sleep(0)
        short = asyncio.create_task(other.ask(351, {"topic": "T"}))
        answers = await asyncio.gather(*asked, short)
        assert {one.code for one in answers} == {0}
        assert made.index("short") < len(made) - 10


async def test_questions_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_stats, "ASKED_MAX", 0)
    async with serving(tmp_path) as running:
        refused = await (await running.client()).ask(28)
        assert (refused.code, "try again" in str(refused.remark)) == (2, True)


async def test_one_address_leaves_others_a_quarter_of_the_questions_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_stats, "ASKED_MAX", 4)
    async with serving(tmp_path) as running:
        flood, shop = [await running.client() for _ in range(2)], await running.client()
        for client in (*flood, shop):
            assert (await client.ask(28)).code == 0
        gateway = running.broker._gateway
        first, second, other = running.broker._peers.connected.values()
        other.address = "10.0.0.7:5"
        clients = (flood[0], flood[1], flood[0], flood[1], shop)
        answers = [client.expect(1_000 + number) for number, client in enumerate(clients)]
        for number, connection in enumerate((first, second, first, second, other)):
            request: Request[Any] = Request(code=28, opaque=1_000 + number, ext={})
            gateway.handlers[28](connection, request)
        asked = gateway.handlers[28].func.__self__._shares  # type: ignore[attr-defined]
        assert (asked.taken, asked.of("address 127.0.0.1"), asked.of("address 10.0.0.7")) == (4, 3, 1)
        running.broker._peers.flush()
        got = await soon(asyncio.gather(*answers))
        assert [answer.code for answer in got] == [0, 0, 0, 2, 0]
        assert got[3].remark == (
            "address 127.0.0.1 has 3 of 4 requests for statistics that wait, and one address may have 3: try again"
        )
        assert asked.taken == 0


async def test_questions_that_wait_keep_what_they_need_and_are_counted(tmp_path: Path) -> None:
    """Each may be as large as a frame: 256 of them would be 4 GiB."""
    async with serving(tmp_path) as running:
        client, gateway = await running.client(), running.broker._gateway
        assert (await client.ask(28)).code == 0
        (connection,) = running.broker._peers.connected.values()
        asked = gateway.handlers[28].func.__self__._asked  # type: ignore[attr-defined]
        for code, ext in (
            (28, {"more": "x" * 9_000}),
            (208, ConsumeStatsFields(consumer_group="C", topic_list="x" * 100_000)),
        ):
            request: Request[Any] = Request(
                code=code, ext=ext, opaque=code, flag=2, remark="x" * 9_000, body=b"x" * 9_000
            )
            before = running.broker._peers.intake.taken
            gateway.handlers[code](connection, request)
            ((_, _, _, kept, _),) = asked
            assert (kept.body, kept.remark, isinstance(kept.ext, dict)) == (b"", None, False)
            assert running.broker._peers.intake.taken - before >= (400_000 if code == 208 else 1_024)
            while asked:
                await asyncio.sleep(0)
            assert running.broker._peers.intake.taken == before
