"""`halfmq diagnose`: what is in the archive, and what must not be."""

import asyncio
import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from typer.testing import CliRunner, Result

from halfmq.cli import diagnose
from halfmq.cli.main import app

CANARY = "canary-77b1"


def run(*arguments: str, **environment: str) -> Result:
    invoke: Any = CliRunner().invoke
    return invoke(app, ["diagnose", *arguments], env=environment)


@pytest.mark.slow
async def test_the_archive_has_what_explains_a_broker_and_neither_bodies_nor_secrets(tmp_path: Path) -> None:
    log, archive = tmp_path / "log", tmp_path / "a.zip"
    log.write_text("x" * diagnose.LOG_BYTES + "the last line\n")
    async with serving(tmp_path / "store") as running:
        client = await running.client()
        await client.half("orders", CANARY.encode(), unique="AC10000100002A9F0000000000000001")
        result = await asyncio.to_thread(
            run, "--out", str(archive), "--url", f"127.0.0.1:{running.ports.names}", "--data", str(tmp_path / "store"), "--log", str(log),
            HALFMQ_SECRET=CANARY, HALFMQ_DATABASE_URL=f"postgresql://ada:{CANARY}@db/shop", HALFMQ_OPERATOR="ada",
        )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, f"{archive}\n"), result.output
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with zipfile.ZipFile(archive) as opened:
        texts = {name: opened.read(name).decode() for name in opened.namelist()}
    assert [name for name, text in texts.items() if CANARY in text] == []
    assert len(texts) == len(diagnose.ASKED) + 5
    assert json.loads(texts["environment.json"])["HALFMQ_OPERATOR"] == "ada"
    assert '"tx_id":"AC10000100002A9F0000000000000001"' in texts["tx-list.txt"]
    assert json.loads(texts["versions.json"])["packages"]["msgspec"]
    assert texts["log.txt"].endswith("the last line\n")
    assert len(texts["log.txt"]) == diagnose.LOG_BYTES
    assert "exit status 0" in texts["store-verify.txt"]
    assert "store.json" in texts["files.txt"]


@pytest.mark.slow
def test_a_broker_that_is_away_is_a_finding_and_no_failure(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    result = run("--out", str(archive), "--url", "rocketmq://127.0.0.1:1")
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(archive) as opened:
        assert "Connection refused" in opened.read("tx-stats.txt").decode()
    before = archive.read_bytes()
    again = run("--out", str(archive), "--url", "rocketmq://127.0.0.1:1")
    assert (again.exit_code, archive.read_bytes()) == (1, before), "an archive is not written over"


def test_a_command_that_does_not_end_is_said_in_the_archive() -> None:
    assert "no end within 0 s" in diagnose._run(["tx", "list"], 0.01)
