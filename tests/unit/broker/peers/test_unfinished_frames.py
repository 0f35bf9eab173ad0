"""What has come of requests in part is bounded over all connections, nobody who is admitted is stopped, and nothing deadlocks."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import RawClient, send_ext
from tests.support.waiting import until

from halfmq import limits
from halfmq.broker.peers import unfinished_frames as unfinished_frames
from halfmq.broker.peers.unfinished_frames import _LOG_INTERVAL_S, ADMITTED_S, UnfinishedFrames

FRAME = 1_000
#: 4,016: waiting ones hold 1,004, the oldest waiting frame 1,004, and 2,008 are shared, 1,506 of
#: them the most of one user or address: 376 the most of one frame.
BOUND = 4 * (FRAME + 4)


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

    def __init__(self, house: "House", number: int, user: str) -> None:
        self.number = number
        self.user = user
        self.address = f"10.0.0.{number}:5"
        self.reads = True
        self.closed = False
        self.held_up = False
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
        self.reads = False

    def continue_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def reject(self) -> None:
        assert not self.closed
        self.closed, self.held = True, 0


class House:
    def __init__(self) -> None:
        self.clock = Clock()
        self.frames = UnfinishedFrames(self.clock, BOUND, frame_bytes_max=FRAME)  # type: ignore[arg-type]
        self.peers: list[Peer] = []

    def peer(self, size: int = 0, first: int = 0, user: str = "") -> Peer:
        self.peers.append(Peer(self, len(self.peers), user))
        if size:
            self.peers[-1].begin(size, first)
        return self.peers[-1]

    def check(self) -> None:
        held = sum(peer.held for peer in self.peers)
        assert self.frames.bytes == held <= BOUND
        stopped = [peer for peer in self.peers if not peer.reads and not peer.closed]
        assert len(stopped) == self.frames.waiting
        read = [peer for peer in self.peers if peer.reads and peer.held]
        assert not stopped or read, "all wait, and for nobody"
        most = sum(peer.held for peer in stopped) + sum(peer.size - 1 for peer in read)
        assert most <= BOUND, "who is read from may send all it announced but the last byte"


def crowded(size: int = FRAME + 4, first: int = 40, crowd: int = 100) -> House:
    """Many hold a part of a frame and stay silent."""
    house = House()
    for _ in range(crowd):
        house.peer(size, first)
    house.check()
    assert house.frames.waiting > 0
    return house


def test_frames_that_take_a_quarter_of_what_is_free_at_most_are_all_read_from() -> None:
    house = House()
    peers = [house.peer(100, 50) for _ in range(17)]
    oldest, waiting = house.peer(100, 50), house.peer(100, 50)
    assert all(peer.reads for peer in peers)
    assert (oldest.reads, waiting.reads) == (True, False)
    house.check()
    assert peers[0].send(50)
    assert waiting.reads, "there is room again"
    house.check()


@pytest.mark.parametrize("seed", range(5))
def test_frames_that_are_larger_by_a_third_never_hold_up_a_smaller_one(seed: int) -> None:
    rng = random.Random(seed)
    house = House()
    size = rng.randint(5, 376)
    for _ in range(300):
        larger = house.peer(rng.randint((4 * size + 2) // 3, FRAME + 4), 1)
        if larger.reads:
            larger.send(rng.randint(1, larger.size - 2))
        elif rng.random() < 0.1:
            house.clock.sleep(ADMITTED_S / 3)
        house.check()
        assert house.peer(size, 1).send(size - 1)
    assert house.frames.waiting > 0


def test_the_smallest_of_who_waits_comes_first() -> None:
    house = crowded(100, 50, crowd=18 + 1)
    much, little = house.peer(90, 10), house.peer(78, 10)
    assert (much.reads, little.reads) == (False, False)
    assert house.peers[0].send(50)
    assert (much.reads, little.reads, house.peers[18].reads) == (False, True, False)
    house.check()


#: Each takes a quarter of what is left of the share of one, 1,506 of 2,008; together 1,237.
FLOOD = (376, 282, 212, 159, 119, 89)


def test_one_user_leaves_others_a_quarter_of_what_is_shared() -> None:
    """Over all its connections, however small its frames are."""
    house = House()
    flood = [house.peer(size, 1, "flood") for size in (*FLOOD, 80, 80, 70)]
    assert [peer.reads for peer in flood] == [True] * 7 + [False] * 2, "the seventh one as the oldest waiting one"
    assert house.frames._shares.of("user 'flood'") == sum(FLOOD)
    house.check()
    shop = [house.peer(size, 1, "shop") for size in (190, 140, 100, 70)]
    assert all(peer.reads for peer in shop), "others fit at once"
    for peer in (*shop, *flood[:5]):
        assert peer.send(peer.size - 1)
    assert all(peer.reads for peer in flood)
    house.check()


def test_small_frames_overtake_large_ones_of_the_same_user() -> None:
    house = House()
    for size in range(FRAME, 8, -8):
        house.peer(size, 1, "flood")
    assert house.frames.waiting > 100
    assert house.peer(5, 1, "flood").reads


def test_who_has_its_share_does_not_hold_up_larger_frames_of_others_that_wait() -> None:
    house = House()
    flood = [house.peer(size, 1, "flood") for size in FLOOD]
    oldest = house.peer(FRAME, 1, "shop")
    small = house.peer(70, 1, "flood")
    rest = [house.peer(size, 1, "shop") for size in (190, 140, 110)]
    large = house.peer(85, 1, "shop")
    assert (oldest.reads, small.reads, [one.reads for one in rest], large.reads) == (True, False, [True] * 3, False)
    assert rest[2].send(109)
    assert (small.reads, large.reads) == (False, True)
    house.check()
    assert flood[0].send(375)
    assert small.reads
    house.check()


def test_whoever_waits_longest_is_next_however_large_and_however_many_small_ones_come() -> None:
    house = House()
    oldest, largest, later = house.peer(900, 10), house.peer(FRAME + 4, 10), house.peer(600, 10)
    small = [house.peer(100, 50) for _ in range(30)]
    assert (oldest.reads, largest.reads, later.reads) == (True, False, False)
    oldest.size, oldest.held = 700, 20  # its frame is whole, and twenty bytes of the next one came with it
    house.frames.note(oldest, 20, 680, another=True)
    assert (oldest.reads, largest.reads, later.reads) == (False, True, False), "who had its turn comes after who waits"
    assert not all(peer.reads for peer in small)
    house.check()
    assert largest.send(FRAME - 6)
    assert later.reads
    house.check()


def test_what_is_kept_for_admitted_ones_counts_for_who_comes_later() -> None:
    """Else room would be given twice: to those who have yet to fill it, and to those who came while it was empty."""
    house = House()
    early = [house.peer(1_000, 500) for _ in range(4)]
    admitted = [house.peer(1_000, 10), house.peer(500, 10), house.peer(1_000, 5), house.peer(1_000, 5)]
    for peer in early:
        peer.send(500)
    for peer in (*admitted, house.peer(1_000, 900), house.peer(1_000, 900)):
        peer.send(peer.size - peer.held - 1)
        house.check()


def test_a_crowd_of_waiting_ones_is_closed_from_its_oldest_and_an_admitted_frame_is_not() -> None:
    house = House()
    admitted = house.peer(1_000, 400)
    crowd = [house.peer(1_000, 300) for _ in range(20)]
    house.check()
    assert [peer.closed for peer in crowd] == [True] * 17 + [False] * 3, "the one that waited longest first"
    assert admitted.send(300)
    assert admitted.send(300)
    assert not admitted.closed
    house.check()


def test_an_admitted_frame_that_takes_too_long_is_closed_only_while_others_wait() -> None:
    house = House()
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


def test_time_in_which_the_broker_does_not_read_an_admitted_frame_does_not_count() -> None:
    house = House()
    slow = house.peer(1_000, 10)
    waiting = house.peer(1_000, 20)
    slow.held_up = True
    house.clock.sleep(5 * ADMITTED_S)
    assert not slow.closed
    slow.held_up = False
    house.clock.sleep(ADMITTED_S - 2)
    assert not slow.closed, "it has its whole time from then on"
    house.clock.sleep(4)
    assert slow.closed
    assert waiting.reads


def test_it_is_said_how_many_were_closed_also_behind_the_first(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    for _ in range(20):
        house.peer(1_000, 100)
    closed = sum(peer.closed for peer in house.peers)
    assert closed > 2
    house.clock.sleep(_LOG_INTERVAL_S + 1)
    closed = sum(peer.closed for peer in house.peers)
    house.clock.sleep(_LOG_INTERVAL_S + 1)
    said = [int(str(record.args[2])) for record in caplog.records if record.args]  # type: ignore[index]
    assert said[0] == 1
    assert sum(said) >= closed
    assert len(said) <= 3, "and not for each of them"


def test_a_frame_whose_length_comes_later_asks_anew() -> None:
    house = crowded()
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
    holder, waiting = house.peer(1_000, 10), house.peer(1_000, 100)
    assert not waiting.reads
    holder.held, holder.closed = 0, True
    house.frames.gone(holder.number)
    assert waiting.reads
    house.frames.gone(99)
    waiting.held, waiting.closed = 0, True
    house.frames.gone(waiting.number)
    house.check()


def test_a_connection_that_sends_although_it_waits_is_counted_and_goes_on_when_its_frame_is_whole() -> None:
    house = crowded()
    waiting = house.peer(1_000, 10)
    waiting.held = 30  # what was on its way when reading stopped
    house.frames.note(waiting, 30, 970, another=False)
    assert not waiting.reads
    house.check()
    waiting.held = 0
    house.frames.note(waiting, 0, 0, another=True)
    assert waiting.reads
    house.check()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_is_bounded_and_every_honest_frame_comes_in(seed: int) -> None:
    """Some peers send whole frames in pieces, again after they were closed; others stop in the middle, or begin only."""
    rng = random.Random(seed)
    house = House()
    honest = [house.peer() for _ in range(6)]
    done = [0] * len(honest)

    def honestly(at: int) -> None:
        if honest[at].closed:
            honest[at] = house.peer()
        peer = honest[at]
        if not peer.held:
            peer.begin(rng.randint(5, FRAME + 4), rng.randint(1, 4))
        elif peer.send(min(rng.randint(1, 300), peer.size - peer.held)):
            done[at] += not peer.held
        house.check()

    for _ in range(1_500):
        kind = rng.random()
        if kind < 0.1:
            house.peer(rng.randint(2, FRAME + 4), 1)
        elif kind < 0.5:
            peer = rng.choice(house.peers)
            if peer.held and peer not in honest and peer.size - peer.held > 1:
                peer.send(min(rng.randint(1, 300), peer.size - peer.held - 1))
        elif kind < 0.97:
            honestly(rng.randrange(len(honest)))
        else:
            house.clock.sleep(rng.choice((0.1, 3.0)))
        house.check()
    assert sum(done) > 0
    before = list(done)
    house.peers = [peer for peer in house.peers if not peer.closed]
    for _ in range(3_000):  # the others send no more, and keep what they hold: their time runs out
        for at in range(len(honest)):
            honestly(at)
        house.clock.sleep(1.0)
        if all(now > then for now, then in zip(done, before, strict=True)):
            return
    raise AssertionError((before, done))


# --- the real broker, with sockets


def in_part(running: Running) -> int:
    """Bytes of unfinished frames that the broker really holds."""
    return sum(connection._splitter.pending_bytes for connection in running.broker._peers.connected.values())


FILLING = bytes(6 << 20)


async def send_slowly(port: int, announced: int, sent: int, host: str) -> "tuple[socket.socket, asyncio.Task[None]]":
    """Announce a frame and send a part of it, as far as it is taken."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setblocking(False)
    made.bind((host, 0))
    await loop.sock_connect(made, ("127.0.0.1", port))
    await loop.sock_sendall(made, announced.to_bytes(4, "big"))
    task = loop.create_task(loop.sock_sendall(made, memoryview(FILLING)[: sent - 4]))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return made, task


@asynccontextmanager
async def crowd(port: int, *, announced: int, sent: int, many: int) -> AsyncIterator[None]:
    """From two addresses: one alone does not get all that is shared."""
    senders = [await send_slowly(port, announced, sent, f"127.0.0.{2 + number % 2}") for number in range(many)]
    try:
        yield
    finally:
        for made, task in senders:
            task.cancel()
            made.close()


async def healthy(client: RawClient, number: int, body_bytes: int = 300_000) -> None:
    ext = send_ext("orders", "P", 0, {"UNIQ_KEY": f"AC10000100002A9F{number:016d}"})
    answer = await client.ask(310, ext, bytes(body_bytes))
    assert answer.code == 0


@pytest.fixture
def most_held(monkeypatch: pytest.MonkeyPatch) -> Callable[[Running], list[int]]:
    """Of a broker: the most that it really held of unfinished frames after any read."""

    def watch(running: Running) -> list[int]:
        most = [0]
        note = UnfinishedFrames.note

        def watched(frames: UnfinishedFrames, *arguments: Any, **named: Any) -> None:
            note(frames, *arguments, **named)
            most[0] = max(most[0], in_part(running))

        monkeypatch.setattr(UnfinishedFrames, "note", watched)
        return most

    return watch


@pytest.mark.slow
async def test_half_requests_of_many_connections_do_not_take_the_memory_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_held: Callable[[Running], list[int]]
) -> None:
    bound = limits.UNFINISHED_BYTES_MIN
    monkeypatch.setattr(unfinished_frames, "ADMITTED_S", 2.0)
    async with serving(tmp_path, unfinished_bytes_max=bound, segment_bytes=16 << 20) as running:
        most = most_held(running)
        port = running.ports.broker
        client = await running.client()
        await healthy(client, 0)
        async with (
            crowd(port, announced=2 << 20, sent=(2 << 20) - 1, many=14),
            crowd(port, announced=limits.FRAME_BYTES_MAX, sent=6 << 20, many=60),
        ):
            for number in range(1, 30):
                await healthy(client, number)
            await until(lambda: bound // 2 < most[0] and running.broker._peers.unfinished_frames.waiting > 0)
            assert most[0] <= bound
            # A request of the largest size, on a connection of its own, comes in once those before it are late.
            await healthy(await running.client(), 98, limits.BODY_BYTES_MAX)
            assert most[0] <= bound
        await until(lambda: not running.broker._peers.unfinished_frames.bytes)
        assert in_part(running) == 0
        await healthy(client, 99)


@pytest.mark.slow
async def test_requests_of_any_size_are_served_in_time_beside_many_larger_ones_that_do_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_held: Callable[[Running], list[int]]
) -> None:
    """In time: none waits for a frame that does not end to be late."""
    monkeypatch.setattr(unfinished_frames, "ADMITTED_S", 3_600.0)
    async with serving(tmp_path, unfinished_bytes_max=limits.UNFINISHED_BYTES_MIN, segment_bytes=32 << 20) as running:
        most = most_held(running)
        await healthy(await running.client(), 0)
        async with crowd(running.ports.broker, announced=limits.FRAME_BYTES_MAX, sent=600_000, many=200):
            for number, body_bytes in enumerate((60_000, 150_000, 1 << 20, limits.BODY_BYTES_MAX) * 3, 1):
                client = await running.client()
                await healthy(client, number, body_bytes)
            assert running.broker._peers.unfinished_frames.waiting > 0
            assert most[0] <= limits.UNFINISHED_BYTES_MIN
