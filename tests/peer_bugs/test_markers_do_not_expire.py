"""What the application's database says of a transaction stays there for as long as anybody may ask."""

from pathlib import Path

from sqlalchemy import insert

from halfmq import AsyncClient
from tests.peer_bugs.services import DAY_MS, QUICK, LaterClock, Shop, undecided, url, visible
from tests.support.in_process import serving
from tests.support.waiting import until


async def test_marker_of_an_undecided_transaction_is_not_cleaned_up(tmp_path: Path) -> None:
    """Seata with RocketMQ (SeataMQProducer; incubator-seata-go PR #1054, incubator-seata#3612): the coordinator says
    "finished" of every session that it no longer holds, and the check takes that for ROLLBACK. COMMIT was lost on its way,
    the session was removed, the check came: the order stood in the database and its message was thrown away.

    What is held here is the marker row. Its COMMIT was lost and the marker is two days old; the clean-up of old markers
    removes those of settled transactions and leaves this one, since the broker still asks about it. The check finds it.
    """
    async with Shop.on(tmp_path / "shop.db") as shop:
        async with serving(tmp_path / "broker", settings=QUICK) as running:
            tx_id = await shop.order_whose_commit_is_lost(running)
        async with shop.engine.begin() as connection:
            settled = insert(shop.log.table).values(
                tx_id="settled-long-ago", outcome="C", written_at_ms=DAY_MS * 20_000
            )
            await connection.execute(settled)
        await shop.grows_old(days=2)
        async with serving(tmp_path / "broker", settings=QUICK) as running:
            async with AsyncClient(url(running), group="clean-up") as mq, shop.sessions() as session:
                while await shop.log.prune_async(session, older_than_s=86_400, undecided=mq.undecided):
                    await session.commit()
            assert "settled-long-ago" not in await shop.markers(), "nothing was cleaned up, so nothing is shown"
            mq = AsyncClient(url(running), group="orders")
            mq.answer_checks(shop.log, shop.sessions)
            async with mq:
                await until(lambda: undecided(running) == set(), "the check settles it")
            assert await visible(running) == [b"order 1"], "the order is committed, and its message was rolled back"
            assert await shop.markers() == {tx_id: "C"}, f"the markers are {await shop.markers()}"


async def test_message_of_a_committed_order_is_sent_after_any_outage(tmp_path: Path) -> None:
    """django-outbox-pattern: a row that was not sent for a day expires and is never sent; old rows are deleted by age,
    whatever their status. A relay that was down over a weekend lost what was ordered before it, and says nothing.

    There is no relay here: body and undecided state wait in the broker, the decision in the marker. Both are eight days old, the log was
    trimmed by its age of three days meanwhile (an operator confirms the clock); when the service is back, the message goes out, once.
    """
    async with Shop.on(tmp_path / "shop.db") as shop:
        small = {"settings": QUICK, "segment_bytes": 1 << 16}
        async with serving(tmp_path / "broker", **small) as running:
            tx_id = await shop.order_whose_commit_is_lost(running)
        async with serving(tmp_path / "broker", **small) as running:
            client = await running.client()
            for number in range(20):  # segments that can be trimmed
                assert (await client.send("Fill", bytes(8_000), unique=f"{number:032d}")).code == 0
        await shop.grows_old(days=8)
        async with serving(
            tmp_path / "broker", **small, clock=LaterClock(days=8), retention_ms=3 * DAY_MS, retention_check_ms=20,
            checkpoint_interval_ms=20, trust_clock=True,
        ) as running:  # fmt: skip
            await until(lambda: running.state.log_start > 0, "retention trims the log")
            assert undecided(running) == {tx_id}, "given up by age"
            mq = AsyncClient(url(running), group="orders")
            mq.answer_checks(shop.log, shop.sessions)
            async with mq:
                await until(lambda: undecided(running) == set(), "the message of a committed order is sent")
            assert await visible(running) == [b"order 1"], f"consumers see {await visible(running)}"
