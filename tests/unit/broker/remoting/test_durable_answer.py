"""Promise 5 where nothing is written: what is read from memory leaves when all that memory says is durable."""

import asyncio
from pathlib import Path

import pytest
from tests.support.in_process import Calls, serving_by_hand
from tests.support.waiting import soon, turns, until

from halfmq.broker.remoting.gateway import Gateway
from halfmq.wire.remoting.codes import HMQ_POSITION


@pytest.mark.parametrize("what", ["route", "no route", "topics", "heartbeat", "position"])
async def test_answer_waits_for_what_somebody_else_made_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    served = Calls(monkeypatch, Gateway, "frame")
    async with serving_by_hand(tmp_path) as (running, hand):
        maker = await running.client()
        reader = await running.client()

        def ask() -> "asyncio.Task[object]":
            asked = {
                "route": lambda: reader.ask(105, {"topic": "T"}),
                "no route": lambda: reader.ask(105, {"topic": "nowhere"}),
                "topics": lambda: reader.ask(206),
                "heartbeat": lambda: reader.heartbeat("me", consumers={"C": ["T"]} if held else {}),
                "position": lambda: reader.ask(HMQ_POSITION, {"topics": "T"}),
            }  # fmt: skip
            return asyncio.create_task(asked[what]())

        held = False
        await soon(ask())  # nothing is held: at once
        held = True
        made = [asyncio.create_task(maker.send("T", b"x", unique="1" * 32))]
        made.append(asyncio.create_task(maker.heartbeat("other", consumers={"C": ["T"]})))
        await until(lambda: "T" in running.state.topics_by_name and "C" in running.state.groups)
        answer = ask()
        await served.more(1)
        await turns()
        assert not answer.done(), "it says what a crash may still take back"
        await hand.sync()
        await soon(answer)
        await soon(asyncio.gather(*made))
