"""Promise 5 where nothing is written: what is read from memory leaves when all that memory says is durable."""

import asyncio
from pathlib import Path

import pytest
from tests.support.in_process import Hand, serving

from halfmq.store.store import Durability
from halfmq.wire.remoting.codes import HMQ_POSITION


@pytest.mark.parametrize("what", ["route", "no route", "topics", "heartbeat", "position"])
async def test_answer_waits_for_what_somebody_else_made_and_for_nothing_else(tmp_path: Path, what: str) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        await asyncio.sleep(0)
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
        await asyncio.wait_for(ask(), 2)  # nothing is held: at once
        held = True
        made = [asyncio.create_task(maker.send("T", b"x", unique="1" * 32))]
        made.append(asyncio.create_task(maker.heartbeat("other", consumers={"C": ["T"]})))
        async with asyncio.timeout(2):
            while "T" not in running.state.topics_by_name or "C" not in running.state.groups:
                await asyncio.sleep(0.01)
        answer = ask()
        await asyncio.sleep(0.2)
        assert not answer.done(), "it says what a crash may still take back"
        hand.flush.run()
        await asyncio.wait_for(answer, 2)
        await asyncio.wait_for(asyncio.gather(*made), 2)
