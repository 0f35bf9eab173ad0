"""Checks that are fetched: parked until there are some, answered once, leased, given back."""

import asyncio
from pathlib import Path

from tests.support.in_process import Hand, serving
from tests.support.raw_client import Answer, RawClient, command
from tests.support.waiting import PATIENCE_S, soon, until

from halfmq.model import properties as props
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability
from halfmq.wire.remoting.message_codec import PulledMessage, decode_pulled

FETCH = 29_009
ONE = "AC10000100002A9F0000000000000001"
QUICK = BrokerSettings(check_immunity_ms=100, check_interval_ms=50, check_interval_max_ms=200, check_answer_ms=300)


async def fetch(client: RawClient, wait_ms: int = 20_000, group: str = "P", **more: str) -> Answer:
    ext = {"group": group, "clientId": "poller", "waitMs": str(wait_ms), **more}
    return await client.ask(FETCH, ext, wait_s=PATIENCE_S)


def halves(answer: Answer) -> list[PulledMessage]:
    assert answer.code == 0, answer.remark
    return decode_pulled(bytes(answer.body))


def verdict(half: PulledMessage, wanted: int, group: str = "P") -> dict[str, str]:
    return {
        "producerGroup": group, "tranStateTableOffset": str(half.message.queue_offset),
        "commitLogOffset": str(half.log_offset), "commitOrRollback": str(wanted), "fromTransactionCheck": "true",
        "msgId": props.to_dict(half.message.properties)["UNIQ_KEY"],
    }  # fmt: skip


async def test_a_parked_poll_gets_what_falls_due_and_its_answer_settles(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client, sender = await running.client(), await running.client()
        waiting = asyncio.create_task(fetch(client))
        half = await sender.half("T", b"one", unique=ONE, HMQ_QUERY_ID="order-7")
        (one,) = halves(await waiting)
        assert (one.message.body, one.message.topic) == (b"one", "T")
        assert (one.message.queue_offset, one.log_offset) == (
            int(half.ext["queueOffset"]),
            int(half.ext["msgId"][16:], 16),
        )
        found = props.to_dict(one.message.properties)
        assert (found["TRANSACTION_CHECK_TIMES"], found["HMQ_QUERY_ID"], found["UNIQ_KEY"]) == ("1", "order-7", ONE)
        assert client.pushes.empty(), "who fetches is not pushed to"
        assert (await client.ask(37, verdict(one, 8))).ext["HMQ_VERDICT"] == "COMMITTED"
        store = running.broker._store
        assert store is not None
        row = store.transaction_row(0)
        assert row is not None
        assert row.decided_by == 2
        assert running.broker._check_polls.held == 0


async def test_a_poll_dies_with_its_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client, other = await running.client(), await running.client()
        waiting = asyncio.create_task(fetch(client))
        await until(lambda: running.broker._check_polls.held == 1)
        await client.close()
        waiting.cancel()
        await until(lambda: not running.broker._check_polls.held)
        assert not running.state.producer_groups["P"].session.pollers
        await other.half("T", b"one", unique=ONE)
        assert len(halves(await fetch(other))) == 1


async def test_a_poll_is_answered_when_the_broker_drains(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        waiting = asyncio.create_task(fetch(client))
        await until(lambda: running.broker._check_polls.held)
        draining = asyncio.create_task(running.broker.drain())
        assert halves(await waiting) == []
        await draining


async def test_nothing_is_handed_out_before_its_record_is_durable(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, settings=QUICK, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, sender = await running.client(), await running.client()
        prepared = asyncio.create_task(sender.half("T", b"one", unique=ONE))
        await until(lambda: not hand.flush.run() and prepared.done())
        waiting = asyncio.create_task(fetch(client))
        await until(lambda: running.state.producer_groups["P"].session.in_flight)
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).code == 0, "it comes after what is handed out"
        assert not waiting.done()
        hand.flush.run()
        assert len(halves(await waiting)) == 1


async def test_a_parked_poll_keeps_nothing_that_its_answer_does_not_need(tmp_path: Path) -> None:
    """A body, a remark and fields that nobody reads may be as large as a frame, and it waits for 25 s."""
    async with serving(tmp_path) as running:
        client = await running.client()
        ext = {"group": "P", "clientId": "poller", "waitMs": "9000", "more": "x" * 9_000}
        client.write(command(FETCH, 4_711, ext, b"x" * 9_000, remark="x" * 9_000))
        parked = running.broker._check_polls._held
        await until(lambda: parked)
        (one,) = parked.values()
        _, kept = one.answer.args
        assert (kept.body, kept.remark, kept.ext) == (b"", None, None)
        running.broker._check_polls.drain()
        running.broker._peers.flush()
        assert (await soon(client.expect(4_711))).code == 0
