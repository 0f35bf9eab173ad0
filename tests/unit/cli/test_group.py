"""`halfmq group` against a running broker."""

import asyncio
import json
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from typer.testing import CliRunner, Result

from halfmq import AsyncClient, limits
from halfmq.cli import group, lag
from halfmq.model.settings import BrokerSettings, GroupSettings
from halfmq.wire.remoting.admin_reports import GroupQueue
from halfmq.wire.remoting.admin_stats import encode_topic_stats
from halfmq.wire.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(60)


async def run(running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, group.app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"])


async def test_a_hold_is_set_listed_and_released(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        done = await run(running, "hold", "archive", "orders", "stock")
        assert (done.exit_code, done.stdout) == (0, "group archive holds orders, stock, until 7 days old\n")
        assert running.state.groups["archive"] == GroupSettings("archive", hold_topics=("orders", "stock"))
        done = await run(running, "hold", "audit", "orders", "--max-age-hours", "0")
        assert "whatever their age" in done.stdout
        assert running.state.groups["audit"].hold_ms == 0
        await (await running.client()).ask(200, body=b'{"groupName":"reader"}')
        assert (await run(running, "holds")).stdout == (
            "archive: orders, stock, until 7 days old\naudit: orders, whatever their age\n"
        )
        assert (await run(running, "release", "archive")).exit_code == 0
        assert running.state.groups["archive"] == GroupSettings("archive", hold_ms=limits.HOLD_MS)
        assert (await run(running, "holds")).stdout == "audit: orders, whatever their age\n"


async def test_a_mistake_and_a_broker_that_is_away_are_told_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for wrong in ("no way", "", "orders:stock"):  # the last ones would hold nothing, and two topics
            refused = await run(running, "hold", "archive", "orders", wrong)
            assert (refused.exit_code, f"topic {wrong!r}" in refused.stderr) == (2, True)
        assert "archive" not in running.state.groups
        assert (await run(running, "hold", "archive")).exit_code == 2
    away = await run(running, "holds")
    assert (away.exit_code, "--url" in away.stderr) == (1, True)
    assert CliRunner().invoke(group.app, ["holds", "--url", "http://h"]).exit_code == 2


async def sent(running: Running, topic: str, count: int) -> None:
    async with AsyncClient(f"127.0.0.1:{running.ports.names}", group="shop") as mq:
        for number in range(count):
            await mq.send(topic, str(number))


async def committed(running: Running, group: str, topic: str, *offsets: int) -> None:
    client = await running.client()
    assert (await client.ask(200, body=b'{"groupName":"%b"}' % group.encode())).code == 0
    for queue, offset in enumerate(offsets):
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        assert (await client.ask(15, fields)).code == 0


async def document(running: Running, *arguments: str) -> Any:
    done = await run(running, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


ONE_QUEUE = BrokerSettings(default_topic_queues=1)


async def test_lag_counts_messages_and_the_age_of_the_oldest_unread(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await sent(running, "orders", 4)
        await committed(running, "billing", "orders", 1)
        found = await document(running, "lag", "billing")
        assert (found["lag"], found["members"]) == (3, [])
        (queue,) = found["topics"][0]["queues"]
        assert (queue["offset"], queue["end"], queue["lag"]) == (1, 4, 3)
        done = await run(running, "lag", "billing", "--queues")
        assert "3 messages to read" in done.stderr
        await committed(running, "billing", "orders", 4)
        assert (await document(running, "lag", "billing"))["age_ms"] == 0
        assert (await run(running, "lag", "nobody")).exit_code == 3
        listed = await document(running, "list")
        assert listed == {"total": 1, "groups": [{"group": "billing", "members": 0, "lag": 0, "topics": ["orders"]}]}


def test_the_age_is_that_of_the_message_at_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages at 1,000 s, 5,000 s and 9,000 s: with the group at the second, its age is counted from 5,000 s."""
    times_ms = [1_000_000, 5_000_000, 9_000_000]

    class Answered:
        def __init__(self, body: bytes = b"", **ext: object) -> None:
            self.body, self.ext = body, {name: str(value) for name, value in ext.items()}

    class Broker:
        def read(self, broker: object, code: int, fields: dict[str, Any], decode: Any) -> Any:
            return decode(encode_topic_stats("b", "orders", 0.0, [(0, 0, 3, times_ms[-1])]))

        def each(self, broker: object, code: int, each: list[dict[str, Any]]) -> Any:
            for fields in each:
                if code == RequestCode.GET_EARLIEST_MSG_STORETIME:
                    yield Answered(timestamp=times_ms[0])
                else:
                    yield Answered(offset=bisect_left(times_ms, fields["timestamp"]))

    monkeypatch.setattr(time, "time_ns", lambda: 10_000_000 * 1_000_000)
    for offset, done_ms, age_ms in ((0, 0, 9_000_000), (1, 1_000_000, 5_000_000), (2, 5_000_000, 1_000_000)):
        queue = GroupQueue("orders", "b", 0, 3, offset, done_ms)
        found = lag._ages_ms(Broker(), None, [queue])  # type: ignore[arg-type]
        assert abs(found["orders", 0] - age_ms) <= 1_000


@pytest.mark.parametrize(
    ("to", "then", "said"),
    [
        ("earliest", 0, "3 read again"),
        ("latest", 5, "2 messages skipped"),
        ("4", 4, "1 messages skipped"),
        ("99", 5, "2 messages skipped"),  # no further than the end
        ("2000-01-01T00:00Z", 0, "3 read again"),
        ("2999-01-01", 5, "2 messages skipped"),
    ],
)
async def test_a_reset_says_what_it_means_before_it_happens(tmp_path: Path, to: str, then: int, said: str) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await sent(running, "orders", 5)
        await committed(running, "billing", "orders", 3)
        key = (running.state.topics_by_name["orders"].topic_id, 0)
        arguments = ("reset", "billing", "--to", to, "--topic", "orders")
        preview = await run(running, *arguments, "--preview")
        assert (preview.exit_code, said in preview.stderr, "nothing was changed" in preview.stdout) == (0, True, True)
        assert running.state.offsets["billing"][key] == 3
        assert (await run(running, *arguments)).exit_code == 2, "without a terminal it takes --yes"
        assert running.state.offsets["billing"][key] == 3
        done = await run(running, *arguments, "--yes")
        assert (done.exit_code, done.stdout.endswith("group billing is reset\n")) == (0, True), done.output
        assert running.state.offsets["billing"][key] == then
        again = await document(running, *arguments, "--preview")
        assert [(one["now"], one["then"], one["moved"]) for one in again["queues"]] == [(then, then, 0)]


async def test_a_group_with_connected_consumers_is_neither_reset_nor_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await sent(running, "orders", 2)
        url = f"127.0.0.1:{running.ports.names}"
        async with AsyncClient(url) as mq, mq.consumer("orders", group="billing", start="earliest") as messages:
            first = await messages.get(10)
            assert first is not None
            for refused in (("reset", "billing", "--to", "latest"), ("delete", "billing")):
                for option in ("--yes", "--preview"):
                    done = await run(running, *refused, option)
                    assert (done.exit_code, "1 connected consumers" in done.stderr) == (4, True), done.output
            assert "billing" in running.state.groups
        preview = await run(running, "delete", "billing", "--preview")
        assert (preview.exit_code, preview.stdout) == (0, "group billing would be deleted\n")
        assert "billing" in running.state.groups
        assert (await run(running, "delete", "billing", "--yes")).exit_code == 0
        assert "billing" not in running.state.groups
        assert (await run(running, "delete", "billing", "--yes")).exit_code == 3


async def test_a_reset_without_a_topic_leaves_the_retries_where_they_are(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await sent(running, "orders", 2)
        await committed(running, "billing", "orders", 1)
        await committed(running, "billing", "%RETRY%billing", 0)
        found = await document(running, "reset", "billing", "--to", "latest", "--preview")
        assert [one["topic"] for one in found["queues"]] == ["orders"]
        for wrong in (("--to", "7"), ("--to", "soon"), ("--to", "latest", "--queue", "0")):
            assert (await run(running, "reset", "billing", *wrong)).exit_code == 2, wrong
        assert (await run(running, "reset", "billing", "--to", "latest", "--topic", "no")).exit_code == 3
        assert (await run(running, "reset", "nobody", "--to", "latest")).exit_code == 3
