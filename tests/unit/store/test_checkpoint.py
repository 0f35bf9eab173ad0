from pathlib import Path

from tests.support.faulty_disk import FaultyDisk, PowerLost
from tests.support.vectors import vectors

from halfmq.store.checkpoint import Present, Slot, read_checkpoint, write_checkpoint
from halfmq.store.layout import SLOT_BYTES
from halfmq.store.two_slots import Missing, Unreadable

STORE = bytes(range(16))
PATH = Path("/s/checkpoint")
FIRST = Slot(1, 3, 4_096, 0xDEADBEEF)
SECOND = Slot(2, 3, 8_192, 0x12345678)


def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directories(PATH.parent)
    made.sync_directory(Path("/"))
    return made


def test_a_slot_has_these_bytes() -> None:
    on = disk()
    write_checkpoint(on, PATH, STORE, FIRST)
    golden = vectors("derived")["checkpoint_slot"]
    assert on.content(PATH)[SLOT_BYTES:][: len(golden)] == golden


def test_no_file_and_a_file_of_zeros_are_missing() -> None:
    on = disk()
    assert read_checkpoint(on, PATH, STORE) == Missing()
    on.open(PATH, create=True).truncate(2 * SLOT_BYTES)
    assert read_checkpoint(on, PATH, STORE) == Missing()


def test_the_newest_slot_comes_first_and_the_one_before_stays() -> None:
    on = disk()
    write_checkpoint(on, PATH, STORE, FIRST)
    assert read_checkpoint(on, PATH, STORE) == Present((FIRST,))
    write_checkpoint(on, PATH, STORE, SECOND)
    assert read_checkpoint(on, PATH, STORE) == Present((SECOND, FIRST))
    third = Slot(3, 4, 9_000, 1)
    write_checkpoint(on, PATH, STORE, third)
    assert read_checkpoint(on, PATH, STORE) == Present((third, SECOND))


def test_a_damaged_slot_leaves_the_other_one() -> None:
    on = disk()
    write_checkpoint(on, PATH, STORE, FIRST)
    write_checkpoint(on, PATH, STORE, SECOND)
    on.flip_bit(PATH, 30)
    assert read_checkpoint(on, PATH, STORE) == Present((FIRST,))
    on.flip_bit(PATH, SLOT_BYTES + 30)
    assert isinstance(read_checkpoint(on, PATH, STORE), Unreadable)


def test_another_stores_checkpoint_is_not_believed() -> None:
    on = disk()
    write_checkpoint(on, PATH, bytes(16), FIRST)
    found = read_checkpoint(on, PATH, STORE)
    assert isinstance(found, Unreadable)
    assert "store 0000" in found.why


def test_a_power_loss_at_any_step_leaves_a_checkpoint_that_was_written() -> None:
    seen = set()
    for step in range(1, 8):
        for seed in range(5):
            on = disk()
            on.rng.seed(seed)
            write_checkpoint(on, PATH, STORE, FIRST)
            on.power_fails_after(step)
            try:
                write_checkpoint(on, PATH, STORE, SECOND)
            except PowerLost:
                pass
            on.crash()
            found = read_checkpoint(on, PATH, STORE)
            assert isinstance(found, Present)
            assert found.slots in ((FIRST,), (SECOND, FIRST))
            seen.add(len(found.slots))
    assert seen == {1, 2}
