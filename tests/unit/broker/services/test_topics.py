"""Which topics are there without having been made, what asking for one makes, and who is kept as having changed one."""

from typing import Any

from tests.support.core_log import message
from tests.support.services import CoreSequencer, FakePeer

from halfmq.broker.services.topics import REPLY_TOPIC_SUFFIX, TEMPLATE, TopicQueues, Topics
from halfmq.core.commands import Actor, DeleteGroup, DeleteTopic, EnsureGroup, EnsureTopic, SetGroup, SetTopic
from halfmq.core.decision import ConsumerGroupDeleted, Done, Why
from halfmq.model.settings import BrokerSettings

CLOSED = BrokerSettings(segment_bytes=1 << 16, auto_create_topics=False)


def topics_of(settings: BrokerSettings | None = None) -> tuple[CoreSequencer, Topics]:
    sequencer = CoreSequencer(settings)
    return sequencer, Topics(sequencer)  # type: ignore[arg-type]


def route(topics: Topics, name: str) -> Any:
    answers: list[Any] = []
    topics.route(name, answers.append)
    return answers[0] if answers else "no answer yet"


def test_route_of_a_topic_says_what_it_has() -> None:
    sequencer, topics = topics_of()
    sequencer.core.do(SetTopic("T", 3, 2, 4))
    assert route(topics, "T") == TopicQueues(3, 2, 4)
    assert route(topics, "Nowhere") is None
    assert "Nowhere" not in sequencer.view.topics_by_name


def test_template_is_there_only_where_topics_are_made_on_first_use() -> None:
    _, topics = topics_of()
    queues = BrokerSettings().default_topic_queues
    assert route(topics, TEMPLATE) == TopicQueues(queues, queues, 7)
    assert topics.names() == [TEMPLATE]
    sequencer, topics = topics_of(CLOSED)
    assert route(topics, TEMPLATE) is None
    assert topics.names() == []
    assert sequencer.core.do(SetTopic(TEMPLATE, 1, 1, 6)).why is Why.NO_PERMISSION, "nor can it be made"


def test_replies_have_a_route_and_no_topic() -> None:
    sequencer, topics = topics_of(CLOSED)
    name = sequencer.view.settings.cluster + REPLY_TOPIC_SUFFIX
    assert route(topics, name) == TopicQueues(1, 1, 6)
    assert topics.names() == []


def test_asking_makes_the_retry_topic_of_a_group_that_exists_durably_and_no_other() -> None:
    sequencer, topics = topics_of(CLOSED)
    assert route(topics, "%RETRY%C") is None
    sequencer.core.do(EnsureGroup("C"))
    sequencer.core.do(DeleteTopic("%RETRY%C"))
    sequencer.is_held = True
    answers: list[Any] = []
    topics.route("%RETRY%C", answers.append)
    assert answers == []
    sequencer.release()
    assert answers == [TopicQueues(1, 1, 6)]
    assert sequencer.commands == [EnsureTopic("%RETRY%C", 1)]


def test_a_topic_is_ordered_on_the_queues_that_are_written() -> None:
    sequencer, topics = topics_of()
    sequencer.core.do(SetTopic("T", 3, 2, 6))
    assert (topics.ordered_queues("T"), topics.ordered_queues("Nowhere")) == (2, None)


def test_changes_name_who_made_them_and_refusals_come_back() -> None:
    sequencer, topics = topics_of()
    peer, answers = FakePeer(9), []  # type: tuple[FakePeer, list[Any]]
    topics.set_topic(peer, SetTopic("T", 2, 1, 6), answers.append)
    topics.set_topic(peer, SetTopic("T", 0, 0, 6), answers.append)
    topics.set_group(peer, SetGroup("C", 3, 1, True), answers.append)
    topics.set_group(peer, SetGroup("C", hold_topics=("T",), hold_ms=5), answers.append)
    topics.delete_topic(peer, "T", answers.append)
    topics.delete_group(peer, "C", with_offsets=True, answer=answers.append)
    by = Actor(peer="10.0.0.7:9")
    assert sequencer.commands == [
        SetTopic("T", 2, 1, 6, by),
        SetTopic("T", 0, 0, 6, by),
        SetGroup("C", 3, 1, True, by),
        SetGroup("C", None, None, None, by, ("T",), 5),
        DeleteTopic("T", by),
        DeleteGroup("C", True, by),
    ]
    assert [answers[number] for number in (0, 2, 3, 4, 5)] == [Done(), Done(), Done(), Done(), ConsumerGroupDeleted(())]
    assert answers[1].why is Why.INVALID_PARAMETER


def test_a_group_that_is_deleted_says_which_of_its_topics_stay() -> None:
    sequencer, topics = topics_of()
    sequencer.core.do(EnsureGroup("C"))
    sequencer.core.do(message("1", topic="%RETRY%C"))
    answers: list[Any] = []
    topics.delete_group(FakePeer(), "C", with_offsets=False, answer=answers.append)
    assert answers == [ConsumerGroupDeleted(("%RETRY%C",))]
