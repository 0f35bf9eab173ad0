"""A setting that an administrator changes is durable state: decisions have it from its record on, whichever way the state is known."""

import pytest
from tests.support.core_log import CoreLog, half, producer, refused, sent
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check
from tests.unit.core.test_users import trim

from halfmq.core.base import base_payload
from halfmq.core.base_bytes import setting_bytes
from halfmq.core.commands import Actor, SetProducer, SetSetting, SetUser, UnsetSetting
from halfmq.core.decision import Done, ProducerSettingsStored, Refused, Reply, SendCheck, SettingChanged, UserIsSet, Why
from halfmq.core.engine import next_deadline_ms
from halfmq.core.schema import setting_set
from halfmq.core.state import next_offset
from halfmq.model.records import EpochStarted, OperatorActed, OperatorAction, SettingSet
from halfmq.model.runtime_settings import RUNTIME, Changes, RecordedSetting, SettingValue
from halfmq.model.settings import BrokerSettings, ProducerSettings
from halfmq.model.users import User, UserSecret

ADA = Actor("ada", "ticket 17", "10.0.0.1:5")
SETTINGS = BrokerSettings(segment_bytes=65_536, undecided_max=60)


def put(log: CoreLog, name: str, value: SettingValue) -> Reply:
    return log.do(SetSetting(name, value, getattr(log.settings, name, 72.0), ADA))


def unset(log: CoreLog, name: str) -> Reply:
    return log.do(UnsetSetting(name, ADA))


def changed() -> CoreLog:
    log = CoreLog(SETTINGS)
    assert put(log, "undecided_max", 7) == Done()
    log.later(5)
    assert put(log, "retention_hours", 24.0) == Done()
    return log


def test_a_setting_counts_at_once_and_its_record_says_both_values_and_who_set_it() -> None:
    log = changed()
    assert log.state.settings.undecided_max == 7
    assert log.state.configured == SETTINGS
    assert log.state.recorded_settings == {
        "undecided_max": RecordedSetting(7, 60, "ada", log.now_ms - 5),
        "retention_hours": RecordedSetting(24.0, 72.0, "ada", log.now_ms),
    }
    assert log.effects == [SettingChanged("undecided_max"), SettingChanged("retention_hours")]
    acted = [(one.action, one.subject, one.name, one.reason) for one in log.of(OperatorActed)]
    assert acted == [(OperatorAction.SET_SETTING, name, "ada", "ticket 17") for name in log.state.recorded_settings]
    check(log.state)


def test_a_setting_is_there_after_a_start_from_the_log_from_a_base_and_from_a_snapshot() -> None:
    log = changed()
    recorded = dict(log.state.recorded_settings)
    chunks = log.snapshot()
    states = [log.redone(), log.reloaded(chunks)]
    trim(log)
    assert not [one for batch in log.remaining() for one in batch.records if isinstance(one, SettingSet)]
    for state in (*states, log.redone(), log.reloaded(log.snapshot())):
        assert (state.recorded_settings, state.settings.undecided_max) == (recorded, 7)
        check(state)
    log.restart()
    assert unset(log, "undecided_max") == Done()
    assert log.state.settings == SETTINGS
    assert log.redone().recorded_settings.keys() == {"retention_hours"}
    check(log.state)


def test_a_state_that_forgets_a_setting_at_redo_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import halfmq.core.apply as module

    log = changed()
    monkeypatch.setitem(module._APPLY, SettingSet, lambda state, record: None)
    assert durable_digest(log.redone()) != durable_digest(log.state)


def test_a_broker_without_changed_settings_has_the_base_that_it_had_before() -> None:
    log = CoreLog(SETTINGS)
    before = base_payload(log.state)
    put(log, "undecided_max", 7)
    assert base_payload(log.state) != before
    unset(log, "undecided_max")
    assert base_payload(log.state) == before


def test_a_later_value_replaces_the_earlier_one() -> None:
    log = changed()
    put(log, "undecided_max", 9)
    assert log.state.recorded_settings["undecided_max"].value == 9
    assert log.redone().settings.undecided_max == 9
    check(log.state)


def test_what_is_not_set_cannot_be_unset_and_what_stays_cannot_be_set() -> None:
    log = CoreLog(SETTINGS)
    records = len(log.records)
    assert "nothing to unset" in refused(unset(log, "undecided_max"), Why.NOT_FOUND).text
    for name, row in RUNTIME.items():
        if not isinstance(row, Changes):
            refused(put(log, name, 1), Why.INVALID_PARAMETER)
    refused(put(log, "undecided_maximum", 1), Why.INVALID_PARAMETER)
    assert len(log.records) == records


def test_a_preview_is_decided_as_the_change_and_changes_nothing() -> None:
    log = changed()
    before, records = durable_digest(log.state), len(log.records)
    for name, value, reply in (
        ("undecided_max", 9, Done),
        ("port", 9, Refused),
        ("check_interval_ms", 1 << 40, Refused),
    ):
        assert type(log.do(SetSetting(name, value, 1, ADA, preview=True))) is reply, name
    assert log.do(UnsetSetting("undecided_max", ADA, preview=True)) == Done()
    assert type(log.do(UnsetSetting("queries_max", ADA, preview=True))) is Refused
    assert (durable_digest(log.state), len(log.records)) == (before, records)


def test_two_limits_that_contradict_each_other_are_refused_with_what_to_change_first() -> None:
    log = CoreLog(BrokerSettings(check_interval_ms=5_000, check_interval_max_ms=60_000))
    text = refused(put(log, "check_interval_ms", 90_000), Why.INVALID_PARAMETER).text
    assert (
        text
        == "check_interval_ms 90000 would be more than check_interval_max_ms 60000: change check_interval_max_ms first"
    )
    assert put(log, "check_interval_max_ms", 120_000) == Done()
    assert put(log, "check_interval_ms", 90_000) == Done()
    text = refused(unset(log, "check_interval_max_ms"), Why.INVALID_PARAMETER).text
    assert text.endswith("more than check_interval_max_ms 60000: change check_interval_ms first")
    assert (unset(log, "check_interval_ms"), unset(log, "check_interval_max_ms")) == (Done(), Done())
    refused(put(log, "check_interval_max_ms", 4_999), Why.INVALID_PARAMETER)


def test_producer_groups_follow_unless_they_have_a_limit_of_their_own() -> None:
    log = CoreLog(SETTINGS)
    for group in ("PG", "OWN"):
        sent(log.do(half(f"T-{group}", group=group)))
    own = ProducerSettings("OWN", undecided_max=2)
    assert log.do(SetProducer(own)) == ProducerSettingsStored(own)
    assert put(log, "undecided_max", 1) == Done()
    assert put(log, "undecided_bytes_max", 1 << 20) == Done()
    for _ in range(2):
        refused(log.do(half("T2", group="PG")), Why.LIMIT_REACHED)
        sent(log.do(half("T2", group="OWN")))
        refused(log.do(half("T3", group="OWN")), Why.LIMIT_REACHED)
        limits = {name: (one.undecided_max, one.undecided_bytes_max) for name, one in log.state.producer_groups.items()}
        assert limits == {"PG": (1, 1 << 20), "OWN": (2, 1 << 20)}
        log.restart()
    sent(log.do(half("N1", group="NEW")))
    refused(log.do(half("N2", group="NEW")), Why.LIMIT_REACHED)
    assert log.do(SetProducer(ProducerSettings("OWN"))) == ProducerSettingsStored(ProducerSettings("OWN"))
    assert log.state.producer_groups["OWN"].undecided_max == 1
    assert unset(log, "undecided_max") == Done()
    assert {one.undecided_max for one in log.state.producer_groups.values()} == {60}
    check(log.state)


def test_the_share_of_a_user_follows_the_limit_of_all() -> None:
    log = CoreLog(SETTINGS)
    root = User((UserSecret(b"sealed"),), "", ("administer:broker",))
    assert log.do(SetUser("root", root, True, ADA)) == UserIsSet()
    assert put(log, "undecided_total_max", 4) == Done()
    for _ in range(2):
        assert log.state.derived.users_limited_from == 3
        log.restart()
    for number in range(3):
        sent(log.do(half(f"T{number}", user="root")))
    refused(log.do(half("T3", user="root")), Why.LIMIT_REACHED)
    assert unset(log, "undecided_total_max") == Done()
    sent(log.do(half("T3", user="root")))
    check(log.state)


def test_checks_that_wait_at_the_limit_are_sent_as_soon_as_it_is_raised() -> None:
    log = CoreLog(BrokerSettings(checks_in_flight_max=1, check_immunity_ms=0, check_answer_ms=3_600_000))
    log.session(producer(7, log.now_ms))
    for number in range(3):
        sent(log.do(half(f"T{number}")))
    assert len(log.checks_after(1)) == 1
    assert log.checks_after(1) == [], "one is in flight"
    assert put(log, "checks_in_flight_max", 2) == Done()
    check(log.state)
    assert next_deadline_ms(log.state) == 0
    assert [type(one) for one in log.tick() if isinstance(one, SendCheck)] == [SendCheck]
    assert unset(log, "checks_in_flight_max") == Done()
    assert log.checks_after(1) == []
    check(log.state)


def test_a_start_forgets_what_the_configuration_overrides_in_its_first_batch() -> None:
    log = changed()
    log.begin_epoch(SETTINGS, unset=("undecided_max",))
    first = log.batches[-1].records
    assert [type(one) for one in first] == [EpochStarted, SettingSet]
    for state in (log.state, log.redone()):
        assert state.recorded_settings.keys() == {"retention_hours"}
        assert state.settings == SETTINGS
        check(state)
    assert not isinstance(first[0], OperatorActed), "nobody asked for it"


def test_a_setting_of_another_version_stays_and_has_no_effect() -> None:
    log = CoreLog(SETTINGS)
    recorded = RecordedSetting(5, 4, "ada", log.now_ms)
    log.engine.log([setting_set(next_offset(log.state), "setting_of_tomorrow", recorded)], log.now_ms)
    log.close()
    log.roll()
    log.restart()
    assert log.state.recorded_settings == {"setting_of_tomorrow": recorded}
    assert log.state.settings == SETTINGS
    assert unset(log, "setting_of_tomorrow") == Done()
    check(log.state)


def test_without_space_in_a_base_a_setting_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = changed()
    monkeypatch.setattr(log.state.derived, "base_bytes", 65_536)
    text = refused(put(log, "queries_max", 5), Why.LIMIT_REACHED).text
    assert text.startswith("setting queries_max was not changed: ")
    assert put(log, "undecided_max", 8) == Done(), "it takes no more than before"


def test_all_settings_together_take_little_of_the_smallest_base() -> None:
    longest = RecordedSetting((1 << 63) - 1, (1 << 63) - 1, "n" * 64, 1 << 62)
    assert sum(setting_bytes(name, longest) for name, row in RUNTIME.items() if isinstance(row, Changes)) < 3_000
