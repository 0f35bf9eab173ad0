"""Frames: whole, byte by byte, cut off, with more behind, and with lengths that cannot be right."""

import struct
import tracemalloc

import pytest

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter, assemble, assemble_head

FIRST = assemble(b'{"code":34}', b"body one")
SECOND = assemble(b'{"code":35}')
THIRD = assemble(b"\x00\x25", b"body", binary=True)
WITHOUT_TOTAL = [frame[4:] for frame in (FIRST, SECOND, THIRD)]


def test_a_frame_has_the_layout_of_netty_decoder():
    assert struct.pack(">II", 4 + 11 + 8, 11) + b'{"code":34}' + b"body one" == FIRST
    assert THIRD[4] == 1
    assert THIRD[5:8] == b"\x00\x00\x02"


def test_one_read_may_hold_many_frames():
    assert FrameSplitter().feed(FIRST + SECOND + THIRD) == WITHOUT_TOTAL


def test_frames_may_come_byte_by_byte():
    splitter = FrameSplitter()
    got = [frame for byte in FIRST + SECOND + THIRD for frame in splitter.feed(bytes((byte,)))]
    assert got == WITHOUT_TOTAL
    assert splitter.pending_bytes == 0


@pytest.mark.parametrize("cut", range(len(FIRST + SECOND)))
def test_a_stream_cut_at_any_byte_gives_the_whole_frames_and_keeps_the_rest(cut):
    splitter = FrameSplitter()
    got = splitter.feed((FIRST + SECOND)[:cut])
    whole = WITHOUT_TOTAL[:1] if cut >= len(FIRST) else []
    assert got == whole
    assert splitter.pending_bytes == cut - (len(FIRST) if whole else 0)
    assert splitter.feed((FIRST + SECOND)[cut:]) == WITHOUT_TOTAL[len(whole) : 2]


@pytest.mark.parametrize("total", [0, 1, 3, limits.FRAME_BYTES_MAX + 1, 0x47455420, 0xFFFFFFFF])  # 0x47455420: "GET "
def test_a_length_that_cannot_be_right_breaks_the_connection(total):
    with pytest.raises(BrokenFrame) as broken:
        FrameSplitter().feed(FIRST + struct.pack(">I", total) + b"anything")
    assert isinstance(broken.value, ProtocolError)
    assert broken.value.frames == WITHOUT_TOTAL[:1]


@pytest.mark.parametrize("version", [1, 3, 4])
def test_a_tls_handshake_and_an_alert_are_known(version):
    for tls in (bytes([22, 3, version, 2, 0, 1]), bytes([21, 3, version, 0, 2, 2, 70])):
        with pytest.raises(BrokenFrame, match="TLS") as broken:
            FrameSplitter().feed(tls)
        assert broken.value.is_tls
    for other in (b"GET / HTTP/1.1", bytes([20, 3, version, 2, 0]), bytes(4)):
        with pytest.raises(BrokenFrame) as broken:
            FrameSplitter().feed(other)
        assert not broken.value.is_tls


def test_a_length_that_comes_in_pieces_is_judged_when_it_is_whole():
    splitter = FrameSplitter()
    assert splitter.feed(b"\xff\xff\xff") == []
    with pytest.raises(BrokenFrame):
        splitter.feed(b"\xff")


def test_the_largest_frame_is_taken_and_the_next_larger_is_not():
    body = b"x" * (1000 - 4 - 2)
    splitter = FrameSplitter(frame_bytes_max=1000)
    assert splitter.feed(assemble(b"{}", body)) == [b"\0\0\0\2{}" + body]
    with pytest.raises(BrokenFrame):
        splitter.feed(assemble(b"{}", body + b"x"))


def test_a_large_frame_in_many_small_reads_is_not_copied_at_each_of_them():
    """Joining again at every read of this frame would copy 16 GiB. Counted are reads that took memory for all that came before."""
    stream = assemble(b"{}", bytes(2 << 20))
    splitter = FrameSplitter()
    got = splitter.feed(stream[: 1 << 20])
    copies = reads = 0
    tracemalloc.start()
    try:
        for at in range(1 << 20, len(stream), 128):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            got += splitter.feed(stream[at : at + 128])
            copies += tracemalloc.get_traced_memory()[1] - before > 1 << 19
            reads += 1
    finally:
        tracemalloc.stop()
    assert got == [stream[4:]]
    assert reads > 8_000
    assert copies < 30, "when the buffer grows, and once at the end"


def test_a_header_that_does_not_fit_24_bits_is_refused():
    with pytest.raises(ProtocolError):
        assemble_head(bytes(1 << 24), 0)


@pytest.mark.parametrize("step", [1_000, 40_000, 150_001])
def test_what_comes_with_the_end_of_a_large_frame_is_split_as_well(step: int) -> None:
    large = assemble(b"h", bytes(100_000))
    stream = large + FIRST + large + SECOND + THIRD[:-1]
    splitter = FrameSplitter()
    got, taken = [], 0
    for at in range(0, len(stream), step):
        got += splitter.feed(stream[at : at + step])
        taken += splitter.frames_bytes
    assert got == [large[4:], FIRST[4:], large[4:], SECOND[4:]]
    assert (taken, splitter.pending_bytes) == (len(stream) - len(THIRD) + 1, len(THIRD) - 1)
    assert splitter.feed(THIRD[-1:]) == [THIRD[4:]]


def test_frames_before_a_wrong_length_are_kept_in_order_also_after_a_large_one() -> None:
    large = assemble(b"h", bytes(100_000))
    splitter = FrameSplitter()
    splitter.feed(large[:-1])
    with pytest.raises(BrokenFrame) as broken:
        splitter.feed(large[-1:] + FIRST + b"\xff\xff\xff\xff")
    assert broken.value.frames == [large[4:], FIRST[4:]]
