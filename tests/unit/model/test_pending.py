"""What people and programs are shown of an undecided transaction."""

import msgspec

from halfmq.model.pending import PendingTransaction


def test_programs_read_each_field_by_its_name() -> None:
    row = PendingTransaction("shop", "T-1", 90_000, 2, 3, 4_711, ("orders", "stock"), 4, 1_500, 1)
    assert msgspec.to_builtins(row) == {
        "group": "shop", "tx_id": "T-1", "age_ms": 90_000, "messages": 2, "expected": 3, "message_bytes": 4_711,
        "topics": ("orders", "stock"), "checks": 4, "next_check_in_ms": 1_500, "producers": 1,
    }  # fmt: skip
