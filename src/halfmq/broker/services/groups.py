"""Consumer groups and their ``%RETRY%`` topics, made when they are first named (34, 11)."""

from collections.abc import Callable
from typing import Final

from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.core.commands import EnsureGroup
from halfmq.core.decision import Done, Reply
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import ResponseCode

#: Called with None when the group is there, else with the code and text of the refusal.
Then = Callable[[tuple[int, str] | None], None]


_DONE: Final = Done()


class GroupsOnUse:
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
            then((ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist"))
        else:
            code, text, _ = refusal(reply)
            then((code, text))
