"""Fixed widths on disk: a change here is a new format."""

from halfmq.store import layout


def test_fixed_widths_are_what_the_format_says() -> None:
    assert layout.BATCH_HEADER.size == 64
    assert layout.QUEUE_ENTRY.size == layout.QUEUE_ENTRY_BYTES == 48
    assert layout.TRANSACTION_ROW.whole.size == layout.TRANSACTION_ROW_BYTES == 128
    assert layout.KEY_ENTRY.size == 16
    assert layout.WATERMARK.size <= layout.WATERMARK_SLOT_BYTES == 4_096
    assert layout.CHECKPOINT.size <= layout.CHECKPOINT_SLOT_BYTES == 4_096
    assert layout.SETTLED_ID_ENTRY.size == layout.SEGMENT_ENTRY_BYTES == 16
    assert layout.FORMAT_VERSION == 2


def test_magics_are_distinct() -> None:
    magics = [value for name, value in vars(layout).items() if name.endswith("_MAGIC")]
    assert len(magics) >= 3
    assert len(set(magics)) == len(magics)
