"""Consumer groups and their retry topics."""

from tests.support.core_log import CoreLog, refused

from halfmq.core.commands import EnsureGroup, SetGroup
from halfmq.core.decision import Done, TopicChanged, Why
from halfmq.model.records import GroupSet, TopicSet
from halfmq.model.settings import BrokerSettings, GroupSettings


def test_a_group_is_made_on_first_use_with_its_retry_topic_and_only_once() -> None:
    log = CoreLog()
    assert log.do(EnsureGroup("CG")) == Done()
    assert log.do(EnsureGroup("CG")) == Done()
    assert log.state.groups == {"CG": GroupSettings("CG")}
    assert [(record.name, record.write_queues, record.permission) for record in log.of(TopicSet)] == [
        ("%RETRY%CG", 1, 6)
    ]
    assert log.effects == [TopicChanged(1, "%RETRY%CG")]


def test_groups_with_bad_names_or_when_switched_off_are_refused() -> None:
    refused(CoreLog().do(EnsureGroup("no spaces")), Why.INVALID_PARAMETER)
    refused(CoreLog().do(EnsureGroup("x" * 121)), Why.INVALID_PARAMETER)
    log = CoreLog(BrokerSettings(segment_bytes=65_536, auto_create_groups=False))
    refused(log.do(EnsureGroup("CG")), Why.GROUP_NOT_EXIST)
    assert not log.of(GroupSet)


def test_a_group_can_be_changed_and_its_settings_last() -> None:
    log = CoreLog()
    log.do(SetGroup("CG", 3, 2, False))
    log.restart()
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False)
    assert log.state.topics_by_name["%RETRY%CG"].write_queues == 2
    log.roll()
    log.restart()
    assert log.state.groups["CG"] == GroupSettings("CG", 3, 2, False)


def test_a_group_without_retries_gets_no_retry_topic() -> None:
    log = CoreLog()
    log.do(SetGroup("CG", 3, 0, True))
    assert not log.of(TopicSet)
    refused(log.do(SetGroup("CG", 3, -1, True)), Why.INVALID_PARAMETER)
