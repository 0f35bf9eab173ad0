"""What people and programs are shown of an undecided transaction."""

import msgspec

from halfmq.model.pending import GroupStats, PendingTransaction


def test_programs_read_each_field_by_its_name() -> None:
    row = PendingTransaction("shop", "T-1", 90_000, 2, 3, 4_711, ("orders", "stock"), 4, 1_500, 1)
    assert msgspec.to_builtins(row) == {
        "group": "shop", "tx_id": "T-1", "age_ms": 90_000, "messages": 2, "expected": 3, "message_bytes": 4_711,
        "topics": ("orders", "stock"), "checks": 4, "next_check_in_ms": 1_500, "producers": 1,
        "set_aside": "",
    }  # fmt: skip


def test_figures_of_a_group_come_with_their_limits_and_policy() -> None:
    stats = GroupStats("shop", 3, 10, 4_000, 9_000, 60_000, 1, 2, 1, 7, 8, 30_000, 15, "set-aside", 0, "ada")
    shown = msgspec.to_builtins(stats)
    assert (shown["undecided"], shown["undecided_max"], shown["set_aside"], shown["past_limit"]) == (
        3,
        10,
        1,
        "set-aside",
    )
