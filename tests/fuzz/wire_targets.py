"""The remoting protocol from both sides: frames, headers, bodies, batches, stored messages, packed bodies."""

import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from halfmq import limits
from halfmq.errors import MissingDependency, ProtocolError
from halfmq.model import message_facts, properties, queue_reads, stored_message
from halfmq.model.pending import GroupStats
from halfmq.model.text_fields import read_fields
from halfmq.wire.remoting import (
    check_polls,
    compression,
    coordinators,
    fields,
    group_bodies,
    half_batches,
    heartbeat,
    java_json,
    message_codec,
    operators,
    position,
    producer_groups,
    route,
)
from halfmq.wire.remoting.codes import HMQ_POSITION, V4_9_8
from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter, assemble
from halfmq.wire.remoting.header import InvalidHeader, Request, decode, encode_request, encode_response
from tests.fuzz.target import Broken, Target, hold, outcome, same
from tests.support.vectors import vectors

# --- seeds -------------------------------------------------------------------------------------------------------


@cache
def java_frames() -> tuple[bytes, ...]:
    """Frames of Apache RocketMQ's own client and broker, without their total length."""
    return tuple(dict.fromkeys(vectors("java_clients").values()))


def _bodies_of_frames() -> list[bytes]:
    return [body for frame in java_frames() if (body := decode(frame).body)]


def _json_bodies() -> list[bytes]:
    golden = [text for name, text in vectors("remoting").items() if name.startswith("json.")]
    return golden + [body for body in _bodies_of_frames() if body[:1] in b"{["]


def _stored_messages() -> list[bytes]:
    found = [body for body in _bodies_of_frames() if body[4:7] == b"\xda\xa3\x20"]
    return [*found, vectors("remoting")["stored_plain"], vectors("remoting")["stored_committed"]]


# --- frames ------------------------------------------------------------------------------------------------------


def _frames_by_the_book(stream: bytes, limit: int) -> tuple[list[bytes], str, int]:
    """(frames, how it ended, bytes left): what the protocol says, in the plainest way."""
    frames = []
    while len(stream) >= 4:
        total = int.from_bytes(stream[:4], "big")
        if total > limit or total < 4:
            return frames, "broken", 0
        if len(stream) < 4 + total:
            break
        frames.append(stream[4 : 4 + total])
        stream = stream[4 + total :]
    return frames, "open", len(stream)


def _fed(stream: bytes, sizes: Sequence[int], limit: int) -> tuple[list[bytes], str, int]:
    splitter = FrameSplitter(limit)
    frames: list[bytes] = []
    at = 0
    for size in sizes:
        try:
            frames += splitter.feed(stream[at : at + size])
        except BrokenFrame as error:
            return frames + error.frames, "broken", 0
        at += size
        hold(splitter.pending_bytes <= at, "more is held than came")
    return frames, "open", splitter.pending_bytes


def pieces(size: int, seed: int) -> list[int]:
    """Sizes that ``size`` bytes may arrive in."""
    rng = random.Random(seed)
    sizes = []
    while size > 0:
        sizes.append(min(size, rng.choice((1, 2, 3, 4, 5, rng.randrange(1, 40), rng.randrange(1, 2_000)))))
        size -= sizes[-1]
    return sizes


def run_frames(data: bytes) -> None:
    if len(data) < 2:
        return
    seed, limit, stream = data[0], (64, 1_000, limits.FRAME_BYTES_MAX)[data[1] % 3], data[2:]
    by_the_book = _frames_by_the_book(stream, limit)
    same("in one piece", _fed(stream, [len(stream)], limit), by_the_book)
    same("in pieces", _fed(stream, pieces(len(stream), seed), limit), by_the_book)
    if len(stream) < 400:
        same("byte by byte", _fed(stream, [1] * len(stream), limit), by_the_book)


def _frame_seeds() -> list[bytes]:
    framed = [len(frame).to_bytes(4, "big") + frame for frame in java_frames()]
    mixed = [b"".join(framed[at : at + 4]) for at in range(0, len(framed), 4)]
    small = b"".join(assemble(b"{}", b"x" * size) for size in range(40))
    return [bytes((number, 2)) + stream for number, stream in enumerate(mixed)] + [
        b"\x07\x00" + small,
        b"\x09\x01" + small,
    ]


# --- headers -----------------------------------------------------------------------------------------------------

_REPLIES: Final = (
    fields.SentReply, fields.PulledReply, fields.OffsetReply, fields.EndReply,
)  # fmt: skip
_OPAQUE_AGAIN: Final = 77


def run_header(frame: bytes) -> None:
    if len(frame) < 4:
        return
    read = outcome(ProtocolError, decode, frame)
    if read.value is not None:
        _can_be_answered(read.value)
        _encodes_again(read.value)
        if read.value.is_response:
            _read_as_answer(read.value)
    elif isinstance(read.error, InvalidHeader):
        same("ext of a refused request", type(read.error.request.ext), dict)
        _can_be_answered(read.error.request, str(read.error))
    _both_ways_agree(frame, read.value, read.error)
    _binary_is_by_the_book(frame, read.value, read.error)


def _facts(request: Request[Any]) -> tuple[Any, ...]:
    return (
        request.code, request.opaque, request.flag, request.remark, request.ext, request.body, request.language,
        request.version, request.binary,
    )  # fmt: skip


def _both_ways_agree(frame: bytes, value: Request[Any] | None, error: Exception | None) -> None:
    """The fast reader knows commands by their first bytes; a blank there sends the same header the general way."""
    end = 4 + int.from_bytes(frame[1:4], "big")
    if frame[0] or frame[4:5] != b"{" or end > len(frame):
        return
    other = outcome(ProtocolError, decode, (end - 3).to_bytes(4, "big") + b"{ " + frame[5:])
    if other.error is not None and value is not None:
        other = outcome(ProtocolError, decode, _of_what_is_known(frame[4:end], type(value.ext)) + frame[end:])
    same("the general way, kind", other.kind, type(error).__name__ if error else "value")
    if value is not None:
        same("the general way", _facts(other.value), _facts(value))


def _of_what_is_known(header: bytes, fields: type) -> bytes:
    """The header for the general way, without what the fast reader skips: it does not look whether that is sound."""
    keys = json.loads(header.decode("utf-8", "replace"))
    wanted = {field.encode_name for field in msgspec.structs.fields(fields)}
    ext = {name: scalar for name, scalar in keys["extFields"].items() if name in wanted}
    known = {name: keys[name] for name in ("code", "flag", "language", "opaque", "remark", "version") if name in keys}
    text = b" " + json.dumps(known | {"extFields": ext}).encode()
    return len(text).to_bytes(4, "big") + text


def _can_be_answered(request: Request[Any], remark: str = "no") -> None:
    answer = encode_response(request, 1, remark, {"text": request.remark or "x"}, b"body")
    read = decode(answer[4:])
    same("opaque of the answer", read.opaque, request.opaque)
    same("serialisation of the answer", read.binary, request.binary)
    hold(read.is_response and read.body == b"body", "an answer is read as one")


def _binary_by_the_book(frame: bytes) -> tuple[int, int, str, dict[str, str]] | None:
    """(code, opaque, remark, ext) of a binary header, read as plainly as it can be; None where the lengths do not add up."""
    header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]

    def text(at: int, width: int, end: int) -> tuple[str, int]:
        size = int.from_bytes(header[at : at + width], "big", signed=True)
        hold(size >= 0 and at + width + size <= end, "lengths")
        return header[at + width : at + width + size].decode(), at + width + size

    try:
        remark, at = text(13, 4, len(header))
        end = at + 4 + int.from_bytes(header[at : at + 4], "big", signed=True)
        hold(at + 4 <= end <= len(header), "lengths")
        at += 4
        ext = {}
        while at < end:
            hold(at + 6 <= end, "lengths")
            name, at = text(at, 2, end)
            value, at = text(at, 4, end)
            if value:
                ext[name] = value
    except (Broken, UnicodeDecodeError):
        return None
    return struct.unpack(">h", header[:2])[0], struct.unpack(">i", header[5:9])[0], remark, ext


def _binary_is_by_the_book(frame: bytes, value: Request[Any] | None, error: Exception | None) -> None:
    if frame[0] != 1 or 4 + int.from_bytes(frame[1:4], "big") > len(frame):
        return
    wanted = _binary_by_the_book(frame)
    request = error.request if isinstance(error, InvalidHeader) else value
    same("a binary header is refused", request is None, wanted is None)
    if request is not None and wanted is not None:
        same("code, opaque, remark", (request.code, request.opaque, request.remark or ""), wanted[:3])
        has_many = isinstance(error, InvalidHeader) and "more than" in str(error)
        if isinstance(request.ext, dict) and not has_many:
            same("ext of a binary header", request.ext, wanted[3])


def _encodes_again(request: Request[Any]) -> None:
    if isinstance(request.ext, dict):
        outcome(msgspec.ValidationError, read_fields, check_polls.PollFields, request.ext)
        hold("" not in request.ext.values(), "empty text, which a binary header could not say")
        if request.is_response and (not request.binary or max(map(_utf8_bytes, request.ext), default=0) < 1 << 15):
            again = decode(encode_response(request, request.code, request.remark, request.ext, request.body)[4:])
            same("again", _facts(again)[:2] + _facts(again)[4:6], _facts(request)[:2] + _facts(request)[4:6])
            said = request.remark or ""  # a binary header cannot say that it is empty
            is_long = len(said) > limits.REMARK_CHARS_MAX
            same("remark", again.remark or "", said[: limits.REMARK_CHARS_MAX - 3] + "..." if is_long else said)
        return
    ext = {name: value for name, value in msgspec.to_builtins(request.ext).items() if value is not None}
    for binary in (False, True):
        if binary and (not -0x8000 <= request.code <= 0x7FFF or "" in ext.values()):
            continue  # a binary header cannot say these
        again = decode(encode_request(request.code, _OPAQUE_AGAIN, ext, request.body, binary=binary)[4:])
        same("fields again", (again.code, again.ext, again.body), (request.code, request.ext, request.body))


def _utf8_bytes(text: str) -> int:
    return len(text.encode())


def _read_as_answer(answer: Request[dict[str, str]]) -> None:
    for shape in _REPLIES:
        outcome(ProtocolError, answer.read, shape)
    outcome(ProtocolError, position.decode_answer, answer.ext, answer.body)
    outcome(ProtocolError, answer.read, position.FittingAnswer)
    outcome(ProtocolError, operators.decode_pending, answer.ext, answer.body)
    outcome(ProtocolError, operators.STORY.decode, answer.body)


def split_frame(frame: bytes) -> list[bytes]:
    """Kind, header (fields of a binary one), body."""
    end = 4 + int.from_bytes(frame[1:4], "big")
    header, body = frame[4:end], frame[end:]
    if frame[:1] != b"\x01" or len(header) < 21:
        return [b"\0", header, body]
    parts = [b"\1", body, header[:13]]
    at = 13
    for width in (4, *([2, 4] * 100)):
        size = int.from_bytes(header[at : at + width], "big")
        if len(parts) == 4:
            at += 4  # the size of all ext fields
            if at >= len(header):
                break
            size = int.from_bytes(header[at : at + width], "big")
        parts.append(header[at + width : at + width + size])
        at += width + size
        if at >= len(header):
            break
    return parts


def join_frame(parts: Sequence[bytes]) -> bytes:
    if parts[0][:1] != b"\1" or len(parts) < 4:
        header = parts[1] if len(parts) > 1 else b""
        return (len(header) & 0xFFFFFF).to_bytes(4, "big") + header + b"".join(parts[2:])
    _, body, fixed, remark, *texts = parts
    block = b"".join(
        min(len(text), 0xFFFF if number % 2 == 0 else len(text)).to_bytes(2 if number % 2 == 0 else 4, "big") + text
        for number, text in enumerate(texts)
    )
    header = fixed + len(remark).to_bytes(4, "big") + remark + len(block).to_bytes(4, "big") + block
    return (1 << 24 | len(header) & 0xFFFFFF).to_bytes(4, "big") + header + body


def _header_seeds() -> list[bytes]:
    return [*java_frames(), vectors("remoting")["pull_response_binary"][4:], _position_answer(), *_with_plain_scalars()]


def _with_plain_scalars() -> list[bytes]:
    """As the C++ client writes them: numbers and booleans that are not text."""
    end = {
        "producerGroup": "P", "tranStateTableOffset": 4, "commitLogOffset": 3996, "commitOrRollback": 8, "msgId": "M",
        "fromTransactionCheck": True,
    }  # fmt: skip
    send = {"a": "P", "b": "T", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "HMQ_SENT_AGAIN": False}
    return [
        _json_frame(json.dumps({"code": code, "extFields": ext, "flag": 0, "opaque": 1}, separators=(",", ":")))
        for code, ext in ((37, end), (310, send), (9_999, end | {"empty": ""}))
    ]


def _json_frame(header: str) -> bytes:
    return join_frame([b"\0", header.encode()])


def _position_answer() -> bytes:
    ext, body = position.encode_answer(
        queue_reads.Position("ab" * 16, 3, 4_096, {"orders": queue_reads.TopicBounds(3, ((0, 10), (0, 12)))})
    )
    asked: Request[dict[str, str]] = Request(code=HMQ_POSITION, ext={}, opaque=9)
    return encode_response(asked, 0, None, ext, body)[4:]


# --- JSON bodies -------------------------------------------------------------------------------------------------

Decode = Callable[[bytes], Any]


def _cluster(brokers: tuple[route.BrokerData, ...]) -> bytes:
    return route.encode_cluster_info(brokers, V4_9_8)


#: How a body is read, and how what was read is written; None where nobody writes it again.
BODIES: Final[tuple[tuple[Decode, Callable[[Any], bytes] | None], ...]] = (
    (java_json.loads, java_json.dumps),
    (heartbeat.decode_heartbeat, heartbeat.encode_heartbeat),
    (route.decode_route, lambda value: route.encode_route(value, V4_9_8)),
    (route.decode_route, lambda value: route.encode_route(value, 0)),
    (route.decode_cluster_info, _cluster),
    (route.decode_topic_list, lambda value: java_json.dumps({"topicList": list(value)})),
    (group_bodies.decode_lock_request, group_bodies.encode_lock_request),
    (group_bodies.decode_lock_response, group_bodies.encode_lock_response),
    (group_bodies.decode_member_list, group_bodies.encode_member_list),
    (group_bodies.decode_config_check, group_bodies.encode_config_check),
    (operators.STORY.decode, operators.STORY.encode),
    (operators.decode_ids, operators.encode_ids),
    (producer_groups.decode_change, producer_groups.encode_change),
    (producer_groups.LIMITS.decode, producer_groups.LIMITS.encode),
    (producer_groups.STATS.decode, producer_groups.STATS.encode),
    (half_batches.QUERIES.decode, half_batches.QUERIES.encode),
    (coordinators.COORDINATORS.decode, coordinators.COORDINATORS.encode),
    (operators.AWAITED.decode, operators.AWAITED.encode),
    (operators.DAMAGED.decode, operators.DAMAGED.encode),
)
_INT64: Final = range(-(1 << 63), 1 << 63)


def run_body(data: bytes) -> None:
    if not data:
        return
    read, write = BODIES[data[0] % len(BODIES)]
    body = data[1:]
    found = outcome(ProtocolError, read, body)
    if found.error is not None:
        return
    if write is not None and _numbers_fit(found.value):
        text = write(found.value)
        again = read(text)
        if read is not route.decode_cluster_info:  # it is a map by name: of two brokers with one name it keeps one
            same("again", again, found.value)
    if read is java_json.loads:
        _tolerant_is_the_same(body, found.value)


def _numbers_fit(value: object) -> bool:
    """Whether all numbers fit 64 bits: others are read and never written."""
    if isinstance(value, dict):
        return all(_numbers_fit(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(_numbers_fit(part) for part in value)
    return not isinstance(value, int) or value in _INT64


def _tolerant_is_the_same(body: bytes, value: object) -> None:
    """A key without quotes in front sends the whole text through the tolerant reader."""
    try:
        depth = _depth(json.loads(body, object_pairs_hook=_values))
    except (ValueError, RecursionError):
        return
    if depth < java_json.DEPTH_MAX - 1:
        wrapped = java_json.loads(b"{0:" + body + b"}")
        same("the tolerant reader", wrapped, {"0": value})


def _values(pairs: list[tuple[str, object]]) -> list[object]:
    """The values of a map, those of repeated keys too: the tolerant reader descends into each before it keeps the last."""
    return [value for _, value in pairs]


def _depth(value: object) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 1


def _stats() -> bytes:
    numbers = {field.name: 1 for field in msgspec.structs.fields(GroupStats)}
    return producer_groups.STATS.encode([GroupStats(**numbers | {"group": "g"})])


def _body_seeds() -> list[bytes]:
    made = [
        operators.STORY.encode(["prepared", "asked twice"]),
        operators.encode_ids(["a", "b"]),
        producer_groups.encode_change(producer_groups.ProducerChange(7, "set-aside", 1_000, 5, 1 << 20)),
        producer_groups.LIMITS.encode(producer_groups.ProducerLimits("g", 1, "wait", 2, 3, 4, "me", 5, 6)),
        _stats(),
        group_bodies.encode_config_check(
            group_bodies.ConfigCheck("c", "g", heartbeat.Subscription("T", "A || B", ("A", "B"), 7))
        ),
        b'{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5},{{"a":1}:2}:3}',
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b","cluster":"c"}}}',
    ]
    seeds = []
    for body in _json_bodies() + made:
        taken = [number for number, (read, _) in enumerate(BODIES) if outcome(ProtocolError, read, body).error is None]
        seeds += [bytes((number,)) + body for number in taken]
    return seeds


# --- properties --------------------------------------------------------------------------------------------------


def run_properties(data: bytes) -> None:
    """``data``: a property string, and after a zero byte a second one."""
    text, _, added = data.partition(b"\0")
    by_the_book: dict[bytes, bytes] = {}
    for piece in text.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if separator and name and value:
            by_the_book[name] = value
    pairs = properties.to_dict(text)
    same("names", set(pairs), {name.decode("utf-8", "replace") for name in by_the_book})
    for name, value in by_the_book.items():
        if outcome(UnicodeDecodeError, name.decode).error is None:
            same(f"find {name!r}", properties.find(text, name.decode()), value)
    same("find what is not there", properties.find(text, "HMQ_NOT_THERE"), by_the_book.get(b"HMQ_NOT_THERE"))
    if outcome(UnicodeDecodeError, text.decode).error is None:
        encoded = properties.encode(pairs)
        same("again", properties.to_dict(encoded), pairs)
        same("and stable", properties.encode(properties.to_dict(encoded)), encoded)
        same(
            "without",
            properties.to_dict(properties.without(text, "KEYS")),
            {k: v for k, v in pairs.items() if k != "KEYS"},
        )
    both = properties.to_dict(properties.append(text, added))
    same("appended", both, pairs | properties.to_dict(added))
    facts = message_facts.pairs_of(text)
    same("pairs", {k: v for k, v in facts.items() if k}, by_the_book)
    rare, *values = message_facts.common_values(text)
    names = (b"TRAN_MSG", b"PGROUP", b"UNIQ_KEY", b"TAGS", b"KEYS")
    same("common values", values, [facts.get(name, b"") for name in names])
    same("delay of these", message_facts.delay_in(rare), message_facts.delay_in(facts))
    delay = message_facts.delay_in(facts)
    same("delay", message_facts.delay_of(text), 0 if delay == message_facts.INVALID_DELAY else delay)
    tags = by_the_book.get(b"TAGS")
    same("tag hash", message_facts.tag_hash_of(text), message_facts.tag_hashes[tags or b""])
    message_facts.key_hash_of(text)


def _property_seeds() -> list[bytes]:
    strings = [stored_message.decode(stored)[0].properties for stored in _stored_messages()]
    more = [
        b"DELAY\x013\x02TIMER_DELAY_MS\x0199\x02", b"A\x01\x02A\x011\x02KEYS\x01a b\x02KEYS\x01c", b"TAGS\x01\xff\x02",
    ]  # fmt: skip
    return [*strings, *more, strings[0] + b"\0" + strings[-1]]


# --- stored messages, pulls ----------------------------------------------------------------------------------------


def run_message(data: bytes) -> None:
    read = outcome(ValueError, stored_message.decode, data)
    pulled = outcome((ProtocolError, MissingDependency), message_codec.decode_pulled, data)
    changed = outcome(ProtocolError, message_codec.with_properties, data, b"ADDED\x01yes\x02")
    same("with properties", changed.kind, "value" if read.error is None else "ProtocolError")
    if pulled.value:
        hold(read.error is None, "a pull reads what the decoder refuses")
    if read.error is not None:
        return
    message, offset, size = read.value
    hold(size <= len(data), "a message is longer than what came")
    _encodes_to_itself(message, offset, data[:size])
    more = stored_message.decode(changed.value)[0]
    same("but properties", more._replace(properties=message.properties), message)
    _patched(message, data[:size])


def _encodes_to_itself(message: stored_message.StoredMessage, offset: int, stored: bytes) -> None:
    if message.store_time_ms >= 1 << 63:
        return  # Java's long: such a time is before 1970; nobody encodes it again
    again, offset_again, _ = stored_message.decode(b"".join(stored_message.encode(message, offset)))
    same("again", (again, offset_again), (message, offset))
    if len(message.topic.encode()) > 127 or stored[7] == 0xA7:  # ours writes version 2 only where it must
        same("the same bytes", b"".join(stored_message.encode(message, offset))[8:], _as_ours(stored, message)[8:])


def _as_ours(stored: bytes, message: stored_message.StoredMessage) -> bytes:
    """A version 1 message with a topic of 128 to 255 bytes is read, and written as version 2."""
    topic = message.topic.encode()
    if stored[7] != 0xA7 or len(topic) <= 127:
        return stored
    at = len(stored) - 2 - len(message.properties) - len(topic) - 1
    return stored[:at] + b"\0" + stored[at:]


def _patched(message: stored_message.StoredMessage, stored: bytes) -> None:
    buffer = bytearray(b"pad" + stored)
    stored_message.patch_committed(buffer, 3, 11, 22, 33)
    flags = message.sys_flag & ~stored_message.SYS_TRANSACTION_MASK | stored_message.SYS_COMMITTED
    wanted = message._replace(queue_offset=11, store_time_ms=22, prepared_offset=33, sys_flag=flags)
    same("as committed", stored_message.decode(buffer, 3)[0], wanted)
    stored_message.patch_released(buffer, 3, 44, 55)
    same("as released", stored_message.decode(buffer, 3)[0], wanted._replace(queue_offset=44, store_time_ms=55))


def _v6_message() -> bytes:
    host = bytes(range(16)) + b"\0\0\x2a\x9f"
    message = stored_message.decode(vectors("remoting")["stored_plain"])[0]
    message = message._replace(born_host=host, store_host=host, sys_flag=0x30, topic="t" * 200, body=b"")
    return b"".join(stored_message.encode(message._replace(body_crc=0), 1 << 40))


def _packed_messages() -> list[bytes]:
    plain = stored_message.decode(vectors("remoting")["stored_plain"])[0]
    body = zlib.compress(b"body " * 1_000)
    packed = plain._replace(body=body, body_crc=stored_message.body_crc_of(body))
    return [
        b"".join(stored_message.encode(packed._replace(sys_flag=1 | kind), 64))
        for kind in (0, 0x100, 0x200, 0x300, 0x400)
    ]


def split_message(data: bytes) -> list[bytes]:
    """Fixed fields, body, topic, properties, and what follows."""
    read = outcome(ValueError, stored_message.decode, data)
    if read.error is not None:
        return [data]
    message, _, size = read.value
    tail = len(message.topic.encode()) + (1 if data[7] == 0xA7 else 2) + 2 + len(message.properties)
    at = size - tail - len(message.body)
    return [data[: at - 4], message.body, message.topic.encode(), message.properties, data[size:]]


def join_message(parts: Sequence[bytes]) -> bytes:
    if len(parts) < 4 or len(parts[0]) < 8:
        return b"".join(parts)
    head, body, topic, text, *rest = parts
    width = 1 if head[7] == 0xA7 else 2
    topic_bytes = (len(topic) & ((1 << 8 * width) - 1)).to_bytes(width, "big")
    tail = len(body).to_bytes(4, "big") + body + topic_bytes + topic + (len(text) & 0xFFFF).to_bytes(2, "big") + text
    return (len(head) + len(tail)).to_bytes(4, "big") + head[4:] + tail + b"".join(rest)


# --- batches (320) -----------------------------------------------------------------------------------------------


def run_batch(data: bytes) -> None:
    read = outcome(ProtocolError, message_codec.split_batch, data)
    if read.error is None:
        entries = read.value
        same("again", message_codec.split_batch(message_codec.join_batch(entries)), entries)
        taken = sum(22 + len(entry.body) + len(entry.properties) for entry in entries)
        same("bytes of the entries", taken, len(data))


def split_batch_entries(data: bytes) -> list[bytes]:
    read = outcome(ProtocolError, message_codec.split_batch, data)
    if read.error is not None:
        return [data]
    return [part for flag, body, text in read.value for part in (struct.pack(">i", flag), body, text)]


def join_batch_entries(parts: Sequence[bytes]) -> bytes:
    if len(parts) < 3:
        return b"".join(parts)
    whole = [parts[at : at + 3] for at in range(0, len(parts) - 2, 3)]
    return message_codec.join_batch(
        message_codec.BatchEntry(int.from_bytes(flag[:4].ljust(4, b"\0"), "big", signed=True), body, text[:0xFFFF])
        for flag, body, text in whole
    )


def _batch_seeds() -> list[bytes]:
    entry = message_codec.BatchEntry
    many = [entry(number, b"b" * number, b"KEYS\x01k%d\x02" % number) for number in range(20)]
    return [message_codec.join_batch(entries) for entries in ([entry(0, b"", b"")], many[3:5], many)]


# --- packed bodies -------------------------------------------------------------------------------------------------

_UNPACKED_MAX: Final = 1 << 16


def run_packed(data: bytes) -> None:
    """``data``: the type of packing, then the body."""
    if not data:
        return
    sys_flag = 1 | (data[0] & 7) << 8
    before = limits.DECOMPRESSED_BYTES_MAX
    limits.DECOMPRESSED_BYTES_MAX = _UNPACKED_MAX  # type: ignore[misc]
    try:
        plain = outcome((ProtocolError, MissingDependency), compression.decompress, data[1:], sys_flag)
        if plain.error is None:
            hold(len(plain.value) <= _UNPACKED_MAX, "more was unpacked than may be")
            packed = zlib.compress(plain.value)
            same("packed and unpacked", compression.decompress(packed, 0x301), plain.value)
    finally:
        limits.DECOMPRESSED_BYTES_MAX = before  # type: ignore[misc]


def _packed_seeds() -> list[bytes]:
    import lz4.frame
    import zstandard

    seeds = []
    for plain in (b"", b"body", bytes(60_000), bytes(200_000), random.Random(1).randbytes(3_000)):
        seeds += [
            b"\3" + zlib.compress(plain), b"\0" + zlib.compress(plain),
            b"\1" + lz4.frame.compress(plain), b"\2" + zstandard.compress(plain),
        ]  # fmt: skip
    return seeds


TARGETS: Final = (
    Target(
        "frames",
        "any cut of a byte stream gives the frames and the error that the protocol says, and holds no more than came",
        run_frames, _frame_seeds, ("halfmq.wire.remoting.frame",),
    ),
    Target(
        "header",
        "a frame is read, refused with an answer, or closes its connection; both readers agree; what was read can be "
        "written again and is the same; every request can be answered",
        run_header, _header_seeds,
        ("halfmq.wire.remoting.header", "halfmq.wire.remoting.binary_header", "halfmq.wire.remoting.fields",
         "halfmq.wire.remoting.position"),
        fresh=700, split=split_frame, join=join_frame,
    ),
    Target(
        "body",
        "a JSON body is read or a ProtocolError; what was read, written and read is the same; the tolerant reader reads "
        "standard JSON as a standard reader does",
        run_body, _body_seeds,
        ("halfmq.wire.remoting.java_json", "halfmq.wire.remoting.heartbeat", "halfmq.wire.remoting.route",
         "halfmq.wire.remoting.group_bodies", "halfmq.wire.remoting.operators", "halfmq.wire.remoting.producer_groups"),
        fresh=700,
    ),
    Target(
        "properties",
        "every reader of a property string finds the same pairs: the last of a name, nothing empty",
        run_properties, _property_seeds, ("halfmq.model.properties", "halfmq.model.message_facts"), fresh=500,
    ),
    Target(
        "message",
        "a stored message is whole or refused, encodes to itself, and a patch changes what it names and nothing else",
        run_message, lambda: [*_stored_messages(), _v6_message(), *_packed_messages()],
        ("halfmq.model.stored_message", "halfmq.wire.remoting.message_codec"),
        fresh=500, split=split_message, join=join_message,
    ),
    Target(
        "batch",
        "a batch body is split wholly or refused; no byte of it is read twice or left out",
        run_batch, _batch_seeds, ("halfmq.wire.remoting.message_codec",),
        fresh=500, split=split_batch_entries, join=join_batch_entries,
    ),
    Target(
        "packed",
        "a packed body is unpacked up to the limit, or a ProtocolError",
        run_packed, _packed_seeds, ("halfmq.wire.remoting.compression",),
    ),
)  # fmt: skip
