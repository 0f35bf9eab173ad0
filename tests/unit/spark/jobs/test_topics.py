"""Settings of jobs that read topics."""

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs.topics import TopicSettings, check, source_options


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (TopicSettings(topics=("t",)), "--url and --path"),
        (TopicSettings(url="u", path="p", topics=("t",)), "--url and --path"),
        (TopicSettings(url="u"), "--topics and --pattern"),
        (TopicSettings(url="u", topics=("t",), pattern="o.*"), "--topics and --pattern"),
    ],
)
def test_one_place_and_one_way_of_naming_topics(settings: TopicSettings, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check(settings)


def test_options_of_the_settings_win() -> None:
    settings = TopicSettings(path="/data", topics=("a", "b"), options={"startingOffsets": "latest", "tags": "x"})
    check(settings)
    assert source_options(settings, ("value", "topic"), maxOffsetsPerTrigger="7") == {
        "path": "/data", "subscribe": "a,b", "columns": "value,topic", "startingOffsets": "latest", "tags": "x",
        "maxOffsetsPerTrigger": "7",
    }  # fmt: skip
