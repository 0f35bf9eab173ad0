"""Views of transactions from the files of a store: as of one position, across segments and files of the table, past retention, damaged."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.store_writer import StoreWriter
from tests.support.table_reads import read_view

from halfmq.errors import DataLost, UsageError
from halfmq.model import properties as props

GROUP = "writers"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    made = StoreWriter(tmp_path / "data")
    made.topic("orders")
    made.topic("points")
    yield made
    made.log.close()
    made.indexes.close()
    made.page.close()


def pairs(tx_id: str, number: int = 0) -> bytes:
    return props.encode({"UNIQ_KEY": f"{tx_id}{number}" if number else tx_id, "PGROUP": GROUP, "HMQ_TX_ID": tx_id})


def single(writer: StoreWriter, tx_id: str, size: int = 10) -> list:  # type: ignore[type-arg]
    return writer.prepare(tx_id, [("orders", 0, b"x" * size, pairs(tx_id))])


def double(writer: StoreWriter, tx_id: str) -> list:  # type: ignore[type-arg]
    return writer.prepare(tx_id, [("orders", 0, b"a", pairs(tx_id)), ("points", 1, b"b", pairs(tx_id, 1))])


def outcomes(rows: list[dict]) -> dict[str, str]:  # type: ignore[type-arg]
    return {row["transaction_id"]: row["outcome"] for row in rows}


def test_a_plan_stands_whatever_is_decided_before_its_tasks_read(writer: StoreWriter) -> None:
    halves = {name: single(writer, name) for name in ("kept", "committed", "rolled")}
    pair = {name: double(writer, name) for name in ("two-kept", "two-committed", "two-rolled")}
    writer.tick(7)
    writer.commit("before", single(writer, "before"))
    writer.publish()
    path = str(writer.directory)
    first, first_halves = read_view("transactions", path=path), read_view("half", path=path)
    assert outcomes(first) == {**dict.fromkeys([*halves, *pair], "UNDECIDED"), "before": "COMMITTED"}
    assert len(first_halves) == 3 + 6

    def decide() -> None:
        writer.tick(1_000)
        writer.commit("committed", halves["committed"])
        writer.roll_back("rolled", halves["rolled"])
        writer.commit("two-committed", pair["two-committed"])
        writer.roll_back("two-rolled", pair["two-rolled"])
        writer.commit("after", single(writer, "after"))
        writer.publish()

    again = read_view("transactions", path=path, between=decide)
    # A rollback does not tell whether its halves were half batches.
    for row in first:
        if row["transaction_id"] in ("rolled", "two-rolled"):
            row["messages"] = None
    assert again == first
    found = outcomes(read_view("transactions", path=path))
    assert found == {
        "kept": "UNDECIDED", "two-kept": "UNDECIDED", "committed": "COMMITTED", "rolled": "ROLLED_BACK", "two-committed": "COMMITTED",
        "two-rolled": "ROLLED_BACK", "before": "COMMITTED", "after": "COMMITTED",
    }  # fmt: skip


def test_undecided_halves_of_a_plan_are_read_although_they_were_decided_since(writer: StoreWriter) -> None:
    half = single(writer, "one")
    pair = double(writer, "two")
    writer.publish()
    path = str(writer.directory)
    first = read_view("half", path=path)

    def decide() -> None:
        writer.commit("one", half)
        writer.roll_back("two", pair)
        single(writer, "new")
        writer.publish()

    assert read_view("half", path=path, between=decide) == first
    assert [row["transaction_id"] for row in read_view("half", path=path)] == ["new"]


def test_transactions_over_many_segments_and_tasks_are_each_one_row(writer: StoreWriter) -> None:
    left: list[tuple[str, list]] = []  # type: ignore[type-arg]
    for number in range(300):
        tx_id = f"t{number}"
        left.append((tx_id, double(writer, tx_id) if number % 3 else single(writer, tx_id, 900)))
        if len(left) > 20:
            older, halves = left.pop(number % 20)
            (writer.commit if number % 2 else writer.roll_back)(older, halves)
    writer.publish()
    assert len(list((writer.shard / "log").glob("*.seg"))) > 3
    rows = read_view("transactions", path=str(writer.directory), minPartitions="7")
    assert len(rows) == len({row["transaction_id"] for row in rows}) == 300
    assert {row["transaction_id"] for row in rows if row["outcome"] == "UNDECIDED"} == {name for name, _ in left}
    assert all(row["halves"] == (2 if int(row["transaction_id"][1:]) % 3 else 1) for row in rows)
    # Next time from the first undecided half on: nothing of it is missing, and nothing before it can change.
    start = min(row["first_half"] for row in rows if row["outcome"] == "UNDECIDED")
    some = read_view("transactions", path=str(writer.directory), startingHalf=str(start), endingHalf=str(start + 40))
    assert some == [row for row in rows if start <= row["first_half"] < start + 40]


def test_times_checks_and_the_columns_that_were_asked_for(writer: StoreWriter) -> None:
    half = single(writer, "one")
    writer.tick(1_500)
    writer.checked("one", half[0], 2)
    writer.commit("one", half)
    open_half = single(writer, "open")
    writer.checked("open", open_half[0], 3)
    writer.publish()
    columns = "latency_ms,checks,message_bytes,verdict_position,decided_by,topics"
    (row, _) = read_view("transactions", path=str(writer.directory), columns=columns + ",first_half")
    assert list(row) == [*columns.split(","), "first_half"]
    assert (row["latency_ms"], row["checks"], row["topics"]) == (1_500, 2, ["orders"])
    (row,) = read_view("half", path=str(writer.directory), columns="checks,next_check_at,parked,value,half_index")
    assert (row["checks"], row["parked"], row["value"]) == (3, None, b"x" * 10)
    assert row["next_check_at"].timestamp() * 1_000 == writer.now_ms + 5_000


def test_a_deleted_topic_has_no_name(writer: StoreWriter) -> None:
    writer.commit("one", single(writer, "one"))
    writer.delete_topic("orders")
    writer.publish()
    (row,) = read_view("transactions", path=str(writer.directory))
    assert row["topics"] == [None]


def test_verdicts_past_retention_are_left_out_and_are_a_loss_where_they_were_asked_for(writer: StoreWriter) -> None:
    for number in range(200):
        writer.commit(f"t{number}", single(writer, f"t{number}", 900))
    kept = single(writer, "kept")
    writer.publish()
    path = str(writer.directory)
    every = read_view("transactions", path=path)
    writer.trim()
    log_start = writer.log_start
    assert kept
    rows = read_view("transactions", path=path)
    assert rows == [row for row in every if row["verdict_position"] is None or row["verdict_position"] >= log_start]
    assert 0 < len(rows) < len(every)
    with pytest.raises(DataLost, match=r"transactions of halves 0 to .* are past retention"):
        read_view("transactions", path=path, startingHalf="0")
    assert read_view("transactions", path=path, startingHalf="0", failOnDataLoss="false") == rows
    assert read_view("transactions", path=path, startingHalf=str(rows[0]["first_half"])) == rows


def test_damage_names_the_half_and_the_place_in_the_log(writer: StoreWriter) -> None:
    writer.commit("one", single(writer, "one"))
    open_half = single(writer, "open")
    position = writer.commit("two", double(writer, "two"))
    writer.publish()
    path = str(writer.directory)
    assert len(read_view("transactions", path=path)) == 3
    log = next((writer.shard / "log").glob("*.seg"))
    for place in (open_half[0].offset, position):
        with log.open("r+b") as file:
            file.seek(place)
            kept = file.read(1)
            file.seek(place)
            file.write(b"\x01")
        with pytest.raises(DataLost, match=rf"cannot be read: the record at log offset {place} does not match"):
            read_view("transactions", path=path)
        assert len(read_view("transactions", path=path, failOnDataLoss="false")) == 2
        if place != position:
            with pytest.raises(DataLost, match=f"there is no half at log offset {place}"):
                read_view("half", path=path)
        with log.open("r+b") as file:
            file.seek(place)
            file.write(kept)
    assert len(read_view("transactions", path=path)) == 3


def test_a_verdict_of_another_half_is_damage_also_where_columns_are_compared(writer: StoreWriter) -> None:
    first = writer.commit("one", single(writer, "one"))
    writer.commit("two", single(writer, "two"))
    writer.publish()
    table = next((writer.shard / "transactions").glob("*.tx"))
    with table.open("r+b") as file:
        file.seek(128 + 80)
        file.write(first.to_bytes(8, "big"))
    with pytest.raises(DataLost, match="the transaction of half 1 cannot be read"):
        read_view("transactions", path=str(writer.directory))


def test_another_store_in_the_place_of_the_planned_one_is_a_loss(writer: StoreWriter, tmp_path: Path) -> None:
    writer.commit("one", single(writer, "one"))
    writer.publish()
    other = StoreWriter(tmp_path / "other")
    other.topic("orders")
    other.publish()

    def replace() -> None:
        os.rename(writer.directory, tmp_path / "away")
        os.rename(other.directory, writer.directory)

    with pytest.raises(
        DataLost, match=f"this is store {other.store_id.hex()}, but store {writer.store_id.hex()} was planned"
    ):
        read_view("transactions", path=str(writer.directory), between=replace)


def test_an_empty_store_and_a_directory_without_one(writer: StoreWriter, tmp_path: Path) -> None:
    writer.publish()
    assert read_view("transactions", path=str(writer.directory)) == []
    assert read_view("half", path=str(writer.directory)) == []
    with pytest.raises(UsageError, match="holds no store"):
        read_view("half", path=str(tmp_path))
