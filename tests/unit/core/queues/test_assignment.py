"""Who reads which queue: every queue once, as the members of a group would decide it."""

import pytest

from halfmq.client.routing import QueueRef, allocate
from halfmq.core.queues.assignment import assigned_queues


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "something else"])
@pytest.mark.parametrize("queues", [0, 1, 4, 7, 16])
@pytest.mark.parametrize("members", [1, 2, 3, 7, 20])
def test_each_queue_has_one_reader_and_shares_differ_by_one_at_most(strategy: str, queues: int, members: int) -> None:
    ids = [f"client-{number:02}" for number in range(members)]
    shares = [list(assigned_queues(strategy, queues, reversed(ids), me)) for me in ids]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_default_is_what_members_decide_themselves() -> None:
    for queues in range(12):
        refs = [QueueRef("T", "b", queue) for queue in range(queues)]
        for members in range(1, 14):
            ids = [f"client-{number:02}" for number in range(members)]
            for me in ids:
                mine = [ref.queue for ref in allocate(refs, ids, me)]
                assert list(assigned_queues("AVG", queues, ids, me)) == mine


def test_in_a_circle_they_take_turns() -> None:
    assert [list(assigned_queues("AVG_BY_CIRCLE", 5, ["b", "a"], me)) for me in "ab"] == [[0, 2, 4], [1, 3]]


def test_who_is_no_member_reads_nothing() -> None:
    assert list(assigned_queues("AVG", 4, ["a"], "b")) == []
    assert list(assigned_queues("AVG", 4, [], "b")) == []
