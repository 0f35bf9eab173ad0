"""Options of the source, from the settings of a job."""

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import source
from halfmq.spark.jobs.source import SourceSettings, reader_options


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (SourceSettings(topics=("t",)), "neither --url nor --path"),
        (SourceSettings(url="rocketmq://a:1", path="/p", topics=("t",)), "both --url and --path"),
        (SourceSettings(url="rocketmq://a:1"), "neither --topics nor --pattern"),
        (SourceSettings(url="rocketmq://a:1", topics=("t",), pattern="o.*"), "both --topics and --pattern"),
        (SourceSettings(url="rocketmq://a:1", topics=("t",), options={"Subscribe": "u"}), "use --topics"),
        (SourceSettings(url="rocketmq://a:1", topics=("t",), options={"misspelt": "u"}), "misspelt"),
    ],
)
def test_settings_that_do_not_belong_together(settings: SourceSettings, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        reader_options(settings, ("value",))


def test_options_of_the_user_win() -> None:
    settings = SourceSettings(
        url="rocketmq://a:1", topics=("a", "b"), options={"startingTimestamp": "5", "maxOffsetsPerTrigger": "7"}
    )
    assert reader_options(settings, ("value", "topic"), startingOffsets="earliest", maxOffsetsPerTrigger="9") == {
        "url": "rocketmq://a:1", "subscribe": "a,b", "columns": "value,topic", "startingTimestamp": "5",
        "maxOffsetsPerTrigger": "7",
    }  # fmt: skip


def test_broker_that_is_away_is_announced() -> None:
    said: list[str] = []
    given = reader_options(SourceSettings(url="rocketmq://127.0.0.1:1", topics=("t",)), ("value",))
    source.announce(given, said.append, follow=False)
    assert "Connection refused" in said[0]
    assert "the job waits for it" in said[0]
