"""Sizes of records are promises to the decisions that name offsets before anything is written."""

import ast
from pathlib import Path
from typing import get_args

import pytest
from tests.support.log_records import delayed_record_size, message_record_size

from halfmq.errors import InvariantViolated
from halfmq.model import records
from halfmq.model.records import (
    BATCHED,
    PARKED_MS,
    TYPE_OF_KIND,
    Kind,
    ParkedBecause,
    Record,
    Trim,
    for_each_kind,
    parked_because,
)
from halfmq.model.stored_message import size_of


def test_kinds_have_numbers_of_their_own_that_stand_on_disks() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "MESSAGE": 1, "HALF": 2, "COPIED_HALF": 3, "COMMITTED": 4, "ROLLED_BACK": 5, "CHECKED": 6, "DELAYED": 7,
        "COPIED_DELAYED": 8, "RELEASED": 9, "COORDINATOR_EPOCH": 10, "COMPARED": 11, "USER_SET": 12, "SETTING_SET": 13, "RESTORED": 14, "TOPIC_SET": 16, "TOPIC_DELETED": 17, "GROUP_SET": 18, "OFFSETS": 19,
        "EPOCH_STARTED": 20, "BASE": 21, "TRIM": 22, "PRODUCER_SET": 23, "PARKED": 24, "GROUP_DELETED": 25,
        "HALF_BATCH": 26, "COPIED_HALF_BATCH": 27, "DECIDED": 28, "QUERY_FORGOTTEN": 30,
        "OPERATOR_ACTED": 32,
    }  # fmt: skip
    assert BATCHED == 29
    assert BATCHED not in list(Kind)


def test_a_record_is_its_head_its_prefix_and_what_it_holds() -> None:
    stored = size_of(5, 100, 20)
    assert message_record_size("Topic", 100, 20) == 8 + 8 + stored
    assert delayed_record_size("Topic", 100, 20) == 8 + 24 + stored
    assert records.copied_half_size(stored) == 8 + 56 + stored
    assert records.copied_delayed_size(stored) == 8 + 40 + stored
    assert records.committed_size("grp", "id12", 2) == 8 + 8 + 3 + 4 + 2 * 64
    assert records.rolled_back_size("grp", "id12", 2) == 8 + 8 + 3 + 4 + 2 * 8
    assert (
        records.half_batch_size("grp", "id12", records.BatchFacts("0.1", 1, 0, 0, False), 1_000)
        == 8 + 76 + 1_000 + 3 + 4 + 3
    )
    assert records.decided_size("grp", "id12", bytes(16), 2, 3) == 8 + 16 + 3 + 4 + 16 + 2 * 48 + 3 * 8
    assert records.checked_size("grp", "id12") == 8 + 24 + 3 + 4
    assert records.released_size(3) == 8 + 8 + 3 * 64
    assert records.operator_acted_size("T1", "gr\u00fcn", "why", "1:2") == 8 + 12 + 2 + 5 + 3 + 3 + 4
    assert records.payload_record_size(b"12345") == 13
    assert records.base_size(b"12345") == 21
    assert records.TRIM_SIZE == 16


def test_an_ipv6_peer_makes_a_record_twelve_bytes_longer() -> None:
    assert message_record_size("T", 1, 1, 20) == message_record_size("T", 1, 1, 8) + 12


def test_a_table_by_type_says_what_to_do_with_each_kind_or_is_refused() -> None:
    whole = dict.fromkeys(TYPE_OF_KIND.values(), 1)
    assert for_each_kind("_TABLE", whole) == whole
    assert set(get_args(Record)) == set(whole)
    assert list(TYPE_OF_KIND) == list(Kind)
    some = {of: 1 for of in whole if of is not Trim}
    with pytest.raises(InvariantViolated, match=r"^_TABLE must list .*: look at Trim$"):
        for_each_kind("_TABLE", some)
    with pytest.raises(InvariantViolated, match=r"^_TABLE must list .*: look at int$"):
        for_each_kind("_TABLE", {**whole, int: 1})


def test_a_table_by_type_has_the_name_and_the_file_that_its_error_says() -> None:
    source = Path(records.__file__).parents[1]
    found = []
    for path in source.rglob("*.py"):
        if "= for_each_kind(" in (text := path.read_text()):
            for one in ast.walk(ast.parse(text)):
                match one:
                    case ast.AnnAssign(
                        ast.Name(name), _, ast.Call(ast.Name("for_each_kind"), [ast.Constant(said), *_])
                    ):
                        assert said == f"{name} in {path.relative_to(source)}"
                        found.append(name)
    assert sorted(found) == ["ENCODE_BY_TYPE", "_APPLY", "_INDEX_BY_TYPE", "_READ"]


def test_the_next_check_is_a_time_or_the_number_that_files_have_had_for_each_reason() -> None:
    assert [parked_because(at_ms) for at_ms in (0, 7, PARKED_MS - 1)] == [None] * 3
    assert [parked_because((1 << 62) + number) for number in (1, 2, 3)] == list(ParkedBecause)
    assert all(ParkedBecause)


@pytest.mark.parametrize("number", [PARKED_MS, PARKED_MS + 4])
def test_a_reason_that_there_is_not_is_refused(number: int) -> None:
    with pytest.raises(InvariantViolated, match=f"reason {number - PARKED_MS}"):
        parked_because(number)
