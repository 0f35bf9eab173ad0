"""What hostile input may cost: a stated multiple of what came, or of a limit, however much it announces."""

import gc
import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model import properties
from halfmq.wire.remoting import compression, java_json, message_codec
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode
from tests.fuzz.broker_targets import Stranger, World
from tests.fuzz.target import outcome
from tests.support.vectors import vectors

MIB = 1 << 20


def peak_of(work: Callable[[], Any]) -> int:
    """Bytes that Python allocated at once while ``work`` ran, beyond those before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        try:
            work()
        except ProtocolError:
            pass  # refusing is fine; what it costs is the question
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def framed(header: bytes, kind: int = 0) -> bytes:
    return (kind << 24 | len(header)).to_bytes(4, "big") + header


def many(item: bytes, size: int) -> bytes:
    return ((item + b",") * (size // (len(item) + 1)))[:-1]


def names(size: int) -> bytes:
    return b",".join(b'"%x":0' % number for number in range(size // 10))


#: A frame may have 16 MiB; the multiple is what counts.
SIZE = MIB // 4
HEADERS: dict[str, bytes] = {
    "lists in a field that nobody knows": framed(b'{"code":34,"x":[' + many(b"[]", SIZE) + b"]}"),
    "lists in the remark": framed(b'{"code":34,"remark":[' + many(b"[]", SIZE) + b"]}"),
    "lists instead of a header": framed(b"[" + many(b"[]", SIZE) + b"]"),
    "lists in an ext field": framed(b'{"code":34,"extFields":{"a":[' + many(b"[]", SIZE) + b"]}}"),
    "many ext fields": framed(b'{"code":34,"extFields":{' + names(SIZE) + b"}}"),
    "many ext fields of a send": framed(b'{"code":310,"extFields":{' + names(SIZE) + b"}}"),
    "one long text": framed(b'{"code":34,"remark":"' + b"x" * SIZE + b'"}'),
    "one long text of escapes": framed(b'{"code":34,"remark":"' + b"\\u0001" * (SIZE // 6) + b'"}'),
    "one long number": framed(b'{"code":' + b"1" * SIZE + b"}"),
    "deep": framed(b'{"code":34,"x":' + b"[" * SIZE),
    "binary, many ext fields": framed(
        struct.pack(">hBhiiii", 34, 0, 0, 1, 0, 0, 13 * 20_000)
        + b"".join(b"\0\6%06x\0\0\0\1v" % number for number in range(20_000)), 1,
    ),
    "binary, a text of 2 GiB": framed(struct.pack(">hBhiii", 34, 0, 0, 1, 0, 0x7FFFFFFF) + b"x" * 100, 1),
    "binary, ext fields of 2 GiB": framed(struct.pack(">hBhiiii", 34, 0, 0, 1, 0, 0, 0x7FFFFFFF) + b"\0\1a", 1),
}  # fmt: skip


@pytest.mark.parametrize("frame", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_costs_at_most_24_times_its_bytes(frame: bytes) -> None:
    assert peak_of(lambda: decode(frame)) < 24 * len(frame) + 100_000


BODIES: dict[str, bytes] = {
    "lists": b"[" + many(b"[]", SIZE) + b"]",
    "maps": b"[" + many(b'{"":0}', SIZE) + b"]",
    "names": b"{" + names(SIZE) + b"}",
    "a list of 16 MiB": b"[" + many(b"[]", 16 * MIB) + b"]",
    "lists for the tolerant reader": b"{0:[" + many(b"[]", SIZE // 4) + b"]}",
    "a text for the tolerant reader": b'{0:"' + b"\\\\" * (java_json.TOLERANT_BYTES_MAX // 2 - 10) + b'"}',
    "a text without end": b'{0:"' + b"\\\\" * (java_json.TOLERANT_BYTES_MAX // 2 - 10),
    "keys in keys": b"{" * 60 + b'"a":1' + b"}:1" * 59 + b"}",
    "object keys": b"{" + many(b'{"a":"\\"\\""}:0', SIZE // 4) + b"}",
    "deep": b"[" * java_json.BYTES_MAX,
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_json_body_costs_at_most_32_times_its_bytes(body: bytes) -> None:
    assert peak_of(lambda: java_json.loads(body)) < 32 * len(body) + 100_000


def test_a_body_that_is_too_long_costs_nothing() -> None:
    body = b"[" + many(b"[]", 16 * MIB) + b"]"
    assert peak_of(lambda: java_json.loads(body)) < 10_000


def test_a_batch_of_the_smallest_messages_costs_at_most_10_times_its_bytes() -> None:
    body = message_codec.join_batch([message_codec.BatchEntry(1 << 20, b"", b"")] * (SIZE // 22))
    assert peak_of(lambda: message_codec.split_batch(body)) < 10 * len(body)


def test_lengths_of_2_gib_in_messages_and_batches_cost_nothing() -> None:
    stored = vectors("remoting")["stored_plain"]
    lies = [stored[:at] + b"\x7f\xff\xff\xff" + stored[at + 4 :] for at in range(len(stored) - 4)]

    def read_all() -> None:
        for lying in lies:
            outcome(ProtocolError, message_codec.decode_pulled, lying)
            outcome(ProtocolError, message_codec.split_batch, lying)

    assert peak_of(read_all) < 100_000


def test_a_pull_of_the_smallest_messages_costs_at_most_20_times_its_bytes() -> None:
    body = vectors("remoting")["stored_plain"] * (SIZE // 212)
    assert peak_of(lambda: message_codec.decode_pulled(body)) < 20 * len(body)


def test_properties_cost_at_most_40_times_their_bytes() -> None:
    text = b"".join(b"%x\x01v\x02" % number for number in range(6_000))
    assert peak_of(lambda: properties.to_dict(text)) < 40 * len(text)


# --- packed bodies -------------------------------------------------------------------------------------------------


def zeros(packed: Callable[[bytes], bytes], size: int = 128 * MIB) -> bytes:
    return packed(bytes(size))


def _zlib(plain: bytes) -> bytes:
    packer = zlib.compressobj(9)
    out = io.BytesIO()
    for at in range(0, len(plain), MIB):
        out.write(packer.compress(plain[at : at + MIB]))
    return out.getvalue() + packer.flush()


def _lz4(plain: bytes) -> bytes:
    import lz4.frame

    packed: bytes = lz4.frame.compress(plain)
    return packed


def _zstd(plain: bytes) -> bytes:
    import zstandard

    return zstandard.compress(plain)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pack"), [(0x300, _zlib), (0x100, _lz4), (0x200, _zstd)])
def test_a_bomb_costs_at_most_twice_the_limit_and_one_step_and_is_refused(
    kind: int, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DECOMPRESSED_BYTES_MAX", 8 * MIB)
    bomb = zeros(pack)
    assert len(bomb) < 2 * MIB
    with pytest.raises(ProtocolError, match="decompresses to more than"):
        compression.decompress(bomb, 1 | kind)
    assert peak_of(lambda: compression.decompress(bomb, 1 | kind)) < 2 * 8 * MIB + 2 * 32 * MIB


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_frame_that_comes_in_pieces_is_held_once_and_copied_once() -> None:
    splitter = FrameSplitter()
    piece = bytes(65_536)

    def feed() -> None:
        splitter.feed((16 * MIB).to_bytes(4, "big"))
        for _ in range(255):
            splitter.feed(piece)

    assert peak_of(feed) < 1.2 * 16 * MIB
    assert peak_of(lambda: splitter.feed(piece)) < 3.2 * 16 * MIB
    assert splitter.pending_bytes == 0


def test_a_frame_that_is_only_announced_costs_nothing() -> None:
    splitter = FrameSplitter()
    assert peak_of(lambda: splitter.feed((16 * MIB).to_bytes(4, "big") + b"x")) < 2_000


def test_many_connections_with_half_frames_cost_what_they_sent_and_others_are_served() -> None:
    world = World()
    strangers: list[Stranger] = []

    def come() -> None:
        for number in range(400):
            stranger = Stranger(world.life, number)
            for piece in ((16 * MIB).to_bytes(4, "big"), b"\0\0\0\xff", bytes(1_000)):
                stranger.protocol.data_received(piece)
            strangers.append(stranger)
        world.life.settle()

    assert peak_of(come) < 400 * (1_000 + 6_000)
    assert not any(stranger.closed or stranger.written for stranger in strangers)
    world.serves()
