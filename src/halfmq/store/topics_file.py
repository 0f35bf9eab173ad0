"""``topics.json``: names, ids and queues of topics, for readers beside the broker.

Written as a whole, at each change while there are few topics, else with a checkpoint (``AT_ONCE_MAX``).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from halfmq.errors import StoreDamaged, WrongVersion
from halfmq.model.checksum import crc32
from halfmq.runtime.disk import Disk
from halfmq.store.whole_file import read_whole, replacing

TOPICS_VERSION: Final = 1
#: With more topics the file is written at checkpoints only, since its cost grows with their number.
AT_ONCE_MAX: Final = 256
_REMEDY: Final = "start the broker, or stop and start it: each start writes a damaged file anew"


class TopicInfo(NamedTuple):
    """A topic as ``topics.json`` lists it, for readers beside the broker."""

    topic_id: int
    name: str
    read_queues: int
    write_queues: int
    permission: int


class _TopicsFile(msgspec.Struct):
    version: int
    store: str
    checksum: int
    topics: list[tuple[int, str, int, int, int]]


def write_topics(disk: Disk, path: Path, store: str, topics: Iterable[TopicInfo]) -> None:
    """Replace the file. The name is durable after a sync of its directory, which a checkpoint does."""
    rows: list[tuple[int, str, int, int, int]] = sorted(topics)
    content = _TopicsFile(TOPICS_VERSION, store, _checksum(rows), rows)
    with replacing(disk, path, path.with_suffix(".json.new")) as file:
        file.write(0, [msgspec.json.format(msgspec.json.encode(content), indent=1)])


def read_topics(disk: Disk, path: Path) -> tuple[str, list[TopicInfo]]:
    """(store UUID, topics). ("", []) if the file does not exist.

    Raises:
        StoreDamaged: invalid JSON, or a wrong checksum; a start of the broker writes it anew.
        WrongVersion: written by another version.
    """
    data = read_whole(disk, path)
    if data is None:
        return "", []
    try:
        content = msgspec.json.decode(data, type=_TopicsFile)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreDamaged(f"{path} is not readable: {error}", hint=_REMEDY) from error
    if content.version != TOPICS_VERSION:
        raise WrongVersion(f"{path} has version {content.version}, this program reads {TOPICS_VERSION}")
    if content.checksum != _checksum(content.topics):
        raise StoreDamaged(f"{path}: the checksum is wrong", hint=_REMEDY)
    return content.store, [TopicInfo(*topic) for topic in content.topics]


def _checksum(rows: list[tuple[int, str, int, int, int]]) -> int:
    return crc32(msgspec.json.encode(rows))
