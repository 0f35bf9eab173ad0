"""A fence as frames: it stands after a restart, with indexes rebuilt from the log, and after it left memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.test_chosen_ids import (
    FORGETFUL,
    again,
    checkpoint,
    forget,
    lose_everything_but_the_log,
    lose_nothing,
    lose_the_index,
    settle,
)
from tests.scenarios.test_verdicts import assert_conflict
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient

from halfmq.runtime.disk import RealDisk
from halfmq.store.verify import verify_store

COMMIT, ROLLBACK = 8, 12


async def fence(client: RawClient, tx_id: str, *, since: int = 0, group: str = "P") -> Answer:
    return await client.ask(29_026, {"group": group, "txId": tx_id, "since": str(since)})


@pytest.mark.parametrize("lose", [lose_nothing, lose_everything_but_the_log, lose_the_index])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_what_was_fenced_cannot_be_prepared_after_a_restart(
    tmp_path: Path, lose: Callable[[Path], None], checkpointed: bool
) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        began = int((await client.ask(29_026, {})).ext["HMQ_POSITION"])
        fenced = await fence(client, "tcc.1", since=began)
        assert (fenced.code, fenced.ext["HMQ_VERDICT"]) == (0, "ROLLED_BACK")
        assert int(fenced.ext["HMQ_POSITION"]) >= began
        if checkpointed:
            await checkpoint(running)
        await forget(client, running, "tcc.1")
        assert_conflict(await again(client, "tcc.1", unique="A" * 32), "ROLLED_BACK")
    lose(tmp_path)
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        assert_conflict(await again(client, "tcc.1", unique="A" * 32), "ROLLED_BACK")
        assert (await fence(client, "tcc.1", since=began)).ext == fenced.ext
        assert (await again(client, "tcc.2", unique="B" * 32)).code == 0
    found = verify_store(RealDisk(), tmp_path)
    assert not found.findings


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(("verdict", "standing"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")])
async def test_a_fence_says_what_was_decided(tmp_path: Path, verdict: int, standing: str, remembered: bool) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        settled = await settle(client, "tcc.1", verdict, unique="A" * 32)
        if not remembered:
            await forget(client, running, "tcc.1")
        assert (await fence(client, "tcc.1")).ext == {
            "HMQ_VERDICT": standing, "HMQ_POSITION": settled.ext["HMQ_POSITION"],
        }  # fmt: skip


async def test_a_fence_leaves_what_is_prepared_to_its_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await again(client, "tcc.1", unique="A" * 32)
        assert (await fence(client, "tcc.1")).ext == {"HMQ_VERDICT": "UNDECIDED"}
        assert (await client.end(half, "A" * 32, COMMIT, HMQ_TX_ID="tcc.1")).code == 0
        assert (await fence(client, "tcc.1")).ext["HMQ_VERDICT"] == "COMMITTED"
        assert (await fence(client, "tcc.1", group="Other")).ext["HMQ_VERDICT"] == "ROLLED_BACK", (
            "ids belong to a group"
        )


async def test_a_log_that_has_not_come_so_far_is_another_one(tmp_path: Path) -> None:
    """Such as an older copy that was restored: it may not have the verdict that the lost one gave."""
    async with serving(tmp_path) as running:
        client = await running.client()
        end = int((await client.ask(29_026, {})).ext["HMQ_POSITION"])
        refused = await fence(client, "tcc.1", since=end + 1)
        assert (refused.code, "another log" in (refused.remark or "")) == (1, True)
        assert (await fence(client, "tcc.1", since=end)).ext["HMQ_VERDICT"] == "ROLLED_BACK"


async def test_an_id_that_a_client_generates_is_not_fenced(tmp_path: Path) -> None:
    """Such ids are not searched in the log, so once memory has forgotten its fence it would be new again."""
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        refused = await fence(client, "1-7f000001-1a220075562-4876-d7fbc61d-1")
        assert (refused.code, "generates" in (refused.remark or "")) == (29, True), refused
        assert (await fence(client, "tcc.1-7f000001-1a220075562-4876-d7fbc61d-1")).code == 0
