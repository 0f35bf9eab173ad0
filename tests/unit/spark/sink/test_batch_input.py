"""What a batch of a stream is made of: recorded checkpoints of each source, and what is noticed when one is restored."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq.errors import EnvironmentFailed
from halfmq.spark.sink.checkpoint import KINDS, BatchInput, Evidence, kind_of, read_batch_input

RECORDED: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "spark_checkpoints.json").read_text()
)["checkpoints"]
#: What our source writes, as in ``plan.offsets``.
HALFMQ: Final = '{"v":1,"store":"0123456789abcdef0123456789abcdef","epoch":3,"position":4711,"queues":{"orders":{"0":5}},"topics":{"orders":1}}'
#: Recorded by others, since there is no release for Spark 4.3 yet: offsets/6 in github.com/bartosz25/delta-lake-playground,
#: 012_streaming_reader/.../demo11_index_checkpoint/README.md at 53779628 (there cut into two lines).
DELTA: Final = '{"sourceVersion":1,"reservoirId":"3bffe7c2-e334-4419-a150-f6f47b565c78","reservoirVersion":1,"index":8,"isStartingVersion":false}'
LINES: Final = {
    "files": ('{"logOffset":0}', '{"logOffset":17}'),
    "rate": ("0", "17", "-1"),
    "rate-micro-batch": ('{"offset":5,"timestamp":1000}',),
    "kafka": ('{"ta":{"0":5,"1":0},"tb":{"0":5,"1":0}}', "{}"),
    "halfmq": (HALFMQ, '{"v":2,"brokers":{},"queues":{"orders":{"eu-1:0":5}}}'),
    "delta": (DELTA, DELTA.replace('"sourceVersion":1', '"sourceVersion":3').replace('"index":8', '"index":-20')),
    "unknown": (
        '{"position":1}', "[1]", '{"logOffset":"1"}', '{"logOffset":true}', "true", "text", '{"a":{"x":1}}', '{"logOffset":1,"more":2}',
        '{"version":1,"snapshot_id":7,"position":0,"scan_all_files":false}',
    ),
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        place = tmp_path / name
        for file, text in RECORDED[name]["files"].items():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text)
        return place

    return make


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def named(found: BatchInput, checkpoint: Path) -> list[str]:
    return [str(path.relative_to(checkpoint)) for path in found.files]


# --- kinds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LINES)
def test_kind_of_a_line(kind: str) -> None:
    assert {kind_of(line) for line in LINES[kind]} == {kind}


def test_each_kind_has_an_example() -> None:
    # A number is that of a rate source or a socket, which the other files of the checkpoint tell.
    assert KINDS.keys() == LINES.keys() | {"socket"}


@pytest.mark.parametrize("name", RECORDED)
def test_digest_of_each_recorded_batch_is_its_own_and_repeats(name: str, made: Callable[[str], Path]) -> None:
    checkpoint = made(name)
    batches = sorted(int(path.name) for path in (checkpoint / "offsets").iterdir())
    found = [read_batch_input(checkpoint, batch) for batch in batches]
    assert [read_batch_input(checkpoint, batch) for batch in batches] == found
    assert len({one.digest for one in found}) == len(batches)


@pytest.mark.parametrize(
    ("name", "unidentified"),
    [("socket", ("1",)), *((name, ()) for name in RECORDED if name != "socket")],
)
def test_what_is_not_identified(name: str, unidentified: tuple[str, ...], made: Callable[[str], Path]) -> None:
    assert read_batch_input(made(name), max(map(int, _offsets(name)))).unidentified == unidentified


def _offsets(name: str) -> list[str]:
    return [file.removeprefix("offsets/") for file in RECORDED[name]["files"] if file.startswith("offsets/")]


def test_rate_beside_a_socket_is_known_and_the_socket_is_not(made: Callable[[str], Path]) -> None:
    checkpoint = made("rate")
    for number in (0, 1):
        path = checkpoint / "offsets" / str(number)
        path.write_text(path.read_text() + f"\n{number + 7}")
    assert read_batch_input(checkpoint, 1).unidentified == ("1", "8")  # which of them is not known


# --- what is noticed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batch", "file", "old", "new"),
    [
        # Other files under the same line.
        ("files", 1, "sources/0/1", "/in/a/f1", "/in/a/other"),
        # The same file, rewritten.
        ("files", 1, "sources/0/1", "1795774482945", "1795774482946"),
        ("files", 2, "sources/0/2.compact", "/in/a/f2", "/in/a/other"),
        ("files", 4, "offsets/3", '{"logOffset":3}', '{"logOffset":2}'),
        ("two-files", 1, "sources/0/0", "/in/e2/y", "/in/e2/z"),
        ("two-files", 0, "sources/1/0", "/in/e1/x", "/in/e1/z"),
        ("self-union", 0, "sources/0/0", "/in/e1/x", "/in/e1/z"),
        ("self-union", 0, "sources/1/0", "/in/a/f3", "/in/a/z"),
        ("self-join", 0, "sources/1/0", "/in/a/f3", "/in/a/z"),
        ("mixed", 0, "sources/1/0", "/in/a/f3", "/in/a/z"),
        ("mixed", 0, "sources/2/0", "/in/e1/x", "/in/e1/z"),
        ("mixed", 2, "sources/0/0", "1795774497530", "1795774497531"),
        ("named", 1, "sources/right/1", "/in/a/g", "/in/a/z"),
        ("self-union-version-2", 0, "sources/0/0", "/in/e1/x", "/in/e1/z"),
        ("self-union-version-2", 0, "sources/1/0", "/in/a/f3", "/in/a/z"),
        # When rows of a rate source were due, and where Kafka's first batch began.
        ("rate", 1, "sources/0/0", "1795774487054", "1795774487055"),
        ("kafka", 0, "sources/0/0", '"tb":{"0":0', '"tb":{"0":2'),
        ("kafka", 1, "offsets/0", '"tb":{"0":5', '"tb":{"0":4'),
    ],
)  # fmt: skip
def test_other_input_under_the_same_line_is_noticed(
    name: str, batch: int, file: str, old: str, new: str, made: Callable[[str], Path]
) -> None:
    checkpoint = made(name)
    before = read_batch_input(checkpoint, batch)
    change(checkpoint / file, old, new)
    after = read_batch_input(checkpoint, batch)
    assert after.digest != before.digest
    assert file in named(before, checkpoint), "what the digest depends on is synced"


def test_order_and_number_of_an_entry_do_not_matter(made: Callable[[str], Path]) -> None:
    """Files of one batch in two entries, as when the query died between them, and in any order."""
    checkpoint = made("files")
    (checkpoint / "offsets" / "3").unlink()
    change(checkpoint / "offsets" / "4", "v1", "v1")
    (checkpoint / "offsets" / "4").rename(checkpoint / "offsets" / "3")
    before = read_batch_input(checkpoint, 3)
    assert {"sources/0/3", "sources/0/4"} <= set(named(before, checkpoint))
    other = (checkpoint / "sources" / "0" / "3").read_text().splitlines()[1].replace('"batchId":3', '"batchId":4')
    path = checkpoint / "sources" / "0" / "4"
    path.write_text(path.read_text() + "\n" + other)
    (checkpoint / "sources" / "0" / "3").write_text("v1")
    assert read_batch_input(checkpoint, 3).digest == before.digest


def test_entry_is_found_in_the_compacted_file_after_it_was_removed(made: Callable[[str], Path]) -> None:
    checkpoint = made("files")
    before = read_batch_input(checkpoint, 1)
    (checkpoint / "sources" / "0" / "1").unlink()
    found = read_batch_input(checkpoint, 1)
    assert found.digest == before.digest
    assert "sources/0/2.compact" in named(found, checkpoint)


def test_copy_of_a_checkpoint_whose_log_is_newer_than_its_offsets(made: Callable[[str], Path]) -> None:
    checkpoint = made("files")
    before = read_batch_input(checkpoint, 3)
    (checkpoint / "sources" / "0" / "4").unlink()
    (checkpoint / "offsets" / "4").unlink()
    assert read_batch_input(checkpoint, 3).digest == before.digest


def test_source_without_new_files_needs_none_of_its_log(made: Callable[[str], Path]) -> None:
    checkpoint = made("named")
    assert "sources/left_one/0" not in named(read_batch_input(checkpoint, 1), checkpoint)
    (checkpoint / "sources" / "left_one" / "0").unlink()
    read_batch_input(checkpoint, 1)


def test_files_come_before_the_directories_that_name_them(made: Callable[[str], Path]) -> None:
    checkpoint = made("mixed")
    assert named(read_batch_input(checkpoint, 0), checkpoint) == [
        "sources/1/0", "sources/1", "sources/2/0", "sources/2", "sources/0/0", "sources/0", "sources", "offsets/0",
    ]  # fmt: skip
    assert named(read_batch_input(checkpoint, 2), checkpoint)[-2:] == ["offsets/1", "offsets/2"]


# --- what Spark writes after the decision --------------------------------------------------------------------------


def test_newest_entry_that_has_no_content_is_no_other_source(made: Callable[[str], Path]) -> None:
    """A power loss may leave the file of a newer entry empty."""
    checkpoint = made("files")
    before = read_batch_input(checkpoint, 4)
    (checkpoint / "sources" / "0" / "5").write_text("")
    assert read_batch_input(checkpoint, 4).digest == before.digest


class Plan:
    """A checkpoint of a query with file sources. ``places``: source of each place in the plan; ``ends``: by source, before and in it."""

    def __init__(self, checkpoint: Path, places: Sequence[int], ends: Sequence[tuple[int, int]], *, version: int = 1):
        self.sources = [checkpoint / "sources" / str(number) for number in range(len(ends))]
        self.newest = [-1] * len(ends)
        (checkpoint / "offsets").mkdir(parents=True)
        for source in self.sources:
            source.mkdir(parents=True)
        for batch in (0, 1):
            found = ["-" if ends[i][batch] < 0 else json.dumps({"logOffset": ends[i][batch]}) for i in places]
            if version == 2:  # a source has the number of its last place, and no line without data
                last = {source: place for place, source in enumerate(places)}
                found = [f"{place}:{found[place]}" for place in sorted(last.values()) if found[place] != "-"]
            (checkpoint / "offsets" / str(batch)).write_text("\n".join([f"v{version}", "{}", *(found or ["-"])]))
        for number, (_, end) in enumerate(ends):
            self.grow(number, end + 1)

    def grow(self, number: int, count: int) -> None:
        """More entries of a source."""
        for entry in range(self.newest[number] + 1, self.newest[number] + 1 + count):
            self.write(number, entry, f"file-{number}-{entry}")
        self.newest[number] += count

    def write(self, number: int, entry: int, path: str) -> None:
        line = json.dumps({"path": path, "timestamp": 1, "batchId": entry})
        (self.sources[number] / str(entry)).write_text(f"v1\n{line}")

    def compact(self, number: int, upto: int) -> None:
        entries = [(self.sources[number] / str(entry)).read_text().split("\n")[1] for entry in range(upto + 1)]
        (self.sources[number] / f"{upto}.compact").write_text("\n".join(["v1", *entries]))
        for entry in range(upto + 1):
            (self.sources[number] / str(entry)).unlink()


def accepted(checkpoint: Path) -> set[bytes]:
    found = read_batch_input(checkpoint, 1)
    return {found.digest, *found.other_digests}


@pytest.mark.parametrize(
    ("ends", "newer"),
    [
        ([(4, 5), (2, 3)], [0]),
        ([(4, 5), (2, 3)], [1]),
        ([(4, 5), (2, 3)], [0, 1]),
        ([(4, 5), (4, 5)], [0]),
        ([(4, 5), (4, 5)], [0, 1]),
        ([(4, 5), (5, 5)], [0]),
        ([(4, 5), (5, 5)], [1]),
    ],
)
def test_newer_entries_of_a_union_change_nothing(ends: list[tuple[int, int]], newer: list[int], tmp_path: Path) -> None:
    plan = Plan(tmp_path, range(len(ends)), ends)
    before = read_batch_input(tmp_path, 1)
    for number in newer:
        plan.grow(number, 1)
    assert read_batch_input(tmp_path, 1) == before


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_batch_that_comes_again_is_the_same_however_the_logs_have_grown_and_no_other(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3), "sources")
    again = data.draw(st.lists(st.integers(0, count - 1), max_size=3), "places of sources that occur again")
    # Spark numbers sources in the order in which they first occur.
    places = data.draw(st.permutations([*range(count), *again]), "places")
    places = [list(dict.fromkeys(places)).index(source) for source in places]
    ends = data.draw(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2)), min_size=count, max_size=count), "begin, entries"
    )
    ends = [(start, start + entries) for start, entries in ends]
    if data.draw(st.booleans(), "lockstep"):
        ends = ends[:1] * count
    with TemporaryDirectory() as place:
        checkpoint = Path(place)
        plan = Plan(checkpoint, places, ends, version=data.draw(st.sampled_from([1, 2]), "version"))
        decided = read_batch_input(checkpoint, 1).digest
        for number, (_, end) in enumerate(ends):
            newer = data.draw(st.integers(0, 3), f"newer entries of {number}")
            plan.grow(number, newer)
            if end + newer >= 0 and data.draw(st.booleans(), f"{number} is compacted"):
                plan.compact(number, data.draw(st.integers(0, end + newer), "up to"))
        assert decided in accepted(checkpoint)
        in_batch = [(i, entry) for i, (start, end) in enumerate(ends) for entry in range(start + 1, end + 1)]
        if not in_batch:
            return
        number, entry = data.draw(st.sampled_from(in_batch), "entry with another file")
        for path in plan.sources[number].iterdir():
            path.write_text(path.read_text().replace(f'"file-{number}-{entry}"', '"other"'))
        assert decided not in accepted(checkpoint)


def test_many_places_of_several_sources_take_no_long_time(tmp_path: Path) -> None:
    places = [0, 1, 2, 3, 4, *range(5)] * 4
    plan = Plan(tmp_path, places, [(0, 2), (1, 2), (1, 3), (0, 3), (2, 4)])
    decided = read_batch_input(tmp_path, 1).digest
    for number in range(5):
        plan.grow(number, number)
    assert decided in accepted(tmp_path)


# --- what other sources write ----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ['{"seq":5}', "7", '{"logOffset":0}', '{"t":{"0":1}}'])
@pytest.mark.parametrize("first", [b"\x80\x81\xff", b"v1\n\xff", b"", None])
def test_files_of_an_unknown_source_are_not_read(line: str, first: bytes | None, tmp_path: Path) -> None:
    """None: a directory. Beside a source whose kind has a file of that name, too."""
    plan = Plan(tmp_path, [0], [(-1, 0)])
    offsets = tmp_path / "offsets" / "0"
    offsets.write_text(f'v1\n{{}}\n{{"logOffset":0}}\n{line}\n{{"seq":5}}')
    before = read_batch_input(tmp_path, 0) if line != '{"logOffset":0}' else None
    (tmp_path / "sources" / "2").mkdir()
    path = tmp_path / "sources" / "2" / "0"
    path.mkdir() if first is None else path.write_bytes(first)
    if before is None:
        plan.sources.append(tmp_path / "sources" / "1")
        plan.sources[1].mkdir()
        plan.write(1, 0, "other")
    found = read_batch_input(tmp_path, 0)
    assert before is None or found == before
    assert path not in found.files


# --- what is missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batch", "lost", "said"),
    [
        ("files", 4, "sources/0/4", "entries 4 to 4 of a file source are in no directory"),
        ("named", 1, "sources/right/1", "entries 1 to 1 of a file source"),
        ("files", 3, "offsets/2", "cannot be read"),
        ("files", 3, "offsets/3", "cannot be read"),
    ],
)
def test_input_that_is_missing_is_not_decided(
    name: str, batch: int, lost: str, said: str, made: Callable[[str], Path]
) -> None:
    checkpoint = made(name)
    (checkpoint / lost).unlink()
    with pytest.raises(EnvironmentFailed, match=said) as caught:
        read_batch_input(checkpoint, batch)
    assert caught.value.hint


def test_entry_in_the_middle_that_is_missing(made: Callable[[str], Path]) -> None:
    checkpoint = made("files")
    (checkpoint / "offsets" / "4").rename(checkpoint / "offsets" / "3")
    (checkpoint / "sources" / "0" / "3").unlink()
    with pytest.raises(EnvironmentFailed, match="sources/0/3 is missing"):
        read_batch_input(checkpoint, 3)


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}", "v1\n{}\n"])
def test_incomplete_offsets(text: str, made: Callable[[str], Path]) -> None:
    checkpoint = made("files")
    (checkpoint / "offsets" / "0").write_text(text)
    with pytest.raises(EnvironmentFailed, match="is incomplete"):
        read_batch_input(checkpoint, 0)


def test_malformed_entry(made: Callable[[str], Path]) -> None:
    checkpoint = made("files")
    change(checkpoint / "sources" / "0" / "2.compact", '"timestamp":1795774483347', '"timestamp":')
    with pytest.raises(EnvironmentFailed, match="is malformed"):
        read_batch_input(checkpoint, 2)


def test_kinds_say_what_identifies_them() -> None:
    assert {name for name, kind in KINDS.items() if kind.evidence is Evidence.NONE} == {"socket", "unknown"}
