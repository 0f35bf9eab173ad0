"""Each kind of record: its size, its golden bytes (``tests/vectors/records.txt``), and that it is read back as it was."""

from typing import cast

import pytest
from msgspec.structs import replace
from tests.support import log_records as make
from tests.support.log_records import message_record_size
from tests.support.vectors import vectors

from halfmq.errors import WrongVersion
from halfmq.model import message_facts, stored_message
from halfmq.model.coordinator import Coordinator
from halfmq.model.half_batch import delays_in
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    COPIED_DELAYED_MESSAGE_AT,
    COPIED_HALF_MESSAGE_AT,
    DELAYED_MESSAGE_AT,
    HALF_BATCH_PAYLOAD_AT,
    MESSAGE_AT,
    CopiedDelayed,
    CopiedHalf,
    CopiedHalfBatch,
    HalfBatch,
    Kind,
)
from halfmq.store.record_codec import (
    ENCODE_BY_TYPE,
    Pieces,
    body_place,
    decode_records,
    half_identity,
    message_at,
    operator_acted_before,
    split_message,
)

SOURCE = 4_096
SOURCE_BATCH = 8_192
SOURCE_OF_COORDINATOR = 12_288
SOURCE_DELAYED_BATCH = 16_384
SOURCE_OF_USER = 20_480
SOURCE_BATCH_OF_USER = 24_576
AT = 1_000


def source_message(source: int = SOURCE) -> stored_message.StoredMessage:
    more = {"HMQ_COORDINATOR": "12 transfers"} if source == SOURCE_OF_COORDINATOR else {}
    if source == SOURCE_OF_USER:
        more = {"HMQ_USER": "shop"}
    properties = make.half_properties("T9", TAGS="new", TIMER_DELAY_MS="700", HMQ_TX_ID="app-9", **more)
    return make.message(properties=properties, queue_offset=5)


def copy(source: int) -> Pieces:
    if source == SOURCE_BATCH:
        return b"", cast(HalfBatch, make.half_batch()(0)).payload, b""
    if source == SOURCE_DELAYED_BATCH:
        return b"", cast(HalfBatch, DELAYED_BATCH(0)).payload, b""
    if source == SOURCE_BATCH_OF_USER:
        return b"", cast(HalfBatch, BATCH_OF_USER(0)).payload, b""
    assert source in (SOURCE, SOURCE_OF_COORDINATOR, SOURCE_OF_USER)
    return stored_message.encode(source_message(source), source)


BATCH_OF_USER = make.half_batch(query_topic="orders", stream="0af-9", user="spark")
BATCH_OF_TOPIC = make.half_batch(query_topic="orders", stream="0af-9")
DELAYED_BATCH = make.half_batch(delays_ms=(700, 1, 86_400_000), KEYS="k1 k2", TAGS="red")
SOURCE_BYTES = sum(map(len, copy(SOURCE)))

KINDS: dict[str, make.Make] = {
    "message": make.plain(),
    "half": make.half(half_index=5, index=1, count=3),
    "copied_half": make.copied_half(SOURCE, SOURCE_BYTES, half_index=5),
    "committed": make.committed(make.ref(64, 0), make.ref(300, 1, due_ms=1_700_000_050_000)),
    "rolled_back": make.rolled_back(5, 6, 2**40),
    "checked": make.checked(checks=4),
    "delayed": make.delayed(),
    "copied_delayed": make.copied_delayed(SOURCE, SOURCE_BYTES, half_index=8),
    "released": make.released(make.ref(64, -1)),
    "topic_set": make.topic_set(),
    "topic_deleted": make.topic_deleted(),
    "group_set": make.group_set(),
    "offsets": make.offsets_committed(),
    "epoch_started": make.epoch_started(),
    "base": make.base(12_345),
    "trim": make.trim(65_536),
    "producer_set": make.producer_set(),
    "group_deleted": make.group_deleted(),
    "parked": make.parked(),
    "operator_acted": make.operator_acted(),
    "half_batch": make.half_batch(KEYS="k1 k2", TAGS="red"),
    "copied_half_batch": make.copied_half_batch(SOURCE_BATCH, cast(HalfBatch, make.half_batch()(0))),
    "decided": make.decided(make.batch_ref(64), make.batch_ref(2_000, 6), lost=(7, 2**40)),
    "query_forgotten": make.query_forgotten(),
    "coordinator_epoch": make.coordinator_epoch(),
    "compared": make.compared(),
    "user_set": make.user_set(),
    "setting_set": make.setting_set(),
    "restored": make.restored(),
}
#: Further forms of these kinds: name -> kind, record.
FORMS: dict[str, tuple[str, make.Make]] = {
    "half_batch_with_delays": ("half_batch", DELAYED_BATCH),
    "copied_half_batch_with_delays": (
        "copied_half_batch", make.copied_half_batch(SOURCE_DELAYED_BATCH, cast(HalfBatch, DELAYED_BATCH(0))),
    ),
    "half_batch_with_topic": ("half_batch", BATCH_OF_TOPIC),
    "copied_half_batch_with_topic": (
        "copied_half_batch", make.copied_half_batch(SOURCE_BATCH, cast(HalfBatch, BATCH_OF_TOPIC(0))),
    ),
    "half_of_a_coordinator": ("half", make.half(half_index=5, count=1, HMQ_COORDINATOR="12 transfers")),
    "copied_half_of_a_coordinator": (
        "copied_half", make.copied_half(SOURCE_OF_COORDINATOR, sum(map(len, copy(SOURCE_OF_COORDINATOR))), half_index=5),
    ),
    "half_of_a_user": ("half", make.half(half_index=5, HMQ_USER="shop")),
    "copied_half_of_a_user": (
        "copied_half", make.copied_half(SOURCE_OF_USER, sum(map(len, copy(SOURCE_OF_USER))), half_index=5),
    ),
    "committed_by_a_user": ("committed", make.committed(make.ref(64, 0), make.ref(300, 1), user="shop")),
    "rolled_back_by_a_user": ("rolled_back", make.rolled_back(5, user="s" * 64)),
    "half_batch_of_a_user": ("half_batch", BATCH_OF_USER),
    "copied_half_batch_of_a_user": (
        "copied_half_batch", make.copied_half_batch(SOURCE_BATCH_OF_USER, cast(HalfBatch, BATCH_OF_USER(0))),
    ),
    "decided_by_a_user": (
        "decided", make.decided(make.batch_ref(64), lost=(7,), is_last=True, query_topic="*", stream="s-1", user="spark"),
    ),
    "user_removed": ("user_set", make.user_set(user=None)),
    "decided_with_topic": ("decided", make.decided(make.batch_ref(64), lost=(7,), query_topic="*", stream="s-1")),
    "decided_with_delays": ("decided", make.decided(make.batch_ref(64, queue_offset=-1), make.batch_ref(2_000, 6))),
}  # fmt: skip
GOLDEN = KINDS | {name: of for name, (_, of) in FORMS.items()}


def encoded(name: str) -> bytes:
    pieces = ENCODE_BY_TYPE[type(GOLDEN[name](AT))](GOLDEN[name](AT), copy)
    return pieces if isinstance(pieces, bytes) else b"".join(pieces)


def as_read(record: object) -> object:
    """What a redo gives for ``record``: carried records name their own place, and what their message says."""
    if isinstance(record, CopiedHalf):
        properties = source_message(record.source).properties
        half = replace(
            record.half,
            tag_hash=message_facts.tag_hash_of(properties),
            key_hash=message_facts.key_hash_of(properties),
            delay=700,
        )
        return replace(
            record,
            source=record.offset,
            half=half,
            tx_id="app-9",
            coordinator=Coordinator("transfers", 12) if record.source == SOURCE_OF_COORDINATOR else None,
            user="shop" if record.source == SOURCE_OF_USER else "",
        )
    if isinstance(record, CopiedDelayed | CopiedHalfBatch):
        return replace(record, source=record.offset)
    return record


def test_every_kind_is_here() -> None:
    assert {name.upper() for name in KINDS} == {kind.name for kind in Kind}


@pytest.mark.parametrize("name", GOLDEN)
def test_encoded_size_is_the_stated_size(name: str) -> None:
    assert len(encoded(name)) == GOLDEN[name](AT).size


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_are_the_golden_bytes(name: str) -> None:
    assert encoded(name).hex() == vectors("records")[name].hex()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_are_read_back(name: str) -> None:
    data = vectors("records")[name]
    assert decode_records(b"xyz" + data + b"tail", 3, 3 + len(data), AT) == [as_read(GOLDEN[name](AT))]


def test_last_decision_of_a_query_is_a_flag() -> None:
    record = make.decided(make.batch_ref(64), is_last=True)(AT)
    data = ENCODE_BY_TYPE[type(record)](record, copy)
    assert isinstance(data, bytes)
    assert data[14:16] == b"\x00\x01"
    assert decode_records(data, 0, len(data), AT) == [record]


def test_delays_of_a_half_batch_are_read_with_a_flag_and_not_without_it() -> None:
    data = encoded("half_batch_with_delays")
    (record,) = decode_records(data, 0, len(data), AT)
    assert isinstance(record, HalfBatch)
    assert delays_in(record.batch.delayed_entries) == (700, 1, 86_400_000)
    flags_at = HALF_BATCH_PAYLOAD_AT - 4
    assert data[flags_at] == 3
    (without,) = decode_records(data[:flags_at] + b"\x01" + data[flags_at + 1 :], 0, len(data), AT)
    assert isinstance(without, HalfBatch)
    assert without.batch.delayed_entries == b""
    assert without.payload == record.payload


def test_all_kinds_in_a_row_are_read_back() -> None:
    records = make.laid_out(AT, list(GOLDEN.values()))
    data = bytearray()
    for record in records:
        pieces = ENCODE_BY_TYPE[type(record)](record, copy)
        data += pieces if isinstance(pieces, bytes) else b"".join(pieces)
    assert decode_records(bytes(data), 0, len(data), AT + BATCH_HEADER_BYTES) == list(map(as_read, records))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("message", MESSAGE_AT),
        ("half", MESSAGE_AT),
        ("delayed", DELAYED_MESSAGE_AT),
        ("copied_half", COPIED_HALF_MESSAGE_AT),
        ("copied_delayed", COPIED_DELAYED_MESSAGE_AT),
    ],
)
def test_the_stored_message_lies_where_message_at_says_and_names_its_record(name: str, place: int) -> None:
    data = encoded(name)
    assert message_at(data[0]) == place
    message, physical_offset, size = stored_message.decode(data, place)
    assert physical_offset == AT
    assert place + size == len(data)
    assert message.body == b"hello"


def test_records_without_a_message_have_no_message_at() -> None:
    assert message_at(Kind.COMMITTED) == message_at(Kind.BASE) == message_at(200) == 0


def test_carried_messages_keep_everything_but_their_place() -> None:
    message, _, _ = stored_message.decode(encoded("copied_half"), COPIED_HALF_MESSAGE_AT)
    assert message == source_message()


@pytest.mark.parametrize("born", [make.HOST_V4, make.HOST_V6])
@pytest.mark.parametrize("store", [make.HOST_V4, make.HOST_V6])
@pytest.mark.parametrize("topic", ["t", "%RETRY%" + "g" * 120, "%RETRY%" + "g" * 121])
def test_hosts_of_both_lengths_and_long_topics(born: bytes, store: bytes, topic: str) -> None:
    properties = make.half_properties("T1")
    message = make.message(topic=topic, born_host=born, store_host=store, properties=properties, queue_offset=4)
    size = len(b"".join(stored_message.encode(message, 0))) + MESSAGE_AT
    for record in (
        make.half_record(AT, size, 7, message, 4, make.GROUP, "T1", 0, 1),
        make.message_record(AT, size, 7, message, "T1"),
    ):
        pieces = ENCODE_BY_TYPE[type(record)](record, copy)
        data = b"".join(pieces)
        assert len(data) == size
        assert decode_records(data, 0, len(data), AT) == [record]
        place = body_place(data, MESSAGE_AT)
        assert data[place.start : place.end] == b"hello"
        assert place.crc == message.body_crc
        assert split_message(data, MESSAGE_AT, size - MESSAGE_AT)[1:] == (b"hello", pieces[2])  # type: ignore[index]


def test_an_empty_body_and_no_properties() -> None:
    message = make.message(body=b"", properties=b"")
    record = make.message_record(AT, message_record_size("orders", 0, 0), 7, message, "")
    data = b"".join(ENCODE_BY_TYPE[type(record)](record, copy))  # type: ignore[arg-type]
    assert decode_records(data, 0, len(data), AT) == [record]


def test_a_half_is_known_by_our_id_before_the_unique_key() -> None:
    assert half_identity(make.half_properties("U1")) == (make.GROUP, "U1")
    assert half_identity(make.half_properties("U1", HMQ_TX_ID="app-1")) == (make.GROUP, "app-1")
    assert half_identity(b"") == ("", "")


def test_a_kind_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(WrongVersion, match="kind 99 at log offset 1000"):
        decode_records(b"\x63\0\0\0\0\0\0\x08", 0, 8, AT)


def test_more_names_than_are_kept_are_still_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.store.record_codec._NAMES_KEPT_MAX", 2)
    for number in range(5):
        record = make.plain(topic=f"topic-{number}")(AT)
        data = b"".join(ENCODE_BY_TYPE[type(record)](record, copy))  # type: ignore[arg-type]
        assert decode_records(data, 0, len(data), AT) == [record]


def test_who_acted_is_found_from_its_end_and_nothing_else_is_taken_for_it() -> None:
    """Goal: from where the next record begins, exactly this record is found. Method: each kind of record in front of that
    place, and this one cut, shifted and changed in each byte that says what it is."""
    acted = encoded("operator_acted")
    record = KINDS["operator_acted"](AT)
    filler = b"\xff" * 100
    assert operator_acted_before(filler + acted, 100 + len(acted), AT + len(acted)) == record
    assert operator_acted_before(acted, len(acted), AT + len(acted)) == record
    for name in KINDS:
        if name != "operator_acted":
            other = filler + encoded(name)
            assert operator_acted_before(other, len(other), AT) is None, name
    for cut in range(1, len(acted)):
        assert operator_acted_before(acted, len(acted) - cut, AT) is None
        assert operator_acted_before(acted[cut:], len(acted) - cut, AT) is None
    for at in (0, *range(4, 8), *range(10, 18), *range(len(acted) - 4, len(acted))):
        changed = bytearray(acted)
        changed[at] ^= 0x41
        assert operator_acted_before(bytes(changed), len(acted), AT + len(acted)) is None, at
    broken = acted.replace("\u00fc".encode(), b"\xff\xff")
    assert operator_acted_before(broken, len(acted), AT + len(acted)) is None
