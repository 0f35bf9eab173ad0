"""Records whose batch has the right checksum and that cannot be read all the same: of a later version, or by a bug. A start
refuses them in one line with file, place and remedy, and changes nothing of the log; the tools that look say the same."""

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from tests.support.in_process import SEGMENT_BYTES, serving

from halfmq.errors import HalfmqError, StoreDamaged, WrongVersion
from halfmq.model.records import BATCH_HEADER_BYTES, RECORD_HEAD_BYTES, Kind
from halfmq.runtime.disk import RealDisk
from halfmq.store.batch_codec import Header, read_header
from halfmq.store.dump import dump_store
from halfmq.store.layout import BATCH_CHECKSUM_AT
from halfmq.store.verify import verify_store


async def a_store(tmp_path: Path) -> Path:
    """Its only segment."""
    async with serving(tmp_path) as running:
        assert (await (await running.client()).send("T", b"body", unique="A" * 32)).code == 0
    (path, *_) = sorted((tmp_path / "shard-0" / "log").iterdir())
    return path


def written_otherwise(path: Path, kind: Kind, change: Callable[[bytearray, int, int], None]) -> int:
    """Change the first record of ``kind`` in the first batch, and sum the batch anew. Returns the record's log offset.

    ``change`` is given the batch, and where in it the record begins and ends.
    """
    data = path.read_bytes()
    header = read_header(data, 0, 0, SEGMENT_BYTES)
    assert isinstance(header, Header)
    batch = bytearray(data[: header.data_length])
    at = BATCH_HEADER_BYTES
    while batch[at] != kind:
        at += int.from_bytes(batch[at + 4 : at + 8], "big")
    change(batch, at, at + int.from_bytes(batch[at + 4 : at + 8], "big"))
    batch[BATCH_CHECKSUM_AT : BATCH_CHECKSUM_AT + 4] = bytes(4)
    batch[BATCH_CHECKSUM_AT : BATCH_CHECKSUM_AT + 4] = crc32(batch).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.write(batch)
    return at


def to_a_later_kind(batch: bytearray, at: int, end: int) -> None:
    batch[at] = 99


def to_no_payload(batch: bytearray, at: int, end: int) -> None:
    batch[at + RECORD_HEAD_BYTES] = 0xC1  # what no MessagePack begins with


def to_no_state(batch: bytearray, at: int, end: int) -> None:
    batch[at + RECORD_HEAD_BYTES + 8] = 0xC1


@pytest.mark.parametrize(
    ("changed", "change", "kind", "words"),
    [
        (Kind.EPOCH_STARTED, to_a_later_kind, WrongVersion, "is of a later version of halfmq"),
        (Kind.EPOCH_STARTED, to_no_payload, StoreDamaged, "cannot be decoded"),
        (Kind.BASE, to_no_state, StoreDamaged, "cannot be applied"),
    ],
)
async def test_start_refuses_it_with_place_and_remedy(
    tmp_path: Path, changed: Kind, change: Callable[[bytearray, int, int], None], kind: type[HalfmqError], words: str
) -> None:
    path = await a_store(tmp_path)
    offset = written_otherwise(path, changed, change)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(kind) as refused:
            async with serving(tmp_path):
                raise AssertionError("it serves")
        text = str(refused.value)
        assert words in text
        assert f"log offset {offset}" in text
        assert str(path if words != "cannot be applied" else tmp_path) in text
        assert "with the version that wrote it" in text
    assert path.read_bytes() == before


async def test_verify_and_dump_say_it_instead_of_breaking(tmp_path: Path) -> None:
    path = await a_store(tmp_path)
    offset = written_otherwise(path, Kind.EPOCH_STARTED, to_no_payload)
    found = verify_store(RealDisk(), tmp_path).findings
    assert any(one.damage and one.part == "log" and f"log offset {offset}" in one.what for one in found)
    with pytest.raises(StoreDamaged, match=f"log offset {offset} cannot be decoded"):
        list(dump_store(RealDisk(), tmp_path))
