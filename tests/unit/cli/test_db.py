"""`halfmq db` on a database: tables are created, upgraded, printed and pruned, and exit codes for scripts."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from tests.support.in_process import serving
from tests.support.shop_module import shop_module
from typer.testing import CliRunner, Result

from halfmq import AsyncClient, compose
from halfmq.cli import db

DAY_MS = 86_400_000
TABLES = ["mq_tx", "mq_inbox", "mq_outbox", "mq_outbox_lane", "mq_other", "mq_other_lane"]


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "HALFMQ_URL": "", "HALFMQ_DATABASE_URL": ""}).invoke(
        db.app, list(arguments)
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return shop_module(monkeypatch, tmp_path, tables=False)


def test_statements_are_printed(shop: Any) -> None:
    done = run("sql", "shop:metadata", "--dialect", "postgresql")
    assert done.exit_code == 0, done.output
    assert "ALTER TABLE mq_outbox SET (autovacuum_vacuum_scale_factor = 0.01" in done.stdout
    assert "\\n" not in done.stdout, "each line of a statement is a line"
    printed = run("sql", "shop:app", "--dialect", "sqlite")
    with sqlite3.connect("printed.db") as connection:
        connection.executescript(printed.stdout)
    nothing = run("init", "shop:metadata", "--url", "sqlite:///printed.db")
    assert (nothing.exit_code, nothing.stdout) == (0, "sqlite:///printed.db: nothing was missing\n")
    unknown = run("sql", "shop:metadata", "--dialect", "oracel")
    assert (unknown.exit_code, "no dialect 'oracel'" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("shop:app",),
        ("shop:asynchronous",),
        ("shop:make",),
        ("shop:make_metadata", "--url", "sqlite:///shop.db"),
        ("shop:metadata", "--url", "sqlite+aiosqlite:///shop.db"),
    ],
)
def test_what_is_missing_is_created(shop: Any, arguments: tuple[str, ...]) -> None:
    shop.make, shop.make_metadata = lambda: shop.app, lambda: shop.metadata
    done = run("init", *arguments)
    assert (done.exit_code, done.stdout.splitlines()) == (0, [f"created {name}" for name in TABLES]), done.output
    assert run("init", *arguments).stdout.endswith("nothing was missing\n")
    with shop.sessions() as session:
        assert shop.outbox.operations.status(session.connection()).lanes == []
        assert len(session.connection().execute(select(shop.outbox.tables[1])).all()) == 64
    assert run("upgrade", *arguments).stdout.endswith("everything is up to date\n")


def test_a_table_of_an_earlier_release_is_upgraded(shop: Any) -> None:
    assert run("init", "shop:app").exit_code == 0
    with sqlite3.connect("shop.db") as connection:
        connection.executescript(
            "DROP TABLE mq_tx; CREATE TABLE mq_tx (tx_id VARCHAR(64) PRIMARY KEY, outcome VARCHAR(1) NOT NULL, "
            "written_at_ms BIGINT NOT NULL, CONSTRAINT ck_mq_tx_outcome CHECK (outcome IN ('C', 'R'))) WITHOUT ROWID;"
            "CREATE INDEX ix_mq_tx_written_at_ms ON mq_tx (written_at_ms);"
        )
    assert run("upgrade", "shop:app").stdout == "the outcome 'P' in mq_tx\n"
    assert run("upgrade", "shop:app").stdout.endswith("everything is up to date\n")
    with sqlite3.connect("shop.db") as connection:
        connection.execute("ALTER TABLE mq_outbox DROP COLUMN reason")
    for name in ("upgrade", "init"):
        done = run(name, "shop:app")
        assert done.exit_code == 2, done.output
        assert "the table mq_outbox in sqlite:///" in done.stderr
        assert "has no column reason" in done.stderr
    with sqlite3.connect("shop.db") as connection:
        connection.execute("ALTER TABLE mq_outbox ADD COLUMN reason VARCHAR(500) DEFAULT '' NOT NULL")
        connection.execute("DROP TABLE mq_inbox")
    assert run("upgrade", "shop:app").stdout == "there is no table mq_inbox: `halfmq db init` creates it\n"


def count(shop: Any, table: Any) -> int:
    with shop.sessions() as session:
        return len(session.connection().execute(select(table)).all())


async def test_old_rows_are_pruned_by_kind(shop: Any, tmp_path: Path) -> None:
    assert (await asyncio.to_thread(run, "init", "shop:app")).exit_code == 0
    markers, inbox, outbox = shop.markers.table, shop.inbox.table, shop.outbox.table
    before = count(shop, markers)
    async with serving(tmp_path / "broker") as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="shop") as client:
            await client.prepare([compose("orders", b"x")], tx_id="undecided")
            with shop.sessions() as session, session.begin():
                rows = [{"tx_id": tx_id, "outcome": "C", "written_at_ms": 1} for tx_id in ("old", "undecided")]
                session.connection().execute(insert(markers), rows)
                session.connection().execute(insert(inbox).values(consumer_group="g", message_key="k", handled_at_ms=1))
                for body in ("published", "waits"):
                    shop.outbox.send(session, "orders", body)
            with shop.sessions() as session, session.begin():
                over = update(outbox).where(outbox.c.body == b"published")
                session.connection().execute(over.values(delivery="P", due_at_ms=1))
            done = await asyncio.to_thread(run, "prune", "shop:app", "--inbox", "30d", "--outbox", "7d")
            assert (done.exit_code, done.stdout.splitlines()) == (0, [
                "1 rows of mq_inbox deleted", "1 rows of mq_outbox deleted", "0 rows of mq_other deleted",
            ]), done.output  # fmt: skip
            assert (count(shop, inbox), count(shop, outbox), count(shop, markers)) == (0, 1, before + 2)
            done = await asyncio.to_thread(run, "prune", "shop:app", "--markers", "1d", "--broker", url)
            assert (done.exit_code, done.stdout) == (0, "1 rows of mq_tx deleted\n"), done.output
            with shop.sessions() as session:
                kept = set(session.connection().scalars(select(markers.c.tx_id)))
            assert ("undecided" in kept, "old" in kept) == (True, False), "the broker was asked"


def test_what_is_wrong_is_said(shop: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from sqlalchemy import MetaData\nmetadata = MetaData()\n")
    assert run("init", "shop:app").exit_code == 0
    for arguments, status, said in (
        (("init", "shop:metadata"), 2, "name the database with --url"),
        (("init", "empty:metadata"), 2, "empty:metadata: it has no tables of halfmq"),
        (("init", "shop:without"), 2, "no tables of halfmq"),
        (("init", "shop:metadata", "--url", "nonsense"), 2, "not the URL of a database"),
        (("init", "shop:metadata", "--url", f"sqlite:///{tmp_path}/absent/x.db"), 1, "unable to open database file"),
        (("init", "absent:metadata"), 2, "there is no module absent"),
        (("prune", "shop:app"), 2, "name at least one age"),
        (("prune", "shop:app", "--outbox", "soon"), 2, "'soon' is not a time span"),
        (("prune", "shop:app", "--markers", "59m"), 2, "less than 3600 seconds"),
        (("prune", "shop:metadata", "--markers", "1d", "--url", "sqlite:///shop.db"), 2, "--markers needs --broker"),
        (("prune", "shop:app", "--markers", "1d", "--timeout", "0.2"), 1, "no connection"),
    ):
        done = run(*arguments)
        assert (done.exit_code, said in done.stderr) == (status, True), (arguments, done.output)
