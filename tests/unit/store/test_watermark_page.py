from pathlib import Path

from tests.support.faulty_disk import FaultyDisk
from tests.support.vectors import vectors

from halfmq.runtime.disk import RealDisk
from halfmq.store.layout import SLOT_BYTES
from halfmq.store.two_slots import Missing, Unreadable
from halfmq.store.watermark_page import Watermark, WatermarkPage, read_watermark_page

STORE = bytes(range(16))
PATH = Path("/s/published")


def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directories(PATH.parent)
    return made


def test_a_slot_has_these_bytes() -> None:
    on = disk()
    WatermarkPage.open(on, PATH, STORE, 3).publish(8_192, 4_096, 1_700_000_000_123, 9_000)
    golden = vectors("derived")["published_slot"]
    assert on.content(PATH)[SLOT_BYTES:][: len(golden)] == golden


def test_readers_see_the_last_publication_across_restarts_of_the_broker() -> None:
    on = disk()
    assert read_watermark_page(on, PATH) == Missing()
    page = WatermarkPage.open(on, PATH, STORE, 3)
    assert read_watermark_page(on, PATH) == Missing()
    for position in (100, 200, 300):
        page.publish(position, 50, 7, position + 1)
        assert read_watermark_page(on, PATH) == Watermark(
            position // 100, STORE, 3, False, position, 50, 7, position + 1
        )
    page.close()
    page = WatermarkPage.open(on, PATH, STORE, 4)
    assert read_watermark_page(on, PATH) == Watermark(3, STORE, 3, False, 300, 50, 7, 301)
    page.rebuilding(320, 50, 301)
    assert read_watermark_page(on, PATH) == Watermark(4, STORE, 4, True, 320, 50, 0, 301)
    for directory in PATH.parents:
        on.sync_directory(directory)
    on.crash(keep=0.0)
    assert read_watermark_page(on, PATH) == Watermark(4, STORE, 4, True, 320, 50, 0, 301)


def test_what_is_durable_is_told_while_nothing_new_is_published() -> None:
    on = disk()
    page = WatermarkPage.open(on, PATH, STORE, 3)
    page.publish(300, 50, 7, 300)
    for durable in (400, 500):
        page.durable_to(durable)
        found = read_watermark_page(on, PATH)
        assert isinstance(found, Watermark)
        assert found[3:] == (False, 300, 50, 7, durable)


def test_the_page_keeps_its_room_on_a_full_disk() -> None:
    on = disk()
    page = WatermarkPage.open(on, PATH, STORE, 3)
    on.fill(0)
    for position in range(1, 4):
        page.publish(position, 0, 0, position)
    WatermarkPage.open(on, PATH, STORE, 3).publish(9, 0, 0, 9)
    found = read_watermark_page(on, PATH)
    assert isinstance(found, Watermark)
    assert found[4:] == (9, 0, 0, 9)


def test_a_page_of_another_layout_is_none() -> None:
    on = disk()
    old = vectors("derived")["published_slot_1"]
    on.open(PATH, create=True).write(SLOT_BYTES, [old])
    assert isinstance(read_watermark_page(on, PATH), Unreadable)
    WatermarkPage.open(on, PATH, STORE, 3).publish(8_192, 4_096, 1, 1)
    assert isinstance(read_watermark_page(on, PATH), Watermark)


def test_a_slot_that_is_torn_leaves_the_publication_before() -> None:
    on = disk()
    page = WatermarkPage.open(on, PATH, STORE, 3)
    page.publish(100, 0, 1, 0)
    page.publish(200, 0, 2, 0)
    on.flip_bit(PATH, 45)
    found = read_watermark_page(on, PATH)
    assert isinstance(found, Watermark)
    assert found.position == 100
    on.flip_bit(PATH, SLOT_BYTES + 45)
    assert isinstance(read_watermark_page(on, PATH), Unreadable)


def test_a_reader_beside_the_writer_never_sees_a_position_go_back(tmp_path: Path) -> None:
    import threading

    page = WatermarkPage.open(RealDisk(), tmp_path / "published", STORE, 1)
    page.publish(1, 0, 0, 0)
    stop = threading.Event()

    def write() -> None:
        position = 1
        while not stop.is_set():
            position += 1
            page.publish(position, 0, position, position)

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    try:
        while len(seen) < 3_000 or seen[-1] == seen[0]:  # on a busy machine the writer may have to wait for a turn
            found = read_watermark_page(RealDisk(), tmp_path / "published")
            assert isinstance(found, Watermark)
            assert found.position in (found.broker_time_ms, 1)
            seen.append(found.position)
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)
