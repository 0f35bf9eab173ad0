"""What settings amount to: whether a group has any, and how many topics and groups the head of a segment holds."""

from halfmq import limits
from halfmq.core.base_bytes import group_bytes, topic_bytes
from halfmq.core.state import Topic
from halfmq.model.placement import SEGMENT_BYTES_MIN
from halfmq.model.settings import (
    BrokerSettings,
    PastLimit,
    ProducerSettings,
    base_bytes_max,
    caps,
    caps_that_fit,
    segment_bytes_for,
)


def test_a_producer_group_without_settings_waits_for_ever() -> None:
    settings = ProducerSettings("PG", set_by="ada")
    assert settings.is_default
    assert (settings.check_limit, settings.past_limit, settings.skip_age_ms) == (0, PastLimit.WAIT, 0)
    assert not ProducerSettings("PG", undecided_max=0).is_default
    assert not ProducerSettings("PG", 1, PastLimit.PARKED).is_default


def test_as_many_topics_and_groups_as_the_head_of_a_segment_holds_with_any_names() -> None:
    assert caps(BrokerSettings()) == (limits.TOPICS_MAX, limits.GROUPS_MAX)
    for segment_bytes in (SEGMENT_BYTES_MIN, 1 << 18, 1 << 20, 1 << 24):
        settings = BrokerSettings(segment_bytes=segment_bytes)
        topics, groups = caps_that_fit(settings)
        longest = (48 + 127 + 9 * settings.default_topic_queues) * topics + (32 + 120) * groups
        assert topics >= 39
        assert groups > 40
        assert longest <= base_bytes_max(segment_bytes) * 3 // 4, "some is left for offsets"
    assert caps(BrokerSettings(segment_bytes=1 << 18, topics_max=7, groups_max=0)) == (7, 0)
    wide = BrokerSettings(segment_bytes=1 << 18, default_topic_queues=64)
    assert caps_that_fit(wide).topics < caps_that_fit(BrokerSettings(segment_bytes=1 << 18)).topics


def test_the_smallest_segments_that_hold_what_is_asked_for() -> None:
    assert segment_bytes_for(BrokerSettings()) == SEGMENT_BYTES_MIN
    size = segment_bytes_for(BrokerSettings(topics_max=300, groups_max=10))
    assert caps_that_fit(BrokerSettings(segment_bytes=size)).topics >= 300
    assert caps_that_fit(BrokerSettings(segment_bytes=size // 2)).topics < 300


def test_a_base_is_counted_with_the_same_bytes() -> None:
    """``caps_that_fit`` lies below ``core``, so it has numbers of its own."""
    topic = Topic(BrokerSettings(), 1, "t" * 127, 8, 8, 6)
    assert topic_bytes(topic) == 48 + 127 + 8 * 9
    assert group_bytes("g" * 120) == 32 + 120
