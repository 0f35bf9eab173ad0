"""Files that somebody cut short, or that the disk cannot read, under a running broker: who asks for them is refused, and
told which file at which place; everything else is served. A read of a mapped file would end the process instead (SIGBUS)."""

import asyncio
from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import until

SMALL = 1 << 16
ID = "AC10000100002A9F0000000000000001"
FIRST = "00000000000000000000.seg"
QUERY = {"topic": "T", "key": "first", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}


async def several_segments(running: Running) -> tuple[RawClient, Answer, Answer]:
    """(client, the message and the undecided half that lie in the first segment). Whatever was read last is of another one."""
    client = await running.client()
    half = await client.half("T", bytes(5_000), unique=ID)
    first = await client.send("T", bytes(5_000), unique=f"T{0:031d}", KEYS="first")
    for number in range(1, 30):
        assert (await client.send("T", bytes(5_000), unique=f"T{number:031d}")).code == 0
    assert (await client.pull("T", 29)).code == 0
    return client, first, half


async def test_segment_that_was_cut_short_refuses_what_lay_in_it_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client, first, half = await several_segments(running)
        path = tmp_path / "shard-0" / "log" / FIRST
        with path.open("r+b") as file:
            file.truncate(4_096)
        told = f"{path} has 4096 bytes instead of {SMALL}"
        for ask in (
            client.pull("T", 0),
            client.ask(33, {"offset": str(int(first.ext["msgId"][-16:], 16))}),
            client.ask(12, QUERY),
        ):
            refused = await ask
            assert (refused.code, told in refused.remark, "backup" in refused.remark) == (1, True, True), refused
        assert (await client.pull("T", 0)).code == 1
        commit = await client.end(half, ID, 8)
        assert (commit.code, told in commit.remark, "stays undecided" in commit.remark) == (1, True, True), commit
        assert (await client.end(half, ID, 12)).code == 0, "a rollback needs no copy"
        assert (await client.pull("T", 28)).code == 0
        assert (await client.send("T", b"new", unique="N" * 32)).code == 0
        assert not running.broker.failed.done()
    assert sum("message at offset 0 cannot be read" in line for line in caplog.messages) == 1
    assert not any(record.exc_info for record in caplog.records), "the disk's fault is no traceback of ours"


@pytest.mark.parametrize(("ends", "offset"), [(FIRST, 0), (".q", 3)])
async def test_file_that_the_disk_cannot_read_is_refused_by_name_and_asked_again(ends: str, offset: int) -> None:
    disk = FaultyDisk(1)
    async with serving(Path("/store"), disk=disk, segment_bytes=SMALL) as running:
        client, _, _ = await several_segments(running)
        disk.fail("read", path_ends=ends)
        refused = await client.pull("T", offset)
        assert refused.code == 1
        assert f"T queue 0: the message at offset {offset} cannot be read" in refused.remark
        assert "Input/output error" in refused.remark
        assert ends in refused.remark
        assert (await client.pull("T", offset)).code == 0, "once it can be read again nothing is missing"


async def test_parked_pull_that_wakes_to_an_unreadable_queue_is_refused_and_the_broker_goes_on() -> None:
    disk = FaultyDisk(1)
    async with serving(Path("/store"), disk=disk, segment_bytes=SMALL) as running:
        client, _, _ = await several_segments(running)
        waiting = asyncio.create_task((await running.client()).pull("T", 30, wait_ms=20_000))
        await until(lambda: running.broker._pulls.held, "the pull is held")
        disk.fail("read", path_ends=".q")
        assert (await client.send("T", b"new", unique="N" * 32)).code == 0
        refused = await waiting
        assert (refused.code, "Input/output error" in refused.remark) == (1, True)
        assert (await client.pull("T", 30)).code == 0
        assert not running.broker.failed.done()


async def test_queue_file_that_was_cut_short_is_refused_by_name_and_a_start_makes_it_again(tmp_path: Path) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client, _, _ = await several_segments(running)
        (path,) = (tmp_path / "shard-0" / "queues").glob("*/0/*.q")
        with path.open("r+b") as file:
            file.truncate(480)
        refused = await client.pull("T", 12)
        assert (refused.code, f"{path} has 480 bytes" in refused.remark, "restart" in refused.remark) == (1, True, True)
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        assert (await (await running.client()).pull("T", 12)).code == 0
