"""Settings are values: defaults are the documented limits, and nobody changes them in place."""

import dataclasses

import pytest

from halfmq import limits
from halfmq.model.settings import BrokerSettings, GroupSettings, PastLimit, ProducerSettings, TopicSettings


def test_defaults_are_the_documented_limits() -> None:
    settings = BrokerSettings()
    assert settings.check_immunity_ms == limits.CHECK_IMMUNITY_MS == 6_000
    assert settings.body_bytes_max == limits.BODY_BYTES_MAX == 4 << 20
    assert settings.sent_again_ms == limits.SENT_AGAIN_MS == 120_000
    assert GroupSettings("g").retry_max_times == limits.RETRY_TIMES_MAX == 16
    assert TopicSettings(1, "t", 4, 4).permission == 6


def test_a_producer_group_without_settings_waits_for_ever() -> None:
    settings = ProducerSettings("PG", set_by="ada")
    assert settings.is_default
    assert (settings.check_limit, settings.past_limit, settings.skip_age_ms) == (0, PastLimit.WAIT, 0)
    assert not ProducerSettings("PG", undecided_max=0).is_default
    assert not ProducerSettings("PG", 1, PastLimit.SET_ASIDE).is_default


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerSettings().cluster = "x"  # type: ignore[misc]
