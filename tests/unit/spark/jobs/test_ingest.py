"""What ``ingest`` says before Spark starts."""

from typing import Any

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import ingest

GOOD: dict[str, Any] = {"output": "out", "url": "rocketmq://a:1", "topics": ("t",)}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"path": "/data"}, "--url and --path"),
        ({"url": None}, "--url and --path"),
        ({"pattern": "o.*"}, "--topics and --pattern"),
        ({"topics": ()}, "--topics and --pattern"),
        ({"required": ("id",)}, "need --schema"),
        ({"schema": "id long", "event_time": "at"}, "belong together"),
        ({"schema": "id long", "event_time": "at", "late_after": "soon"}, "not a duration"),
        ({"max_rows": 0}, "--max-rows"),
    ],
)
def test_settings_that_do_not_belong_together(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ingest.check(ingest.Settings(**{**GOOD, **wrong}))
    ingest.check(ingest.Settings(**GOOD))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("7d", 604_800), ("5 min", 300)]
)
def test_durations(text: str, seconds: int) -> None:
    assert ingest.late_seconds(text) == seconds
