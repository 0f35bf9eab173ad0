"""A store of format 2 is opened, and is one of format 3 afterwards, which an earlier version refuses instead of misunderstanding it.

``tests/vectors/store-format-2.tar.xz`` was written by the last version with format 2: a topic with settings and one with messages, a group
that holds one of them, a query with three decided batches and an undecided one, a transaction that is undecided and one that was committed
after its segment; the process was killed, and there is no snapshot.
"""

import json
import logging
import tarfile
from pathlib import Path

import pytest
from tests.support.half_batches import bodies
from tests.support.in_process import serving

from halfmq.errors import WrongVersion
from halfmq.model.query_batch import QueryBatch
from halfmq.runtime.disk import RealDisk
from halfmq.store import identity
from halfmq.store.verify import verify_store
from halfmq.wire.remoting.codes import HMQ_DECIDE
from halfmq.wire.remoting.half_batches import decide_ext

STORE = Path(__file__).parents[1] / "vectors" / "store-format-2.tar.xz"
UNDECIDED = "AC10000100002A9F0000000000000001"
SEGMENT_BYTES = 1 << 17


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(STORE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        archive.extractall(tmp_path)
    return tmp_path / "store"


def written_format(store: Path) -> int:
    return int(json.loads((store / identity.NAME).read_text())["format"])


async def test_a_store_of_format_2_is_continued(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert written_format(store) == 2
    assert not verify_store(RealDisk(), store).damaged
    with caplog.at_level(logging.INFO, logger="halfmq.store"):
        async with serving(store, segment_bytes=SEGMENT_BYTES) as running:
            assert written_format(store) == 3
            state, client = running.state, await running.client()
            assert UNDECIDED in state.producer_groups["P"].undecided
            group = state.groups["C"]
            assert (group.retry_max_times, group.hold_topics, group.hold_ms) == (5, ("T",), 0)
            (query,) = state.queries.values()
            assert (query.name, query.topic, list(query.decisions)) == ("app", "", [0, 1, 2])
            before = await bodies(client)
            assert len(before) == 207
            # The next writer that states a topic gets the query of that name; another topic begins its own.
            for topic, last in (("T", 3), ("other", 7)):
                ext = decide_ext("SPARK", QueryBatch("app", last, f"r{last}", topic), b"d" * 16)
                decided = await client.ask(HMQ_DECIDE, {name: str(value) for name, value in ext.items()}, b"[]")
                assert (decided.code, decided.ext["repeated"]) == (0, "false")
            assert {key: one.topic for key, one in state.queries.items()} == {
                ("app", ""): "T",
                ("app", "other"): "other",
            }
            for number in range(300):  # to a segment whose base has them
                await client.send("T", b"x" * 1_000, queue=number % 4)
    assert "format 3 now: earlier versions cannot open it" in caplog.text
    for _ in range(2):
        async with serving(store, segment_bytes=SEGMENT_BYTES) as running:
            assert len(running.state.queries) == 2
            assert (await bodies(await running.client()))[: len(before)] == before
    assert not verify_store(RealDisk(), store).damaged


def test_a_later_format_is_refused_before_anything_is_changed(store: Path) -> None:
    path = store / identity.NAME
    path.write_text(path.read_text().replace('"format": 2', '"format": 4'))
    before = path.read_bytes()
    with pytest.raises(WrongVersion, match="has format 4, this version of halfmq reads format 3"):
        identity.read_identity(RealDisk(), store)
    assert path.read_bytes() == before
