"""What peers do not take has a bound, and who reads is not closed for it: the rule alone, then a broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import command, pull_ext
from tests.support.waiting import until

from halfmq.broker.peers.outgoing_bytes import PROGRESS_BYTES, STALLED_S, OutgoingBytes

MOST = 1_000_000


class Handle:
    def cancel(self) -> None:
        pass


class Loop:
    """Time goes on, and what is called later runs, when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        self.due.append(call)
        return Handle()

    def run(self, seconds: float = 0) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for call in due:
            call()


class Peer:
    def __init__(self, outgoing: OutgoingBytes, number: int, left: int, user: str = "") -> None:
        self.number = number
        self.user = user
        self.address = f"10.0.0.{number}:5"
        self.left = left
        self.is_cut = False
        self._outgoing = outgoing
        outgoing.note(self, left)

    def outgoing_bytes(self) -> tuple[int, int]:
        return self.left, self.left

    def write(self, count: int) -> None:
        self.left += count
        self._outgoing.note(self, count)

    def abort(self) -> None:
        self.is_cut = True


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def outgoing(loop: Loop) -> OutgoingBytes:
    return OutgoingBytes(loop, MOST)  # type: ignore[arg-type]


def test_far_from_the_bound_a_peer_may_take_its_time(loop: Loop, outgoing: OutgoingBytes) -> None:
    peer = Peer(outgoing, 1, MOST // 2)
    for _ in range(100):
        loop.run(1)
    assert not peer.is_cut
    assert not outgoing.near_limit


def test_near_the_bound_who_takes_nothing_is_closed_and_who_reads_is_not(loop: Loop, outgoing: OutgoingBytes) -> None:
    stalled, reading = Peer(outgoing, 1, MOST // 3), Peer(outgoing, 2, MOST // 3)
    assert outgoing.near_limit
    for _ in range(int(STALLED_S) + 2):
        assert not stalled.is_cut or loop.now >= 100 + STALLED_S
        reading.left -= PROGRESS_BYTES
        loop.run(1)
    assert stalled.is_cut
    assert not reading.is_cut
    assert outgoing.bytes == reading.left


def test_at_the_bound_who_took_nothing_for_longest_goes_first_and_of_several_the_largest(
    loop: Loop, outgoing: OutgoingBytes
) -> None:
    old, reading = Peer(outgoing, 1, 100_000), Peer(outgoing, 2, 300_000)
    loop.run(1)
    small, large = Peer(outgoing, 3, 200_000), Peer(outgoing, 4, 390_000)
    reading.left -= 2 * PROGRESS_BYTES
    late = Peer(outgoing, 5, 100_000)
    assert outgoing.over_limit
    assert not old.is_cut, "not while somebody writes"
    loop.run(0.5)
    assert (old.is_cut, large.is_cut, small.is_cut, late.is_cut, reading.is_cut) == (True, True, False, False, False)
    assert outgoing.bytes <= MOST - MOST // 8


def test_at_the_bound_connections_of_one_that_has_more_than_its_share_go_first(
    loop: Loop, outgoing: OutgoingBytes
) -> None:
    """Else who connects anew all the time is never the one that has read nothing for longest."""
    slow = Peer(outgoing, 1, 200_000, "shop")
    loop.run(5)
    flood = [Peer(outgoing, number, 80_000, "flood") for number in range(2, 12)]
    assert outgoing.bytes == MOST
    flood[0].write(40_000)
    loop.run()
    assert not slow.is_cut
    assert sum(peer.is_cut for peer in flood) == 2
    slow.write(200_000)  # now nobody has more than three quarters
    loop.run()
    assert slow.is_cut


def test_what_is_written_to_a_full_peer_is_no_reading_and_hides_none(loop: Loop, outgoing: OutgoingBytes) -> None:
    growing, both = Peer(outgoing, 1, 300_000), Peer(outgoing, 2, 300_000)
    for _ in range(int(STALLED_S) + 2):
        growing.write(1_000)
        both.left -= 2 * PROGRESS_BYTES
        both.write(2 * PROGRESS_BYTES)
        loop.run(1)
    assert growing.is_cut
    assert not both.is_cut


def test_who_takes_single_bytes_is_closed_too(loop: Loop, outgoing: OutgoingBytes) -> None:
    sly = Peer(outgoing, 1, 600_000)
    for _ in range(int(STALLED_S) + 2):
        sly.left -= 10
        loop.run(1)
    assert sly.is_cut


def test_who_takes_its_answers_again_is_forgotten(loop: Loop, outgoing: OutgoingBytes) -> None:
    Peer(outgoing, 1, 600_000)
    outgoing.gone(1)
    assert outgoing.bytes == 0
    loop.run(1)
    assert not loop.due, "nobody is looked at any more"


async def test_a_crowd_that_does_not_read_is_bounded_and_an_honest_reader_goes_on(tmp_path: Path) -> None:
    """Goal: slow readers cost what the bound says, not what they ask for. Method: 40 ask for 1 MiB and read nothing."""
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        client = await running.client()
        assert (await client.send("T", bytes(1 << 20), unique="1" * 32)).code == 0
        outgoing = running.broker._peers.outgoing
        outgoing._bytes_max = bound = 8 << 20
        most = 0
        crowd = []
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, limit=1024)
            crowd.append((reader, writer))
            # Until the kernel's buffers are full too.
            writer.write(b"".join(command(11, again, pull_ext("T", "TOOLS_CONSUMER", 0, 0)) for again in range(12)))
            pulled = await client.pull("T")
            assert pulled.code in (0, 20), "20: come again at once"
            most = max(most, outgoing.bytes)
        assert most > bound // 2, "the crowd came near the bound"
        await until(lambda: outgoing.bytes <= bound)
        # One answer of 1 MiB may be on top, until others are closed in the next round of the loop.
        assert most <= bound + (2 << 20)
        kept = sum(one.transport.get_write_buffer_size() for one in running.broker._peers.connected.values())
        assert kept <= bound + (2 << 20)
        assert len(running.broker._peers.connected) < 30

        async def is_served() -> bool:
            return (await client.pull("T")).code == 0

        await until(is_served)
        for _, writer in crowd:
            writer.transport.abort()
