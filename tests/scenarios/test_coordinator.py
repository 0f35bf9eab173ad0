"""A coordinator of another system, with both faces of the client and a broker over sockets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.test_relay import read, url_of
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq import AsyncClient, Client, Outcome, Prepared, Xid, compose, limits
from halfmq.cli import coordinator as cli
from halfmq.cli import tx as cli_tx
from halfmq.errors import (
    CoordinatorSuperseded,
    RequestFailed,
    ServerBusy,
    TransactionIncomplete,
    TransactionRefused,
    TransactionUndecided,
    TransactionUnknown,
    UsageError,
)
from halfmq.model.address import parse_address
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.codes import HMQ_COORDINATORS, HMQ_FORGET_COORDINATOR, HMQ_TAKE_EPOCH

XID = Xid(1, b"transfer-7", b"halfmq")
MESSAGES = [compose("t", "1"), compose("t", "2")]


class Blocking:
    """The blocking face of an object, called in another thread."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        return (lambda *given, **named: asyncio.to_thread(value, *given, **named)) if callable(value) else value


Open = Callable[..., Any]


@asynccontextmanager
async def opened(face: str, broker: Running, group: str = "bank") -> AsyncIterator[Any]:
    if face == "async":
        async with AsyncClient(url_of(broker), group=group) as mq:
            yield mq
        return
    client = Client(url_of(broker), group=group)
    await asyncio.to_thread(client.connect)
    try:
        yield Blocking(client)
    finally:
        await asyncio.to_thread(client.close)


async def coordinator_of(face: str, mq: Any, name: str = "transfers") -> Any:
    return mq.coordinator(name) if face == "async" else Blocking(await mq.coordinator(name))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "data") as running:
        yield running


EACH_FACE = pytest.mark.parametrize("face", ["async", "blocking"])


@EACH_FACE
async def test_a_coordinator_from_its_start_to_its_successor(broker: Running, face: str) -> None:
    async with opened(face, broker) as mq, opened(face, broker) as other:
        first = await coordinator_of(face, mq)
        assert await first.recover() == []
        assert dict(first.epochs) == {"halfmq": 1}
        prepared = await first.prepare(MESSAGES, branch=XID, comment="ask the bank", advice=Outcome.COMMIT)
        assert (prepared.tx_id, prepared.coordinator) == (XID.tx_id, "1 transfers")
        assert Prepared.from_json(prepared.to_json()) == prepared
        with pytest.raises(TransactionUndecided):
            await first.prepare(MESSAGES, branch=XID)
        plain = await first.prepare(MESSAGES[:1], branch=b"\x01\xff")

        second = await coordinator_of(face, other)
        left, also = await second.recover()
        assert dict(second.epochs) == {"halfmq": 2}
        assert (left.tx_id, left.branch, left.comment, left.advice) == (
            XID.tx_id,
            str(XID),
            "ask the bank",
            Outcome.COMMIT,
        )
        assert Xid.parse(left.branch) == XID
        assert (left.epoch, left.messages, left.topics, left.broker) == (1, 2, ("t",), "halfmq")
        assert left.is_complete
        assert (also.tx_id, also.branch, also.comment, also.advice) == (plain.tx_id, "01ff", "", None)
        assert left.prepared_at_ms <= also.prepared_at_ms
        for late in (
            lambda: first.settle(prepared, Outcome.COMMIT),
            lambda: first.settle(plain.tx_id, Outcome.ROLLBACK),
            lambda: first.prepare(MESSAGES),
        ):
            with pytest.raises(CoordinatorSuperseded, match="took over with epoch 2"):
                await late()
        assert await second.outcome(XID.tx_id) == "UNDECIDED"

        receipt = await second.settle(XID.tx_id, Outcome.COMMIT)
        assert (receipt.verdict, receipt.repeated, receipt.message_ids) == ("COMMITTED", False, ())
        again = await second.settle(Prepared.from_json(prepared.to_json()), Outcome.COMMIT)
        assert (again.repeated, again.position, len(again.message_ids)) == (True, receipt.position, 2)
        with pytest.raises(TransactionRefused) as refused:
            await second.settle(XID.tx_id, Outcome.ROLLBACK)
        assert refused.value.standing == "COMMITTED"
        assert (await second.settle(also.tx_id, Outcome.ROLLBACK)).verdict == "ROLLED_BACK"
        found = [await first.outcome(tx_id) for tx_id in (XID.tx_id, plain.tx_id, "never")]
        assert found == ["COMMITTED", "ROLLED_BACK", "UNKNOWN"]
        with pytest.raises(RequestFailed, match="not among the recent verdicts"):
            await second.settle("never", Outcome.COMMIT)
        assert await first.recover() == [], "it may start again"
        assert sorted(await read(broker)) == ["1", "2"]


@EACH_FACE
async def test_what_is_wrong_is_said_before_anything_is_sent(broker: Running, face: str) -> None:
    async with opened(face, broker) as mq, opened(face, broker, "") as nobody:
        one = await coordinator_of(face, mq)
        for call in (lambda: one.prepare(MESSAGES), lambda: one.settle("T-1", Outcome.COMMIT)):
            with pytest.raises(UsageError, match=r"recover\(\) at the start"):
                await call()
        await one.recover()
        for wrong in (
            {"grace": -1}, {"grace": "1"}, {"branch": "\n"}, {"branch": 7}, {"branch": b"x" * 200}, {"tx_id": "a b"}, {"timeout": 0},
            {"comment": "x" * 201}, {"advice": Outcome.UNKNOWN},
        ):  # fmt: skip
            with pytest.raises(UsageError):
                await one.prepare(MESSAGES, **wrong)
        with pytest.raises(UsageError, match="without messages"):
            await one.prepare([])
        with pytest.raises(UsageError, match="has no messages"):
            await one.settle(Prepared("T-1", "bank", "", (), atomic=True), Outcome.COMMIT)
        for outcome in (Outcome.UNKNOWN, "COMMIT", None, []):
            with pytest.raises(UsageError, match=r"Outcome\.COMMIT or"):
                await one.settle("T-1", outcome)
        for name in ("", "a b", "x" * 65, None):
            with pytest.raises(UsageError, match="not the name of a coordinator"):
                await coordinator_of(face, mq, name)
        with pytest.raises(UsageError, match="need a group"):
            await coordinator_of(face, nobody)
        with pytest.raises(UsageError, match="no prepared transaction"):
            Prepared.from_json("{}")
    assert not broker.state.producer_groups["bank"].undecided


async def test_epochs_verdicts_and_what_waits_survive_a_kill_and_a_verdict_that_left_memory_is_found(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(dedup_ids_max=1)
    async with serving(tmp_path, settings=settings) as broker, AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator("transfers")
        await one.recover()
        for tx_id, outcome in (("T-1", Outcome.COMMIT), ("T-2", Outcome.ROLLBACK), ("T-3", Outcome.COMMIT)):
            await one.prepare(MESSAGES, tx_id=tx_id)
            await one.settle(tx_id, outcome)
        await one.prepare(MESSAGES, tx_id="T-4")
    async with serving(tmp_path, settings=settings) as broker, AsyncClient(url_of(broker), group="bank") as mq:
        assert "T-1" not in broker.state.producer_groups["bank"].settled
        two = mq.coordinator("transfers")
        assert [left.tx_id for left in await two.recover()] == ["T-4"]
        assert dict(two.epochs) == {"halfmq": 2}
        assert (await two.settle("T-1", Outcome.COMMIT)).repeated
        assert (await two.settle("T-2", Outcome.ROLLBACK)).repeated
        with pytest.raises(TransactionRefused) as refused:
            await two.settle("T-1", Outcome.ROLLBACK)
        assert refused.value.standing == "COMMITTED"
        assert [await two.outcome(f"T-{number}") for number in range(1, 5)] == [
            "COMMITTED", "ROLLED_BACK", "COMMITTED", "UNDECIDED",
        ]  # fmt: skip
        assert (await two.settle("T-4", Outcome.COMMIT)).verdict == "COMMITTED"


async def test_what_an_interrupted_process_left_incomplete_is_rolled_back(broker: Running) -> None:
    client = await broker.client()
    assert (await client.ask(HMQ_TAKE_EPOCH, {"group": "bank", "coordinator": "transfers", "takenBy": "dead"})).ext[
        "epoch"
    ] == "1"
    of_two = {"HMQ_TX_ID": "T-1", "HMQ_TX_INDEX": "0", "HMQ_COORDINATOR": "1 transfers"}
    await client.half("t", b"1", group="bank", unique="M-1", **of_two)
    async with AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator("transfers")
        (left,) = await one.recover()
        assert (left.messages, left.expected, left.is_complete) == (1, 0, False)
        with pytest.raises(TransactionIncomplete):
            await one.settle(left.tx_id, Outcome.COMMIT)
        assert (await one.settle(left.tx_id, Outcome.ROLLBACK)).verdict == "ROLLED_BACK"


@pytest.mark.parametrize("answers", [True, False], ids=["a check function that says ROLLBACK", "no check function"])
async def test_checks_decide_nothing_and_nobody_is_warned(
    tmp_path: Path, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    quick = BrokerSettings(check_interval_ms=20, check_interval_max_ms=20, check_answer_ms=200)
    async with serving(tmp_path, settings=quick) as broker, AsyncClient(url_of(broker), group="bank") as mq:
        asked = []
        if answers:
            mq.add_check("", lambda transaction: asked.append(transaction.id) or Outcome.ROLLBACK)
        one = mq.coordinator("transfers")
        await one.recover()
        await one.prepare(MESSAGES, tx_id="T-1", grace=0)
        group = broker.state.producer_groups["bank"]
        await until(lambda: group.undecided["T-1"].checks >= 4 and group.session.last_unknown, "it was checked")
        assert group.session.last_unknown["T-1"].remark == "its coordinator decides"
        assert not asked
        # A client that does not know coordinators answers for all of its group.
        with pytest.raises(RequestFailed, match="its coordinator 'transfers' alone"):
            await mq.rollback(Prepared("T-1", "bank", "", (await prepared_half(broker, "T-1"),), atomic=True))
        assert (await one.settle("T-1", Outcome.COMMIT)).verdict == "COMMITTED"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_verdict_without_answer_is_given_again_by_its_coordinator(broker: Running) -> None:
    async with AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator("transfers")
        await one.recover()
        prepared = replace(await one.prepare(MESSAGES, tx_id="T-1"), timeout_s=1e-9)
        with pytest.raises(TransactionUnknown, match="no check settles it"):
            await one.settle(prepared, Outcome.COMMIT)
        assert (await one.settle("T-1", Outcome.COMMIT)).verdict == "COMMITTED"


async def prepared_half(broker: Running, tx_id: str) -> Any:
    from halfmq.client.receipts import PreparedHalf

    half = broker.state.producer_groups["bank"].undecided[tx_id].halves[0]
    return PreparedHalf("", "t", "halfmq", "", half.first_offset, half.half_index)


async def test_an_epoch_is_taken_at_each_broker_and_each_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(tmp_path / "a", settings=BrokerSettings(broker_name="a")) as first,
        serving(tmp_path / "b", settings=BrokerSettings(broker_name="b")) as second,
        AsyncClient(url_of(first), group="bank") as mq,
        AsyncClient(url_of(second), group="bank") as of_second,
    ):
        for _ in range(3):
            alone = of_second.coordinator("transfers")
            await alone.recover()
        await alone.prepare(MESSAGES, tx_id="T-b")
        router = mq._context.router
        router._brokers["b"] = parse_address(f"127.0.0.1:{second.ports.broker}", 1)

        async def all_brokers() -> list[str]:
            return ["a", "b"]

        monkeypatch.setattr(router, "all_brokers", all_brokers)
        both = mq.coordinator("transfers")
        assert [(left.tx_id, left.broker) for left in await both.recover()] == [("T-b", "b")]
        assert dict(both.epochs) == {"a": 1, "b": 4}
        prepared = await both.prepare(MESSAGES, tx_id="T-a")
        assert (prepared.halves[0].broker, prepared.coordinator) == ("a", "1 transfers"), "the one that has the topic"
        another = mq.coordinator("transfers")
        await another.recover()
        assert [await another.outcome(tx_id) for tx_id in ("T-a", "T-b", "T-c")] == [
            "UNDECIDED",
            "UNDECIDED",
            "UNKNOWN",
        ]
        with pytest.raises(CoordinatorSuperseded):
            await both.settle("T-b", Outcome.COMMIT)
        another._broker_of.clear()
        for tx_id in ("T-a", "T-b"):
            assert (await another.settle(tx_id, Outcome.COMMIT)).verdict == "COMMITTED"
        assert sorted(await read(first)) == sorted(await read(second)) == ["1", "2"]
        router._brokers["c"] = router._brokers["a"]
        elsewhere = replace(prepared, halves=(prepared.halves[0]._replace(broker="c"),))
        with pytest.raises(UsageError, match="broker c was not there"):
            await another.settle(elsewhere, Outcome.COMMIT)


async def run(app: Any, running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"])


async def test_operators_see_coordinators_and_what_waits_for_them_and_let_the_broker_forget_one(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    forget = ("forget", "transfers", "--group", "bank", "--operator", "ada", "--reason", "gone for good", "--yes")
    listed = await run(cli.app, broker, "list")
    assert (listed.exit_code, listed.stdout, "0 coordinators" in listed.stderr) == (0, "", True)
    async with AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator("transfers")
        await one.recover()
        await one.prepare(MESSAGES, branch=XID)
        (row,) = json.loads((await run(cli.app, broker, "list", "--json")).stdout)["coordinators"]
        assert (row["coordinator"], row["group"], row["epoch"], row["undecided"]) == ("transfers", "bank", 1, 1)
        assert mq._context.membership.client_id in row["taken_by"]
        assert "transfers" in (await run(cli.app, broker, "list")).stdout
        shown = (await run(cli_tx.app, broker, "list")).stdout
        assert "COORDINATOR" in shown
        assert "transfers" in shown
        assert "its coordinator decides" in shown
        (row,) = json.loads((await run(cli_tx.app, broker, "list", "--json")).stdout)["transactions"]
        assert (row["coordinator"], row["epoch"], row["branch"]) == ("transfers", 1, str(XID))
        told = (await run(cli_tx.app, broker, "show", XID.tx_id)).stdout
        assert f"Its coordinator calls it {XID}." in " ".join(told.split())
        assert "It waits for its coordinator transfers" in " ".join(told.split())
        busy = await run(cli.app, broker, *forget)
        assert (busy.exit_code, "1 undecided transactions" in " ".join(busy.stderr.split())) == (4, True)
        await one.settle(XID.tx_id, Outcome.ROLLBACK)
        assert "decided by its coordinator" in " ".join(
            (await run(cli_tx.app, broker, "show", XID.tx_id)).stdout.split()
        )
        assert (await run(cli.app, broker, *forget[:-1])).exit_code == 2, "no terminal"
        done = await run(cli.app, broker, *forget)
        assert (done.exit_code, done.stdout) == (0, "coordinator transfers of group bank is forgotten\n")
        assert (await run(cli.app, broker, *forget)).exit_code == 3
        with pytest.raises(CoordinatorSuperseded, match="no such coordinator"):
            await one.prepare(MESSAGES)
        await one.recover()
        assert dict(one.epochs) == {"halfmq": 2}
    assert "operator ada" in caplog.text


async def test_each_takeover_is_in_the_log_with_the_process_it_was_taken_from(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmq.operators")
    async with AsyncClient(url_of(broker), group="bank") as mq:
        one = mq.coordinator("transfers")
        for _ in range(4):
            await one.recover()
        own = mq._context.ids.transaction_id().split("-")[-2]
        takers = [f"{mq._context.membership.client_id} {own}-{number}" for number in range(1, 5)]
    told = [record.getMessage() for record in caplog.records if "has epoch" in record.getMessage()]
    assert [line.partition(", taken by ")[2].partition(" from ")[0] for line in told] == takers
    assert [line.partition(", who took over from ")[2] for line in told] == ["", *takers[:-1]]


async def test_a_coordinator_that_gives_way_is_in_the_log_and_its_process_is_told(
    broker: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COORDINATORS_MAX", 1)
    async with AsyncClient(url_of(broker), group="bank") as mq:
        one, two = mq.coordinator("one"), mq.coordinator("two")
        await one.recover()
        with pytest.raises(ServerBusy, match="`halfmq coordinator forget` removes one now"):
            await two.recover()
        monkeypatch.setattr(limits, "COORDINATOR_IDLE_MS", -1)
        await two.recover()
        with pytest.raises(CoordinatorSuperseded, match="gave way to a new one"):
            await one.prepare(MESSAGES)
    assert "coordinator one of group bank gave way to coordinator two of group bank" in caplog.text


async def test_requests_with_invalid_fields_are_refused(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await broker.client()
    taken = {"group": "bank", "coordinator": "c0", "takenBy": "me"}
    for wrong in ({"group": ""}, {"group": "a b"}, {"coordinator": ""}, {"coordinator": "a b"}, {"takenBy": ""}, {"takenBy": "x" * 97},
                  {"takenBy": "\u00e9" * 49}, {"takenBy": "a\nb"}):  # fmt: skip
        assert (await client.ask(HMQ_TAKE_EPOCH, {**taken, **wrong})).code == 29, wrong
    for number in range(7):
        assert (await client.ask(HMQ_TAKE_EPOCH, {**taken, "coordinator": f"c{number}"})).code == 0
    named = {"group": "bank", "coordinator": "c0", "operator": "ada", "reason": "r"}
    for wrong, code in (({"operator": ""}, 29), ({"reason": " "}, 29), ({"coordinator": "other"}, 1)):
        assert (await client.ask(HMQ_FORGET_COORDINATOR, {**named, **wrong})).code == code, wrong
    for wrong in ({"max": "0"}, {"from": "x"}):
        assert (await client.ask(HMQ_COORDINATORS, wrong)).code == 29
    end = {
        "producerGroup": "bank",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "HMQ_TX_ID": "T-1",
    }
    assert (await client.ask(37, {**end, "HMQ_COORDINATOR": "transfers"})).code == 29
    found: list[str] = []
    start = "0"
    while start:
        answer = await client.ask(HMQ_COORDINATORS, {"max": "3", "from": start})
        found += [row["coordinator"] for row in json.loads(answer.body)]
        start = answer.ext.get("next", "")
    assert found == [f"c{number}" for number in range(7)]
