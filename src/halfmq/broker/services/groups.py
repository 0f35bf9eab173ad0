"""Consumer groups and their ``%RETRY%`` topics, created on first use."""

from collections.abc import Callable
from typing import Final

from halfmq.broker.sequencer import Sequencer
from halfmq.core.commands import EnsureGroup
from halfmq.core.decision import Done, Refused, Reply, Why
from halfmq.core.engine import Failed

#: Called with None when the group exists, else with the reason why not.
Then = Callable[[Refused | Failed | None], None]


_DONE: Final = Done()


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
