"""Each kind of damage is named with its part and a remedy; a whole store has none; a broker may run beside."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.sample_store import VISIBLE, add_checkpoint, properties, sample_store
from tests.support.store_writer import StoreWriter

from halfmq.errors import StoreDamaged, UsageError
from halfmq.model.records import OperatorAction
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.store.verify import LOG_FIRST, REMAKE, RESTORE, SHORTER, Report, _Findings, verify_store
from halfmq.store.watermark_page import WatermarkPage


def parts(report: Report) -> set[str]:
    return {finding.part for finding in report.findings if finding.damage}


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x20]))


def test_a_whole_store_has_no_findings_and_everything_was_looked_at(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    position = add_checkpoint(writer)
    report = verify_store(RealDisk(), tmp_path)
    assert report.findings == ()
    assert (report.log_start, report.position) == (0, position)
    assert report.counted["queue_entries"] == VISIBLE + 1
    assert report.counted["snapshots"] == 1
    assert report.counted["keys"] > 200
    assert report.counted["settled_ids"] > 20
    assert report.counted["rows"] > 100
    assert report.counted["body_bytes"] > 90_000


def test_a_trimmed_store_is_whole(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    writer.trim()
    report = verify_store(RealDisk(), tmp_path)
    assert report.findings == ()
    assert report.log_start > 0


def test_a_store_whose_derived_files_were_trimmed_before_its_segments_is_whole(tmp_path: Path) -> None:
    """So it lies there when the broker is killed in between; the next start takes the segments too."""
    writer = sample_store(tmp_path)
    before = {path: path.read_bytes() for path in (writer.shard / "log").iterdir()}
    writer.trim()
    gone = [path for path in before if not path.exists()]
    assert gone
    for path in gone:
        path.write_bytes(before[path])
    report = verify_store(RealDisk(), tmp_path)
    assert report.findings == ()
    assert report.log_start == 0
    # Behind the trim a file that is not there is damage as before.
    first(writer.shard, "keys/*.key").unlink()
    assert {finding.part for finding in verify_store(RealDisk(), tmp_path).findings} == {"keys"}


def first(path: Path, pattern: str) -> Path:
    return min(path.glob(pattern))


def add_settled_id(shard: Path) -> None:
    """Behind the entries of the first segment, as if its last verdict was another transaction's as well."""
    path = first(shard, "settled_ids/*.ids")
    data = path.read_bytes()
    path.write_bytes(data + b"12345678" + data[-8:])


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a bit in a body": ("log", lambda shard: flip(first(shard, "log/*.seg"), 300)),
    "a bit in a batch header": ("log", lambda shard: flip(first(shard, "log/*.seg"), 20)),
    "a segment that is gone": ("log", lambda shard: sorted(shard.glob("log/*.seg"))[1].unlink()),
    "an entry's offset": ("queues", lambda shard: flip(first(shard, "queues/1/0/*.q"), 48 * 3 + 6)),
    "an entry's store time": ("queues", lambda shard: flip(first(shard, "queues/1/0/*.q"), 48 * 3 + 31)),
    "a queue file that is gone": ("queues", lambda shard: first(shard, "queues/2/1/*.q").unlink()),
    "a row's state": ("transactions", lambda shard: flip(first(shard, "transactions/*.tx"), 128 * 2 + 76)),
    "a row's original offset": ("transactions", lambda shard: flip(first(shard, "transactions/*.tx"), 128 * 5 + 14)),
    "the table that is gone": ("transactions", lambda shard: first(shard, "transactions/*.tx").unlink()),
    "a key": ("keys", lambda shard: flip(first(shard, "keys/*.key"), 16 * 4 + 3)),
    "a settled id": ("settled_ids", lambda shard: flip(first(shard, "settled_ids/*.ids"), 16 * 2 + 3)),
    "the position of a settled id": ("settled_ids", lambda shard: flip(first(shard, "settled_ids/*.ids"), 16 * 2 + 15)),
    "a file of settled ids that is gone": ("settled_ids", lambda shard: first(shard, "settled_ids/*.ids").unlink()),
    "a settled id that the log does not have": ("settled_ids", add_settled_id),
    "topics.json": ("topics", lambda shard: flip(shard / "topics.json", 60)),
    "a snapshot": ("checkpoint", lambda shard: flip(first(shard, "snapshots/*.snap"), 50)),
    "a snapshot that is gone": ("checkpoint", lambda shard: first(shard, "snapshots/*.snap").unlink()),
    "the checkpoint's slot": ("checkpoint", lambda shard: flip(shard / "checkpoint", 4_096 + 20)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_with_its_part_and_a_remedy(tmp_path: Path, name: str) -> None:
    add_checkpoint(sample_store(tmp_path))
    part, damage = DAMAGE[name]
    damage(tmp_path / "shard-0")
    report = verify_store(RealDisk(), tmp_path)
    assert part in parts(report)
    assert report.damaged
    assert all(finding.remedy for finding in report.findings)
    remedies = {finding.remedy for finding in report.findings}
    assert (RESTORE in remedies) == (part == "log")
    assert (REMAKE in remedies) == (part in ("queues", "transactions", "keys", "settled_ids"))


@pytest.mark.parametrize(("counts", "found"), [((1, 2), 0), ((1, 2, 1), 0), ((1, 2, 1, 0), 0), ((1,), 1), ((3,), 1)])
def test_a_row_counts_checks_as_the_last_record_does_also_when_an_attempt_was_taken_back(
    tmp_path: Path, counts: tuple[int, ...], found: int
) -> None:
    """The last two: the row says more and less than the log, by a flipped bit."""
    writer = sample_store(tmp_path)
    (half,) = writer.prepare("counted", [("orders", 0, b"body", properties(500, tx_id="counted"))])
    for checks in counts:
        writer.checked("counted", half, checks)
    writer.publish()
    if found:
        row = first(tmp_path / "shard-0", "transactions/*.tx")
        with row.open("r+b") as file:
            file.seek(128 * half.half_index + 64 + 8 + 3)
            file.write(b"\x02")
    report = verify_store(RealDisk(), tmp_path)
    assert [finding.part for finding in report.findings] == ["transactions"] * found
    assert all(f"half {half.half_index} was checked" in finding.what for finding in report.findings)


def test_nothing_is_to_be_made_again_from_a_damaged_log(tmp_path: Path) -> None:
    add_checkpoint(sample_store(tmp_path))
    shard = tmp_path / "shard-0"
    for name in ("a bit in a batch header", "a row's state", "a snapshot"):
        DAMAGE[name][1](shard)
    report = verify_store(RealDisk(), tmp_path)
    remedies = {(finding.part, finding.remedy) for finding in report.findings}
    assert {("log", RESTORE), ("checkpoint", LOG_FIRST)} <= remedies
    assert REMAKE not in {remedy for _, remedy in remedies}


def test_a_log_that_ends_before_what_was_published_says_when_that_is_no_loss_to_repair(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    end = writer.log.end
    segment = tmp_path / "shard-0" / "log" / f"{end - end % writer.segment_bytes:020d}.seg"
    with segment.open("r+b") as file:
        file.truncate(0)
        file.truncate(writer.segment_bytes)
    remedies = {(finding.part, finding.remedy) for finding in verify_store(RealDisk(), tmp_path).findings}
    assert ("log", SHORTER) in remedies
    assert {remedy for part, remedy in remedies if part != "log"} <= {LOG_FIRST}


def test_an_entry_that_no_record_calls_for_is_damage(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    low, high = writer.indexes.queues.bounds(1, 0)
    path = first(writer.shard, "queues/1/0/*.q")
    with path.open("r+b") as file:
        file.seek((high - 1 - low) * QUEUE_ENTRY_BYTES)
        last = file.read(QUEUE_ENTRY_BYTES)
        file.write(last)
    assert parts(verify_store(RealDisk(), tmp_path)) == {"queues"}


def test_many_wrong_entries_are_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue file that is gone is 65,536 of them, and a store may have thousands of such files."""
    kept: list[_Findings] = []
    add = _Findings.damage

    def watched(findings: _Findings, part: str, what: str, remedy: str) -> None:
        add(findings, part, what, remedy)
        kept.append(findings)

    monkeypatch.setattr(_Findings, "damage", watched)
    writer = StoreWriter(tmp_path)
    writer.topic("T", 1)
    for number in range(200):
        writer.send("T", 0, b"%d" % number)
    writer.publish()
    first(writer.shard, "queues/1/0/*.q").unlink()
    report = verify_store(RealDisk(), tmp_path)
    assert len(report.findings) == 21
    assert report.findings[-1].what.startswith("and 181 more, the last: topic 1 queue 0 ")
    assert len(kept) == 201, "each entry, and the queue's end"
    assert all(len(findings.all()) <= 21 for findings in kept)


def test_a_torn_end_that_was_never_published_is_a_note(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    end = writer.log.end
    segment = tmp_path / "shard-0" / "log" / f"{end - end % writer.segment_bytes:020d}.seg"
    with segment.open("r+b") as file:
        file.seek(end % writer.segment_bytes)
        file.write(b"HMQB half a batch")
    report = verify_store(RealDisk(), tmp_path)
    assert not report.damaged
    assert [finding.part for finding in report.findings] == ["log"]
    assert "torn end" in report.findings[0].what


def test_a_log_that_ends_below_the_published_position_is_damage(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    writer.page.publish(writer.log.end + 4_096, 0, 0, 0)
    report = verify_store(RealDisk(), tmp_path)
    assert any("is published" in finding.what for finding in report.findings)
    assert parts(report) == {"log"}


def test_beside_a_broker_only_what_is_published_is_compared(tmp_path: Path) -> None:
    """The log and the indexes are ahead of the page, as they are at any moment of a running broker."""
    writer = sample_store(tmp_path)
    writer.send("orders", 0, b"one more")
    open_half = writer.prepare(
        "late", [("orders", 0, b"y", b"PGROUP\x01writers\x02UNIQ_KEY\x01l\x02HMQ_TX_ID\x01late\x02")]
    )
    writer.publish()
    published = writer.log.end
    writer.commit("late", open_half)
    writer.send("orders", 1, b"not published")
    writer._flush_batch()
    report = verify_store(RealDisk(), tmp_path)
    assert report.findings == ()
    assert report.position == published


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_log_that_lost_its_beginning_is_damage(tmp_path: Path, checkpoint: bool) -> None:
    """A base cannot tell that something lay before it; that nothing was trimmed can. A start refuses it, too."""
    writer = sample_store(tmp_path)
    if checkpoint:
        add_checkpoint(writer)
    first(writer.shard, "log/*.seg").unlink()
    report = verify_store(RealDisk(), tmp_path)
    assert [finding.what for finding in report.findings if finding.damage and finding.part == "log"][-1].startswith(
        "the log begins at 65536, but only what lies before 0 was trimmed"
    )


def test_a_log_that_is_gone_while_something_was_published_is_damage(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    for path in (writer.shard / "log").iterdir():
        path.unlink()
    assert parts(verify_store(RealDisk(), tmp_path)) == {"log"}


def test_damage_below_a_page_that_says_durable_is_for_a_backup(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    position = writer.publish()
    page = WatermarkPage.open(writer.disk, writer.shard / "published", writer.store_id, 2)
    page.publish(position, 0, 0, position)
    newest = max(path for path in writer.shard.glob("log/*.seg") if any(path.read_bytes()))
    flip(newest, len(newest.read_bytes().rstrip(b"\0")) - 10)
    for _ in range(2):
        findings = verify_store(RealDisk(), tmp_path).findings
        (finding,) = [one for one in findings if one.remedy == RESTORE]
        assert "the log was durable to" in finding.what
        assert SHORTER not in {one.remedy for one in findings}
        with pytest.raises(StoreDamaged, match="the log was durable up to"):
            list(dump_store(RealDisk(), tmp_path))
        page.rebuilding(position, 0, position)  # by a start that got no further


def test_without_a_store_nothing_is_verified(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        verify_store(RealDisk(), tmp_path)
    StoreWriter(tmp_path)
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(StoreDamaged, match=r"store\.json"):
        verify_store(RealDisk(), tmp_path)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_row_of_a_later_half_names_the_first_one(tmp_path: Path, damaged: bool) -> None:
    """What a start writes again, for halves that come behind it; a wrong one is found while nobody has decided."""
    writer = sample_store(tmp_path)
    several = [("orders", 0, b"body", properties(number, tx_id="several")) for number in (600, 601, 602)]
    halves = writer.prepare("several", several)
    writer.publish()
    if damaged:
        row = first(tmp_path / "shard-0", "transactions/*.tx")
        with row.open("r+b") as file:
            file.seek(128 * halves[2].half_index)
            file.write(b"\xff" * 8)
    found = [finding.what for finding in verify_store(RealDisk(), tmp_path).findings]
    says = f"the row of half {halves[2].half_index} says first_half -1 instead of {halves[0].half_index}"
    assert found == [says] * damaged


def test_without_space_for_the_transaction_table_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_store(tmp_path)
    monkeypatch.setattr(RealDisk, "free_bytes", lambda disk, directory: (4 << 20) - 1)
    with pytest.raises(UsageError, match="needs up to 4 MiB there") as caught:
        verify_store(RealDisk(), tmp_path)
    assert "TMPDIR" in str(caught.value.hint)


def test_while_derived_files_are_made_again_they_are_not_compared(tmp_path: Path) -> None:
    """By a broker that recovers, or by the next start where that was killed."""
    writer = sample_store(tmp_path)
    position = writer.publish()
    for path in (writer.shard / "queues").rglob("*.q"):
        path.unlink()
    assert "queues" in parts(verify_store(RealDisk(), tmp_path))
    writer.page.rebuilding(position, 0, position)
    report = verify_store(RealDisk(), tmp_path)
    assert parts(report) == set()
    assert [one.what for one in report.findings if "rebuilt" in one.what]
    newest = max(path for path in writer.shard.glob("log/*.seg") if any(path.read_bytes()))
    flip(newest, len(newest.read_bytes().rstrip(b"\0")) - 10)
    assert parts(verify_store(RealDisk(), tmp_path)) == {"log"}


def test_a_log_that_is_gone_while_a_checkpoint_is_left_is_damage(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    add_checkpoint(writer)
    (writer.shard / "published").unlink()
    for path in (writer.shard / "log").iterdir():
        path.unlink()
    assert "log" in parts(verify_store(RealDisk(), tmp_path))


def test_what_an_operator_did_stands_behind_who_did_it(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    halves = writer.prepare("by-hand", [("orders", 0, b"h", properties(9_000, tx_id="by-hand"))])
    writer.roll_back_by(make.operator_acted(OperatorAction.ROLL_BACK, "by-hand"), "by-hand", halves)
    writer.topic("named")
    writer.publish()
    assert verify_store(RealDisk(), tmp_path).findings == ()


@pytest.mark.parametrize(
    ("acted", "decided_by", "says"),
    [
        (make.operator_acted(OperatorAction.COMMIT, "by-hand"), 4, "but is followed by a RolledBack"),
        (make.operator_acted(OperatorAction.DELETE_TOPIC, "by-hand"), 4, "but is followed by a RolledBack"),
        (make.operator_acted(OperatorAction.ROLL_BACK, "another"), 4, "the verdict of 'by-hand'"),
        (make.operator_acted(OperatorAction.ROLL_BACK, "by-hand"), 1, "decided by 1"),
    ],
)
def test_somebody_who_did_something_else_than_what_stands_there_is_damage(
    tmp_path: Path, acted: make.Make, decided_by: int, says: str
) -> None:
    writer = sample_store(tmp_path)
    halves = writer.prepare("by-hand", [("orders", 0, b"h", properties(9_000, tx_id="by-hand"))])
    writer.roll_back_by(acted, "by-hand", halves, decided_by=decided_by)
    writer.publish()
    (found,) = verify_store(RealDisk(), tmp_path).findings
    assert (found.part, found.damage) == ("log", True)
    assert says in found.what


def test_somebody_who_did_nothing_is_damage_and_an_action_of_a_later_version_is_not(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    for action in (OperatorAction.SET_TOPIC, 200):
        acted = make.operator_acted(action, "orders")
        writer._put(acted(0).size, acted)
        writer.tick()
    writer.publish()
    (found,) = verify_store(RealDisk(), tmp_path).findings
    assert "but is followed by nothing" in found.what
