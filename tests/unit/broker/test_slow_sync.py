"""A sync that takes long is said while it hangs, again when it is over, and not for ever."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.waiting import PATIENCE_S, until

from halfmq.broker import slow_sync
from halfmq.broker.slow_sync import REST_MS, SLOW_MS, SlowSync
from halfmq.runtime.disk import File, RealDisk, RealFile
from halfmq.store.store import Durability


class HandClock:
    def __init__(self) -> None:
        #: Zero is arbitrary, as on a machine.
        self.now_ms = 5_000_000

    def wall_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return self.now_ms


def test_one_that_hangs_is_said_once_and_again_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    watch = SlowSync(clock)
    watch.look()
    watch.began()
    clock.now_ms += SLOW_MS - 1
    watch.look()
    assert caplog.messages == []
    clock.now_ms += 1_001
    watch.look()
    watch.look()
    (hangs,) = caplog.messages
    assert "running for 2.0 s, and replies wait" in hangs
    clock.now_ms += 3_000
    watch.ended()
    assert "took 5.0 s, and replies waited" in caplog.messages[1]
    watch.look()
    assert len(caplog.messages) == 2


def test_a_short_one_is_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    watch = SlowSync(clock)
    for _ in range(3):
        watch.began()
        clock.now_ms += SLOW_MS - 1
        watch.ended()
    clock.now_ms += SLOW_MS
    watch.look()
    assert caplog.messages == []


def test_a_disk_that_is_always_slow_is_said_now_and_then_with_how_many(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    watch = SlowSync(clock)
    for _ in range(1 + REST_MS // (2 * SLOW_MS)):
        watch.began()
        clock.now_ms += 2 * SLOW_MS
        watch.look()
        watch.ended()
    assert len(caplog.messages) == 4, "the first one and its end, and those of the first after the rest"
    assert f"({REST_MS // (2 * SLOW_MS) - 1} more took over 1 s" in caplog.messages[2]


class _File(RealFile):
    let_go: threading.Event

    def sync(self) -> None:
        assert self.let_go.wait(PATIENCE_S)
        super().sync()


class _SlowDisk(RealDisk):
    """Syncs of segments wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        opened = super().open(path, create=create, writable=writable)
        if path.suffix != ".seg":
            return opened
        assert isinstance(opened, RealFile)
        slow = _File(path, os.dup(opened._descriptor))  # each closes its own
        slow.let_go = self.let_go
        return slow


async def test_the_broker_watches_its_sync_thread_while_answers_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_sync, "SLOW_MS", 20)
    monkeypatch.setattr(slow_sync, "REST_MS", 0)
    monkeypatch.setattr("halfmq.broker.maintenance.SPACE_CHECK_MS", 20)
    disk = _SlowDisk()
    async with serving(tmp_path, disk=disk, durability=Durability.FSYNC) as running:
        client = await running.client()
        caplog.clear()
        disk.let_go.clear()
        try:
            waiting = asyncio.create_task(client.send("T", b"x", unique="A" * 32))
            await until(lambda: "has been running for" in caplog.text)
            assert not waiting.done()
        finally:
            disk.let_go.set()
        assert (await waiting).code == 0
    assert "s, and replies waited for it" in caplog.text
