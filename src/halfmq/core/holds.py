"""Holds: retention waits until a consumer group has read the messages of certain topics (``GroupSettings.hold_topics``).

Each segment's base states where every queue ended at its start (``State.bases``), and those are the first offsets of the queues if the log
begins there. So what a group would lose by a trim follows from its offsets and one base, exactly, without reading an index. Bodies need no
separate rule: one that became visible after that start is at or after it, or a tie (``core.retention``) keeps it.

A group without an offset in a queue has read nothing of it: an archive job holds a topic before its first read, so that it misses
nothing from then on. Of two known offsets the lower one counts: a crash forgets the one that is not logged yet.

A hold never creates anything: a topic that does not exist yet is held once it does.
"""

from collections.abc import Collection, Iterable

from halfmq.core.commands import Unread
from halfmq.core.state import State
from halfmq.model.settings import GroupSettings


def holding(view: State) -> list[GroupSettings]:
    """The groups that hold anything."""
    return [group for group in view.groups.values() if group.hold_topics]


def unread_between(view: State, groups: Iterable[GroupSettings], start: int, end: int) -> list[Unread]:
    """What ``groups`` have not read of the topics that they hold, and would lose if the log began at ``end`` instead of ``start``. Both are
    starts of segments.
    """
    starts_of, ends_of = dict(view.bases.get(start, ())), dict(view.bases.get(end, ()))
    found = []
    for group in groups:
        for name in group.hold_topics:
            topic = view.topics_by_name.get(name)
            if topic is None:
                continue
            starts = starts_of.get(topic.topic_id, ())
            for queue_id, last in enumerate(ends_of.get(topic.topic_id, ())):
                begin = max(topic.mins[queue_id], starts[queue_id] if queue_id < len(starts) else 0)
                first = max(begin, _read_to(view, group.name, (topic.topic_id, queue_id)))
                if first < last:
                    found.append(Unread(group.name, name, queue_id, first, last))
    return found


def held_and_not_given_up(view: State, log_start: int, given_up: Collection[Unread]) -> Unread | None:
    """What a trim to ``log_start`` would lose beyond ``given_up``, as a group holds it since, or its offset was reset. None: nothing."""
    firsts = {one[:3]: one.first for one in given_up}
    for one in unread_between(view, holding(view), view.log_start, log_start):
        if one.first < firsts.get(one[:3], one.end):
            return one
    return None


def _read_to(view: State, group: str, queue: tuple[int, int]) -> int:
    known = [
        offsets[group].get(queue, -1) for offsets in (view.offsets, view.session.fresh_offsets) if group in offsets
    ]
    return min([offset for offset in known if offset >= 0], default=0)
