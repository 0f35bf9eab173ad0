"""For each request code the requests that may keep the broker's loop longest: at most ``REQUEST_BYTES`` each, hostile or not.

``REQUESTS`` has a valid request of every code, against the store that ``prepare`` makes: from the fields of the command, unless it needs
more. ``worst_of`` varies it: many fields, long values, lists of the smallest elements, deep nesting, repeated names, names never seen. What
only one code can be given is in ``ALSO``.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import inspect

from halfmq import limits
from halfmq.broker.broker import Broker
from halfmq.broker.remoting.commands import COMMANDS, fields_of
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.wire.remoting.binary_header import encode_binary_header
from halfmq.wire.remoting.message_codec import BatchEntry, join_batch
from tests.support.loop_time import Requester
from tests.support.raw_client import frame, property_string

REQUEST_BYTES: Final = 4 << 20
PREPARE_BATCH, DECIDE, DECISION = 29_012, 29_013, 29_014
#: In the prepared store: topics with so many queues in all, and a topic with messages.
TOPIC: Final = "T"
WIDE_TOPICS: Final = 24
WIDE_QUEUES: Final = 1_024
GROUP: Final = "C"
PRODUCER: Final = "P"
#: A producer group whose transactions have properties as long as they may be.
NOTED: Final = "N"
QUERY: Final = "q1"
#: Half batches of the prepared batch, each of another attempt: what a large Spark job has. 16,384 are the most.
ATTEMPTS: Final = 12_000
_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x10\x00"
_ONE: Final = "AC10000100002A9F0000000000000001"

Ext = dict[str, str]


class Worst(NamedTuple):
    name: str
    make: Callable[[], bytes]
    #: Only this code can be given it, or it is one of the worst of every code.
    is_special: bool = False


_opaques = itertools.count(1)


def json_frame(code: int, ext: Ext, body: bytes = b"", **more: object) -> bytes:
    header = {
        "code": code,
        "language": "JAVA",
        "version": 409,
        "opaque": next(_opaques),
        "flag": 0,
        "extFields": ext,
        **more,
    }
    return frame(msgspec.json.encode(header), body)


def binary_frame(code: int, ext: Ext, body: bytes = b"") -> bytes:
    return frame(encode_binary_header(code, next(_opaques), 0, None, ext.items()), body, kind=1)


# --- a valid request of every code -----------------------------------------------------------------------------


def send_ext(group: str = PRODUCER, topic: str = TOPIC, properties: str = "", queue: int = 0) -> Ext:
    return {
        "a": group, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1", "h": "0", "i": properties,
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


_LONG_SEND: Final = {
    "producerGroup": PRODUCER, "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
}  # fmt: skip
_PULL: Final = {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1024", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    "maxMsgBytes": "1048576",
}  # fmt: skip
_OFFSET: Final = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
_QUEUE: Final = {"topic": TOPIC, "queueId": "0"}
_END: Final = {
    "producerGroup": PRODUCER, "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "msgId": _ONE,
    "fromTransactionCheck": "false", "transactionId": "", "HMQ_TX_ID": "", "HMQ_DECIDED_BY": "", "HMQ_COORDINATOR": "",
}  # fmt: skip
_MEANT: Final = {"group": "", "txId": _ONE}
_LOCKS: Final = {"consumerGroup": GROUP, "clientId": "me", "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]}
_HEARTBEAT: Final = {
    "clientID": "me", "producerDataSet": [{"groupName": PRODUCER}],
    "consumerDataSet": [
        {"groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": 0,
         "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}]},
    ],
}  # fmt: skip

#: Values of fields in the prepared store, by their names on the wire; others are what ``_value`` says of their type.
_VALUES_BY_NAME: Final = {
    "topic": TOPIC, "topics": TOPIC, "group": PRODUCER, "consumerGroup": GROUP, "producerGroup": PRODUCER, "txId": _ONE, "operator": "ada",
    "reason": "x", "clientId": "me", "coordinator": "c", "query": QUERY, "from": "0", "queueId": "0",
}  # fmt: skip


def _value(kind: inspect.Type) -> str:
    """The most that a field may be."""
    match kind:
        case inspect.UnionType(types):
            return _value(types[0])
        case inspect.IntType(le=most):
            return str(most)
        case inspect.BoolType():
            return "true"
        case inspect.LiteralType(values):
            return str(values[0])
    return "x"


def derived(code: int) -> tuple[Ext, bytes]:
    """A request with all fields of the command, without a body."""
    kind = fields_of(code)
    shape = inspect.type_info(kind) if kind is not None else None
    names = shape.fields if isinstance(shape, inspect.StructType) else ()
    return {one.encode_name: _VALUES_BY_NAME.get(one.encode_name) or _value(one.type) for one in names}, b""


#: Code -> (ext, body) of a valid request: those that need more than ``derived``.
_OWN_REQUESTS: Final[dict[int, tuple[Ext, bytes]]] = {
    10: (_LONG_SEND, b"x"),
    11: (_PULL, b""),
    12: ({"topic": TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}, b""),
    14: (_OFFSET, b""),
    15: ({**_OFFSET, "commitOffset": "1"}, b""),
    17: ({"topic": "made", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}, b""),
    29: ({**_QUEUE, "timestamp": "1", "boundaryType": "UPPER"}, b""),
    33: ({"offset": "1000", "topic": TOPIC}, b""),
    34: ({}, json.dumps(_HEARTBEAT).encode()),
    35: ({"clientID": "me", "producerGroup": PRODUCER, "consumerGroup": GROUP}, b""),
    36: ({"offset": "1000", "group": GROUP, "delayLevel": "1", "originMsgId": "x", "originTopic": TOPIC}, b""),
    37: (_END, b""),
    41: ({}, json.dumps(_LOCKS).encode()),
    42: ({}, json.dumps(_LOCKS).encode()),
    46: ({}, json.dumps({"clientId": "me", "group": GROUP, "subscriptionData": {"topic": TOPIC, "subString": "*"}}).encode()),
    100: ({"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC, "value": "b:4"}, b""),
    101: ({"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC}, b""),
    102: ({"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC}, b""),
    105: ({"topic": TOPIC, "acceptStandardJsonOnly": "true"}, b""),
    200: ({}, b'{"groupName":"C","attributes":{"+hold.topics":"T","+hold.ms":"5"}}'),
    201: ({"groupSeq": "0", "maxGroupNum": "0"}, b""),
    202: ({"topic": "wide-0"}, b""),
    207: ({"groupName": "made-and-deleted", "cleanOffset": "true"}, b""),
    208: ({"consumerGroup": GROUP, "topic": "", "topicList": ""}, b""),
    215: ({"topic": "made"}, b""),
    216: ({"topic": "made"}, b""),
    307: ({"consumerGroup": GROUP, "clientId": "none", "jstackEnable": "false"}, b""),
    310: (send_ext(), b"x"),
    315: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": "wide-0"}, b""),
    320: (send_ext(), join_batch([BatchEntry(0, b"x", b"")])),
    324: (_LONG_SEND, b"x"),
    325: (send_ext(), b"x"),
    352: ({"group": GROUP}, b""),
    361: (_PULL, b""),
    400: ({}, json.dumps({"topic": TOPIC, "consumerGroup": GROUP, "clientId": "me", "strategyName": "AVG"}).encode()),
    401: ({}, json.dumps({"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP"}).encode()),
    29_001: ({"topics": TOPIC}, b'{"T":[[0,0]]}'),
    29_002: ({"group": "", "max": "1000", "from": "0", "coordinator": ""}, b""),
    29_003: (_MEANT, b""),
    29_004: ({**_MEANT, "verdict": "COMMIT", "operator": "ada", "reason": "x"}, b""),
    29_005: ({"group": ""}, json.dumps([f"{_ONE[:-4]}{n:04}" for n in range(1_000)]).encode()),
    29_006: (_MEANT, b""),
    29_007: ({"group": PRODUCER, "operator": "ada", "reason": "x"}, b'{"check_limit":3,"past_limit":"wait"}'),
    29_008: ({"group": "", "from": "0"}, b""),
    29_009: ({"group": PRODUCER, "clientId": "me", "waitMs": "100", "max": "256"}, b""),
    29_011: ({"topic": TOPIC, "queueId": "0", "offset": "0", "end": "1000000", "bytes": str(1 << 40)}, b""),
    29_012: (
        {"group": PRODUCER, "topic": TOPIC, "queueId": "0", "messages": "1", "checksum": "0", "index": "0", "txId": _ONE,
         "query": "", "batch": "0", "run": "", "attempt": "", "graceMs": "-1", "queryTopic": "", "stream": ""},
        b"x",
    ),
    29_013: (
        {"group": PRODUCER, "query": "other", "batch": "0", "run": "r", "digest": "00" * 16, "queryTopic": "", "stream": ""},
        b'[["0.0",1,1,1]]',
    ),
    29_014: ({"query": QUERY, "batch": "0", "run": "r", "queryTopic": "", "stream": ""}, b""),
    29_015: (
        {"consumerGroup": GROUP, "store": "", "topic": TOPIC, "topicId": "1", "queueId": "0", "firstOffset": "0",
         "endOffset": "1000000", "maxBytes": str(8 << 20)},
        b"",
    ),
    29_016: (
        {"store": "", "wanted": "transactions", "firstHalf": "0", "endHalf": "1000000", "position": "0",
         "maxBytes": str(2 << 20)},
        b"",
    ),
    29_023: ({**_MEANT, "outcome": "COMMIT", "source": "bank A", "isMarker": "false"}, b""),
    29_025: ({**_MEANT, "operator": "ada", "reason": "x"}, b""),
    29_018: ({"query": "idle-1", "queryTopic": "", "operator": "ada", "reason": "x"}, b""),
    29_019: ({"group": PRODUCER, "coordinator": "c", "takenBy": "me"}, b""),
    29_028: ({}, b'{"user":"ada","is_new":false,"permissions":["send:topic:T"]}'),
    29_037: ({"setting": "queries_max", "value": "10000", "unset": "false", "operator": "ada", "reason": "x"}, b""),
    29_026: ({"group": PRODUCER, "txId": "fenced", "since": "1000000"}, b""),
}  # fmt: skip
REQUESTS: Final = {code: _OWN_REQUESTS.get(code) or derived(code) for code in COMMANDS}


# --- what any code can be given --------------------------------------------------------------------------------


def _filled(unit: str, bytes_max: int) -> str:
    return unit * (bytes_max // len(unit.encode()))


def _numbered(pattern: str, bytes_max: int) -> str:
    """``pattern`` with numbers from 0 on, up to so many bytes."""
    pieces, size = [], 0
    while size <= bytes_max:
        pieces.append(pattern % len(pieces))
        size += len(pieces[-1])
    return "".join(pieces[:-1])


_SPACE: Final = REQUEST_BYTES - 2_048
#: One value with everything that separates anything, many different names, many digits, and text that JSON escapes.
_VALUES: Final = {
    "separators": _filled("T,T;T:T||T T\x01T\x02T", _SPACE // 3),
    "names": _numbered("%d,", _SPACE),
    "digits": _filled("1", _SPACE),
    "escaped": _filled("\x1b", _SPACE // 8),
}
#: Bodies of JSON that are not refused for their size (``java_json.REQUEST_BYTES_MAX``).
_ACCEPTED: Final = (1 << 19) - 2_048
_BODIES: Final = {
    "nested lists": b"[" * _SPACE,
    "closed nested lists": b"[" * (_SPACE // 2) + b"]" * (_SPACE // 2),
    "nested objects": b'{"":' * (_SPACE // 4),
    "list of numbers": b"[" + b"0," * (_SPACE // 2 - 2) + b"0]",
    "list of lists": b"[" + b"[]," * (_SPACE // 3 - 2) + b"[]]",
    "list of objects": b"[" + b"{}," * (_SPACE // 3 - 2) + b"{}]",
    "list of texts": b"[" + b'"",' * (_SPACE // 3 - 2) + b'""]',
    "512 KiB of objects": b"[" + b"{}," * (_ACCEPTED // 3 - 2) + b"{}]",
    "512 KiB of lists": b"[" + b"[]," * (_ACCEPTED // 3 - 2) + b"[]]",
    "512 KiB of texts": b"[" + b'"",' * (_ACCEPTED // 3 - 2) + b'""]',
    "many keys": ("{" + _numbered('"%d":0,', _SPACE) + '"":0}').encode(),
    "512 KiB of keys": ("{" + _numbered('"%d":0,', _ACCEPTED) + '"":0}').encode(),
    "64 KiB of keys": ("{" + _numbered('"%d":0,', (1 << 16) - 100) + '"":0}').encode(),
    "64 KiB of lists": b'{"T":[' + b"[0,0]," * 10_900 + b"[0,0]]}",
    "256 KiB of fastjson": b"{" + b"1:0," * 65_000 + b"1:0}",
    "16 KiB of fastjson": b"{" + b"1:0," * 4_090 + b"1:0}",
    "16 KiB of fastjson's lists": b"{1:[" + b"[]," * 5_450 + b"[]]}",
    "digits": b"1" * _SPACE,
    "zeros": bytes(_SPACE),
}


def _object(body: bytes) -> dict[str, object] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def worst_of(code: int, ext: Ext, body: bytes) -> Iterator[Worst]:
    yield Worst("as it should be", lambda: json_frame(code, ext, body))
    yield Worst("as it should be, binary", lambda: binary_frame(code, ext, body))
    yield Worst("many fields", lambda: json_frame(code, {**_fields(380_000, ""), **ext}, body), True)
    yield Worst("many fields, binary", lambda: _many_binary_fields(code, ext, body), True)
    yield Worst("many null fields", lambda: _null_fields(code, body))
    yield Worst("nested header", lambda: frame(b'{"code":%d,"extFields":{"a":' % code + b"[" * _SPACE + b"}}"))
    yield Worst("long remark", lambda: json_frame(code, ext, body, remark=_filled("r", _SPACE)))
    for name in ext:
        for kind, value in _VALUES.items():
            yield Worst(f"{name}: {kind}", lambda name=name, value=value: json_frame(code, {**ext, name: value}, body))  # type: ignore[misc]
    for kind, large in _BODIES.items() if body else ():
        yield Worst(f"body: {kind}", lambda large=large: json_frame(code, ext, large))  # type: ignore[misc]
    parts = _object(body)
    for name, part in parts.items() if parts is not None else ():
        for kind, value in _inner(part):
            changed = msgspec.json.encode({**(parts or {}), name: value})
            yield Worst(f"body {name}: {kind}", lambda changed=changed: json_frame(code, ext, changed))  # type: ignore[misc]
    yield from (worst._replace(is_special=True) for worst in ALSO.get(code, lambda: iter(()))())


@cache
def _fields(count: int, value: str) -> Ext:
    return {f"{number:x}": value for number in range(count)}


def _many_binary_fields(code: int, ext: Ext, body: bytes) -> bytes:
    empty, own = (encode_binary_header(code, 1, 0, None, fields) for fields in ((), ext.items()))
    block = _binary_fields() + own[len(empty) :]
    return frame(empty[:-4] + len(block).to_bytes(4, "big") + block, body, kind=1)


@cache
def _binary_fields() -> bytes:
    """Encoded once: it takes half a second, more than all requests of a code."""
    return encode_binary_header(0, 1, 0, None, _fields(370_000, "1").items())[
        len(encode_binary_header(0, 1, 0, None, ())) :
    ]


def _null_fields(code: int, body: bytes) -> bytes:
    return frame(b'{"code":%d,"extFields":{' % code + b'"":1,' * (_SPACE // 5 - 20) + b'"":1}}', body[:1_000])


def _inner(part: object) -> Iterator[tuple[str, object]]:
    """Values in the place of ``part``, with which the body is not refused for its size."""
    space = _ACCEPTED
    yield "separators", _filled("T||T,T:T", space)
    yield "digits", _filled("1", space)
    if isinstance(part, list) and part:
        text = json.dumps(part[0], separators=(",", ":"))
        yield "repeated", [part[0]] * (space // (len(text) + 1))
        yield "smallest", [{}] * (space // 3)
        if isinstance(part[0], dict):
            for key, value in part[0].items():
                if isinstance(value, str):
                    size = len(text) + 6
                    yield f"many {key}", [{**part[0], key: f"n{n}"} for n in range(space // size)]
                    yield f"a long {key}", [{**part[0], key: _filled("T||", space - 1_000)}]
                for kind, inner in _inner(value) if isinstance(value, list) else ():
                    yield f"{key} {kind}", [{**part[0], key: inner}]
    if isinstance(part, dict):
        for key in part:
            yield f"{key}: separators", {**part, key: _filled("T||T,T:T", space)}
        yield "many keys", {f"+{n}": "1" for n in range(space // 14)}


# --- what only one code can be given ---------------------------------------------------------------------------


def _batches() -> Iterator[Worst]:
    entry = join_batch([BatchEntry(0, b"", b"")])
    yield Worst("empty messages", lambda: json_frame(320, send_ext(), entry * (_SPACE // len(entry))))
    named = join_batch([BatchEntry(0, b"", b"a\x01b\x02")])
    yield Worst("short properties", lambda: json_frame(320, send_ext(), named * (_SPACE // len(named))))
    unique = 0

    def with_ids() -> bytes:
        nonlocal unique
        unique += 1
        return json_frame(320, send_ext(), join_batch([
            BatchEntry(0, b"", property_string(UNIQ_KEY=f"{unique:012}{n:020}").encode()) for n in range(_SPACE // 65)
        ]))  # fmt: skip

    yield Worst("ids", with_ids)
    yield Worst("4,096 empty messages", lambda: json_frame(320, send_ext(), entry * 4_096))
    found = join_batch([BatchEntry(0, b"x" * 900, property_string(KEYS="a b c d e").encode())])
    yield Worst("4,096 messages with 20,480 keys", lambda: json_frame(320, send_ext(), found * 4_096))

    def some_with_ids() -> bytes:
        nonlocal unique
        unique += 1
        return json_frame(320, send_ext(), join_batch([
            BatchEntry(0, b"x" * 800, property_string(UNIQ_KEY=f"{unique:012}{n:020}", TAGS=f"t{n}", KEYS=f"{n} k").encode())
            for n in range(4_096)
        ]))  # fmt: skip

    yield Worst("4,096 ids", some_with_ids)
    pieces = b"a\x01b\x02" * 8_000
    one = join_batch([BatchEntry(0, b"", pieces)])
    yield Worst("many properties", lambda: json_frame(320, send_ext(), one * (_SPACE // len(one))))
    keys = join_batch([BatchEntry(0, b"", property_string(KEYS=_numbered("%d ", 32_000)).encode())])
    yield Worst("many keys", lambda: json_frame(320, send_ext(), keys * (_SPACE // len(keys))))
    tags = [
        join_batch([BatchEntry(0, b"", property_string(TAGS=f"{n}" + "t" * 32_600).encode())])
        for n in range(_SPACE // 32_750)
    ]
    yield Worst("long tags", lambda: json_frame(320, send_ext(), b"".join(tags)))


def _sends(code: int) -> Callable[[], Iterator[Worst]]:
    def found() -> Iterator[Worst]:
        name = "i" if code not in (10, 324) else "properties"
        base = REQUESTS[code][0]
        for kind, text in (
            ("pairs", _filled("a\x01b\x02", 32_000)),
            ("keys", property_string(KEYS=_numbered("%d ", 32_000))),
            ("half keys", property_string(TRAN_MSG="true", UNIQ_KEY=_ONE, KEYS=_numbered("%d ", 32_000))),
            ("tags", property_string(TAGS="t" * 32_000)),
            ("long pairs", _filled("a\x01b\x02", _SPACE // 16)),
        ):
            yield Worst(f"properties: {kind}", lambda text=text: json_frame(code, {**base, name: text}, bytes(60_000)))  # type: ignore[misc]
        yield Worst("largest body", lambda: json_frame(code, base, bytes(_SPACE)))

    return found


def _half_batch(store_host: bytes, properties: list[bytes], body: bytes = b"", **more: str) -> bytes:
    payload, count = build_payload(
        [HalfMessage(0, 0, body, text) for text in properties],
        topic=TOPIC, queue_id=0, born_time_ms=1, born_host=_HOST, store_host=store_host,
    )  # fmt: skip
    ext = {
        **REQUESTS[PREPARE_BATCH][0], "messages": str(count), "checksum": str(crc32(payload)), "txId": f"{next(_opaques):032}",
        **more,
    }  # fmt: skip
    return json_frame(PREPARE_BATCH, ext, payload)


_store_host = b""


def _half_batches() -> Iterator[Worst]:
    size = 16 + 88 + len(TOPIC) + 3 + 20
    yield Worst("empty messages", lambda: _half_batch(_store_host, [b""] * (_SPACE // size)))
    ids = [property_string(UNIQ_KEY=f"{n:032}").encode() for n in range(_SPACE // (size + 42))]
    yield Worst("ids", lambda: _half_batch(_store_host, ids))
    one = property_string(UNIQ_KEY="1" * 32, KEYS="k").encode()
    yield Worst("a key each", lambda: _half_batch(_store_host, [one] * (_SPACE // (size + len(one)))))
    two = property_string(KEYS="k l").encode()
    yield Worst("two keys each", lambda: _half_batch(_store_host, [two] * (_SPACE // (size + len(two)))))
    short = property_string(KEYS=_numbered("%d ", 14_000)).encode()
    yield Worst(
        "240 x 6,500 keys", lambda: _half_batch(_store_host, [property_string(KEYS="a " * 6_500).encode()] * 240)
    )
    yield Worst(
        "different keys",
        lambda: _half_batch(
            _store_host, [property_string(KEYS=_numbered(f"{n}-%d ", 17_000)).encode() for n in range(240)]
        ),
    )
    yield Worst("keys", lambda: _half_batch(_store_host, [short] * (_SPACE // (size + len(short)))))
    tags = [property_string(TAGS=f"{n}" + "t" * 32_000).encode() for n in range(_SPACE // 32_400)]
    yield Worst(
        "32 KB tags",
        lambda: _half_batch(_store_host, [tag.replace(b"t", b"%d" % (next(_opaques) % 10)) for tag in tags]),
    )
    tiny = [property_string(TAGS=f"{n}").encode() for n in range(_SPACE // (size + 11))]
    yield Worst("a tag each", lambda: _half_batch(_store_host, tiny))
    pairs = b"a\x01b\x02" * 8_000
    yield Worst("pairs", lambda: _half_batch(_store_host, [pairs] * (_SPACE // (size + len(pairs)))))
    mixed = [b"a\x01b\x02", b"c\x01d\x02"] * (_SPACE // (size + 4) // 2)
    yield Worst("mixed names", lambda: _half_batch(_store_host, mixed))
    yield Worst("delayed", lambda: _delayed_half_batch(_SPACE // (size + 8 + 8)))
    payload = bytes(_SPACE)
    ext = {**REQUESTS[PREPARE_BATCH][0], "checksum": str(crc32(payload))}
    for messages in (1, 20_000, 1 << 40):
        yield Worst(
            f"zeros as {messages} messages",
            lambda messages=messages: json_frame(PREPARE_BATCH, {**ext, "messages": str(messages)}, payload),  # type: ignore[misc]
        )


def _delayed_half_batch(count: int) -> bytes:
    text = property_string(DELAY="3").encode()
    payload, _ = build_payload(
        [HalfMessage(0, 0, b"", text)] * count,
        topic=TOPIC, queue_id=0, born_time_ms=1, born_host=_HOST, store_host=_store_host, delayed=True,
    )  # fmt: skip
    ext = {
        **REQUESTS[PREPARE_BATCH][0], "messages": str(count), "checksum": str(crc32(payload)), "txId": f"{next(_opaques):032}",
        "delayed": "1",
    }  # fmt: skip
    return json_frame(PREPARE_BATCH, ext, payload)


_decided = itertools.count()


def _decisions() -> Iterator[Worst]:
    ext = REQUESTS[DECIDE][0]

    def rows(pattern: str, count: int) -> bytes:
        return ("[" + ",".join(pattern % n if "%" in pattern else pattern for n in range(count)) + "]").encode()

    yield Worst("one winner 900,000 times", lambda: json_frame(DECIDE, ext, rows('["",0,0,0]', _SPACE // 11)))
    yield Worst("winners never prepared", lambda: json_frame(DECIDE, ext, rows('["%d",0,0,1]', _SPACE // 18)))
    yield Worst("65,536 winners never prepared", lambda: json_frame(DECIDE, ext, rows('["%d",0,0,1]', 65_536)))
    yield Worst("16,384 winners never prepared", lambda: json_frame(DECIDE, ext, rows('["%d",0,0,1]', 16_384)))
    mine = {**ext, "query": QUERY, "batch": "0"}
    yield Worst("winners, one number wrong", lambda: json_frame(DECIDE, mine, rows('["%d.0",1,1,7]', ATTEMPTS)))


def _positions() -> Iterator[Worst]:
    wide = ",".join(f"wide-{n}" for n in range(WIDE_TOPICS))
    yield Worst("all queues", lambda: json_frame(29_001, {"topics": wide}))
    yield Worst("all queues, binary", lambda: binary_frame(29_001, {"topics": wide}))
    yield Worst("1.5 million names", lambda: json_frame(29_001, {"topics": _numbered("%x,", _SPACE)}))
    yield Worst("one name", lambda: json_frame(29_001, {"topics": "T," * (_SPACE // 2)}))
    samples = b'{"T":[' + b"[0,0]," * (_SPACE // 6 - 10) + b"[0,0]]}"
    yield Worst("samples", lambda: json_frame(29_001, {"topics": TOPIC}, samples))
    topics = ("{" + _numbered('"%d":[],', _SPACE) + '"":[]}').encode()
    yield Worst("topics of samples", lambda: json_frame(29_001, {"topics": TOPIC}, topics))


def _heartbeats() -> Iterator[Worst]:
    def of(count: int, subscriptions: int, tag: str = "*", fresh: bool = True) -> bytes:
        prefix = next(_opaques) if fresh else 0
        groups = [
            {"groupName": f"g{prefix}-{n}", "consumeType": 1, "messageModel": 1, "consumeFromWhere": 0,
             "subscriptionDataSet": [{"topic": f"t{m}", "subString": tag} for m in range(subscriptions)]}
            for n in range(count)
        ]  # fmt: skip
        return json_frame(34, {}, msgspec.json.encode({"clientID": f"c{prefix}", "consumerDataSet": groups}))

    yield Worst("1,000 new groups", lambda: of(1_000, 1))
    yield Worst("20,000 subscriptions", lambda: of(1, 20_000))
    yield Worst("60 long expressions", lambda: of(1, 60, "T||" * 5_000))
    yield Worst(
        "a producer in 1,000 groups",
        lambda: json_frame(
            34,
            {},
            msgspec.json.encode(
                {"clientID": "many", "producerDataSet": [{"groupName": f"p{next(_opaques)}"} for _ in range(1_000)]}
            ),
        ),
    )
    yield Worst(
        "one group 20,000 times",
        lambda: json_frame(
            34, {}, msgspec.json.encode({"clientID": "many", "producerDataSet": [{"groupName": "x"}] * 20_000})
        ),
    )


def _locks(code: int) -> Callable[[], Iterator[Worst]]:
    def found() -> Iterator[Worst]:
        every = [{"topic": f"wide-{n}", "brokerName": "b", "queueId": q} for n in range(20) for q in range(WIDE_QUEUES)]
        body = msgspec.json.encode({"consumerGroup": GROUP, "clientId": "me", "mqSet": every})
        yield Worst("20,480 queues", lambda: json_frame(code, {}, body))
        others = msgspec.json.encode({"consumerGroup": GROUP, "clientId": "x" * 255, "mqSet": every})
        yield Worst("20,480 queues of another", lambda: json_frame(code, {}, others))

    return found


def _pulls(code: int) -> Callable[[], Iterator[Worst]]:
    def found() -> Iterator[Worst]:
        for kind, tags in (
            ("no match", "x"),
            ("many tags", "||".join(f"t{n}" for n in range(2_700))),
            ("too many tags", _filled("T||", _SPACE)),
        ):
            yield Worst(kind, lambda tags=tags: json_frame(code, {**_PULL, "subscription": tags}))  # type: ignore[misc]

    return found


def _topic_settings() -> Iterator[Worst]:
    ext = {"readQueueNums": "1024", "writeQueueNums": "1024", "perm": "6"}
    yield Worst("1,024 queues", lambda: json_frame(17, {"topic": f"made-{next(_opaques)}", **ext}))


def _stats() -> Iterator[Worst]:
    yield Worst(
        "topics by name", lambda: json_frame(208, {"consumerGroup": GROUP, "topicList": _numbered("%d;", _SPACE)})
    )
    yield Worst(
        "7 topics",
        lambda: json_frame(208, {"consumerGroup": GROUP, "topicList": ";".join(f"wide-{n}" for n in range(7))}),
    )


def _key_queries() -> Iterator[Worst]:
    yield Worst("a frequent key", lambda: json_frame(12, {**REQUESTS[12][0], "key": "frequent", "maxNum": "1000000"}))
    yield Worst(
        "a frequent id", lambda: json_frame(12, {**REQUESTS[12][0], "key": "1" * 32, "_UNIQUE_KEY_QUERY": "true"})
    )


def _listings() -> Iterator[Worst]:
    yield Worst("of one group", lambda: json_frame(29_002, {"group": PRODUCER, "max": "1000"}))
    yield Worst("with long properties", lambda: json_frame(29_002, {"group": NOTED, "max": "1000"}))


ALSO: Final[dict[int, Callable[[], Iterator[Worst]]]] = {
    10: _sends(10), 310: _sends(310), 324: _sends(324), 325: _sends(325), 320: _batches, 29_012: _half_batches,
    29_013: _decisions, 29_001: _positions, 34: _heartbeats, 41: _locks(41), 42: _locks(42), 11: _pulls(11),
    361: _pulls(361), 17: _topic_settings, 208: _stats, 12: _key_queries,
    29_002: _listings,
}  # fmt: skip


# --- the store -------------------------------------------------------------------------------------------------


def address(broker: Broker) -> None:
    """The broker that payloads are for."""
    global _store_host
    _store_host = broker._sequencer.view.settings.store_host


async def prepare(broker: Broker) -> None:
    """Fill the store of a broker: wide topics, messages, offsets of a group, undecided transactions, queries."""
    address(broker)
    asker = Requester(broker)
    for number in range(WIDE_TOPICS):
        ext = {
            "topic": f"wide-{number}",
            "readQueueNums": str(WIDE_QUEUES),
            "writeQueueNums": str(WIDE_QUEUES),
            "perm": "6",
        }
        assert (await asker.ask(json_frame(17, ext)))[0] == 0
    await asker.ask(json_frame(34, {}, json.dumps(_HEARTBEAT).encode()))
    for number in range(20):
        found = [
            BatchEntry(0, b"x" * 100, property_string(UNIQ_KEY=f"{number:012}{n:020}", KEYS=f"k{n} frequent").encode())
            for n in range(500)
        ]
        assert (await asker.ask(json_frame(320, send_ext(), join_batch(found))))[0] == 0
    same = property_string(UNIQ_KEY="1" * 32).encode()
    for _ in range(20):
        found = [BatchEntry(0, b"x" * 10, same) for _ in range(500)]
        await asker.ask(json_frame(320, send_ext(), join_batch(found)))
    for number in range(7):
        for queue in range(WIDE_QUEUES):
            asker.connection.data_received(
                json_frame(
                    15, {"consumerGroup": GROUP, "topic": f"wide-{number}", "queueId": str(queue), "commitOffset": "0"}
                )
            )
        await asker.ask(json_frame(106, {}))
    for number in range(3_000):
        text = property_string(TRAN_MSG="true", UNIQ_KEY=f"{_ONE[:-4]}{number:04}", PGROUP=PRODUCER)
        await asker.ask(json_frame(310, send_ext(properties=text), b"x"))
    noted = _filled("HMQ_COMMENT\x01\x02", limits.PROPERTIES_BYTES_MAX - 200)
    for number in range(limits.TRANSACTIONS_LISTED_MAX):
        text = property_string(TRAN_MSG="true", UNIQ_KEY=f"{number:032}", PGROUP=NOTED)
        await asker.ask(json_frame(310, send_ext(NOTED, properties=noted + text), b"x"))
    for number in range(limits.QUERIES_MAX // 4):
        ext = {**REQUESTS[DECIDE][0], "query": f"idle-{number}", "run": f"r{number}"}
        asker.connection.data_received(json_frame(DECIDE, ext, b"[]"))
        if number % 64 == 63:
            await asker.settled()
    assert len(broker._sequencer.view.queries) == limits.QUERIES_MAX // 4
    store_uuid = broker._store.uuid  # type: ignore[union-attr]
    REQUESTS[29_015][0]["store"] = REQUESTS[29_016][0]["store"] = store_uuid
    REQUESTS[29_015][0]["topicId"] = str(broker._sequencer.view.topics_by_name[TOPIC].topic_id)
    asker.close()


async def prepare_batch(broker: Broker, batch: int) -> bytes:
    """A batch of the query with ``ATTEMPTS`` attempts of one half batch; returns the decision that makes it visible."""
    asker = Requester(broker)
    winners = []
    for attempt in range(ATTEMPTS):
        payload, count = build_payload(
            [HalfMessage(0, 0, b"x", b"")] * 2,
            topic=TOPIC, queue_id=attempt % 4, born_time_ms=1, born_host=_HOST, store_host=_store_host,
        )  # fmt: skip
        checksum = crc32(payload)
        ext = {
            "group": PRODUCER, "topic": TOPIC, "queueId": str(attempt % 4), "messages": str(count), "checksum": str(checksum),
            "index": "0", "query": QUERY, "batch": str(batch), "run": "r", "attempt": f"{attempt}.0",
        }  # fmt: skip
        asker.connection.data_received(json_frame(PREPARE_BATCH, ext, payload))
        if attempt % 64 == 63:
            await asker.settled()
        winners.append([f"{attempt}.0", 1, count, checksum])
    await asker.settled()
    asker.close()
    ext = {"group": PRODUCER, "query": QUERY, "batch": str(batch), "run": "r", "digest": "00" * 16}
    return json_frame(DECIDE, ext, json.dumps(winners).encode())
