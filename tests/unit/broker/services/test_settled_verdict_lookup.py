"""Operators are told a verdict that memory has forgotten, from the transaction table, for as long as the log has it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.services import FakePeer

from halfmq.broker.services import settled_verdict_lookup as settled_verdict_lookup
from halfmq.model.settings import BrokerSettings
from halfmq.model.share import share_of
from halfmq.store.transaction_table import SearchResult, row_hash

STORY, RESOLVE, ASK = 29_003, 29_004, 29_006
ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"
THREE = "AC10000100002A9F0000000000000003"
#: Memory knows the last verdict only.
FORGETFUL = BrokerSettings(dedup_ids_max=1)


async def settled(client: RawClient, unique: str, wanted: int, *, group: str = "P") -> Answer:
    half = await client.half("orders", b"body", unique=unique, group=group)
    return await client.end(half, unique, wanted, group=group)


async def resolve(client: RawClient, tx_id: str, verdict: str, **more: str) -> Answer:
    return await client.ask(RESOLVE, {"txId": tx_id, "verdict": verdict, "operator": "ada", **more})


def forgotten(running: Running, tx_id: str, group: str = "P") -> bool:
    known = running.state.producer_groups[group]
    return tx_id not in known.settled and tx_id not in known.undecided


async def test_operator_gets_a_forgotten_verdict_as_the_producer_does(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        first = await settled(client, ONE, 8)
        await settled(client, TWO, 12)
        await settled(client, THREE, 8)
        assert forgotten(running, ONE)
        assert forgotten(running, TWO)
        before = running.log_bytes()
        for named in ({"group": "P"}, {}):
            same = await resolve(client, ONE, "COMMIT", **named)
            assert (same.code, same.ext["HMQ_VERDICT"], same.ext["HMQ_REPEATED"]) == (0, "COMMITTED", "true"), same
            assert (same.ext["HMQ_POSITION"], same.ext["HMQ_TX_ID"]) == (first.ext["HMQ_POSITION"], ONE)
            opposite = await resolve(client, ONE, "ROLLBACK", **named)
            assert (opposite.code, opposite.ext["HMQ_VERDICT"]) == (604, "COMMITTED")
            refused = await client.ask(ASK, {"txId": TWO, **named})
            assert (refused.code, refused.ext["HMQ_VERDICT"]) == (604, "ROLLED_BACK")
        assert running.log_bytes() == before, "nothing was decided"


async def test_story_of_a_forgotten_verdict_says_what_it_was_and_who_decided(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        first = await resolve(client, ONE, "ROLLBACK")
        await settled(client, TWO, 8, group="Q")
        await settled(client, THREE, 8)
        for named in ({"group": "P"}, {}):
            told = await client.ask(STORY, {"txId": ONE, **named})
            assert told.ext == {"group": "P", "state": "ROLLED_BACK"}
            (sentence,) = json.loads(told.body)
            assert f"at log position {first.ext['HMQ_POSITION']}, decided by an operator" in sentence
            assert "never visible" in sentence
        assert (await client.ask(STORY, {"txId": TWO})).ext == {"group": "Q", "state": "COMMITTED"}


async def test_a_forgotten_verdict_is_found_after_a_restart_and_in_the_file(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        first = await settled(client, ONE, 8)
        await settled(client, TWO, 12)
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        running.broker._store.indexes.table._pages.clear()  # type: ignore[union-attr]  # rows written long ago
        same = await resolve(client, ONE, "COMMIT")
        assert (same.code, same.ext["HMQ_POSITION"]) == (0, first.ext["HMQ_POSITION"])


async def test_what_the_table_does_not_have_is_unknown_and_the_answer_says_where_was_looked(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        for ext in ({"txId": "never"}, {"txId": "never", "group": "P"}, {"txId": ONE, "group": "Q"}):
            told = await client.ask(STORY, ext)
            assert told.ext["state"] == "UNKNOWN"
            assert "transaction table has no verdict of it" in json.loads(told.body)[-1]
            refused = await client.ask(RESOLVE, {**ext, "verdict": "COMMIT", "operator": "ada"})
            assert refused.code == 1
            assert refused.remark is not None
            assert "transaction table has no verdict of it" in refused.remark
            assert (await client.ask(ASK, ext)).code == 1


async def test_a_bounded_look_says_how_far_it_went(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(settled_verdict_lookup, "FILES_MAX", 0)
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        running.broker._store.indexes.table._pages.clear()  # type: ignore[union-attr]
        refused = await resolve(client, ONE, "COMMIT")
        assert refused.code == 1
        assert refused.remark is not None
        assert "newest 0 rows of the transaction table" in refused.remark
        assert "halfmq store dump" in refused.remark


async def test_a_verdict_that_was_trimmed_away_is_past_retention(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        running.state.log_start = running.state.log_end  # as if it had been trimmed; the table's file goes later
        told = await client.ask(STORY, {"txId": ONE, "group": "P"})
        assert told.ext["state"] == "UNKNOWN"
        assert "past retention" in json.loads(told.body)[-1]
        refused = await resolve(client, ONE, "COMMIT", group="P")
        assert refused.code == 1
        assert "past retention" in str(refused.remark)


async def test_a_row_of_another_transaction_with_the_same_hashes_is_not_believed(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        table = running.broker._store.indexes.table  # type: ignore[union-attr]
        page, at = table._row_for_change(0)
        page[at + 48 : at + 56] = row_hash(THREE).to_bytes(8, "big", signed=True)
        assert (await resolve(client, THREE, "COMMIT")).code == 1
        assert (await client.ask(STORY, {"txId": THREE})).ext["state"] == "UNKNOWN"


async def test_too_many_looks_at_once_are_refused_and_the_others_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        running.broker._store.indexes.table._pages.clear()  # type: ignore[union-attr]
        asked = [resolve(client, ONE, "COMMIT") for _ in range(4 * settled_verdict_lookup.LOOKS_MAX)]
        answers = await asyncio.gather(*asked)
        codes = {answer.code for answer in answers}
        assert codes == {0, 2}
        assert sum(answer.code == 0 for answer in answers) >= share_of(settled_verdict_lookup.LOOKS_MAX)
        busy = "address 127.0.0.1 has 3 of 4 searches of the transaction table, and one address may have 3: try again"
        assert {busy in str(answer.remark) for answer in answers if answer.code} == {True}
        assert (await resolve(client, ONE, "COMMIT")).code == 0


async def test_a_table_that_cannot_be_read_is_no_verdict_and_no_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, settings=FORGETFUL) as running:
        client = await running.client()
        await settled(client, ONE, 8)
        await settled(client, TWO, 8)
        running.broker._store.indexes.table._pages.clear()  # type: ignore[union-attr]

        def broken(*_: Any) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(running.broker._store, "search_settled", broken)
        for answer in (await client.ask(STORY, {"txId": ONE}), await resolve(client, ONE, "COMMIT")):
            assert (answer.code, "could not be read" in str(answer.remark)) == (2, True)


def test_one_user_leaves_others_a_search_of_the_table() -> None:
    work: list[tuple[Any, Any]] = []

    class Offload:
        def run(self, call: Any, done: Any) -> None:
            work.append((call, done))

    class Table:
        def find_settled(self, group: str, tx_id: str) -> SearchResult:
            return SearchResult([], 0, True)

        search_settled = None

    lookup = settled_verdict_lookup.SettledVerdictLookup(None, Table(), Offload())  # type: ignore[arg-type]
    looks: list[Any] = []
    for number in range(4):
        lookup.look(FakePeer(number, user="flood"), "PG", "T", looks.append)  # type: ignore[arg-type]
    (refused,) = looks
    assert refused.text == (
        "user 'flood' has 3 of 4 searches of the transaction table, and one user may have 3: try again"
    )
    lookup.look(FakePeer(5, user="shop"), "PG", "T", looks.append)  # type: ignore[arg-type]
    assert (len(work), len(looks)) == (4, 1)
    for _, done in work:
        done(OSError("broken"))
    lookup.look(FakePeer(6, user="flood"), "PG", "T", looks.append)  # type: ignore[arg-type]
    assert len(work) == 5
