"""Routes, and the administration of topics and consumer groups.

Some topics exist for clients although nobody created them: ``TEMPLATE`` (if topics are created on first use: without its route the first
send to a new topic fails, and a consumer never registers), ``<cluster>_REPLY_TOPIC`` (replies follow its route and are not stored), and
``%RETRY%`` of an existing group, which is created on request. Consumer groups are created on first use.

Names and queues that a call returns may not be durable yet: the front door withholds them. Calls that change a topic or a group take
``peer``: the log records who it was.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Sequencer
from halfmq.core.commands import Actor, Command, DeleteGroup, DeleteTopic, EnsureGroup, EnsureTopic, SetGroup, SetTopic
from halfmq.core.decision import ConsumerGroupDeleted, Done, Failed, Refused, Reply, Why
from halfmq.core.state import RETRY_PREFIX
from halfmq.model.ids import REPLY_TOPIC_SUFFIX

#: RocketMQ's template topic: inheritable, readable, writable.
TEMPLATE: Final = "TBW102"
#: Of a group, by default.
RETRY_QUEUES: Final = 1
_TEMPLATE_PERMISSION: Final = 7
_REPLY_PERMISSION: Final = 6


class TopicQueues(NamedTuple):
    """``permission``: 4 read, 2 write, 1 inherit, as in ``core.topics``."""

    read_queues: int
    write_queues: int
    permission: int


Answer = Callable[[Done | Refused | Failed], None]
#: Called with None when the group exists, else with the reason why not.
Then = Callable[[Refused | Failed | None], None]
_DONE: Final = Done()


class Topics:
    """Routes and administration of topics and consumer groups."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view

    # --- which there are

    def route(self, name: str, answer: Callable[[TopicQueues | None], None]) -> None:
        """The queues of a topic; None: it can be neither written nor read. A request creates only ``%RETRY%`` topics."""
        queues = self._queues_of(name)
        if queues is None and self._is_retry_of_known_group(name):
            self._sequencer.submit(EnsureTopic(name, RETRY_QUEUES), self._ensured, (name, answer))
        else:
            answer(queues)

    def _ensured(self, context: tuple[str, Callable[[TopicQueues | None], None]], reply: Reply | Failed) -> None:
        name, answer = context
        answer(self._queues_of(name))

    def _queues_of(self, name: str) -> TopicQueues | None:
        settings = self._view.settings
        topic = self._view.topics_by_name.get(name)
        if topic is not None:
            return TopicQueues(topic.read_queues, topic.write_queues, topic.permission)
        if name == TEMPLATE and settings.auto_create_topics:
            return TopicQueues(settings.default_topic_queues, settings.default_topic_queues, _TEMPLATE_PERMISSION)
        if name == settings.cluster + REPLY_TOPIC_SUFFIX:
            return TopicQueues(1, 1, _REPLY_PERMISSION)
        return None

    def _is_retry_of_known_group(self, name: str) -> bool:
        return name.startswith(RETRY_PREFIX) and name[len(RETRY_PREFIX) :] in self._view.groups

    def names(self) -> list[str]:
        """Names of all topics, including the template if topics are created on first use."""
        names = [*self._view.topics_by_name]
        return [*names, TEMPLATE] if self._view.settings.auto_create_topics else names

    def ordered_queues(self, name: str) -> int | None:
        """Number of queues of an ordered topic: the write queues, since one broker is the whole cluster. None: there is no such topic."""
        topic = self._view.topics_by_name.get(name)
        return None if topic is None else topic.write_queues

    # --- administration

    def set_topic(self, peer: Peer, change: SetTopic, answer: Answer) -> None:
        """Create or change a topic."""
        self._submit(change._replace(by=_by(peer)), answer)

    def delete_topic(self, peer: Peer, name: str, answer: Answer) -> None:
        """Delete a topic with its messages and its route."""
        self._submit(DeleteTopic(name, _by(peer)), answer)

    def set_group(self, peer: Peer, change: SetGroup, answer: Answer) -> None:
        """Create or change a consumer group."""
        self._submit(change._replace(by=_by(peer)), answer)

    def delete_group(
        self,
        peer: Peer,
        name: str,
        *,
        with_offsets: bool,
        answer: Callable[[ConsumerGroupDeleted | Done | Refused | Failed], None],
    ) -> None:
        """``with_offsets``: a later group of this name starts over."""
        self._submit(DeleteGroup(name, with_offsets, _by(peer)), answer)

    def _submit(self, command: Command, answer: Callable[[Any], None]) -> None:
        self._sequencer.submit(command, deliver, answer)


class GroupsOnUse:
    """Creates a consumer group on first use."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    def ensure(self, group: str, then: Then) -> None:
        """Call ``then`` once ``group`` durably exists, at once if it does."""
        if group in self._sequencer.view.groups:
            self._sequencer.after_durable(lambda _, __: then(None), None, _DONE)
        else:
            self._sequencer.submit(EnsureGroup(group), self._ensured, (group, then))

    def _ensured(self, context: tuple[str, Then], reply: Reply | Failed) -> None:
        group, then = context
        if isinstance(reply, Done) and group in self._sequencer.view.groups:
            then(None)
        elif isinstance(reply, Done):
            then(Refused(Why.GROUP_NOT_EXIST, f"consumer group {group} does not exist"))
        else:
            assert isinstance(reply, Refused | Failed), reply
            then(reply)


def _by(peer: Peer) -> Actor:
    return Actor(peer.user, peer=peer.address)


def deliver(answer: Callable[[Any], None], reply: Reply | Failed) -> None:
    """For ``submit`` and the like, whose context is what responds."""
    answer(reply)
