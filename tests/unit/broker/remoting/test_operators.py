"""An operator sees what is undecided and settles it; who it was stands in the log, and in the broker's output."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Hand, ShiftedClock, serving
from tests.support.raw_client import Answer, RawClient, command
from tests.support.waiting import soon, until

from halfmq.broker.services.group_scan import GroupScan
from halfmq.core.decision import Refused
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.store.store import Durability
from halfmq.store.verify import verify_store
from halfmq.wire.remoting.header import Request

LIST, STORY, RESOLVE = 29_002, 29_003, 29_004
ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"


async def resolve(client: RawClient, tx_id: str, verdict: str, **more: str) -> Answer:
    return await client.ask(RESOLVE, {"txId": tx_id, "verdict": verdict, "operator": "ada", **more})


async def test_undecided_transactions_are_listed_with_who_could_be_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, names = await running.client(), await running.client(names=True)
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        await client.half("stock", b"two", unique=TWO, group="Q")
        answer = await names.ask(LIST)
        assert (answer.code, answer.ext["total"]) == (0, "2")
        rows = {row["tx_id"]: row for row in json.loads(answer.body)}
        assert (rows[ONE]["group"], rows[ONE]["topics"], rows[ONE]["producers"]) == ("P", ["orders"], 1)
        assert (rows[TWO]["group"], rows[TWO]["topics"], rows[TWO]["producers"]) == ("Q", ["stock"], 0)
        only = await client.ask(LIST, {"group": "Q", "max": "1"})
        assert (only.ext["total"], [row["tx_id"] for row in json.loads(only.body)]) == ("1", [TWO])


async def test_story_is_told_in_sentences_and_finds_the_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("orders", b"one", unique=ONE)
        told = await client.ask(STORY, {"txId": ONE})
        assert (told.code, told.ext) == (0, {"group": "P", "state": "UNDECIDED"})
        assert "prepared by producer group P" in json.loads(told.body)[0]
        await client.end(half, ONE, 12)
        told = await client.ask(STORY, {"txId": ONE, "group": "P"})
        assert told.ext["state"] == "ROLLED_BACK"
        assert (await client.ask(STORY, {"txId": TWO})).ext["state"] == "UNKNOWN"


async def test_operators_verdict_is_answered_as_that_of_a_producer_and_survives(tmp_path: Path) -> None:
    """Who is named in the output: ``services/test_transactions``."""
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("orders", b"one", unique=ONE)
        assert (await resolve(client, ONE, "ROLLBACK", group="Q")).code == 1, "that of another group"
        first = await resolve(client, ONE, "ROLLBACK")
        assert (first.code, first.ext["HMQ_VERDICT"], first.ext["HMQ_REPEATED"]) == (0, "ROLLED_BACK", "false")
        assert (first.ext["group"], first.ext["HMQ_TX_ID"], first.ext["HMQ_DURABILITY"]) == ("P", ONE, "memory")
        again = await resolve(client, ONE, "ROLLBACK")
        assert (again.ext["HMQ_REPEATED"], again.ext["HMQ_POSITION"]) == ("true", first.ext["HMQ_POSITION"])
        opposite = await resolve(client, ONE, "COMMIT")
        assert (opposite.code, opposite.ext["HMQ_VERDICT"]) == (604, "ROLLED_BACK")
        assert running.broker._store.transaction_row(0).decided_by == 4
    async with serving(tmp_path) as running:
        late = await (await running.client()).end(half, ONE, 12)
        assert (late.ext["HMQ_REPEATED"], late.ext["HMQ_POSITION"]) == ("true", first.ext["HMQ_POSITION"])


async def test_undecided_ones_among_some_are_told_whatever_their_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        settled = await client.half("orders", b"two", unique=TWO, group="Q")
        await client.end(settled, TWO, 12, group="Q")
        asked = json.dumps([ONE, TWO, "never"]).encode()
        answer = await client.ask(29_005, None, asked)
        assert (answer.code, json.loads(answer.body)) == (0, [ONE])
        assert json.loads((await client.ask(29_005, None, b"[]")).body) == []


async def test_nothing_is_told_that_a_crash_could_take_back(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, asker = await running.client(), await running.client()
        half = asyncio.create_task(client.half("orders", b"one", unique=ONE))
        await until(lambda: running.state.producer_groups)
        told = asyncio.create_task(asker.ask(LIST))
        decided = asyncio.create_task(resolve(asker, ONE, "COMMIT"))
        await until(lambda: not running.state.producer_groups["P"].undecided)
        assert (await asker.ask(30, {"topic": "orders", "queueId": "0"})).code == 0, "it comes after them"
        assert not told.done()
        assert not decided.done()
        await until(lambda: not hand.flush.run() and decided.done())
        assert (await told).code == (await half).code == 0
        assert (await decided).ext["HMQ_VERDICT"] == "COMMITTED"


def logged(directory: Path) -> list[dict[str, object]]:
    """What operators did, as ``store dump`` shows it: each with the kind of the record behind it."""
    lines = [json.loads(line) for line in dump_store(RealDisk(), directory)]
    return [
        {**{name: line[name] for name in ("action", "subject", "name", "reason")}, "peer": line["peer"].split(":")[0],
         "then": then["kind"]}
        for line, then in pairwise(lines)
        if line["kind"] == "operator_acted"
    ]  # fmt: skip


async def test_the_log_says_who_did_what_why_and_from_where(tmp_path: Path) -> None:
    """A verdict and a policy by name; what mqadmin does has no name, so the address must do."""
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        assert (await resolve(client, ONE, "COMMIT", reason="ticket 4711")).code == 0
        fields = {"group": "P", "operator": "bob", "reason": "too many"}
        assert (await client.ask(29_007, fields, json.dumps({"undecided_max": 5}).encode())).code == 0
        await client.ask(17, {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"})
        await client.ask(200, body=json.dumps({"groupName": "C"}).encode())
        await client.ask(15, {"consumerGroup": "C", "topic": "T", "queueId": "0", "commitOffset": "0"})
        await client.ask(215, {"topic": "T"})
    by_hand = {"name": "", "reason": "", "peer": "127.0.0.1"}
    assert logged(tmp_path) == [
        {"action": "commit", "subject": ONE, "name": "ada", "reason": "ticket 4711", "peer": "127.0.0.1", "then": "committed"},
        {"action": "set_producer", "subject": "P", "name": "bob", "reason": "too many", "peer": "127.0.0.1",
         "then": "producer_set"},
        {"action": "set_topic", "subject": "T", **by_hand, "then": "topic_set"},
        {"action": "set_group", "subject": "C", **by_hand, "then": "group_set"},
        {"action": "reset_offset", "subject": "C", **by_hand, "then": "offsets"},
        {"action": "delete_topic", "subject": "T", **by_hand, "then": "topic_deleted"},
    ]  # fmt: skip
    assert verify_store(RealDisk(), tmp_path).findings == ()


async def test_members_that_say_how_far_they_are_are_no_operators(tmp_path: Path) -> None:
    """Whether they wait for the answer or not; and who does not wait for it is a stock client that has not come back yet."""
    async with serving(tmp_path) as running:
        client, late = await running.client(), await running.client()
        await client.send("T", b"x", unique=ONE)
        await client.heartbeat("me", consumers={"C": ["T"]})
        offset = {"consumerGroup": "C", "topic": "T", "queueId": "0"}
        assert (await client.ask(15, {**offset, "commitOffset": "0"})).code == 0
        late.tell(15, {**offset, "commitOffset": "1"})
        assert (await late.ask(14, offset)).ext == {"offset": "1"}
    assert logged(tmp_path) == []


async def test_the_story_names_the_operator_also_after_a_restart_and_when_memory_has_forgotten(tmp_path: Path) -> None:
    says = "decided by an operator (ada from 127.0.0.1:"
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        await resolve(client, ONE, "ROLLBACK", reason="ticket 4711")
        (told,) = json.loads((await client.ask(STORY, {"txId": ONE})).body)
        assert says in told
        assert "reason: ticket 4711)" in told
    async with serving(tmp_path, clock=clock, settings=BrokerSettings(dedup_window_ms=1)) as running:
        client = await running.client()
        clock.passed_ms += 10
        await client.send("orders", b"later", unique=TWO)
        assert not running.state.verdicts, "only the table knows"
        (told,) = json.loads((await client.ask(STORY, {"txId": ONE, "group": "P"})).body)
        assert says in told


def kept_requests(function: Any) -> list[Request[Any]]:
    """The requests that a function and those that it refers to hold."""
    found = []
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, Request):
            found.append(cell.cell_contents)
        elif callable(cell.cell_contents) and hasattr(cell.cell_contents, "__closure__"):
            found += kept_requests(cell.cell_contents)
    return found


async def test_who_waits_for_a_look_at_all_groups_keeps_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, kept = GroupScan.run, []

    def seen(scan: GroupScan, peer: Any, look: Any, then: Any) -> Refused | None:
        kept.append(kept_requests(look) + kept_requests(then))
        return run(scan, peer, look, then)

    monkeypatch.setattr(GroupScan, "run", seen)
    async with serving(tmp_path) as running:
        client = await running.client()
        one, large = {"txId": ONE}, json.dumps([ONE, "x" * 9_000]).encode()
        resolved = one | {"operator": "ada", "verdict": "COMMIT"}
        for code, ext, body in (
            (29_003, one | {"more": "x" * 9_000}, large), (29_004, resolved, b""), (29_005, {}, large), (29_006, one, b""),
        ):  # fmt: skip
            client.write(command(code, code, ext, body, remark="x" * 9_000))
            await soon(client.expect(code))
        assert len(kept) == 4
        for requests in kept:
            assert requests
            for request in requests:
                assert (request.body, request.remark, request.ext) == (b"", None, None)
