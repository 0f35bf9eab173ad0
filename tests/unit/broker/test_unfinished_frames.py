"""What has come of requests in part is bounded over all connections, nobody who is admitted is stopped, and nothing deadlocks."""

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import RawClient, send_ext

from halfmq import limits
from halfmq.broker.unfinished_frames import ADMITTED_S, UnfinishedFrames, least

FRAME = 1_000
BOUND = least(FRAME)  # 4,016; free up to 2,008; stopped ones hold 3,012 at most


class Clock:
    """A loop that has a clock and one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        due = (self.now + seconds, call)
        self.timers.append(due)
        clock = self

        class Handle:
            def cancel(self) -> None:
                clock.timers.remove(due)

        return Handle()

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.timers and min(self.timers, key=lambda due: due[0])[0] <= until:
            first = min(self.timers, key=lambda due: due[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until


class Peer:
    """A connection and who sends on it: what it sends counts once the broker reads it."""

    def __init__(self, house: "House", number: int) -> None:
        self.number = number
        self.reads = True
        self.closed = False
        self.held = 0
        self.size = 0
        self._house = house

    def begin(self, size: int, first: int) -> None:
        """Announce a frame of ``size`` bytes and send ``first`` of them."""
        self.size, self.held = size, 0
        self.send(first, another=True)

    def send(self, sent: int, *, another: bool = False) -> bool:
        """False: nobody read it."""
        if self.closed or not self.reads:
            return False
        self.held += sent
        assert self.held <= self.size
        if self.held == self.size:
            self.held = 0
            self._house.frames.note(self, 0, 0, another=True)
        else:
            self._house.frames.note(self, self.held, self.size - self.held, another=another)
        return True

    # --- for the broker

    def wait(self) -> None:
        assert self.reads
        self.reads = False

    def go_on(self) -> None:
        assert not self.reads
        self.reads = True

    def turn_away(self) -> None:
        assert not self.closed
        self.closed, self.held = True, 0


class House:
    def __init__(self) -> None:
        self.clock = Clock()
        self.frames = UnfinishedFrames(self.clock, BOUND, frame_bytes_max=FRAME)  # type: ignore[arg-type]
        self.peers: list[Peer] = []

    def peer(self, size: int = 0, first: int = 0) -> Peer:
        self.peers.append(Peer(self, len(self.peers)))
        if size:
            self.peers[-1].begin(size, first)
        return self.peers[-1]

    def check(self) -> None:
        held = sum(peer.held for peer in self.peers)
        assert self.frames.bytes == held <= BOUND
        stopped = [peer for peer in self.peers if not peer.reads and not peer.closed]
        assert len(stopped) == self.frames.waiting
        assert len(self.frames._order) <= 2 * len(stopped) + 65
        assert not stopped or any(peer.reads and peer.held for peer in self.peers), "all wait, and for nobody"


def test_below_half_of_the_bound_everybody_is_read_from() -> None:
    house = House()
    peers = [house.peer(1_000, 500) for _ in range(4)]
    assert all(peer.reads for peer in peers)
    assert peers[0].send(500)
    assert house.frames.bytes == 1_500


def test_above_who_fits_is_admitted_and_the_rest_waits_until_there_is_room() -> None:
    house = House()
    first = [house.peer(1_000, 500) for _ in range(4)]
    admitted = house.peer(1_000, 100)  # 2,100 held, 900 kept for it
    waiting = house.peer(1_000, 10)  # 990 more do not fit: an eighth of the bound is for who waits
    assert (admitted.reads, waiting.reads) == (True, False)
    late = house.peer(1_000, 900)
    assert not late.reads
    house.check()
    assert admitted.send(900)
    assert (late.reads, waiting.reads) == (True, False), "there is room for one"
    assert late.send(100)
    assert waiting.reads
    assert all(peer.reads and not peer.closed for peer in first)
    house.check()


def test_who_lacks_least_comes_first() -> None:
    house = House()
    for _ in range(4):
        house.peer(1_000, 500)
    holder = house.peer(1_000, 10)
    much, little = house.peer(1_000, 100), house.peer(600, 350)
    assert (much.reads, little.reads) == (False, False)
    assert holder.send(990)
    assert (much.reads, little.reads) == (False, True)
    house.check()


def test_a_crowd_of_waiting_ones_is_closed_from_its_oldest_and_an_admitted_frame_is_not() -> None:
    house = House()
    for _ in range(4):
        house.peer(1_000, 500)
    admitted = house.peer(1_000, 400)
    crowd = [house.peer(1_000, 300) for _ in range(20)]
    house.check()
    closed = [peer.closed for peer in crowd]
    assert 10 < sum(closed) < 20
    assert closed == sorted(closed, reverse=True), "the one that waited longest first"
    assert admitted.send(300)
    assert admitted.send(300)
    assert not admitted.closed
    house.check()


def test_an_admitted_frame_that_takes_too_long_is_closed_only_while_others_wait() -> None:
    house = House()
    for _ in range(4):
        house.peer(1_000, 500)
    slow = house.peer(1_000, 10)
    house.clock.sleep(3 * ADMITTED_S)
    assert not slow.closed, "nobody waits"
    waiting = house.peer(1_000, 20)
    assert not waiting.reads
    house.clock.sleep(ADMITTED_S - 1)
    assert not slow.closed, "its time counts from when somebody waits"
    house.clock.sleep(3)
    assert slow.closed
    assert waiting.reads
    house.check()
    house.clock.sleep(60)
    assert not house.clock.timers


def test_a_frame_whose_length_comes_later_asks_anew() -> None:
    house = House()
    for _ in range(4):
        house.peer(1_000, 500)
    house.peer(1_000, 10)
    peer = house.peer()
    peer.size, peer.held = 4, 0
    peer.send(3, another=True)
    assert peer.reads
    peer.size = 1_000
    peer.send(200)
    house.check()
    assert not peer.reads, "the whole length counts"


def test_what_a_lost_connection_held_is_room_for_others() -> None:
    house = House()
    for _ in range(4):
        house.peer(1_000, 500)
    holder, waiting = house.peer(1_000, 10), house.peer(1_000, 100)
    assert not waiting.reads
    holder.held, holder.closed = 0, True
    house.frames.gone(holder.number)
    assert waiting.reads
    house.frames.gone(99)
    waiting.held, waiting.closed = 0, True
    house.frames.gone(waiting.number)
    house.check()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_is_bounded_and_every_honest_frame_comes_in(seed: int) -> None:
    """Some peers send whole frames in pieces, again after they were closed; others stop in the middle, or begin only."""
    dice = random.Random(seed)
    house = House()
    honest = [house.peer() for _ in range(6)]
    done = [0] * len(honest)

    def honestly(at: int) -> None:
        if honest[at].closed:
            honest[at] = house.peer()
        peer = honest[at]
        if not peer.held:
            peer.begin(dice.randint(5, FRAME + 4), dice.randint(1, 4))
        elif peer.send(min(dice.randint(1, 300), peer.size - peer.held)):
            done[at] += not peer.held
        house.check()

    for _ in range(1_500):
        kind = dice.random()
        if kind < 0.1:
            house.peer(dice.randint(2, FRAME + 4), 1)
        elif kind < 0.5:
            peer = dice.choice(house.peers)
            if peer.held and peer not in honest and peer.size - peer.held > 1:
                peer.send(min(dice.randint(1, 300), peer.size - peer.held - 1))
        elif kind < 0.97:
            honestly(dice.randrange(len(honest)))
        else:
            house.clock.sleep(dice.choice((0.1, 3.0)))
        house.check()
    assert sum(done) > 0
    before = list(done)
    for _ in range(400):  # the others send no more, and keep what they hold: their time runs out
        for at in range(len(honest)):
            honestly(at)
        house.clock.sleep(1.0)
    assert all(now > then for now, then in zip(done, before, strict=True)), (before, done)


# --- the real broker, with sockets


def in_part(running: Running) -> int:
    """Bytes of unfinished frames that the broker really holds."""
    return sum(connection._splitter.pending_bytes for connection in running.broker._gateway.connections.values())


async def send_slowly(port: int, announced: int, sent: int) -> socket.socket:
    """Announce a frame and send a part of it, as far as it is taken."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", port))
    data = announced.to_bytes(4, "big") + bytes(sent - 4)
    task = loop.create_task(loop.sock_sendall(made, data))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    made_tasks.append(task)
    return made


made_tasks: list["asyncio.Task[None]"] = []


async def healthy(client: RawClient, number: int) -> None:
    answer = await client.send("orders", b"x" * 300_000, unique=f"AC10000100002A9F{number:016d}")
    assert answer.code == 0


@pytest.mark.slow
async def test_half_requests_of_many_connections_do_not_take_the_memory_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = least()
    most = 0
    note = UnfinishedFrames.note

    def watched(frames: UnfinishedFrames, *arguments: Any, **named: Any) -> None:
        nonlocal most
        note(frames, *arguments, **named)
        most = max(most, in_part(running))

    monkeypatch.setattr(UnfinishedFrames, "note", watched)
    async with serving(tmp_path, unfinished_bytes_max=bound, segment_bytes=16 << 20) as running:
        client = await running.client()
        await healthy(client, 0)
        sockets = [await send_slowly(running.ports.broker, limits.FRAME_BYTES_MAX, 6 << 20) for _ in range(60)]
        try:
            for number in range(1, 30):
                await healthy(client, number)
                await asyncio.sleep(0.02)
            assert bound // 2 < most <= bound
            assert running.broker._gateway.unfinished_frames.waiting > 0
            # A request of the largest size, on a connection of its own, comes in as well.
            large = await running.client()
            ext = send_ext("orders", "P", 0, {"UNIQ_KEY": "AC10000100002A9F00000000000000FF"})
            assert (await large.ask(310, ext, bytes(limits.BODY_BYTES_MAX), wait_s=20)).code == 0
            assert most <= bound
        finally:
            for task in made_tasks:
                task.cancel()
            for made in sockets:
                made.close()
        while running.broker._gateway.unfinished_frames.bytes:
            await asyncio.sleep(0.01)
        assert in_part(running) == 0
        await healthy(client, 99)
