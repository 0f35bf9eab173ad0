"""Who may read a store: the broker's account, or also the members of one group; whatever the umask, and for every file that a busy broker
makes.
"""

import ast
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.children import fork
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import ShiftedClock, serving
from tests.support.waiting import until
from typer.testing import CliRunner

import halfmq
from halfmq.cli.store import app
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import Permissions, RealDisk
from halfmq.spark.files.direct_reader import DirectReader
from halfmq.spark.options import parse_options
from halfmq.spark.plan.partitions import Ranges, ranges_between
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.stored_rows import record_batch

#: Only root can give files to a group that it is not a member of, and become another account. Others test with their own.
ROOT = os.geteuid() == 0
GROUP = 54_321 if ROOT else os.getegid()
STRANGER = 54_322
SMALL = {
    "segment_bytes": 1 << 16, "retention_bytes": 1 << 18, "retention_check_ms": 10, "checkpoint_interval_ms": 20,
    "settings": BrokerSettings(dedup_window_ms=0),
}  # fmt: skip
#: One of each kind of file in ``store/layout.py``.
KINDS = {
    "store.json", "lock", ".seg", ".q", ".tx", ".key", ".ids", ".snap", "topics.json", "checkpoint", "published", "begun",
}  # fmt: skip


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that other accounts can reach, unlike pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="halfmq-permissions-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def busy(data: Path, permissions: Permissions) -> None:
    """A broker that writes every kind of file, removes segments, and takes snapshots; and a second start on the same directory."""
    clock = ShiftedClock()
    for start in range(2):
        async with serving(data, disk=RealDisk(permissions), clock=clock, **SMALL) as running:
            client = await running.client()
            run = await QueryRun.begin(client, query=f"q{start}")
            for number in range(60):
                unique = f"{start}{number:031d}"
                tx_unique = f"H{start}{number:030d}"
                topic = f"T{number % 3}"
                sent = await client.send(topic, bytes(8_000), unique=unique, KEYS=f"k{number}")
                assert sent.code == 0, sent
                chosen = {"HMQ_TX_ID": f"order-{start}-{number}"}
                half = await client.half(topic, b"half", unique=tx_unique, HMQ_TX_INDEX="0", HMQ_TX_COUNT="1", **chosen)
                assert (await client.end(half, tx_unique, (8, 12)[number % 2], **chosen)).code == 0
            await client.send("later", b"later", unique=f"D{start:031d}", DELAY="1")
            await run.prepare(0, "0.1", messages("a", 3))
            assert (await run.decide(0, "0.1")).code == 0
            clock.passed_ms += 5_000
            await until(lambda: running.state.log_start > 0, "a trim", 5)
            await until(lambda: list((data / "shard-0" / "snapshots").glob("*.snap")), "a snapshot")
            await running.offloaded()
            if start == 1:
                await running.broker.drain()


def modes(data: Path) -> dict[Path, tuple[int, int]]:
    """(mode, group) of everything in the store, and of the directory itself."""
    found = {}
    for path in (data, *data.rglob("*")):
        status = path.lstat()
        found[path] = (stat.S_IMODE(status.st_mode), status.st_gid)
    return found


def assert_permitted(data: Path, permissions: Permissions) -> None:
    found = modes(data)
    kinds = {path.suffix if path.suffix and path.suffix != ".json" else path.name for path in found if path.is_file()}
    assert kinds == KINDS, "a new kind of file: name it in layout.py, and here"
    for path, (mode, group) in found.items():
        wanted = permissions.directory_mode if path.is_dir() else permissions.file_mode
        assert mode == wanted, f"{path} has mode {mode:o}"
        assert permissions.group is None or group == permissions.group, path


async def test_every_file_of_a_busy_store_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "made" / "data"
    await busy(data, Permissions())
    assert_permitted(data, Permissions())
    assert stat.S_IMODE(data.parent.stat().st_mode) == 0o700, "a parent that the broker makes is as private"


async def test_every_file_of_a_busy_store_is_readable_for_its_group_only(tmp_path: Path, umask: int) -> None:
    await busy(tmp_path / "data", Permissions(GROUP))
    assert_permitted(tmp_path / "data", Permissions(GROUP))


async def start_and_stop(data: Path, permissions: Permissions = Permissions()) -> None:  # noqa: B008 - immutable
    async with serving(data, disk=RealDisk(permissions), **SMALL):
        pass


def open_to_all(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


async def test_store_of_an_earlier_version_is_closed_at_the_next_start_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await busy(tmp_path, Permissions())
    note = tmp_path / "notes.txt"
    note.touch()
    open_to_all(tmp_path)
    count = len(modes(tmp_path)) - 2  # the note, and the lock, which is opened first
    (tmp_path / "shard-0" / "elsewhere").symlink_to(note)
    caplog.clear()
    told = "files and directories in"
    async with serving(tmp_path, **SMALL):
        (line,) = [line for line in caplog.messages if told in line]
        assert f"{count} files" in line
    assert stat.S_IMODE(note.stat().st_mode) == 0o644, "it is not the store's"
    (tmp_path / "shard-0" / "elsewhere").unlink()
    note.unlink()
    assert_permitted(tmp_path, Permissions())
    caplog.clear()
    async with serving(tmp_path, **SMALL):
        assert not [line for line in caplog.messages if told in line]
    await start_and_stop(tmp_path, Permissions(GROUP))
    assert_permitted(tmp_path, Permissions(GROUP))
    await start_and_stop(tmp_path)
    assert_permitted(tmp_path, Permissions())


async def test_interrupted_change_is_completed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await busy(tmp_path, Permissions())
    open_to_all(tmp_path)
    left = [7]
    real = RealDisk._protect_one

    def interrupted(disk: RealDisk, path: Path) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(disk, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "_protect_one", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await start_and_stop(tmp_path)
    assert {mode for mode, _ in modes(tmp_path).values()} > {0o600, 0o644}
    await start_and_stop(tmp_path)
    assert_permitted(tmp_path, Permissions())


async def test_second_broker_with_another_group_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, **SMALL):
        before = modes(tmp_path)
        with pytest.raises(EnvironmentFailed, match="in use"):
            await start_and_stop(tmp_path, Permissions(GROUP))
        assert modes(tmp_path) == before


def read_beside(data: Path) -> dict[str, Any]:
    """What ``store verify`` and Spark's direct reader find, or why they refuse."""
    found: dict[str, Any] = {}
    verified = CliRunner().invoke(app, ["verify", str(data)])
    found["verify"] = [verified.exit_code, verified.output]
    try:
        source = DirectReader(parse_options({"path": str(data), "subscribe": "T1"}), RetryDeadline(50))
        seen = source.snapshot()
        starts = {queue: first for queue, (first, _) in seen.queues.items()}
        ends = {queue: end for queue, (_, end) in seen.queues.items()}
        ranges = Ranges(seen.store, tuple(ranges_between(starts, ends, seen.topic_id)))
        rows = source.read(ranges, lambda text: None)
        found["rows"] = sum(record_batch(some, ("topic",), lambda offset, why: None).num_rows for some in rows)
    except EnvironmentFailed as error:
        found["rows"] = str(error)
    return found


def as_account(data: Path, groups: list[int]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        os.setgroups(groups)
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        return read_beside(data)

    result = fork(work).result()
    assert isinstance(result, dict)
    return result


async def test_members_of_the_group_verify_and_read_the_store_and_others_learn_what_to_do(home: Path) -> None:
    data = home / "data"
    await busy(data, Permissions(GROUP))
    own = read_beside(data)  # also imports what a child of another account may not read from its disk
    assert own["verify"][0] == 0, own
    assert isinstance(own["rows"], int)
    assert own["rows"] > 0
    if not ROOT:
        return  # the modes, which another test compares, decide it
    assert as_account(data, [GROUP]) == own
    refused = as_account(data, [])
    assert refused["verify"][0] == 2, refused
    for told in (refused["verify"][1], refused["rows"]):
        assert f"{data} may not be read by this account, uid {STRANGER} (" in told.replace("/store.json", "")
        assert "--store-group GROUP" in told


def test_volume_of_another_account_is_used_and_keeps_its_permissions(home: Path) -> None:
    """The root of a volume may belong to another account, which lets the broker write there through a group. Who is not root has ``/`` for
    that.
    """
    home.chmod(0o777)

    def work() -> dict[str, Any]:
        volume = home if ROOT else Path("/")
        if ROOT:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
        disk = RealDisk()
        disk.make_directories(home / "shard-0" / "log")
        disk.open(home / "shard-0" / "log" / "a.seg", create=True).write(0, [b"x"])
        return {"changed": disk.protect(volume).changed, "kept": disk.protect(volume).kept, "volume": str(volume)}

    told = fork(work).result()
    assert told["changed"] == 0
    assert told["kept"].startswith(f"{told['volume']} keeps mode ")
    assert {mode for path, (mode, _) in modes(home).items() if path.is_dir()} == {0o777, 0o700}
    assert modes(home)[home / "shard-0" / "log" / "a.seg"][0] == 0o600


def test_group_is_found_by_name_or_number() -> None:
    import grp

    from halfmq.broker.process import _group_id

    own = os.getegid()
    assert _group_id(str(own)) == own
    assert _group_id(grp.getgrgid(own).gr_name) == own
    for unknown in ("no-such-group", "", "-1", "4294967295", "１"):
        with pytest.raises(UsageError, match="there is no group"):
            _group_id(unknown)


def test_account_that_is_no_member_of_the_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmq.broker.process import _group_id

    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(EnvironmentFailed, match="not a member of group 54399"):
        _group_id("54399")


#: What creates files or directories, or changes their modes, without asking ``runtime/disk.py``.
CREATES = {
    "open", "fdopen", "mkdir", "makedirs", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "touch", "write_text",
    "write_bytes", "copy2", "copyfile", "copytree", "chmod", "fchmod", "umask", "mkfifo", "symlink_to", "link",
}  # fmt: skip
#: Not in the store: the ports for a waiting process, and standard error that is missing. And for the broker's account alone, whatever
#: group may read the store: the audit log, and the token of the first administrator.
ALLOWED = {
    ("broker/process.py", "write_text"), ("broker/process.py", "open"), ("broker/audit_log.py", "open"), ("broker/first_token.py", "open"),
    ("broker/rotated_files.py", "open"), ("broker/rotated_files.py", "fchmod"),
}  # fmt: skip
#: Objects whose ``open`` is not the operating system's.
HARMLESS = {
    "_disk", "disk", "Store", "Indexes", "WatermarkPage", "self", "cls",
}  # fmt: skip


def test_store_and_broker_create_files_only_through_the_disk() -> None:
    source = Path(halfmq.__file__).parent
    found, seen = set(), 0
    for package in ("store", "broker", "core"):
        for path in (source / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name not in CREATES:
                    continue
                seen += 1
                owner = called.value if isinstance(called, ast.Attribute) else None
                of = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if of not in HARMLESS:
                    found.add((str(path.relative_to(source)), name))
    assert seen > 15
    assert found <= ALLOWED, found - ALLOWED
