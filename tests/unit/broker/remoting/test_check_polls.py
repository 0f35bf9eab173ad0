"""Checks that are fetched: parked until there are some, answered once, leased, given back."""

import asyncio
from pathlib import Path

from tests.support.in_process import Hand, serving
from tests.support.raw_client import Answer, RawClient, command
from tests.support.waiting import until

from halfmq.core.decision import SendCheck
from halfmq.model import properties as props
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability
from halfmq.wire.remoting.message_codec import PulledMessage, decode_pulled

FETCH, STORY = 29_009, 29_003
ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"
QUICK = BrokerSettings(check_immunity_ms=100, check_interval_ms=50, check_interval_max_ms=200, check_answer_ms=300)


async def fetch(client: RawClient, wait_ms: int = 5_000, group: str = "P", **more: str) -> Answer:
    ext = {"group": group, "clientId": "poller", "waitMs": str(wait_ms), **more}
    return await asyncio.wait_for(client.ask(FETCH, ext), 10)


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
        waiting = asyncio.create_task(fetch(client, 20_000))
        await until(lambda: running.broker._check_polls.held)
        draining = asyncio.create_task(running.broker.drain())
        assert halves(await waiting) == []
        await draining


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for changes in ({"group": ""}, {"group": "a b"}, {"clientId": ""}, {"waitMs": "x"}, {"max": "0"}):
            ext = {"group": "P", "clientId": "me", "waitMs": "0", **changes}
            assert (await client.ask(FETCH, ext)).code == 29, changes


async def test_what_comes_too_late_for_its_poll_is_neither_pushed_nor_counted(tmp_path: Path) -> None:
    settings = BrokerSettings(check_immunity_ms=50, check_answer_ms=60_000)
    async with serving(tmp_path, settings=settings) as running:
        client = await running.client()
        await client.half("T", b"one", unique=ONE)
        (one,) = halves(await fetch(client))
        group = running.state.producer_groups["P"]
        (connection,) = group.session.pollers
        late = SendCheck(connection, "P", ONE, one.message.queue_offset, one.log_offset, one.log_offset, 1)
        running.broker._checks.send(late)
        await asyncio.sleep(0.05)
        assert client.pushes.empty()
        assert group.undecided[ONE].checks == 0
        assert len(halves(await fetch(client))) == 1


async def test_nothing_is_handed_out_before_its_record_is_durable_though_time_is_up(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, settings=QUICK, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, sender = await running.client(), await running.client()
        prepared = asyncio.create_task(sender.half("T", b"one", unique=ONE))
        await until(lambda: running.state.producer_groups)
        hand.flush.run()
        await prepared
        waiting = asyncio.create_task(fetch(client, 200))
        await until(lambda: running.state.producer_groups["P"].session.in_flight)
        await asyncio.sleep(0.25)
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
        while not parked:
            await asyncio.sleep(0.005)
        (one,) = parked.values()
        _, kept = one.answer.args
        assert (kept.body, kept.remark, kept.ext) == (b"", None, None)
        running.broker._check_polls.drain()
        running.broker._gateway.flush()
        assert (await asyncio.wait_for(client.expect(4_711), 5)).code == 0
