"""An id that an application chose, and whose transaction was settled, is refused for as long as the log holds the verdict: after the
deduplication window, after a restart, with indexes rebuilt from the log; over raw frames and with our client."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.scenarios.test_verdicts import assert_conflict, visible
from tests.support.in_process import Running, serving, until
from tests.support.raw_client import Answer, RawClient, command, property_string, send_ext

from halfmq import AsyncClient, TransactionRefused, compose
from halfmq.model.settings import BrokerSettings

COMMIT, ROLLBACK = 8, 12
#: A window of one verdict: the next one pushes it out of memory.
FORGETFUL = BrokerSettings(dedup_ids_max=1)
ORDER = "order-17"
#: Of the form of a UNIQ_KEY, and still chosen.
LOOKS_MADE = "0123456789ABCDEF0123456789ABCDEF"


async def settle(client: RawClient, tx_id: str, verdict: int, *, unique: str, body: bytes = b"one") -> Answer:
    half = await client.half("T", body, unique=unique, HMQ_TX_ID=tx_id, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1")
    assert half.code == 0, half
    settled = await client.end(half, unique, verdict, HMQ_TX_ID=tx_id)
    assert settled.code == 0, settled
    return settled


async def forget(client: RawClient, running: Running, tx_id: str) -> None:
    """Let another verdict push this one out of memory."""
    half = await client.half("Other", b"other", unique=f"{len(running.state.verdicts):032d}", group="Others")
    assert (await client.end(half, f"{len(running.state.verdicts):032d}", COMMIT, group="Others")).code == 0
    assert all(tx_id not in group.settled for group in running.state.producer_groups.values())


async def again(client: RawClient, tx_id: str, *, unique: str, group: str = "P") -> Answer:
    return await client.half(
        "T", b"again", unique=unique, group=group, HMQ_TX_ID=tx_id, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1"
    )


@pytest.mark.parametrize("tx_id", [ORDER, LOOKS_MADE])
@pytest.mark.parametrize(("verdict", "standing"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")])
@pytest.mark.parametrize("unique", ["A" * 32, "B" * 32], ids=["the same half", "another message"])
async def test_a_settled_id_is_refused_after_the_window(
    tmp_path: Path, tx_id: str, verdict: int, standing: str, unique: str
) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        settled = await settle(client, tx_id, verdict, unique="A" * 32)
        await forget(client, running, tx_id)
        refused = await again(client, tx_id, unique=unique)
        assert_conflict(refused, standing)
        assert refused.ext["HMQ_POSITION"] == settled.ext["HMQ_POSITION"]
        assert len(await visible(client)) == (verdict == COMMIT)
        assert (await again(client, tx_id, unique="C" * 32, group="Elsewhere")).code == 0, "ids belong to a group"
        assert (await again(client, f"{tx_id}0", unique="D" * 32)).code == 0
