"""`halfmq restore`: another store with the log up to a position, whose undecided transactions wait for who knows."""

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import until
from tests.unit.cli.test_backup import NO_WINDOW, SMALL, fill, made
from typer.testing import CliRunner, Result

from halfmq.broker import restore as module
from halfmq.cli import restore
from halfmq.errors import StoreDamaged
from halfmq.model.records import EpochStarted, Restored
from halfmq.runtime.disk import RealDisk
from halfmq.store.backup import existing
from halfmq.store.dump import records_of
from halfmq.store.identity import read_identity
from halfmq.store.segment import segment_name
from halfmq.store.verify import verify_store

DISK = RealDisk()
COMMIT, ROLLBACK = 8, 12


def tx(number: int) -> str:
    return f"AC10000100002A9F{number:016d}"


def run(*arguments: str | Path) -> Result:
    invoke: Any = CliRunner().invoke
    result: Result = invoke(restore.app, [*map(str, arguments)])
    return result


def restored(backup: Path, data: Path, *options: str) -> dict[str, Any]:
    done = run(backup, data, "--json", *options)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


async def body(client: RawClient, topic: str, offset: int = 0) -> bytes:
    return (await client.pull(topic, offset)).body


async def with_transactions(running: Running) -> tuple[RawClient, dict[int, Answer]]:
    """1 is committed, 2 rolled back, 3 to 6 undecided."""
    client = await running.client()
    halves = {number: await client.half("T", b"body %d" % number, unique=tx(number)) for number in range(1, 7)}
    await client.end(halves[1], tx(1), COMMIT)
    await client.end(halves[2], tx(2), ROLLBACK)
    return client, halves


async def test_a_restored_store_has_what_the_backup_had_under_another_id(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        client, halves = await with_transactions(running)
        await made(running, tmp_path / "backup")
        for number in (3, 4):  # after the backup
            await client.end(halves[number], tx(number), COMMIT)
    found = restored(tmp_path / "backup", tmp_path / "new")
    manifest = existing(DISK, tmp_path / "backup")
    identity = read_identity(DISK, tmp_path / "new")
    assert identity is not None
    assert (found["store"], found["restored_from"]) == (identity.store_id.hex(), manifest.store)
    assert found["store"] != manifest.store
    assert (found["position"], found["time_ms"]) == (manifest.position, manifest.time_ms)
    assert [(one["group"], one["tx_id"], one["topics"]) for one in found["undecided"]] == [
        ("P", tx(number), ["T"]) for number in (3, 4, 5, 6)
    ]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    assert modes == {0o600, 0o700}
    async with serving(tmp_path / "new", segment_bytes=SMALL) as running:
        client = await running.client()
        got = await body(client, "T")
        assert b"body 1" in got
        assert b"body 3" not in got
        assert (await client.end(halves[3], tx(3), COMMIT)).ext["HMQ_VERDICT"] == "COMMITTED"
        refused = await client.end(halves[4], tx(4), ROLLBACK)
        assert (refused.code, "an operator decides" in (refused.remark or "")) == (29, True)
        assert (await client.end(halves[4], tx(4), COMMIT)).ext["HMQ_VERDICT"] == "COMMITTED"
        new = await client.half("T", b"new", unique=tx(9))
        assert (await client.end(new, tx(9), ROLLBACK)).ext["HMQ_VERDICT"] == "ROLLED_BACK"
        refused = await client.end(halves[5], tx(5), ROLLBACK)
        assert refused.code == 29
    async with serving(tmp_path / "new", segment_bytes=SMALL) as running:
        group = running.state.producer_groups["P"]
        assert list(group.undecided) == [tx(5), tx(6)]
        assert [one.parked is not None for one in group.undecided.values()] == [True, False]
    kinds = [type(record) for record, _, _ in records_of(DISK, tmp_path / "new", start=manifest.position)]
    assert kinds[:2] == [Restored, EpochStarted]
    assert not verify_store(DISK, tmp_path / "new").damaged


async def test_it_ends_at_the_last_batch_up_to_a_position_or_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 12, "ONE_")
        client = await running.client()
        ends, times = [], []
        for number in range(8):
            assert (await client.send("T", b"message %d" % number, unique=f"T{number:031}")).code == 0
            ends.append(running.state.log_end)
            times.append(running.state.batch_time_ms)
            await fill(running, 3, f"{number:04}")
            await until(lambda: running.broker._sequencer._time.now_ms() > running.state.batch_time_ms + 1)
        await made(running, tmp_path / "backup")
    cases = [("position", number, ends[number] + more) for number in (0, 3, 7) for more in (0, 8)]
    cases += [("time", number, times[number]) for number in (0, 5)]
    for place, (kind, number, value) in enumerate(cases):
        said = datetime.fromtimestamp(value / 1_000, UTC).isoformat() if kind == "time" else str(value)
        data = tmp_path / f"new-{place}"
        found = restored(tmp_path / "backup", data, f"--{kind}", said)
        assert found["position"] == ends[number] if kind == "position" else found["time_ms"] <= value
        async with serving(data, segment_bytes=SMALL) as running:
            client = await running.client()
            offsets = await client.pull("T")
            assert int(offsets.ext["maxOffset"]) == number + 1
            assert b"message %d" % number in offsets.body
        assert not verify_store(DISK, data).damaged


async def test_a_position_that_the_backup_does_not_have_is_refused(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    keeping: dict[str, Any] = {"retention_ms": 0, "retention_bytes": 4 * SMALL, "settings": NO_WINDOW}
    async with serving(
        tmp_path / "data", segment_bytes=SMALL, retention_check_ms=20, checkpoint_interval_ms=40, **keeping
    ) as running:
        await fill(running, 20, "ONE_")
        early = running.state.log_end
        await made(running, backup)
        await made(running, tmp_path / "kept")
        await fill(running, 16, "TWO_")
        await until(lambda: running.state.log_start > 0 and running.maintenance._trimming is None)
        await made(running, backup)
        await made(running, tmp_path / "kept", "--keep")
    manifest = existing(DISK, backup)
    assert manifest.segments[0].start < early
    refused = run(backup, tmp_path / "new", "--position", str(early))
    assert (refused.exit_code, "still needed segments before" in refused.stderr) == (2, True)
    for position in (manifest.position + 1, manifest.segments[0].start):
        refused = run(backup, tmp_path / "new", "--position", str(position))
        assert (refused.exit_code, "is not in the backup" in refused.stderr) == (2, True)
    refused = run(backup, tmp_path / "new", "--time", "2001-01-01T00:00:00Z")
    assert (refused.exit_code, "begins after that" in refused.stderr) == (2, True)
    assert not (tmp_path / "new").exists()
    for source, options in ((backup, []), (tmp_path / "kept", ["--position", str(early)]), (tmp_path / "kept", [])):
        data = tmp_path / f"new-{source.name}-{len(options)}"
        found = restored(source, data, *options)
        assert (found["log_start"] > 0) is not bool(options)
        async with serving(data, segment_bytes=SMALL) as running:
            assert running.state.log_start == found["log_start"]
        assert not verify_store(DISK, data).damaged


@pytest.mark.parametrize("more", [[], ["--position", "200"]])
async def test_a_torn_backup_is_refused_and_nothing_is_written(tmp_path: Path, more: list[str]) -> None:
    backup = tmp_path / "backup"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        await made(running, backup)
    for name in (f"log/{segment_name(SMALL)}", "backup.json"):
        good = (backup / name).read_bytes()
        for bad in (good[: len(good) // 2], good[:44] + bytes([good[44] ^ 1]) + good[45:]):
            (backup / name).write_bytes(bad)
            refused = run(backup, tmp_path / "new", *more)
            assert refused.exit_code == 1, refused.output
            assert not (tmp_path / "new").exists()
        (backup / name).write_bytes(good)
    assert run(tmp_path / "data", tmp_path / "new").exit_code == 2
    assert run(backup, tmp_path / "new", *more).exit_code == 0


async def test_a_store_is_not_restored_into_a_store_or_a_backup(tmp_path: Path) -> None:
    data, where = tmp_path / "data", tmp_path / "backup"
    async with serving(data) as running:
        await with_transactions(running)
        await made(running, where)
    for target, what in ((data / "new", f"store in {data}"), (where / "new", f"backup in {where}")):
        done = run(where, target)
        assert f"{target} is inside the {what} (give a directory outside of it)" in done.output
        assert (done.exit_code, target.exists()) == (2, False)


async def test_a_restore_that_was_cut_off_is_no_store(tmp_path: Path, monkeypatch: Any) -> None:
    backup, data = tmp_path / "backup", tmp_path / "new"
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        await made(running, backup)
    for name in ("encode_batch", "write_identity"):
        with monkeypatch.context() as patch:

            def cut_off(*_: object, **__: object) -> None:
                raise OSError(28, "No space left on device", str(data))

            patch.setattr(module, name, cut_off)
            failed = run(backup, data)
            assert (failed.exit_code, "remove the directory" in failed.stderr) == (1, True)
        with pytest.raises(StoreDamaged, match="contains a log but no store"):
            async with serving(data, segment_bytes=SMALL):
                pass
        again = run(backup, data)
        assert (again.exit_code, "is not empty" in again.stderr) == (2, True)
        for path in sorted(data.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        data.rmdir()
    assert run(backup, data).exit_code == 0


async def test_two_restores_are_two_stores_and_a_restored_one_is_backed_up_like_any(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        client, halves = await with_transactions(running)
        await made(running, tmp_path / "backup")
        assert client
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "lost+found").mkdir()
    first, second = (restored(tmp_path / "backup", tmp_path / name) for name in ("one", "two"))
    assert len({first["store"], second["store"], first["restored_from"]}) == 3
    async with serving(tmp_path / "one", segment_bytes=SMALL) as running:
        await fill(running, 20, "ONE_")
        await made(running, tmp_path / "backup-of-one")
    third = restored(tmp_path / "backup-of-one", tmp_path / "three")
    assert third["restored_from"] == first["store"]
    async with serving(tmp_path / "three", segment_bytes=SMALL) as running:
        client = await running.client()
        assert (await client.end(halves[5], tx(5), ROLLBACK)).code == 29


def test_wrong_options_are_named(tmp_path: Path) -> None:
    for options, says in (
        (["--position", "5", "--time", "2026-01-01T00:00:00Z"], "only one of them"),
        (["--time", "yesterday"], "not a time with a zone"),
        (["--time", "2026-01-01T00:00:00"], "not a time with a zone"),
    ):
        refused = run(tmp_path / "b", tmp_path / "d", *options)
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output


async def test_the_text_lists_what_is_undecided(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", segment_bytes=SMALL) as running:
        await with_transactions(running)
        await made(running, tmp_path / "backup")
    done = run(tmp_path / "backup", tmp_path / "new")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'new'} is store ")
    assert lines[1].startswith("4 transactions are undecided: ")
    assert lines[2].split() == ["GROUP", "ID", "AGE", "TOPICS"]
    assert [line.split()[:2] for line in lines[3:]] == [["P", tx(number)] for number in (3, 4, 5, 6)]
