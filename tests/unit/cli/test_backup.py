"""`halfmq backup` of a running broker: complete, incremental, verified, and never replaced by something worse."""

import asyncio
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq.broker.services import backups
from halfmq.cli import backup, store
from halfmq.errors import StoreDamaged
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.store.backup import Manifest, existing, verify_backup
from halfmq.store.segment import segment_name

SMALL = 1 << 16
NO_WINDOW = BrokerSettings(dedup_window_ms=0)
DISK = RealDisk()


async def run(running: Running, directory: Path, *options: str) -> Result:
    invoke: Any = CliRunner().invoke
    url = f"127.0.0.1:{running.ports.names}"
    return await asyncio.to_thread(invoke, backup.app, [str(directory), "--url", url, *options])


async def made(running: Running, directory: Path, *options: str) -> dict[str, Any]:
    done = await run(running, directory, "--json", *options)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


async def fill(running: Running, count: int, name: str) -> None:
    client = await running.client()
    for number in range(count):
        assert (await client.send("Fill", bytes(8_000), unique=f"{name}{number:028d}")).code == 0


def log_of(directory: Path, manifest: Manifest) -> bytes:
    parts = [(directory / "log" / segment_name(one.start)).read_bytes()[: one.bytes] for one in manifest.segments]
    return b"".join(parts)


async def test_a_backup_is_the_log_up_to_a_position_and_the_next_one_copies_what_is_new(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        first = await made(running, where)
        assert first["position"] == running.state.log_end == first["bytes"] == first["copied_bytes"]
        assert first["segments"] == -(-first["position"] // SMALL) > 2
        before = existing(DISK, where)
        assert log_of(where, before) == running.log_bytes()[: first["position"]]
        again = await made(running, where)
        assert (again["position"], again["copied_bytes"]) == (first["position"], 0)
        await fill(running, 12, "TWO_")
        second = await made(running, where)
        assert second["copied_bytes"] == second["position"] - first["position"] > SMALL
        after = existing(DISK, where)
        assert log_of(where, after) == running.log_bytes()[: second["position"]]
        assert after.segments[: len(before.segments) - 1] == before.segments[:-1]
    assert verify_backup(DISK, where).manifest == after
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (where, *where.rglob("*"))}
    assert set(modes.values()) == {0o600, 0o700}
    assert modes["backup"] == modes["log"] == 0o700


async def test_what_a_cut_off_backup_leaves_is_ignored_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: Any
) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 4, "ONE_")
        await made(running, where)
        before = existing(DISK, where)
        await fill(running, 20, "TWO_")
        written = 0
        write = backup.write_manifest

        def cut_off(*_: object) -> None:
            nonlocal written
            written += 1
            raise OSError(5, "cut off", "backup.json")

        monkeypatch.setattr(backup, "write_manifest", cut_off)
        assert (await run(running, where)).exit_code == 1
        assert written == 1
        monkeypatch.setattr(backup, "write_manifest", write)
        assert verify_backup(DISK, where).manifest == before
        done = await made(running, where)
        assert done["position"] == running.state.log_end
        assert log_of(where, existing(DISK, where)) == running.log_bytes()[: done["position"]]
    verify_backup(DISK, where)


async def test_a_first_backup_that_was_cut_off_is_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        with monkeypatch.context() as patch:
            patch.setattr(backup, "verify_batches", lambda *_: 1 / 0)
            assert (await run(running, where)).exit_code == 1
        assert (where / "log").is_dir()
        assert not (where / "backup.json").exists()
        await made(running, where)
    verify_backup(DISK, where)


@pytest.mark.parametrize("kept", [False, True])
async def test_segments_that_retention_removed_are_dropped_or_kept(tmp_path: Path, kept: bool) -> None:
    where = tmp_path / "backup"
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 4 * SMALL, "settings": NO_WINDOW}
    async with serving(
        tmp_path / "data", segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        await fill(running, 20, "ONE_")
        await made(running, where)
        await fill(running, 16, "TWO_")
        await until(lambda: running.state.log_start > 0 and running.maintenance._trimming is None)
        done = await made(running, where, *(["--keep"] if kept else []))
        assert bool(done["removed_segments"]) is not kept
    manifest = existing(DISK, where)
    assert (manifest.segments[0].start == 0) is kept
    assert manifest.log_start > 0
    files = sorted(path.name for path in (where / "log").iterdir())
    assert files == [segment_name(one.start) for one in manifest.segments]
    verify_backup(DISK, where)


async def test_retention_waits_for_a_backup_and_goes_on_after_it(tmp_path: Path) -> None:
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": SMALL, "settings": NO_WINDOW}
    async with serving(
        tmp_path / "data", segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, **keeping
    ) as running:
        client = await running.client()
        begun = await client.ask(29_034)
        assert (begun.code, begun.ext["logStart"]) == (0, "0")
        await fill(running, 40, "ONE_")
        await until(lambda: running.maintenance._checkpoint_at > 4 * SMALL)
        assert running.maintenance._trim_target() > 2 * SMALL  # type: ignore[operator]
        for _ in range(5):
            running.maintenance.check_retention()
        assert running.state.log_start == 0
        assert (await client.ask(29_035, {"offset": "0", "maxBytes": "4096"})).code == 0
        assert (await client.ask(29_036)).code == 0
        await until(lambda: running.state.log_start > 2 * SMALL)


async def test_a_backup_does_not_fill_the_disk(tmp_path: Path, monkeypatch: Any) -> None:
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": SMALL, "settings": NO_WINDOW}
    async with serving(
        tmp_path / "data", segment_bytes=SMALL, retention_check_ms=10, checkpoint_interval_ms=20, **keeping
    ) as running:
        client = await running.client()
        await client.ask(29_034)
        await fill(running, 40, "ONE_")
        monkeypatch.setattr(backups, "IDLE_S", 86_400.0)
        monkeypatch.setattr(running.broker._store, "free_bytes", lambda: SMALL)
        await until(lambda: running.state.log_start > 2 * SMALL)
        refused = await client.ask(29_035, {"offset": "0", "maxBytes": "4096"})
        assert (refused.code, "the disk was nearly full" in (refused.remark or "")) == (1, True)


async def test_a_connection_that_closes_ends_its_backup(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(backups, "BACKUPS_MAX", 1)
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        client, other = await running.client(), await running.client()
        assert (await client.ask(29_034)).code == 0
        refused = await run(running, tmp_path / "backup")
        assert (refused.exit_code, "backups are in progress" in refused.stderr) == (1, True)
        assert (await other.ask(29_035, {"offset": "0", "maxBytes": "1"})).code == 2
        await client.close()
        await until(lambda: running.broker._handlers and not running.maintenance._kept_from())
        await made(running, tmp_path / "backup")


async def test_another_store_or_another_end_of_the_log_is_not_mixed_in(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 4, "ONE_")
        await made(running, where)
    async with serving(tmp_path / "other", segment_bytes=SMALL) as running:
        refused = await run(running, where)
        assert (refused.exit_code, "has a backup of store" in refused.stderr) == (2, True)
    before = existing(DISK, where)
    log = tmp_path / "data" / "shard-0" / "log" / segment_name(0)
    whole = log.read_bytes()
    log.write_bytes(whole[: before.last_batch] + bytes(len(whole) - before.last_batch))
    for name in ("published", "checkpoint"):
        (tmp_path / "data" / "shard-0" / name).unlink(missing_ok=True)
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        refused = await run(running, where)
        assert (refused.exit_code, "it lost its end" in refused.stderr) == (2, True)
        await fill(running, 2, "TWO_")
        refused = await run(running, where)
        assert (refused.exit_code, "continued with something else" in refused.stderr) == (2, True)
    assert verify_backup(DISK, where).manifest == before


async def test_what_is_no_backup_is_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        for name in (tmp_path / "data", tmp_path / "data" / "shard-0", tmp_path / "data" / "shard-0" / "log"):
            refused = await run(running, name)
            assert (refused.exit_code, "not empty" in refused.stderr) == (2, True)
            assert not (name / "backup.json").exists()
        (tmp_path / "taken").mkdir()
        held = DISK.lock(tmp_path / "taken" / "lock")
        assert held is not None
        busy = await run(running, tmp_path / "taken")
        assert (busy.exit_code, "another process makes a backup" in busy.stderr) == (1, True)
        held.close()
    away = await asyncio.to_thread(CliRunner().invoke, backup.app, [str(tmp_path / "b"), "--url", "127.0.0.1:1"])
    assert away.exit_code == 1


async def test_a_backup_is_not_made_inside_a_store_or_another_backup(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    async with serving(data) as running:
        await made(running, other)
        (tmp_path / "link").symlink_to(data)
        for where, what in (
            (data / "new", f"store in {data}"),
            (data / "shard-0" / "a" / "b", f"store in {data}"),
            (tmp_path / "link" / "new", f"store in {data}"),
            (other / "new", f"backup in {other}"),
        ):
            done = await run(running, where)
            assert f"{where} is inside the {what} (give a directory outside of it)" in done.output
            assert (done.exit_code, where.exists()) == (2, False)


async def test_a_backup_whose_log_was_removed_is_not_continued(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data") as running:
        await fill(running, 1, "ONE_")
        await made(running, where)
        shutil.rmtree(where / "log")
        (where / "lock").unlink()
        done = await run(running, where)
        assert done.exit_code != 0
        assert f"{where / 'log' / segment_name(0)} is missing (make a new backup in another directory)" in done.output
        assert [path.name for path in where.iterdir()] == ["backup.json"]


async def test_store_verify_says_that_a_first_backup_was_cut_off(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data") as running:
        await fill(running, 1, "ONE_")
        await made(running, where)
    (where / "backup.json").unlink()
    done = CliRunner().invoke(store.app, ["verify", str(where)])
    assert f"{where} is a backup that is not complete: backup.json is missing" in done.output
    assert "run `halfmq backup` again" in done.output
    assert done.exit_code == 2


async def test_damage_at_the_source_is_found_before_it_is_a_backup(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        log = tmp_path / "data" / "shard-0" / "log" / segment_name(SMALL)
        with log.open("r+b") as file:
            file.seek(20_000)
            file.write(b"\xff" * 8)
        refused = await run(running, where)
        assert (refused.exit_code, "does not have the CRC" in refused.stderr) == (1, True)
        assert not (where / "backup.json").exists()


async def test_store_verify_finds_each_damaged_byte_of_a_backup(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        await made(running, where)
    whole = CliRunner().invoke(store.app, ["verify", str(where)])
    assert (whole.exit_code, whole.stdout.splitlines()[-1]) == (0, "whole")
    for name in [f"log/{segment_name(0)}", f"log/{segment_name(SMALL)}", "backup.json"]:
        path = where / name
        good = path.read_bytes()
        for bad in (good[:-3], good[:44] + bytes([good[44] ^ 1]) + good[45:], good[: len(good) // 2]):
            path.write_bytes(bad)
            found = CliRunner().invoke(store.app, ["verify", str(where)])
            assert (found.exit_code, found.stdout.splitlines()[-1:]) == (1, ["damaged"]), (name, found.output)
        path.write_bytes(good)
    (where / "log" / segment_name(0)).unlink()
    with pytest.raises(StoreDamaged, match="is missing"):
        verify_backup(DISK, where)


async def test_a_file_that_was_changed_is_not_continued(tmp_path: Path) -> None:
    where = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 4, "ONE_")
        await made(running, where)
        path = where / "log" / segment_name(0)
        good = path.read_bytes()
        path.write_bytes(good[:10_000] + b"\x55" + good[10_001:])
        await fill(running, 1, "TWO_")
        refused = await run(running, where)
        assert (refused.exit_code, "was changed since" in refused.stderr) == (1, True)
