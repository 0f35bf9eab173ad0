from pathlib import Path

import pytest
from tests.support.faulty_disk import FaultyDisk, PowerLost

from halfmq.errors import StoreDamaged, WrongVersion
from halfmq.store.topics_file import TopicInfo, read_topics, write_topics

PATH = Path("/s/topics.json")
ONE = TopicInfo(1, "orders", 8, 8, 6)
TWO = TopicInfo(2, "%RETRY%billing", 1, 1, 6)


def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directories(PATH.parent)
    made.sync_directory(Path("/"))
    return made


def test_topics_come_back_by_id() -> None:
    on = disk()
    assert read_topics(on, PATH) == ("", [])
    write_topics(on, PATH, "5a", [TWO, ONE])
    assert read_topics(on, PATH) == ("5a", [ONE, TWO])


def test_a_crash_at_any_step_leaves_the_old_topics_or_the_new() -> None:
    outcomes = set()
    for step in range(1, 12):
        on = disk()
        write_topics(on, PATH, "5a", [ONE])
        on.sync_directory(PATH.parent)
        on.power_fails_after(step)
        try:
            write_topics(on, PATH, "5a", [ONE, TWO])
            on.sync_directory(PATH.parent)
        except PowerLost:
            pass
        on.crash()
        outcomes.add(len(read_topics(on, PATH)[1]))
    assert outcomes == {1, 2}


def test_a_damaged_file_is_named_and_never_read() -> None:
    on = disk()
    write_topics(on, PATH, "5a", [ONE, TWO])
    content = on.content(PATH)
    on.put(PATH, content.replace(b"orders", b"orderz"))
    with pytest.raises(StoreDamaged, match="checksum"):
        read_topics(on, PATH)
    on.put(PATH, content[:-4])
    with pytest.raises(StoreDamaged, match=r"topics\.json"):
        read_topics(on, PATH)
    on.put(PATH, content.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(WrongVersion):
        read_topics(on, PATH)
