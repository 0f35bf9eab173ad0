"""The beginning of the log: remains of a crash there are removed, and missing segments are reported."""

import errno
from pathlib import Path

import pytest

from halfmq.broker.config import BrokerConfig
from halfmq.errors import StoreDamaged
from halfmq.model.settings import BrokerSettings
from tests.simulation.world import DATA, HandClock, Life
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw_client import property_string

LOG = DATA / "shard-0" / "log"


class House:
    """A broker with segments of 64 KiB, on a disk that outlives it."""

    def __init__(self, retention_bytes: int) -> None:
        self.disk = FaultyDisk(1)
        self.clock = HandClock()
        self.config = BrokerConfig(
            data=DATA, port=0, name_port=0, segment_bytes=1 << 16, checkpoint_interval_ms=1_000, retention_check_ms=500,
            retention_bytes=retention_bytes, disk_reserve_bytes=0, settings=BrokerSettings(dedup_window_ms=0),
        )  # fmt: skip
        self.serial = 0
        self.start()

    def start(self) -> None:
        self.life = Life(self.disk, self.clock, self.disk.crashes + 1, self.config)
        self.life.start()
        self.life.settle()
        self.peer = self.life.connect()

    def send(self, messages: int) -> None:
        for _ in range(messages):
            self.serial += 1
            ext = {
                "a": "g", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0",
                "i": property_string(UNIQ_KEY=f"m{self.serial}"),
            }  # fmt: skip
            opaque = self.peer.send(310, ext, bytes(4_000))
            self.life.settle()
            assert self.peer.answers.pop(opaque).code == 0

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(milliseconds // 100):
            self.clock.now_ms += 100
            self.life.settle()

    def segments(self) -> list[str]:
        return [name for name in self.disk.list(LOG) if name.endswith(".seg")]

    def power_fails(self) -> None:
        self.disk.crash()


def test_files_that_a_crash_left_after_a_trim_are_removed_at_the_next_start_and_retention_continues() -> None:
    house = House(retention_bytes=100_000)
    house.send(60)
    before = {name: house.disk.content(LOG / name) for name in house.segments()}
    house.send(40)
    house.pass_time(3_000)
    start = house.life.state.log_start
    assert start > 0
    gone = max(before.keys() - set(house.segments()))  # files are removed oldest first
    house.power_fails()
    house.disk.open(LOG / gone, create=True).close()
    house.disk.put(LOG / gone, before[gone])  # the Trim is in the log, but the file still exists
    house.disk.sync_directory(LOG)
    house.start()
    assert gone not in house.segments()
    house.send(80)
    house.pass_time(3_000)
    assert house.life.state.log_start > start
    assert len(house.segments()) <= 5


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_log_without_its_first_segment_is_refused_with_the_position(with_checkpoint: bool) -> None:
    house = House(retention_bytes=0)
    house.send(80)
    house.pass_time(3_000)
    house.power_fails()
    first = house.segments()[0]
    house.disk.remove(LOG / first)
    if not with_checkpoint:
        house.disk.remove(DATA / "shard-0" / "checkpoint")
    left = house.disk.image()
    with pytest.raises(StoreDamaged, match=r"missing") as caught:
        house.start()
    assert f"the log in {DATA} begins at {1 << 16}" in str(caught.value)
    assert {path for path in left if path.suffix == ".seg"} == {
        path for path in house.disk.image() if path.suffix == ".seg"
    }


def test_a_trimmed_log_starts_without_its_snapshots() -> None:
    house = House(retention_bytes=100_000)
    house.send(80)
    house.pass_time(3_000)
    start = house.life.state.log_start
    assert start > 0
    house.power_fails()
    house.disk.remove(DATA / "shard-0" / "checkpoint")
    house.start()
    assert house.life.state.log_start == start


def test_a_disk_too_full_for_a_snapshot_does_not_stop_the_broker() -> None:
    house = House(retention_bytes=0)
    house.send(5)
    house.disk.fail("write", errno.ENOSPC, path_ends=".new")
    house.pass_time(1_500)
    assert house.life.broker._sequencer.failed is None
    house.send(5)
    house.pass_time(1_500)
    assert house.disk.exists(DATA / "shard-0" / "checkpoint")
    assert not [name for name in house.disk.list(Path(DATA / "shard-0" / "snapshots")) if name.endswith(".new")]
