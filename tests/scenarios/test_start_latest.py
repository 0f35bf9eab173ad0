"""``start="latest"``: what is sent after a consumer was entered is for its group, whoever reads it and whenever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.in_process import serving

from halfmq import AsyncClient, Client

pytestmark = pytest.mark.timeout(120)

MESSAGES = 80
BEFORE = [f"before {number}" for number in range(8)]
AFTER = [f"{number}" for number in range(MESSAGES)]


@asynccontextmanager
async def broker(directory: Path) -> AsyncIterator[str]:
    async with serving(directory) as running:
        yield f"rocketmq://127.0.0.1:{running.ports.names}"


def send(url: str, bodies: list[str], topic: str = "t") -> None:
    with Client(url) as mq:
        for body in bodies:
            mq.send(topic, body)


def read_blocking(url: str, enter: list[str], leave_at_once: bool, start: str | datetime) -> list[str]:
    got: list[str] = []
    with Client(url) as mq:
        if leave_at_once:
            with mq.consumer("t", group="g", start=start):
                pass
            send(url, enter)
        with mq.consumer("t", group="g", start=start) as messages:
            if not leave_at_once:
                for body in enter:
                    mq.send("t", body)
            while len(got) < len(enter) and (message := messages.get(20)) is not None:
                message.ack()
                got.append(message.text())
    return got


async def read_async(url: str, enter: list[str], leave_at_once: bool, start: str | datetime) -> list[str]:
    got: list[str] = []
    async with AsyncClient(url) as mq:
        if leave_at_once:
            async with mq.consumer("t", group="g", start=start):
                pass
            await asyncio.to_thread(send, url, enter)
        async with mq.consumer("t", group="g", start=start) as messages:
            if not leave_at_once:
                await asyncio.gather(*(mq.send("t", body) for body in enter))
            while len(got) < len(enter) and (message := await messages.get(20)) is not None:
                message.ack()
                got.append(message.text())
    return got


@pytest.mark.parametrize("leave_at_once", [False, True])
@pytest.mark.parametrize("face", ["blocking", "async"])
@pytest.mark.parametrize("start", ["latest", "now"])
async def test_everything_that_is_sent_after_the_consumer_was_entered_is_delivered(
    tmp_path: Path, face: str, leave_at_once: bool, start: str
) -> None:
    async with broker(tmp_path) as url:
        await asyncio.to_thread(send, url, BEFORE)
        where = datetime.now(UTC) + timedelta(milliseconds=2) if start == "now" else start
        await asyncio.sleep(0.005)  # real time: what was sent before is of an earlier millisecond
        if face == "blocking":
            got = await asyncio.to_thread(read_blocking, url, AFTER, leave_at_once, where)
        else:
            got = await read_async(url, AFTER, leave_at_once, where)
    assert sorted(got, key=AFTER.index) == AFTER


async def test_start_is_not_an_action_of_an_operator(tmp_path: Path) -> None:
    """Only a member of the group may commit without a record of who it was."""
    async with serving(tmp_path) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        await asyncio.to_thread(send, url, BEFORE)
        async with AsyncClient(url) as mq, mq.consumer("t", group="g", start="latest"):
            assert running.state.offsets["g"]
        assert b"reset_offset" not in running.log_bytes().lower()
