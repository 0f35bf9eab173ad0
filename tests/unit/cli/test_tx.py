"""`halfmq tx` against a running broker: what is shown, what it takes to decide, and exit codes for scripts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Calls, Running, ShiftedClock, serving
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_S, until
from tests.unit.broker.remoting.test_checks import answered, next_check
from typer.testing import CliRunner, Result

from halfmq import AsyncClient, Outcome, compose
from halfmq.broker.remoting import gateway
from halfmq.broker.remoting import producer_groups as producer_groups
from halfmq.broker.services import group_scan as group_scan
from halfmq.broker.services import transactions as transactions
from halfmq.cli import requests, tx
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.header import Request, decode

ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"


async def run(running: Running, *arguments: str, typed: str | None = None, **environment: str) -> Result:
    url = f"127.0.0.1:{running.ports.names}"
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, tx.app, [*arguments, "--url", url], input=typed, env=environment)


async def test_list_show_and_decide(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert "0 undecided" in (await run(running, "list")).output
        await client.half("orders", b"one", unique=ONE)
        await client.half("orders", b"two", unique=TWO)
        listed = await run(running, "list")
        assert (listed.exit_code, "no reachable producer" in listed.stdout, "1 of 1" in listed.stdout) == (
            0,
            True,
            True,
        )
        assert ONE in listed.stdout
        assert ONE not in (await run(running, "list", "--older", "1h")).stdout
        document = json.loads((await run(running, "list", "--json", "--max", "1")).stdout)
        assert (document["total"], [row["tx_id"] for row in document["transactions"]]) == (2, [ONE])
        told = await run(running, "show", ONE)
        assert "no producer of group P is connected" in told.stdout or "in its grace period" in told.stdout
        assert json.loads((await run(running, "show", ONE, "--json")).stdout)["state"] == "UNDECIDED"

        done = await run(running, "commit", ONE, "--operator", "ada", "--yes")
        assert (done.exit_code, f"{ONE} of group P is COMMITTED" in done.stdout) == (0, True)
        again = await run(running, "commit", ONE, "--operator", "ada")
        assert (again.exit_code, "already COMMITTED" in again.stdout) == (0, True), "nothing to confirm"
        assert (await run(running, "rollback", ONE, "--operator", "ada")).exit_code == 4
        done = await run(running, "rollback", TWO, "--reason", "test", "--yes", HALFMQ_OPERATOR="bob")
        assert "is ROLLED_BACK" in done.stdout
        assert (await client.ask(30, {"topic": "orders", "queueId": "0"})).ext == {"offset": "1"}


async def test_nothing_is_decided_without_a_name_a_confirmation_and_the_right_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        assert (await run(running, "commit", ONE, "--yes")).exit_code == 2
        unconfirmed = await run(running, "commit", ONE, "--operator", "ada")
        assert (unconfirmed.exit_code, "--yes" in unconfirmed.output) == (2, True)
        monkeypatch.setattr(requests, "has_terminal", lambda: True)
        assert (await run(running, "commit", ONE, "--operator", "ada", typed="yes\n")).exit_code == 1
        assert ONE in (await run(running, "list")).stdout
        confirmed = await run(running, "commit", ONE, "--operator", "ada", typed=f"{ONE}\n")
        assert (confirmed.exit_code, "is COMMITTED" in confirmed.stdout) == (0, True)


async def test_exit_codes_tell_scripts_what_is_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await run(running, "show", "never")).exit_code == 3
        assert (await run(running, "commit", "never", "--operator", "ada", "--yes")).exit_code == 3
        assert (await run(running, "list", "--older", "soon")).exit_code == 2
        assert (await run(running, "list", "--max", "0")).exit_code == 2
        for older in ("²s", "9" * 5_000 + "d", "s", ""):
            wrong = await run(running, "list", "--older", older)
            assert (wrong.exit_code, "is not a time span" in wrong.output) == (2, True), older[:9]
        for seconds in ("-1", "nan", "inf", "1e300", "0"):
            wrong = await run(running, "list", f"--timeout={seconds}")
            assert (wrong.exit_code, "--timeout" in wrong.output) == (2, True), seconds
        for seconds in ("-1", "nan", "inf"):
            wrong = await run(running, "check", ONE, f"--wait={seconds}")
            assert (wrong.exit_code, "--wait" in wrong.output) == (2, True), seconds
        for most in ("²", "9" * 5_000, "-1", "1001"):
            answer = await client.ask(29_002, {"max": most})
            assert (answer.code, "max: a whole number" in str(answer.remark)) == (29, True), most[:9]
            assert (await client.ask(29_010, {"group": "P", "max": most})).code == 29, most[:9]
        await client.half("orders", b"one", unique=ONE, HMQ_TX_ID="T-1", HMQ_TX_INDEX="0")
        assert (await run(running, "commit", "T-1", "--operator", "ada", "--yes")).exit_code == 4
    nobody = await run(running, "list")
    assert (nobody.exit_code, "check that the broker runs" in nobody.output) == (1, True)


QUICK = BrokerSettings(check_immunity_ms=50, check_interval_ms=60_000, check_answer_ms=60_000)


async def answer_check(client: RawClient, wanted: int) -> None:
    client.tell(37, answered(await next_check(client), wanted))


async def test_check_asks_now_and_tells_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        await answer_check(client, 0)
        task = asyncio.create_task(answer_check(client, 0))
        unknown = await run(running, "check", ONE)
        await task
        assert (unknown.exit_code, "check 2 sent to me" in unknown.stderr) == (6, True)
        assert "was UNKNOWN" in unknown.stdout

        asked = Calls(monkeypatch, requests, "ask")

        async def commit_late() -> None:
            check = await next_check(client)
            await asked.more(2)  # the command has seen the transaction undecided, and waits
            client.tell(37, answered(check, 8))

        task = asyncio.create_task(commit_late())
        settled = await run(running, "check", ONE)
        await task
        assert (settled.exit_code, "is COMMITTED" in settled.stdout) == (0, True)
        assert (await run(running, "check", ONE)).exit_code == 4
        unknown = await run(running, "check", "never")
        assert (unknown.exit_code, "never prepared here" in unknown.output) == (3, True), unknown.output


async def test_check_without_anybody_to_ask_says_so(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, settings=QUICK, clock=clock) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        clock.passed_ms += QUICK.check_immunity_ms + 1
        refused = await run(running, "check", ONE)
        assert (refused.exit_code, "no producer of group 'P'" in refused.output) == (4, True)


async def test_check_gives_up_waiting_and_says_who_was_asked(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        await next_check(client)
        running.state.producer_groups["P"].session.in_flight.clear()
        silent = await run(running, "check", ONE, "--wait", "0.3")
        assert (silent.exit_code, "waits for the response of me" in silent.stdout) == (6, True)


async def test_stats_show_groups_and_their_policy(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert "0 undecided in 0 groups" in (await run(running, "stats")).output
        await client.half("orders", b"one", unique=ONE)
        await run(running, "limits", "P", "--check-limit", "15", "--past-limit", "park", "--operator", "ada")
        shown = await run(running, "stats")
        assert "park after 15 checks" in shown.stdout
        assert "1 of 1000000" in shown.stdout
        (row,) = json.loads((await run(running, "stats", "--group", "P", "--json")).stdout)
        assert (row["group"], row["undecided"], row["check_limit"], row["set_by"]) == ("P", 1, 15, "ada")


async def test_limits_are_seen_set_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        assert "policy: none; undecided transactions wait for ever\n" in (await run(running, "limits", "P")).stdout
        set_ = await run(
            running, "limits", "P", "--skip-age", "72h", "--undecided-max", "5", "--operator", "ada", "--reason", "ticket 9"
        )  # fmt: skip
        assert b"ticket 9" in running.log_bytes()
        assert "policy: park at 3 days (set by ada)" in set_.stdout
        assert "undecided transactions: at most 5\n" in set_.stdout
        assert "(the broker's limit)" in set_.stdout
        ask_first = await run(
            running, "limits", "P", "--check-limit", "3", "--past-limit", "rollback", "--operator", "ada"
        )
        assert (ask_first.exit_code, "--yes" in ask_first.output) == (2, True)
        monkeypatch.setattr(requests, "has_terminal", lambda: True)
        policy = ("limits", "P", "--check-limit", "3", "--past-limit", "rollback", "--operator", "ada")
        assert (await run(running, *policy, typed="Q\n")).exit_code == 1
        confirmed = await run(running, *policy, typed="P\n")
        assert "rollback after 3 checks, park at 3 days" in confirmed.stdout
        gone = await run(running, "limits", "P", "--past-limit", "wait", "--skip-age", "0s", HALFMQ_OPERATOR="bob")
        assert "policy: none; undecided transactions wait for ever (set by bob)" in gone.stdout
        stands = json.loads((await run(running, "limits", "P", "--json")).stdout)
        assert (stands["undecided_max"], stands["check_limit"]) == (5, 0)


async def test_limits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for arguments in (
            ("--check-limit", "3"),
            ("--check-limit", "3", "--past-limit", "commit", "--operator", "ada"),
            ("--check-limit", "3", "--operator", "ada"),
            ("--skip-age", "5s", "--operator", "ada"),
            ("--skip-age", "soon", "--operator", "ada"),
            ("--undecided-max", "-2", "--operator", "ada"),
            ("--undecided-max", "9" * 30, "--operator", "ada"),
        ):
            assert (await run(running, "limits", "P", *arguments)).exit_code == 2, arguments
        assert "wait for ever" in (await run(running, "limits", "P")).stdout
        wrong = await run(running, "limits", "bad group!")
        assert (wrong.exit_code, "bad group!" in wrong.output, wrong.stdout) == (2, True, "")


async def test_list_shows_parked_transactions(tmp_path: Path) -> None:
    settings = BrokerSettings(check_immunity_ms=50, check_interval_ms=50, check_interval_max_ms=50, check_answer_ms=50)
    async with serving(tmp_path, settings=settings) as running:
        client = await running.client()
        await run(running, "limits", "P", "--check-limit", "1", "--past-limit", "park", "--operator", "ada")
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)

        async def is_parked() -> bool:
            return "parked (checks)" in (await run(running, "list")).stdout

        await until(is_parked, "a parked transaction in the list")
        assert "The policy of group P parked it" in (await run(running, "show", ONE)).stdout


@pytest.mark.parametrize("of_half_batches", [False, True])
async def test_what_an_application_advises_is_shown_as_long_as_it_is_undecided(
    tmp_path: Path, of_half_batches: bool
) -> None:
    async with serving(tmp_path) as running:
        assert "ADVICE" not in (await run(running, "list")).stdout
        async with AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}", group="P") as mq:
            messages = [compose("orders", b"x" * 5_000) for _ in range(20 if of_half_batches else 2)]
            await mq.prepare(messages, tx_id="T-1", name="n", advice=Outcome.ROLLBACK, comment="Frag das Lager: Tür 7")
        assert bool(running.state.producer_groups["P"].undecided["T-1"].halves[0].batch) is of_half_batches
        listed = (await run(running, "list")).stdout
        assert "COMMENT" in listed
        assert "ROLLBACK  Frag das Lager: Tür 7" in listed
        (row,) = json.loads((await run(running, "list", "--json")).stdout)["transactions"]
        assert (row["name"], row["advice"], row["comment"]) == ("n", "ROLLBACK", "Frag das Lager: Tür 7")
        told = (await run(running, "show", "T-1")).stdout
        assert "Its application advises: if in doubt, roll back. Comment: Frag das Lager: Tür 7." in told


async def test_a_finding_is_listed_explained_and_forgotten_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await run(running, "damaged")).exit_code == 0
        half = await client.half("orders", b"one", unique=ONE)
        await client.end(half, ONE, 12)
        report = {"group": "P", "txId": ONE, "outcome": "COMMIT", "source": "bank A"}
        assert (await client.ask(29_023, report)).code == 0
        found = await run(running, "damaged")
        assert (found.exit_code, "bank A" in found.stdout, "COMMITTED" in found.stdout) == (7, True, True)
        assert "1 findings, 0 not compared, 0 still to be compared" in found.output
        document = json.loads((await run(running, "damaged", "--json")).stdout)
        assert (document["findings"], document["transactions"][0]["tx_id"]) == (1, ONE)
        assert "DAMAGE: bank A says that the local transaction committed" in (await run(running, "show", ONE)).stdout
        named = ("--operator", "ada", "--reason", "repaired")
        assert (await run(running, "forget", TWO, *named, "--yes")).exit_code == 3
        assert (await run(running, "forget", ONE, *named, typed="no")).exit_code == 2
        assert (await run(running, "forget", ONE, "--operator", "ada", "--reason", "", "--yes")).exit_code == 2
        done = await run(running, "forget", ONE, *named, "--yes")
        assert (done.exit_code, "it stays ROLLED_BACK" in done.stdout) == (0, True)
        assert (await run(running, "damaged")).exit_code == 0
        assert "DAMAGE" not in (await run(running, "show", ONE)).stdout


@pytest.mark.parametrize("passed_ms", [0, 121_000], ids=["in memory", "transaction table"])
async def test_a_forgotten_finding_that_is_reported_again_names_its_operator(tmp_path: Path, passed_ms: int) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        await client.half(
            "orders", b"one", unique=ONE, HMQ_TX_ID=ONE, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1", HMQ_TX_MARKER="77.5"
        )
        assert (await run(running, "commit", ONE, "--operator", "bob", "--reason", "late", "--yes")).exit_code == 0
        named = ("--operator", "ada", "--reason", "repaired", "--yes")
        waits = await run(running, "forget", ONE, *named)
        assert (waits.exit_code, "It will be compared with the marker table" in waits.output) == (3, True)

        async def found(*, is_marker: str) -> tuple[str, str]:
            report = {"group": "P", "txId": ONE, "outcome": "ROLLBACK", "source": "bank A", "isMarker": is_marker}
            assert (await client.ask(29_023, report)).code == 0
            (row,) = json.loads((await run(running, "damaged", "--json")).stdout)["transactions"]
            return row["decided_by"], row["by"]

        assert await found(is_marker="true") == ("operator", "bob")
        assert (await run(running, "forget", ONE, *named)).exit_code == 0
        clock.passed_ms += passed_ms
        assert await found(is_marker="false") == ("operator", "bob")


async def test_a_group_without_findings_is_named_with_what_others_have(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("orders", b"one", unique=ONE)
        await client.end(half, ONE, 12)
        await client.ask(29_023, {"group": "P", "txId": ONE, "outcome": "COMMIT", "source": "bank A"})
        done = await run(
            running, "forget", "--group", "TYPO", "--all", "--operator", "ada", "--reason", "seen", "--yes"
        )
        assert done.exit_code == 0, "as `commit --all` of a group without undecided transactions"
        assert "group TYPO has no findings; `halfmq tx damaged` lists 1 of others, and counts 0 verdicts" in done.output


async def test_several_findings_are_forgotten_at_once_and_each_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        ids = [f"AC10000100002A9F{number:016d}" for number in range(10, 16)]
        for number, unique in enumerate(ids):
            group = "P" if number < 4 else "Q"
            half = await client.half("orders", b"one", unique=unique, group=group)
            assert (await client.end(half, unique, 12, group=group)).code == 0
            report = {"group": group, "txId": unique, "outcome": "COMMIT", "source": "bank A"}
            assert (await client.ask(29_023, report)).code == 0
        named = ("--operator", "ada", "--reason", "repaired")

        async def left() -> list[str]:
            document = json.loads((await run(running, "damaged", "--json")).stdout)
            return [row["tx_id"] for row in document["transactions"]]

        for wrong in ((), (ids[0], "--group", "P", "--all"), ("--all",)):
            assert (await run(running, "forget", *wrong, *named, "--yes")).exit_code == 2
        assert (await run(running, "forget", *ids[:2], *named)).exit_code == 2, "no terminal"
        monkeypatch.setattr(requests, "has_terminal", lambda: True)
        assert (await run(running, "forget", *ids[:2], *named, typed="P\n")).exit_code == 1
        assert await left() == ids
        some = await run(running, "forget", ids[0], TWO, ids[1], ids[0], *named, typed="2\n")
        assert some.exit_code == 3
        assert [line.split()[3] for line in some.stdout.splitlines() if "is forgotten" in line] == ids[:2]
        assert f"no damage of transaction {TWO} is known" in some.output
        assert "2 forgotten, 0 rejected, 1 not known" in some.output
        assert await left() == ids[2:]
        assert (await run(running, "forget", "--group", "P", "--all", *named, typed="Q\n")).exit_code == 1
        done = await run(running, "forget", "--group", "P", "--all", *named, typed="P\n")
        assert (done.exit_code, "2 forgotten, 0 rejected" in done.output) == (0, True)
        assert await left() == ids[4:]
        assert (await run(running, "forget", "--group", "P", "--all", *named, "--yes")).exit_code == 0


async def parked(running: Running, client: RawClient, count: int) -> list[str]:
    """``count`` transactions of group P that its policy has parked; the producer never answered a check."""
    await run(running, "limits", "P", "--check-limit", "1", "--past-limit", "park", "--operator", "ada")
    await client.heartbeat("me", producers=["P"])
    ids = [f"AC10000100002A9F{number:016d}" for number in range(count)]
    for unique in ids:
        await client.half("orders", b"one", unique=unique)
    group = running.state.producer_groups["P"]
    await until(lambda: len(group.derived.parked) >= count, "transactions to be parked")
    while not client.pushes.empty():
        client.pushes.get_nowait()
    return ids


async def test_all_parked_transactions_are_checked_in_steps_and_summarised(tmp_path: Path) -> None:
    settings = BrokerSettings(
        check_immunity_ms=50,
        check_interval_ms=300,
        check_interval_max_ms=300,
        check_answer_ms=300,
        checks_in_flight_max=4,
    )
    async with serving(tmp_path, settings=settings) as running:
        client = await running.client()
        ids = await parked(running, client, 10)

        async def answer() -> None:
            while True:
                push = await next_check(client)
                wanted = 8 if push.ext["msgId"] != ids[3] else 0
                client.tell(37, answered(push, wanted))

        task = asyncio.create_task(answer())
        done = await run(running, "check", "--group", "P", "--parked", "--wait", "1.5")
        assert "10 checked: 9 settled, 1 still undecided" in done.stdout, done.output
        assert done.exit_code == 6
        assert "4 of 10 checked" in done.output
        assert "10 of 10 checked" in done.output
        group = running.state.producer_groups["P"]
        await until(lambda: group.derived.parked, "the last one to be parked again")
        one = await run(running, "check", "--group", "P", "--parked", "--max", "5", "--wait", "0.1")
        assert "1 checked: 0 settled, 1 still undecided" in one.stdout
        ids[3] = ""
        await until(lambda: group.derived.parked, "the last one to be parked again")
        last = await run(running, "check", "--group", "P", "--parked")
        assert (last.exit_code, "1 checked: 1 settled, 0 still undecided" in last.stdout) == (0, True), last.output
        none = await run(running, "check", "--group", "P", "--parked")
        assert (none.exit_code, "group P has no parked transactions" in none.output) == (0, True)
        task.cancel()


async def test_what_another_group_has_under_the_same_id_is_not_told_as_undecided(tmp_path: Path) -> None:
    settings = BrokerSettings(check_immunity_ms=50, check_interval_ms=300, check_answer_ms=300)
    async with serving(tmp_path, settings=settings) as running:
        client = await running.client()
        (unique,) = await parked(running, client, 1)
        await client.half("orders", b"other", unique=unique, group="Q")
        task = asyncio.create_task(answer_check(client, 8))
        done = await run(running, "check", "--group", "P", "--parked", "--wait", "2")
        await task
        assert "1 checked: 1 settled, 0 still undecided" in done.stdout, done.output
        assert done.exit_code == 0
        assert unique in running.state.producer_groups["Q"].undecided


async def test_max_bounds_the_checks_and_the_rest_stays_parked(tmp_path: Path) -> None:
    settings = BrokerSettings(check_immunity_ms=50, check_interval_ms=300, check_answer_ms=300)
    async with serving(tmp_path, settings=settings) as running:
        client = await running.client()
        await parked(running, client, 5)
        few = await run(running, "check", "--group", "P", "--parked", "--max", "2", "--wait", "0.1")
        assert (few.exit_code, "2 checked: 0 settled, 2 still undecided" in few.stdout) == (6, True), few.output
        assert len(running.state.producer_groups["P"].derived.parked) >= 3
        await client.close()
        await until(lambda: not running.state.producer_groups["P"].session.members, "a group without members")
        nobody = await run(running, "check", "--group", "P", "--parked")
        assert (nobody.exit_code, "no producer of group 'P' is connected" in nobody.output) == (4, True)


async def test_check_requires_a_transaction_or_a_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for wrong in ((), (ONE, "--max", "3"), ("--parked",), (ONE, "--group", "P", "--parked"),
                      ("--group", "P", "--parked", "--max", "-1")):  # fmt: skip
            assert (await run(running, "check", *wrong)).exit_code == 2, wrong
        client = await running.client()
        for ext in ({}, {"group": "P", "max": "0"}, {"group": "P", "max": "many"}, {"group": "P", "max": "1001"}):
            assert (await client.ask(29_010, ext)).code == 29


async def test_a_verdict_that_memory_has_forgotten_is_shown_and_stands(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(dedup_ids_max=1)) as running:
        client = await running.client()
        for unique, wanted in ((ONE, 8), (TWO, 12)):
            half = await client.half("orders", b"one", unique=unique)
            await client.end(half, unique, wanted)
        assert ONE not in running.state.producer_groups["P"].settled
        shown = await run(running, "show", ONE)
        assert (shown.exit_code, "is COMMITTED since" in shown.stdout) == (0, True)
        again = await run(running, "commit", ONE, "--operator", "ada")
        assert (again.exit_code, "already COMMITTED" in again.stdout) == (0, True)
        opposite = await run(running, "rollback", ONE, "--operator", "ada")
        assert (opposite.exit_code, "is COMMITTED since" in opposite.output) == (4, True)
        assert (await run(running, "check", ONE)).exit_code == 4


async def in_groups(client: RawClient, count: int, groups: int) -> None:
    for number in range(count):
        await asyncio.sleep(0.002)  # real time: each is older than the next
        answer = await client.half("orders", b"x", unique=f"{number:032X}", group=f"G{number % groups}")
        assert answer.code == 0


async def test_the_oldest_of_very_many_groups_are_found_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "GROUPS_PER_PAGE_MAX", 3)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 16, 8)
        first = await client.ask(29_002, {"max": "1000"})
        assert (len(json.loads(first.body)), first.ext["total"]) == (6, "16"), "of three groups"
        listed = await run(running, "list", "--max", "4")
        assert [line.split()[3] for line in listed.stdout.splitlines()[1:]] == [f"{number:032X}" for number in range(4)]
        assert "16 undecided, 4 shown" in listed.stderr
        assert "--group" in listed.stderr
        document = json.loads((await run(running, "list", "--json")).stdout)
        assert [row["tx_id"] for row in document["transactions"]] == [f"{number:032X}" for number in range(16)]
        assert (await client.ask(29_002, {"from": "x"})).code == 29


async def test_a_group_is_listed_a_page_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await in_groups(await running.client(), 5, 1)
        seen = []
        start = 0
        while True:
            page = json.loads(
                (await run(running, "list", "--group", "G0", "--max", "2", "--from", str(start), "--json")).stdout
            )
            seen += [row["tx_id"] for row in page["transactions"]]
            start = page.get("next", 0)
            if not start:
                break
        assert seen == [f"{number:032X}" for number in range(5)]
        assert "next page: --from 2" in (await run(running, "list", "--group", "G0", "--max", "2")).stderr
        assert (await run(running, "list", "--from", "2")).exit_code == 2


async def test_figures_of_very_many_groups_come_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_groups, "STATS_PER_PAGE_MAX", 3)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 15, 8)
        assert len(json.loads((await client.ask(29_008, {})).body)) == 3
        shown = await run(running, "stats")
        assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [f"G{number}" for number in range(8)]
        assert "15 undecided in 8 groups\n" in shown.stderr
        shown = await run(running, "stats", "--max", "2")
        assert len(shown.stdout.splitlines()) == 3
        assert "15 undecided in 8 groups, 2 shown" in shown.stderr
        assert len(json.loads((await run(running, "stats", "--group", "G7", "--json")).stdout)) == 1
        assert (await client.ask(29_008, {"from": "9" * 19})).code == 29


class IgnoresFrom:
    """Every page is the first one. Refuses after some, so that a command that pages forever fails its test, and does not hang."""

    def __init__(self) -> None:
        self.pages = 0

    def __call__(self, frame: bytes, *more: Any) -> Request[Any]:
        request = decode(frame, *more)
        if hasattr(request.ext, "start"):
            self.pages += 1
            assert self.pages < 20, "paged forever"
            request.ext.start = 0
        return request


@pytest.mark.parametrize(
    "command",
    [
        ("stats",),
        ("list", "--max", "4"),
        ("commit", "--all", "--group", "G0", "--older", "1h", "--operator", "ada", "--yes"),
    ],
    ids=lambda command: command[0],
)
async def test_paging_ends_with_an_error_if_the_broker_ignores_where_the_page_begins(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_groups, "STATS_PER_PAGE_MAX", 3)
    monkeypatch.setattr(transactions, "GROUPS_PER_PAGE_MAX", 3)
    monkeypatch.setattr(tx, "_PAGE", 2)
    ignores = IgnoresFrom()
    monkeypatch.setattr(gateway, "decode", ignores)
    async with serving(tmp_path) as running:
        await in_groups(await running.client(), 40, 8)
        ended = await run(running, *command)
    assert (ended.exit_code, "would never end" in ended.stderr) == (1, True), ended.stderr
    assert ended.stdout == "", "part of a list looks like all of it"
    assert ignores.pages <= 3


async def test_a_transaction_without_its_group_is_found_among_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_scan, "EXAMINED_PER_TURN_MAX", 2)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 9, 9)
        wanted = [f"{number:032X}" for number in (7, 99, 3)]
        assert json.loads((await client.ask(29_005, None, json.dumps(wanted).encode())).body) == [wanted[0], wanted[2]]
        assert (await client.ask(29_003, {"txId": wanted[0]})).ext["group"] == "G7"
        await client.half("orders", b"x", unique=wanted[0], group="G8")
        assert "G7, G8 each have" in str((await client.ask(29_003, {"txId": wanted[0]})).remark)
        monkeypatch.setattr(group_scan, "WAITING_MAX", 0)
        assert (await client.ask(29_003, {"txId": wanted[0]})).code == 2
        assert (await client.ask(29_005, None, json.dumps(wanted).encode())).code == 2
        assert (await client.ask(29_003, {"txId": wanted[0], "group": "G7"})).code == 0


async def test_every_transaction_of_a_group_is_settled_each_by_a_verdict_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tx, "_PAGE", 3)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 10, 1)
        await client.half("orders", b"one", unique=ONE, HMQ_TX_ID="T-1", HMQ_TX_INDEX="0", group="G0")
        await client.half("orders", b"other", unique=TWO, group="other")
        first = await run(running, "commit", "--group", "G0", "--all", "--operator", "ada", "--yes", "--max", "4")
        assert (first.exit_code, "4 transactions of group G0 are COMMITTED, 0 were rejected, 7" in first.stdout) == (
            0,
            True,
        )
        assert "3 settled, 0 rejected" in first.stderr, "progress"
        assert (await client.ask(30, {"topic": "orders", "queueId": "0"})).ext == {"offset": "4"}
        caplog.clear()
        rest = await run(
            running, "commit", "--group", "G0", "--all", "--operator", "ada", "--reason", "ticket 7", "--yes"
        )
        assert "6 transactions of group G0 are COMMITTED, 1 were rejected, 1 are undecided" in rest.stdout
        assert (rest.exit_code, "T-1: " in rest.stderr) == (4, True), "it is not whole, so it cannot be committed"
        decided = [line for line in caplog.messages if "operator ada" in line and "ticket 7" in line]
        assert len(decided) == 6
        last = await run(running, "rollback", "--group", "G0", "--all", "--operator", "ada", "--yes")
        assert (last.exit_code, "1 transactions of group G0 are ROLLED_BACK" in last.stdout) == (0, True)
        nothing = await run(running, "rollback", "--group", "G0", "--all", "--operator", "ada", "--yes")
        assert (nothing.exit_code, "has no undecided transactions" in nothing.stderr) == (0, True)
        assert running.state.derived.undecided_count == 1, "that of the other group"


async def test_only_what_is_older_is_settled_and_only_when_it_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 3, 1)
        arguments = ["rollback", "--group", "G0", "--all", "--operator", "ada"]
        for wrong in (["--yes", ONE], ["--older", "soon", "--yes"], []):
            assert (await run(running, *arguments, *wrong)).exit_code == 2, wrong
        for wrong in (["--all"], ["--older", "1s", ONE], ["--max", "2", ONE], []):
            assert (await run(running, "rollback", "--operator", "ada", "--yes", *wrong)).exit_code == 2, wrong
        older = await run(running, *arguments, "--older", "1h", "--yes")
        assert (older.exit_code, "0 transactions of group G0 are ROLLED_BACK" in older.stdout) == (0, True)
        monkeypatch.setattr(requests, "has_terminal", lambda: True)
        assert (await run(running, *arguments, typed="other\n")).exit_code == 1
        assert running.state.derived.undecided_count == 3
        assert (await run(running, *arguments, typed="G0\n")).exit_code == 0
        assert running.state.derived.undecided_count == 0


async def test_a_preview_shows_what_a_filter_finds_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tx, "_PAGE", 3)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 7, 1)
        await client.half("bills", b"one", unique=ONE, group="G0")
        await client.half("bills", b"two", unique=TWO, group="other")
        arguments = ["commit", "--group", "G0", "--all", "--operator", "ada"]
        bills = await run(running, *arguments, "--topic", "bills", "--preview")
        assert bills.exit_code == 0
        assert (len(bills.stdout.splitlines()), ONE in bills.stdout) == (2, True)
        assert "1 transactions of group G0 would be COMMITTED; nothing was changed" in bills.stderr
        most = await run(running, *arguments, "--preview", "--max", "5")
        assert "5 transactions of group G0 would be COMMITTED" in most.stderr
        for none in (["--parked"], ["--older", "1h"]):
            assert "0 transactions" in (await run(running, *arguments, "--preview", *none)).stderr
        one = await run(running, "rollback", ONE, "--operator", "ada", "--preview")
        assert f"{ONE} of group G0 would be ROLLED_BACK; nothing was changed" in one.stdout
        assert running.state.derived.undecided_count == 9
        # What was shown is what is settled.
        assert (await run(running, *arguments, "--topic", "bills", "--yes")).exit_code == 0
        assert (await client.ask(30, {"topic": "bills", "queueId": "0"})).ext == {"offset": "1"}
        assert running.state.derived.undecided_count == 8
        settled = await run(running, "rollback", ONE, "--operator", "ada", "--preview")
        assert "is COMMITTED, and would stay so" in settled.stdout


async def test_a_transaction_that_others_settle_meanwhile_hides_none_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tx, "_PAGE", 3)
    async with serving(tmp_path) as running:
        client = await running.client()
        await in_groups(client, 9, 1)
        page = tx._page
        loop = asyncio.get_running_loop()
        done: list[str] = []

        def settled_by_others(*arguments: Any) -> Any:
            found = page(*arguments)
            if arguments[2] == 3 and not done:
                done.append(found[1][0].tx_id)
                fields = {"group": "G0", "txId": done[0], "verdict": "ROLLBACK", "operator": "bob", "reason": ""}
                asyncio.run_coroutine_threadsafe(client.ask(29_004, fields), loop).result(PATIENCE_S)
            return found

        monkeypatch.setattr(tx, "_page", settled_by_others)
        result = await run(running, "commit", "--group", "G0", "--all", "--operator", "ada", "--yes")
        assert "8 transactions of group G0 are COMMITTED, 1 were rejected, 0 are undecided" in result.stdout
