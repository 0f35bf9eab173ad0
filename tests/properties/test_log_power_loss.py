"""Power loss over the log alone, at random operations, on a disk that drops, tears and reorders what was not synced.

Sometimes only the process is killed, so that what was not synced is still there and a later loss takes it. After each the log is recovered,
compared, and written on; power may fail again, also inside recovery. Promised:

    everything that was reported durable is there
    what is there is a prefix of what was written, batch by batch, byte by byte
    an epoch is higher than any in the log, and nothing is refused: a power loss is not damage

`HALFMQ_TEST_SEEDS=2000` runs more seeds. A seed repeats exactly.
"""

from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.amount import amount
from tests.support.power_cuts import Lives, Lost, counts_of, is_broken, without_fdatasync

from halfmq.store.batch_codec import decode_batch, read_header
from halfmq.store.commit_log import CommitLog
from halfmq.store.log_scan import Batch, LogScan
from halfmq.store.recovery import examine_log, repair
from halfmq.store.segment import SegmentFiles

SEEDS = amount(80, 250, "HALFMQ_TEST_SEEDS")
HOME = Path("/store/shard-0/log")


class Run(Lives):
    """One seed: a log under load, with power losses."""

    operations = 60

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.under = make.LogUnderTest(self.disk, HOME)
        #: (end, records) of each batch that was written or begun, in order.
        self.written: list[tuple[int, list[object]]] = []
        self.durable = 0
        self.epoch = 0

    def start(self) -> None:
        recovering = True
        try:
            self.under.make().start()
            recovering = False
        finally:
            self.counts["inside_recovery"] += recovering
        self.check()
        log = self.under.log
        if log.epoch <= self.epoch:
            raise Lost(f"epoch {log.epoch}, and the log holds a batch of epoch {self.epoch}")

    def check(self) -> None:
        """The recovered log is a prefix of what was written, and holds all that was durable."""
        under = self.under
        if under.log.end < self.durable:
            raise Lost(f"the log ends at {under.log.end}, it was durable up to {self.durable}")
        found = []
        for scanned in LogScan(under.files).from_batch(under.recovery.log_start, 0):
            if isinstance(scanned, Batch):
                self.epoch = max(self.epoch, scanned.header.epoch)
                found.append((scanned.header.end, decode_batch(scanned.view, scanned.place, scanned.header)))
        expected = [one for one in self.written if one[0] <= under.log.end]
        if found != expected:
            raise Lost(f"{len(found)} batches are there, {len(expected)} should be up to {under.log.end}")
        self.counts["cut_batches"] += len(self.written) - len(expected)
        self.written = expected
        self.durable = under.log.end

    def load(self) -> None:
        rng, log = self.rng, self.under.log
        for _ in range(rng.randrange(1, 120)):
            self.append()
            if rng.random() < 0.25:
                self.durable = log.sync(log.end if rng.random() < 0.7 else self.durable)
            if rng.random() < 0.2:
                log.prepare_next()

    def append(self) -> None:
        rng, log = self.rng, self.under.log
        makes = [
            make.plain(rng.randbytes(rng.choice((0, 10, 500, 3_000)))) if rng.random() < 0.7 else make.checked()
            for _ in range(rng.randrange(1, 6))
        ]
        end = log.end
        records = make.laid_out(end, makes)
        size = make.end_of(records) - end
        if end % make.SEGMENT == 0 or end % make.SEGMENT + size > make.SEGMENT:
            records = make.laid_out(-(-end // make.SEGMENT) * make.SEGMENT, [make.base(end), *makes])
            self.counts["rolls"] += 1
        # Noted before it is written: power may fail in the middle, and all of it may have arrived.
        self.written.append((make.end_of(records), list(records)))
        log.append(records, 1_000)


def test_some_seeds() -> None:
    assert counts_of(Run, range(15))["losses"] > 10


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_everything_durable_is_there_and_the_rest_is_a_prefix() -> None:
    counts = counts_of(Run, range(SEEDS))
    assert counts["losses"] > SEEDS
    assert counts["kills"] > SEEDS / 2
    assert counts["rolls"] > SEEDS
    assert counts["cut_batches"] > SEEDS
    assert counts["inside_recovery"] > SEEDS / 10


@pytest.mark.slow
def test_without_fdatasync_it_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fdatasync(monkeypatch)
    assert is_broken(Run, 30, more_than=10)


@pytest.mark.slow
def test_without_the_directory_sync_of_a_new_segment_it_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.store.segment.Segment.sync_name", lambda self, disk: self.file.sync())
    assert is_broken(Run, 60, more_than=3)


@pytest.mark.slow
def test_accepting_a_torn_tail_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose header is there is taken without looking at its checksum."""
    monkeypatch.setattr("halfmq.store.log_scan.examine", read_header)
    assert is_broken(Run, 60, more_than=3)


@pytest.mark.slow
def test_taking_the_end_for_durable_without_a_sync_at_the_start_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeroing a torn tail counts only when it is on the disk before the next batch is."""
    monkeypatch.setattr(make.LogUnderTest, "start", start_without_sync)
    assert is_broken(Run, 120, more_than=6)


def start_without_sync(self: make.LogUnderTest) -> make.LogUnderTest:
    self.files = SegmentFiles(self.disk, self.directory, self.segment_bytes)
    self.recovery = examine_log(self.files, [])
    end = self.recovery.end
    self.log = CommitLog(self.disk, self.files, epoch=self.recovery.epoch + 1, end=end, synced_position=end)
    repair(self.disk, self.files, self.recovery._replace(durable_position=end))
    return self
