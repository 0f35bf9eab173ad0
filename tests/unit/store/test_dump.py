import json
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import log_records as make
from tests.support.core_log import CoreLog
from tests.support.sample_store import add_checkpoint, properties, sample_store

from halfmq.core.base import base_payload
from halfmq.core.commands import SetUser
from halfmq.errors import StoreDamaged, UsageError
from halfmq.model.records import Base, Kind, base_size
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import KIND_OF, USERS_IN_BASE, dump_store
from halfmq.store.watermark_page import WatermarkPage


def lines(directory: Path, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump_store(RealDisk(), directory, **options)]


def test_every_record_is_one_line_in_log_order(tmp_path: Path) -> None:
    sample_store(tmp_path)
    found = lines(tmp_path)
    offsets = [line["offset"] for line in found]
    assert offsets == sorted(set(offsets))
    counted = Counter(line["kind"] for line in found)
    assert counted["half"] == 60
    assert counted["committed"] == 11
    assert counted["rolled_back"] == 10
    assert counted["copied_half"] == 2
    assert counted["delayed"] == counted["released"] == 30
    assert counted["base"] >= 2
    assert counted["topic_set"] == 2
    assert set(KIND_OF.values()) == {kind.name.lower() for kind in Kind}


def test_a_message_is_readable_and_its_body_only_on_request(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    writer.send("orders", 3, b"\xff\xfe", b"")
    writer.send("orders", 3, "grüße".encode(), b"TAGS\x01a\x02")
    writer.publish()
    binary, text = lines(tmp_path, kinds=frozenset({"message"}), bodies=True)[-2:]
    assert binary["message"]["body_base64"] == "//4="
    assert text["message"]["body"] == "grüße"
    assert text["message"]["properties"] == {"TAGS": "a"}
    assert text["message"]["topic"] == "orders"
    assert text["message"]["born_host"] == "127.0.0.1:10911"
    assert "body" not in lines(tmp_path, kinds=frozenset({"message"}))[-1]["message"]


def test_a_verdict_says_who_decided_and_what_becomes_visible_where(tmp_path: Path) -> None:
    sample_store(tmp_path)
    verdict = lines(tmp_path, kinds=frozenset({"committed"}))[0]
    assert (verdict["tx_id"], verdict["group"], verdict["decided_by"]) == ("tx1", "writers", "producer")
    assert [ref["half_index"] for ref in verdict["refs"]] == [2, 3]
    assert lines(tmp_path, kinds=frozenset({"rolled_back"}))[0]["half_indexes"] == [0, 1]
    carried = lines(tmp_path, kinds=frozenset({"copied_half"}))[0]
    assert carried["message"]["body_bytes"] == 300
    assert carried["first_offset"] < carried["offset"]


def test_it_begins_at_the_first_record_at_or_behind_an_offset(tmp_path: Path) -> None:
    sample_store(tmp_path)
    everything = lines(tmp_path)
    for number in (0, 1, 7, len(everything) // 2, len(everything) - 1):
        start = everything[number]["offset"]
        assert lines(tmp_path, start=start) == everything[number:]
        assert lines(tmp_path, start=start + 1) == everything[number + 1 :]
    assert lines(tmp_path, start=1 << 40) == []


def test_damage_ends_it_with_an_error_and_a_torn_end_with_a_note(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    end = writer.log.end
    segment = tmp_path / "shard-0" / "log" / f"{end - end % writer.segment_bytes:020d}.seg"
    with segment.open("r+b") as file:
        file.seek(end % writer.segment_bytes)
        file.write(b"HMQB half a batch")
    notes: list[str] = []
    everything = lines(tmp_path, note=notes.append)
    assert len(notes) == 1
    assert "torn end" in notes[0]
    add_checkpoint(writer)
    writer.disk.open(tmp_path / "shard-0" / "log" / f"{0:020d}.seg").write(20_000, [b"?"])
    given = []
    with pytest.raises(StoreDamaged, match="durable up to"):
        given.extend(dump_store(RealDisk(), tmp_path))
    assert 0 < len(given) < len(everything) / 2


def test_an_unknown_kind_and_a_directory_without_a_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no store"):
        lines(tmp_path)
    sample_store(tmp_path)
    with pytest.raises(UsageError, match="kinds: base, checked"):
        lines(tmp_path, kinds=frozenset({"halves"}))


def test_segments_that_are_missing_are_no_clean_end(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    page = writer.shard / "published"
    for path in (writer.shard / "log").iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match=r"has no segments; there was a log up to \d+"):
        lines(tmp_path)
    WatermarkPage.open(writer.disk, page, b"another store 16", 9).publish(9, 0, 0, 9)
    assert lines(tmp_path) == []


def test_a_beginning_that_was_never_trimmed_is_told_behind_the_lines(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    oldest, second = sorted((writer.shard / "log").iterdir())[:2]
    oldest.unlink()
    given = []
    with pytest.raises(StoreDamaged, match=f"begins at {int(second.stem)}, but only what lies before 0 was trimmed"):
        given.extend(dump_store(RealDisk(), tmp_path))
    assert given
    assert lines(tmp_path, start=int(second.stem) + writer.segment_bytes) is not None


def test_a_trimmed_log_is_dumped_without_a_word(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    writer.trim()
    assert lines(tmp_path)[0]["offset"] >= writer.segment_bytes


def test_the_page_of_another_store_vouches_for_nothing(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    whole = lines(tmp_path)
    page = WatermarkPage.open(writer.disk, writer.shard / "published", b"another store 16", 9)
    page.publish(1 << 40, 0, 0, 1 << 40)
    assert lines(tmp_path) == whole


def test_a_broker_that_trims_meanwhile_does_not_end_it(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    notes: list[str] = []
    dump = dump_store(RealDisk(), tmp_path, note=notes.append)
    found = [json.loads(next(dump))]
    writer.trim()
    found += [json.loads(line) for line in dump]
    offsets = [line["offset"] for line in found]
    assert offsets == sorted(set(offsets))
    assert found[-1] == lines(tmp_path)[-1]
    oldest = min(int(path.stem) for path in (writer.shard / "log").iterdir())
    assert oldest > offsets[0]
    assert f"continuing at {oldest}" in notes[0]


def test_a_segment_that_goes_without_a_trim_is_an_error(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    dump = dump_store(RealDisk(), tmp_path)
    next(dump)
    sorted((writer.shard / "log").iterdir())[1].unlink()
    with pytest.raises(FileNotFoundError):
        list(dump)


def test_who_acted_is_named_before_what_was_done(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    halves = writer.prepare("by-hand", [("orders", 0, b"h", properties(9_000, tx_id="by-hand"))])
    writer.roll_back_by(make.operator_acted(2, "by-hand"), "by-hand", halves)
    writer.publish()
    acted, verdict = lines(tmp_path)[-2:]
    assert {name: acted[name] for name in ("kind", "action", "subject", "name", "reason", "peer")} == {
        "kind": "operator_acted", "action": "roll_back", "subject": "by-hand", "name": "gr\u00fcn",
        "reason": "the bank said so", "peer": "10.0.0.1:4242",
    }  # fmt: skip
    assert (verdict["kind"], verdict["decided_by"], verdict["tx_id"]) == ("rolled_back", "operator", "by-hand")
    assert (verdict["batch"], verdict["offset"]) == (acted["batch"], acted["offset"] + acted["size"])


def test_a_user_is_shown_without_secrets_and_password(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    log = CoreLog()
    log.do(SetUser("root", make.SHOP, True, None))
    base = base_payload(log.state)
    writer._put(base_size(base), lambda at: Base(at, base_size(base), 0, base))
    for name, user in (("root", make.SHOP), ("shop", make.SHOP), ("shop", None)):
        record = make.user_set(name, user)
        writer._put(record(0).size, record)
    writer.publish()
    found = lines(tmp_path)
    shown = {
        "permissions": ["administer:broker", "send:topic:orders-*"], "secrets": 2,
        "limits": {"connections": 0, "requests_per_s": 0, "undecided": 100, "names": 0},
    }  # fmt: skip
    assert [(line["name"], line["user"]) for line in found if line["kind"] == "user_set"] == [
        ("root", shown), ("shop", shown), ("shop", None)
    ]  # fmt: skip
    bases = [line["payload"] for line in found if line["kind"] == "base"]
    assert bases[-1][USERS_IN_BASE] == [{"name": "root", "user": shown}]
    whole = b"".join(dump_store(RealDisk(), tmp_path, bodies=True, contents=True))
    for secret in (b"sealed", b64encode(b"sealed").rstrip(b"="), b"argon"):
        assert secret not in whole
