"""`halfmq outbox` on a database: what is shown, what is retried and skipped, and exit codes for scripts."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from tests.support.shop_module import shop_module
from typer.testing import CliRunner, Result

from halfmq.cli import outbox, requests


def run(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(outbox.app, list(arguments), input=typed)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return shop_module(monkeypatch, tmp_path)


def send(shop: Any, key: str, state: str = "W", reason: str = "", attempts: int = 0, **columns: int) -> str:
    """A message in a state."""
    with shop.sessions() as session, session.begin():
        message_id: str = shop.outbox.send(session, "orders", "x", sharding_key=key or None)
    table = shop.outbox.table
    with shop.sessions() as session, session.begin():
        values = {"delivery": state, "reason": reason, "attempts": attempts, **columns}
        session.connection().execute(update(table).where(table.c.message_id == message_id).values(values))
    return message_id


def states(shop: Any) -> dict[str, str]:
    with shop.sessions() as session:
        table = shop.outbox.table
        return {row.message_id: row.delivery for row in session.connection().execute(table.select())}


@pytest.mark.parametrize("target", ["shop:app", "shop:asynchronous", "URL", "sqlite+aiosqlite:///shop.db"])
def test_the_state_of_an_outbox(shop: Any, tmp_path: Path, target: str) -> None:
    target = f"sqlite:///{tmp_path}/shop.db" if target == "URL" else target
    empty = run("status", target)
    assert (empty.exit_code, empty.stdout) == (0, "0 waiting\n"), empty.output
    send(shop, "a", "A", "too large", 10)
    for state in "BWWSHX":
        send(shop, "a", state)
    done = run("status", target)
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()[:-1]] == [
        ["STATE", "MESSAGES"], ["held", "1"], ["waiting", "2"], ["scheduled", "1"], ["behind", "1"], ["set-aside", "1"],
        ["skipped", "1"],
    ]  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("4 waiting, the oldest for ")
    document = json.loads(run("status", target, "--json").stdout)
    assert (document["rows"]["set-aside"], document["rows"]["published"], document["waiting"]) == (1, 0, 4)
    assert document["lanes"] == []


def test_who_holds_a_lane_is_shown(shop: Any) -> None:
    send(shop, "a")
    lanes = shop.outbox.tables[1]
    with shop.sessions() as session, session.begin():
        shop.outbox.fill(session.connection())
        session.connection().execute(
            update(lanes)
            .where(lanes.c.lane == 5)
            .values(holder="host:7", batch_id="b", batch_seqs="1 1", lease_until_ms=1)
        )
    assert [line.split() for line in run("status", "shop:app").stdout.splitlines()[-2:]] == [
        ["LANE", "HELD", "BY", "LEASE", "MESSAGES"], ["5", "host:7", "ended", "2"],
    ]  # fmt: skip


def test_messages_that_wait_for_no_relay_are_said(shop: Any) -> None:
    send(shop, "a")
    assert run("status", "shop:app").stderr == "", "a relay may be about to take it"
    send(shop, "a", written_at_ms=1)
    assert "no relay is publishing mq_outbox in sqlite:///" in run("status", "shop:app").stderr
    lanes = shop.outbox.tables[1]
    with shop.sessions() as session, session.begin():
        shop.outbox.fill(session.connection())
        session.connection().execute(update(lanes).where(lanes.c.lane == 5).values(lease_until_ms=1 << 60))
    assert run("status", "shop:app").stderr == "", "one holds a lane"


def test_messages_are_listed_with_their_reasons(shop: Any) -> None:
    set_aside, retried = send(shop, "a", "A", "too large", 10), send(shop, "b", "R", "no topic", 1, due_at_ms=1)
    held = send(shop, "", "H")
    send(shop, "a", "B")
    done = run("list", "shop:app")
    assert done.exit_code == 0, done.output
    head, *lines = done.stdout.splitlines()
    assert head.endswith("  SHARDING KEY")
    assert [line.split()[-4:] for line in lines[::2]] == [
        ["set-aside", set_aside, "orders", "a"], ["retrying", retried, "orders", "b"],
    ]  # fmt: skip
    assert lines[1::2] == ["    10 attempts: too large", "    1 attempt, the next now: no topic"]
    assert max(map(len, done.stdout.splitlines())) <= 80, "in a terminal each is one line"
    assert "--state lists those that are not set-aside or retrying" in done.stderr
    document = json.loads(run("list", "shop:app", "--json", "--max", "1").stdout)
    (row,) = document["messages"]
    assert (row["message_id"], row["delivery"], row["reason"], row["attempts"]) == (
        set_aside,
        "set-aside",
        "too large",
        10,
    )
    document = json.loads(run("list", "shop:app", "--json", "--state", "held", "--state", "retrying").stdout)
    assert [row["message_id"] for row in document["messages"]] == [retried, held]
    refused = run("list", "shop:app", "--state", "lost")
    assert (refused.exit_code, "no state 'lost': use held, waiting" in refused.stderr) == (2, True)


def test_messages_are_retried(shop: Any) -> None:
    first, second, third = send(shop, "a", "A"), send(shop, "b", "A"), send(shop, "c", "R")
    behind = send(shop, "a", "B")
    done = run("retry", "shop:app", first)
    assert (done.exit_code, done.stdout) == (
        0,
        f"waiting again: 1 message of mq_outbox in sqlite:///{Path.cwd() / 'shop.db'}\n",
    )
    assert states(shop) == {first: "W", second: "A", third: "R", behind: "W"}
    assert run("retry", "shop:app", "--sharding-key", "c").exit_code == 0
    assert run("retry", "shop:app", "--all").exit_code == 0
    assert set(states(shop).values()) == {"W"}
    nothing = run("retry", "shop:app", "--all")
    assert (nothing.exit_code, nothing.stdout.startswith("waiting again: 0 messages")) == (0, True)


def test_messages_are_skipped_after_a_confirmation(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = send(shop, "a", "A", "too large"), send(shop, "b", "R"), send(shop, "c", "A")
    skip = ("skip", "shop:app", "--operator", "ada")
    unconfirmed = run(*skip, first)
    assert (unconfirmed.exit_code, "--yes" in unconfirmed.stderr) == (2, True)
    assert "1 message of mq_outbox in sqlite" in unconfirmed.stderr
    monkeypatch.setattr(requests, "has_terminal", lambda: True)
    assert run(*skip, first, typed="yes\n").exit_code == 1
    assert states(shop)[first] == "A"
    assert run(*skip, first, "--reason", "paid", typed=f"{first}\n").exit_code == 0
    assert run(*skip, "--sharding-key", "b", typed="b\n").exit_code == 0
    assert states(shop) == {first: "X", second: "X", third: "A"}
    assert run(*skip, "--all", typed="mq_outbox\n").exit_code == 0
    assert set(states(shop).values()) == {"X"}
    (row, *_) = json.loads(run("list", "shop:app", "--state", "skipped", "--json").stdout)["messages"]
    assert row["reason"] == "skipped by ada: paid: too large"
    assert run("skip", "shop:app", "--all").exit_code == 2, "without an operator"


def test_what_cannot_be_changed_has_a_status_of_its_own(shop: Any) -> None:
    waiting = send(shop, "a")
    refused = run("retry", "shop:app", waiting)
    assert (refused.exit_code, f"{waiting}: its state is waiting" in refused.stderr) == (4, True)
    absent = run("retry", "shop:app", "never")
    assert (absent.exit_code, "there is no message never" in absent.stderr) == (3, True)
    absent = run("skip", "shop:app", "--sharding-key", "free", "--operator", "ada")
    assert (absent.exit_code, "nothing that stops 'free'" in absent.stderr) == (3, True)
    for wrong in ((), (waiting, "--all"), (waiting, "--sharding-key", "a"), ("--sharding-key", "a", "--all")):
        assert run("retry", "shop:app", *wrong).exit_code == 2, wrong


def test_which_outbox(shop: Any, tmp_path: Path) -> None:
    several = run("status", "shop:two")
    assert (several.exit_code, "name one with --table, of mq_outbox, mq_other" in several.stderr) == (2, True)
    send(shop, "a")
    assert run("status", "shop:two", "--table", "mq_other").stdout == "0 waiting\n"
    assert run("status", "sqlite:///shop.db", "--table", "mq_other").stdout == "0 waiting\n"
    for wrong, said in (
        (("shop:two", "--table", "mq_third"), "has no relay of mq_third"),
        (("shop:without",), "has no relay of an outbox"),
        (("shop:metadata",), "shop:metadata is not a halfmq.App, but of type MetaData"),
        (("nonsense",), "is not MODULE:NAME"),
        (("oracel://host/name",), "not the URL of a database"),
    ):
        done = run("status", *wrong)
        assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    mistyped = run("status", f"sqlite:///{tmp_path}/shp.db")
    assert (mistyped.exit_code, f"there is no file {tmp_path}/shp.db" in mistyped.stderr) == (1, True)
    assert not (tmp_path / "shp.db").exists(), "SQLite would have created it"
    (tmp_path / "empty.db").touch()
    empty = run("status", f"sqlite:///{tmp_path}/empty.db")
    assert (
        empty.exit_code,
        "there is no table mq_outbox_lane" in empty.stderr and "(`halfmq db init MODULE:APP` creates" in empty.stderr,
    ) == (1, True)
    assert run("status", "shop:app", "--table", "mq_outbox").exit_code == 0
    with sqlite3.connect(tmp_path / "shop.db") as locking:
        locking.execute("BEGIN EXCLUSIVE")
        away = run("status", f"sqlite:///{tmp_path}/shop.db?timeout=0")
        assert (away.exit_code, away.stderr.endswith("shop.db: database is locked\n")) == (1, True), away.stderr
    secret = run("status", "postgresql+psycopg://ada:secret@127.0.0.1:1/shop")
    assert (secret.exit_code, "secret" in secret.output) == (1, False)
    without_host = run("status", "postgresql+psycopg://ada:secret")
    assert (without_host.exit_code, "secret" in without_host.output) == (2, False)
