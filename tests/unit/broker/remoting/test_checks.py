"""The back-check on the wire: who is asked, with what, how often, and what an answer does."""

from pathlib import Path

from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient, end_ext
from tests.support.waiting import soon, until

from halfmq.core.commands import CheckNow
from halfmq.core.decision import SendCheck
from halfmq.model import properties as props
from halfmq.model.records import DecidedBy
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import decode

ID = "AC10000100002A9F0000000000000001"
QUICK = BrokerSettings(check_immunity_ms=50, check_interval_ms=50, check_interval_max_ms=200, check_answer_ms=50)


async def next_check(client: RawClient) -> Answer:
    while True:
        push = await soon(client.pushes.get())
        if push.code == 39:
            return push


def answered(check: Answer, wanted: int, group: str = "P") -> dict[str, str]:
    """The 37 with which a stock client answers."""
    return {
        "producerGroup": group, "tranStateTableOffset": check.ext["tranStateTableOffset"],
        "commitLogOffset": check.ext["commitLogOffset"], "commitOrRollback": str(wanted),
        "fromTransactionCheck": "true", "msgId": check.ext["msgId"],
    }  # fmt: skip


async def test_check_names_the_half_and_counts_from_one(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        half = await client.half("T", b"one", unique=ID, HMQ_QUERY_ID="order-7", KEYS="k")
        for times in ("1", "2", "3"):
            check = await next_check(client)
            assert (check.flag, check.ext["msgId"], check.ext["transactionId"]) == (2, ID, ID)
            assert check.ext["tranStateTableOffset"] == half.ext["queueOffset"]
            assert check.ext["commitLogOffset"] == end_ext(half, ID, 8)["commitLogOffset"]
            message, physical, size = decode(check.body)
            assert (size, message.topic, message.body) == (len(check.body), "T", b"one")
            assert (message.queue_offset, physical) == (int(half.ext["queueOffset"]), int(check.ext["commitLogOffset"]))
            found = props.to_dict(message.properties)
            assert found["TRANSACTION_CHECK_TIMES"] == times
            assert (found["PGROUP"], found["HMQ_QUERY_ID"], found["UNIQ_KEY"]) == ("P", "order-7", ID)
            client.tell(37, answered(check, 0))
        client.tell(37, answered(await next_check(client), 8))
        assert (await client.end(half, ID, 8)).ext["HMQ_REPEATED"] == "true"
        assert (await client.pull("T")).code == 0


async def test_a_stock_client_may_answer_for_a_transaction_of_several_halves(tmp_path: Path) -> None:
    """It knows no HMQ_TX_ID: it names the half by its UNIQ_KEY, and echoes the check's ``transactionId``."""
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.half("T", b"one", unique="U0", HMQ_TX_ID="several", HMQ_TX_INDEX="0")
        await client.half("T", b"two", unique="U1", HMQ_TX_ID="several", HMQ_TX_INDEX="1", HMQ_TX_COUNT="2")
        await client.heartbeat("stock", producers=["P"])
        check = await next_check(client)
        assert (check.ext["msgId"], check.ext["transactionId"]) == ("U0", "several")
        answer = {name: value for name, value in answered(check, 8).items() if not name.startswith("HMQ_")}
        answer["transactionId"] = check.ext["transactionId"]
        client.tell(37, answer)
        assert (await client.pull("T", wait_ms=2_000)).code == 0
        assert (await client.pull("T", 1)).code == 0


async def test_record_says_whether_code_or_the_marker_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        store = running.broker._store
        assert store is not None
        for number, more in enumerate(
            ({}, {"fromTransactionCheck": "true"}, {"fromTransactionCheck": "true", "HMQ_DECIDED_BY": "marker"},
             {"HMQ_DECIDED_BY": "marker"}, {"fromTransactionCheck": "true", "HMQ_DECIDED_BY": "somebody"})
        ):  # fmt: skip
            unique = f"{number:032d}"
            half = await client.half("T", b"x", unique=unique)
            assert (await client.ask(37, {**end_ext(half, unique, 8), **more})).code == 0
        rows = [store.transaction_row(index) for index in range(5)]
        assert [DecidedBy(row.decided_by).name for row in rows if row] == [
            "PRODUCER", "CHECK", "MARKER", "PRODUCER", "CHECK",
        ]  # fmt: skip


async def test_checks_that_nobody_reads_are_not_counted_and_come_when_it_reads_again(tmp_path: Path) -> None:
    """Goal: a producer that is stuck makes the broker hold little, and is asked again without a new heartbeat."""
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        connection = next(iter(running.broker._peers.connected.values()))
        connection.is_full = True
        await (await running.client()).half("T", b"one", unique=ID)
        group = running.state.producer_groups["P"]
        await until(lambda: running.broker._checks._missed and not group.session.members, "a check that did not leave")
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).code == 0, "what is pushed to it comes before"
        assert client.pushes.empty()
        assert group.undecided[ID].checks == 0, "an attempt that reached nobody is not counted"
        connection.resume_writing()
        assert (await next_check(client)).ext["msgId"] == ID
        assert list(group.session.members.values()) == ["me"]
        assert group.undecided[ID].checks == 1


async def test_check_decided_in_the_turn_of_one_that_did_not_leave_has_its_number(tmp_path: Path) -> None:
    """Its listener counts what it was asked; what another never heard is none of that."""
    async with serving(tmp_path, settings=BrokerSettings(check_immunity_ms=50, check_interval_ms=3_600_000)) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID)
        await client.heartbeat("me", producers=["P"])
        assert props.to_dict(decode((await next_check(client)).body)[0].properties)["TRANSACTION_CHECK_TIMES"] == "1"
        group = running.state.producer_groups["P"]
        del group.session.in_flight[ID]  # as when its connection is lost
        known = group.undecided[ID].halves[0]
        broker = running.broker
        broker._sequencer.submit(CheckNow("P", ID), None)
        broker._checks.send(SendCheck(99, "P", ID, known.half_index, known.first_offset, known.offset, 1))
        assert props.to_dict(decode((await next_check(client)).body)[0].properties)["TRANSACTION_CHECK_TIMES"] == "1"
        assert group.undecided[ID].checks == 1
        assert (await client.end(half, ID, 8)).code == 0
