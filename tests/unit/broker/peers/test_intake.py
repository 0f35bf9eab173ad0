"""Nobody's requests fill the memory or stand in the way of others': first the rule alone, then a broker that is flooded."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.in_process import Hand, serving, serving_by_hand
from tests.support.raw_client import command, send_ext
from tests.support.waiting import PATIENCE_S, turns, until

from halfmq import limits
from halfmq.broker.peers.intake import Intake
from halfmq.broker.peers.peer import REQUEST_COST

TURN, OF_ALL, ONE, MOST = 100, 350, 1_000, 3_000


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def run(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Sequencer:
    submitted = decided = released = 0
    expected_s = 0.0


class Peer:
    """Wants to send ``left`` requests of 10 bytes, as a connection would."""

    def __init__(self, intake: Intake, left: int = 0) -> None:
        self.intake = intake
        self.left = left
        self.stopped = False
        self.is_open = True
        self.pending = self.taken = self.later_bytes = 0
        self.awaits_turn = False
        self.used_s = 0.0
        self.unfinished_bytes = 0
        self.is_throttled = True
        self.turns: list[int] = []

    def stop_reading(self) -> None:
        self.stopped = True

    def read_again(self) -> None:
        self.stopped = self.intake.stops(self)

    def wait_for_turn(self) -> None:
        self.awaits_turn = True

    def take_turn(self) -> None:
        self.awaits_turn = False
        self.intake.set_waiting_cost(self, 0)
        self.work()

    def work(self) -> None:
        before = self.intake.work.submitted
        budget, handled = self.intake.budget(self), 0
        while self.left and handled * 10 < budget and not self.awaits_turn:
            self.left -= 1
            handled += 1
            self.intake.work.submitted += 1  # type: ignore[misc]
        self.turns.append(handled)
        self.intake.record_read(self, handled * 10, before)
        if self.left:
            self.intake.wait(self)
            self.intake.set_waiting_cost(self, 10)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(limits, "INTAKE_TURN_BYTES_MAX", TURN)
    monkeypatch.setattr(limits, "INTAKE_ALL_TURN_BYTES_MAX", OF_ALL)
    monkeypatch.setattr(limits, "INTAKE_CONNECTION_BYTES_MAX", ONE)
    monkeypatch.setattr(limits, "INTAKE_BYTES_MAX", MOST)
    return Loop()


def made(loop: Loop) -> tuple[Intake, Sequencer]:
    intake, sequencer = Intake(loop, time.perf_counter, flush=lambda: None), Sequencer()  # type: ignore[arg-type]
    intake.work = sequencer
    return intake, sequencer


def turn(intake: Intake, sequencer: Sequencer, *, durable: bool = True) -> None:
    sequencer.decided = sequencer.submitted
    if durable:
        sequencer.released = sequencer.decided
    intake.release_finished()


def test_one_connection_has_one_part_of_each_turn_and_everybody_comes_in_between(loop: Loop) -> None:
    intake, sequencer = made(loop)
    flooding = Peer(intake, 95)
    flooding.work()
    for _ in range(9):
        assert sequencer.submitted - sequencer.decided <= TURN // 10
        assert flooding.awaits_turn
        turn(intake, sequencer)
        assert sequencer.submitted == sequencer.decided, (
            "its next part comes in the loop's next round, behind what came meanwhile"
        )
        loop.run()
    assert flooding.left == 0
    assert max(flooding.turns) == TURN // 10
    turn(intake, sequencer)
    loop.run()
    assert (intake.taken, intake.pending, intake.later, flooding.awaits_turn) == (0, 0, 0, False)


def test_turns_of_a_crowd_are_bounded_and_go_round(loop: Loop) -> None:
    intake, sequencer = made(loop)
    crowd = [Peer(intake, 20) for _ in range(10)]
    for peer in crowd:
        peer.work()
    rounds = 0
    while any(peer.left for peer in crowd):
        assert sequencer.submitted - sequencer.decided <= OF_ALL // 10 + 1
        behind = [peer.left for peer in crowd]
        turn(intake, sequencer)
        loop.run()
        assert [peer.left for peer in crowd] != behind
        rounds += 1
    assert rounds >= 5
    first = [next(at for at, count in enumerate(peer.turns) if count) for peer in crowd]
    assert max(first) <= 1, "nobody has a second turn before everybody had one"


def test_what_is_decided_counts_until_it_is_durable(loop: Loop) -> None:
    intake, sequencer = made(loop)
    flooding, other = Peer(intake, 1_000), Peer(intake, 1)
    flooding.work()
    for _ in range(50):
        turn(intake, sequencer, durable=False)
        loop.run()
    assert flooding.taken == ONE, "and so it waits for the disk"
    other.work()
    assert (other.left, other.awaits_turn) == (0, False), "nobody else does"
    turn(intake, sequencer)
    loop.run()
    assert not flooding.awaits_turn or flooding.turns[-1] > 0


def test_above_the_bound_of_all_nobody_is_read_from_until_half_is_done_with(loop: Loop) -> None:
    intake, sequencer = made(loop)
    said: list[str] = []
    crowd = [Peer(intake, 1_000) for _ in range(10)]

    def stop() -> None:
        said.append("stop")
        for peer in crowd:
            peer.left = min(peer.left, 1)  # what it has read already

    intake.on_stop, intake.on_start = stop, lambda: said.append("start")
    for peer in crowd:
        peer.work()
    for _ in range(100):
        turn(intake, sequencer, durable=False)
        loop.run()
    assert said == ["stop"]
    assert MOST <= intake.taken <= MOST + OF_ALL
    turn(intake, sequencer)
    loop.run()
    assert said == ["stop", "start"]


def test_a_quarter_above_the_bound_nobody_is_read_from_and_before_that_only_who_has_little(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INTAKE_SHARE_BYTES", 50)
    intake, sequencer = made(loop)
    much, little, newest = Peer(intake), Peer(intake), Peer(intake)
    sequencer.submitted = 1
    intake.record_read(much, MOST, 0)
    intake.record_read(little, 50, 0)
    assert (intake.stopped, intake.full) == (True, False)
    assert (intake.stops(much), intake.stops(little), little.stopped) == (True, False, False)
    intake.record_read(little, 1, 0)
    assert (intake.stops(little), little.stopped, intake.stops(newest)) == (True, True, False)
    newest.unfinished_bytes = 51
    assert intake.stops(newest)
    newest.unfinished_bytes = 0
    intake.record_read(little, MOST // 4, 0)
    assert (intake.full, intake.stops(newest)) == (True, True)
    turn(intake, sequencer)
    loop.run()
    assert not intake.stopped
    assert not intake.full
    assert not intake.stops(much)


def test_who_was_stopped_goes_on_when_it_has_little_although_others_keep_it_full(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many who stay below their share each keep the sum above half of the bound: who had more for a moment waited until then."""
    monkeypatch.setattr(limits, "INTAKE_SHARE_BYTES", MOST // 8)
    intake, sequencer = made(loop)
    honest = Peer(intake)
    crowd = [Peer(intake) for _ in range(10)]
    for _ in range(3):
        for peer in crowd:
            intake.keep(peer, MOST // 10)
        assert intake.stopped
        sequencer.submitted += 1
        intake.record_read(honest, MOST // 8 + 1, sequencer.submitted - 1)
        assert honest.stopped
        turn(intake, sequencer)
        loop.run()
        assert intake.stopped, "the others"
        assert (honest.taken, honest.stopped) == (0, False)
        for peer in crowd:
            intake.give_back(peer, MOST // 10)
        loop.run()
        assert not intake.stopped


def test_who_was_stopped_for_something_kept_or_read_goes_on_when_that_is_gone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INTAKE_SHARE_BYTES", 50)
    intake, _ = made(loop)
    others, keeping, reading, gone = Peer(intake), Peer(intake), Peer(intake), Peer(intake)
    intake.keep(others, MOST)
    intake.keep(keeping, 51)
    intake.set_waiting_cost(reading, 51)
    intake.keep(gone, 51)
    assert [peer.stopped for peer in (keeping, reading, gone)] == [True] * 3
    intake.give_back(keeping, 51)
    intake.set_waiting_cost(reading, 0)
    assert [peer.stopped for peer in (keeping, reading, gone)] == [False, False, True]
    gone.is_open = False
    intake.set_waiting_cost(gone, 0)
    intake.give_back(gone, 51)
    assert gone.stopped, "nobody reads from who is gone"


def test_an_estimate_puts_nobody_behind_all_others_for_as_long_as_it_says(loop: Loop) -> None:
    """One lock of a group that holds very many took 0.3 s; every other group's was expected to, and waited until each of a
    crowd had used as much: 13 s."""
    intake, sequencer = made(loop)
    crowd = [Peer(intake) for _ in range(3)]
    for _ in range(4):
        for peer in crowd:
            sequencer.submitted += 1
            intake.record_read(peer, 10, sequencer.submitted - 1, limits.INTAKE_TURN_S)
            turn(intake, sequencer)
            loop.run()
    honest = Peer(intake)
    sequencer.submitted += 1
    intake.record_read(honest, 10, sequencer.submitted - 1, 0.3)
    assert honest.used_s <= intake._turn_s + limits.INTAKE_ALL_TURN_S


def test_answers_that_are_held_and_what_waits_elsewhere_count_too(loop: Loop) -> None:
    intake, sequencer = made(loop)
    asking = Peer(intake)
    intake.count_withheld_response(asking, 5_000)
    assert asking.taken == 0, "nothing is held: the answer leaves at once"
    sequencer.submitted = sequencer.decided = 1
    intake.count_withheld_response(asking, ONE)
    assert asking.awaits_turn
    turn(intake, sequencer)
    loop.run()
    assert (asking.awaits_turn, asking.taken) == (False, 0)
    intake.keep(asking, ONE)
    assert asking.awaits_turn
    turn(intake, sequencer)
    loop.run()
    assert asking.awaits_turn
    intake.give_back(asking, ONE)
    loop.run()
    assert (asking.awaits_turn, intake.taken) == (False, 0)


def test_who_waits_while_nothing_is_to_be_decided_goes_on_all_the_same(loop: Loop) -> None:
    intake, _ = made(loop)
    asking = Peer(intake, 3)
    intake.wait(asking)
    loop.run()
    assert (asking.left, asking.awaits_turn) == (0, False)


def test_requests_that_become_no_command_have_turns_too(loop: Loop) -> None:
    """Nothing is decided for them, so no turn of the sequencer gives them back: the loop does when it has come round."""
    intake = Intake(loop, time.perf_counter, flush=lambda: None)  # type: ignore[arg-type]
    peers = [Peer(intake) for _ in range(3)]
    for peer in peers:
        for _ in range(20):
            cost = min(10, max(0, intake.budget(peer)))
            intake.record_read(peer, cost, 0)
        assert peer.pending <= TURN + 10
    assert intake.pending == sum(peer.pending for peer in peers) > 0
    assert peers[0].awaits_turn
    loop.run()
    assert intake.pending == intake.taken == 0
    loop.run()
    assert not any(peer.awaits_turn for peer in peers)


def test_requests_that_become_no_command_do_not_wait_for_the_disk(loop: Loop) -> None:
    """Else who only asks would come to its share while a disk stalls, and be read from no more."""
    intake, sequencer = made(loop)
    flooding, asking = Peer(intake, 5), Peer(intake)
    flooding.work()
    intake.record_read(asking, 50, sequencer.submitted)
    assert asking.taken == 50
    turn(intake, sequencer, durable=False)
    assert (asking.taken, flooding.taken, intake.taken) == (0, 50, 50)
    turn(intake, sequencer)
    assert intake.taken == 0


def test_a_connection_that_ended_leaves_nothing(loop: Loop) -> None:
    intake, sequencer = made(loop)
    flooding = Peer(intake, 500)
    flooding.work()
    flooding.is_open = False
    intake.set_waiting_cost(flooding, 0)
    turn(intake, sequencer)
    loop.run()
    assert (intake.taken, intake.pending, intake.later) == (0, 0, 0)
    assert flooding.turns == [TURN // 10]


class Slow(Peer):
    """Each of its requests takes ``each_s``, of the time of a turn."""

    def __init__(self, intake: Intake, left: int, each_s: float) -> None:
        super().__init__(intake, left)
        self.each_s = each_s
        self.done_in: list[int] = []
        self.round = 0

    def work(self) -> None:
        seconds, handled = 0.0, 0
        while self.left and self.intake.budget(self) > 0 and seconds < limits.INTAKE_TURN_S:
            self.left -= 1
            handled += 1
            seconds += self.each_s
        self.turns.append(handled)
        if handled:
            self.intake.record_read(self, handled, 0, seconds)
        if self.left:
            self.intake.wait(self)


def test_time_of_one_round_is_bounded_for_one_and_for_all_and_a_cheap_request_goes_before_costly_ones(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INTAKE_TURN_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(limits, "INTAKE_ALL_TURN_BYTES_MAX", 1 << 20)
    intake, _ = made(loop)
    costly = [Slow(intake, 1_000, 0.001) for _ in range(32)]
    for peer in costly:
        peer.work()
    for _ in range(40):
        before = sum(peer.left for peer in costly)
        loop.run()
        assert before - sum(peer.left for peer in costly) <= 21
    left = [peer.left for peer in costly]
    assert max(left) - min(left) <= 10, "they have equal parts"
    for _ in range(20):
        cheap = Slow(intake, 1, 0.000_1)
        cheap.work()
        assert cheap.left, "the round is full"
        loop.run()
        assert not cheap.left
    for _ in range(2_000):
        loop.run()
    assert not any(peer.left or peer.awaits_turn for peer in costly)
    assert intake.taken == intake.pending == 0


def test_nobody_brings_more_while_the_sequencer_is_expected_to_need_a_turn_for_what_it_has(loop: Loop) -> None:
    intake, sequencer = made(loop)
    sequencer.submitted, sequencer.expected_s = 1, limits.INTAKE_ALL_TURN_S
    peer = Peer(intake, 3)
    peer.work()
    loop.run()
    assert (peer.left, peer.awaits_turn) == (3, True)
    sequencer.expected_s = 0.0
    turn(intake, sequencer)
    loop.run()
    assert (peer.left, peer.awaits_turn) == (0, False)


# --- a broker ------------------------------------------------------------------------------------------------------


def flood(count: int, body: bytes = b"x", *, oneway: bool = True, first: int = 0) -> bytes:
    return b"".join(
        command(310, 10_000 + number, send_ext("Flood", "P", 0, {"UNIQ_KEY": f"{number:032d}"}), body, oneway=oneway)
        for number in range(first, first + count)
    )


async def sync_until(hand: Hand, condition: Callable[[], bool]) -> None:
    """Sync in each turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            hand.flush.run()
            await asyncio.sleep(0)


@pytest.mark.parametrize("oneway", [True, False])
async def test_an_honest_request_waits_behind_one_part_of_a_flood(tmp_path: Path, oneway: bool) -> None:
    """Goal: 3,000 commands of one connection that are there already do not all come first. Counted, not timed: how many
    commands stand before an honest one, wherever it comes. None is lost, and their order stays."""
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        sequencer = running.broker._sequencer
        honest, flooding = await running.client(), await running.client()
        await honest.send("Honest", b"x", unique="f" * 32)
        before: list[int] = []
        real = sequencer.submit_small

        def counting(command: object, deliver: object, context: object = None) -> None:
            if getattr(command, "topic", "") == "Honest":
                before.append(len(sequencer._pending))
            real(command, deliver, context)  # type: ignore[arg-type]

        sequencer.submit_small = counting  # type: ignore[method-assign]
        flooding.write(flood(3_000, oneway=oneway))
        for number in range(10):
            assert (await honest.send("Honest", b"x", unique=f"{number:032d}")).code == 0
        assert len(before) == 10
        assert max(before) <= limits.INTAKE_TURN_BYTES_MAX // REQUEST_COST
        await until(lambda: running.state.topics_by_name["Flood"].ends[0] == 3_000)
        bodies = (await honest.pull("Flood", 0, count=3)).body
        assert bodies.index(b"0" * 31 + b"0") < bodies.index(b"0" * 31 + b"1") < bodies.index(b"0" * 31 + b"2")
        intake = running.broker._peers.intake
        assert (intake.taken, intake.pending, intake.later) == (0, 0, 0)


async def test_a_disk_that_does_not_follow_stops_the_flood_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INTAKE_CONNECTION_BYTES_MAX", 1 << 20)
    async with serving_by_hand(tmp_path, segment_bytes=16 << 20) as (running, hand):
        sequencer, intake = running.broker._sequencer, running.broker._peers.intake
        honest, flooding = await running.client(), await running.client()
        flooding.write(flood(4_000, bytes(1_000)))
        await until(lambda: intake.taken >= 1 << 20)
        await turns()
        assert intake.taken <= (1 << 20) + limits.INTAKE_TURN_BYTES_MAX + 4_096
        decided = sequencer.decided
        assert decided < 1_000, "of 4,000"
        waiting = asyncio.create_task(honest.send("Honest", b"x", unique="1" * 32))
        await until(lambda: "Honest" in running.state.topics_by_name)
        assert not waiting.done()
        await sync_until(hand, lambda: running.state.topics_by_name["Flood"].ends[0] == 4_000 and sequencer.idle)
        assert (await waiting).code == 0


async def test_above_the_bound_of_all_connections_reading_stops_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that comes only then may ask; it does not bring in anything large, until the disk has followed."""
    monkeypatch.setattr(limits, "INTAKE_BYTES_MAX", 1 << 20)
    async with serving_by_hand(tmp_path, segment_bytes=16 << 20) as (running, hand):
        intake = running.broker._peers.intake
        flooding = [await running.client() for _ in range(4)]
        for number, client in enumerate(flooding):
            client.write(flood(1_000, bytes(1_000), first=1_000 * number))
        await until(lambda: intake.stopped)
        await turns()
        # A read of each may have come before it was told.
        assert intake.taken + intake.later < (1 << 20) + 4 * 600_000
        late = await running.client()
        waiting = asyncio.create_task(late.ask(106))
        await until(waiting.done)  # who has nothing taken in may ask
        assert intake.stopped
        late.write((1 << 20).to_bytes(4) + bytes(200_000))
        connections = running.broker._peers.connected
        await until(lambda: connections[max(connections)].held_up)  # a large frame
        await late.close()
        sequencer = running.broker._sequencer
        await sync_until(hand, lambda: running.state.topics_by_name["Flood"].ends[0] == 4_000 and sequencer.idle)
        assert (await waiting).code == 0
        assert not intake.stopped


async def test_heartbeats_behind_one_whose_groups_are_made_count(tmp_path: Path) -> None:
    """Goal: what waits for a group to be made is no way around. Method: the disk does not follow, so none is ever made."""
    rng = random.Random(7)
    async with serving_by_hand(tmp_path) as (running, hand):
        client = await running.client()
        peers = running.broker._peers
        first = asyncio.create_task(client.heartbeat("me", consumers={"New": ["T"]}))
        await until(lambda: "New" in running.state.groups)
        topics = ["".join(rng.choices("abcdefgh", k=100)) for _ in range(1_500)]
        rest = [asyncio.create_task(client.heartbeat("me", consumers={"New": topics})) for _ in range(14)]
        (connection,) = running.broker._peers.connected.values()
        await until(lambda: connection.awaits_turn)
        await turns()
        assert 0 < peers.waiting < 8
        await sync_until(hand, lambda: all(task.done() for task in (first, *rest)))
        assert (running.broker._peers.intake.taken, peers.waiting) == (0, 0)
