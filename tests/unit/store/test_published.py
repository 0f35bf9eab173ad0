from pathlib import Path

from tests.support.vectors import vectors

from halfmq.runtime.disk import RealDisk
from halfmq.store.layout import PUBLISHED_SLOT_BYTES
from halfmq.store.published import Published, PublishedPage, read_published
from halfmq.store.two_slots import Missing, Unreadable
from halfmq.testing.faulty_disk import FaultyDisk

STORE = bytes(range(16))
PATH = Path("/s/published")


def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directories(PATH.parent)
    return made


def test_a_slot_has_these_bytes() -> None:
    on = disk()
    PublishedPage.open(on, PATH, STORE, 3).publish(8_192, 4_096, 1_700_000_000_123)
    golden = vectors("derived")["published_slot"]
    assert on.content(PATH)[PUBLISHED_SLOT_BYTES:][: len(golden)] == golden


def test_readers_see_the_last_publication_across_restarts_of_the_broker() -> None:
    on = disk()
    assert read_published(on, PATH) == Missing()
    page = PublishedPage.open(on, PATH, STORE, 3)
    assert read_published(on, PATH) == Missing()
    for position in (100, 200, 300):
        page.publish(position, 50, 7)
        assert read_published(on, PATH) == Published(position // 100, STORE, 3, False, position, 50, 7, 0)
    page.close()
    page = PublishedPage.open(on, PATH, STORE, 4)
    assert read_published(on, PATH) == Published(3, STORE, 3, False, 300, 50, 7, 0)
    page.rebuilding(50, 8)
    assert read_published(on, PATH) == Published(4, STORE, 4, True, 0, 50, 8, 0)


def test_what_was_durable_once_stays_said_while_derived_files_are_made_again() -> None:
    on = disk()
    page = PublishedPage.open(on, PATH, STORE, 3, durable=True)
    page.publish(300, 50, 7)
    for epoch in (4, 5):  # also by a start that comes no further than that
        page = PublishedPage.open(on, PATH, STORE, epoch, durable=True)
        page.rebuilding(50, 8, 300)
        found = read_published(on, PATH)
        assert isinstance(found, Published)
        assert (found.rebuilding, found.durable) == (True, 300)
    PublishedPage.open(on, PATH, b"another store 16", 6).publish(400, 50, 9)
    found = read_published(on, PATH)
    assert isinstance(found, Published)
    assert (found.position, found.durable) == (400, 0)


def test_a_slot_that_is_torn_leaves_the_publication_before() -> None:
    on = disk()
    page = PublishedPage.open(on, PATH, STORE, 3)
    page.publish(100, 0, 1)
    page.publish(200, 0, 2)
    on.flip_bit(PATH, 45)
    found = read_published(on, PATH)
    assert isinstance(found, Published)
    assert found.position == 100
    on.flip_bit(PATH, PUBLISHED_SLOT_BYTES + 45)
    assert isinstance(read_published(on, PATH), Unreadable)


def test_a_reader_beside_the_writer_never_sees_a_position_go_back(tmp_path: Path) -> None:
    import threading

    page = PublishedPage.open(RealDisk(), tmp_path / "published", STORE, 1)
    page.publish(1, 0, 0)
    stop = threading.Event()

    def write() -> None:
        position = 1
        while not stop.is_set():
            position += 1
            page.publish(position, 0, position)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    try:
        for _ in range(3_000):
            found = read_published(RealDisk(), tmp_path / "published")
            assert isinstance(found, Published)
            assert found.position in (found.broker_time_ms, 1)
            seen.append(found.position)
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
