"""A look at every group is done in parts, one look at a time, and few wait."""

import asyncio

import pytest
from tests.support.services import FakePeer

from halfmq.broker.peers.peer import Peer
from halfmq.broker.services import group_scan as group_scan
from halfmq.broker.services.group_scan import WAITING_MAX, GroupScan
from halfmq.core.state import ProducerGroup, State
from halfmq.model.settings import BrokerSettings


def peer(number: int = 1, user: str = "") -> Peer:
    return FakePeer(number, user=user)  # type: ignore[return-value]


def with_groups(count: int) -> State:
    state = State(BrokerSettings())
    for number in range(count):
        state.producer_group(f"G{number}")
    return state


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_few_groups_are_looked_at_at_once() -> None:
    seen: list[str] = []
    scan = GroupScan(with_groups(3), asyncio.get_running_loop())
    look = lambda group: seen.append(group.name) or 0  # type: ignore[func-returns-value]  # noqa: E731
    assert scan.run(peer(), look, lambda: seen.append("then")) is None
    assert seen == ["G0", "G1", "G2", "then"]


@pytest.mark.parametrize(("weight", "in_a_turn"), [(0, 10), (4, 2)])
async def test_many_are_looked_at_in_parts_by_how_much_there_is_to_look_at(
    monkeypatch: pytest.MonkeyPatch, weight: int, in_a_turn: int
) -> None:
    monkeypatch.setattr(group_scan, "EXAMINED_PER_TURN_MAX", 10)
    seen: list[str] = []
    ended = []

    def look(group: ProducerGroup) -> int:
        seen.append(group.name)
        return weight

    scan = GroupScan(with_groups(25), asyncio.get_running_loop())
    assert scan.run(peer(), look, lambda: ended.append(len(seen))) is None
    assert (len(seen), ended) == (in_a_turn, [])
    await turns(1)
    assert len(seen) == 2 * in_a_turn
    await turns(25)
    assert ended == [25]
    assert len(set(seen)) == 25


async def test_one_look_is_done_at_a_time_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_scan, "EXAMINED_PER_TURN_MAX", 10)
    scan = GroupScan(with_groups(25), asyncio.get_running_loop())
    ended: list[int] = []
    looking = 0
    most = 0

    def look_of(number: int) -> group_scan.Look:
        def look(group: ProducerGroup) -> int:
            nonlocal looking, most
            looking |= 1 << number
            most = max(most, looking.bit_count())
            return 0

        return look

    def end_of(number: int) -> None:
        nonlocal looking
        looking = 0
        ended.append(number)

    for number in range(WAITING_MAX):
        user = peer(number, f"user-{number % 2}")
        assert scan.run(user, look_of(number), lambda number=number: end_of(number)) is None  # type: ignore[misc]
    refused = scan.run(peer(user="other"), look_of(0), lambda: None)
    assert refused is not None
    assert "256 of 256 searches of all producer groups, 128 of them of user 'user-0'" in refused.text
    await turns(5 * WAITING_MAX)
    assert ended == list(range(WAITING_MAX))
    assert most == 1
    assert scan.run(peer(), look_of(0), lambda: None) is None


async def test_one_user_leaves_others_a_quarter_of_the_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_scan, "EXAMINED_PER_TURN_MAX", 10)
    scan = GroupScan(with_groups(25), asyncio.get_running_loop())
    ended: list[str] = []
    for number in range(192):
        assert scan.run(peer(number, "flood"), lambda group: 0, lambda: ended.append("flood")) is None
    refused = scan.run(peer(200, "flood"), lambda group: 0, lambda: None)
    assert refused is not None
    assert refused.text == (
        "user 'flood' has 192 of 256 searches of all producer groups, and one user may have 192: try again, or name the group"
    )
    assert scan.run(peer(201, "shop"), lambda group: 0, lambda: ended.append("shop")) is None
    await turns(5 * 193)
    assert ended == ["flood"] * 192 + ["shop"]
