"""Division of a large transaction into half batches."""

from zlib import crc32

from tests.support.payloads import verify_payload

from halfmq.client.prepare import BATCH_BYTES, BatchMessage, divide, prepare_frame
from halfmq.client.routing import DEFAULT_QUEUES
from halfmq.model.half_batch import Verified
from halfmq.model.text_fields import read_fields
from halfmq.wire.remoting.half_batches import PrepareFields
from halfmq.wire.remoting.header import decode

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def message(number: int, queue: int, body: bytes = b"body", topic: str = "T") -> BatchMessage:
    return BatchMessage(number, topic, queue, body, b"UNIQ_KEY\x01%d\x02" % number)


def divided(*messages: BatchMessage) -> list[tuple[str, int, tuple[int, ...]]]:
    found = divide(messages, born_time_ms=1, born_host=HOST, store_host=HOST)
    for batch in found:
        verified = verify_payload(
            batch.payload, len(batch.numbers), topic=batch.topic, queue_id=batch.queue, store_host=HOST,
            body_bytes_max=1 << 22,
        )  # fmt: skip
        assert isinstance(verified, Verified), verified
    return [(batch.topic, batch.queue, batch.numbers) for batch in found]


def test_messages_of_a_queue_stay_together_and_in_order() -> None:
    assert divided(message(0, 1), message(1, 0), message(2, 1), message(3, 1, topic="U"), message(4, 0)) == [
        ("T", 1, (0, 2)), ("T", 0, (1, 4)), ("U", 1, (3,)),
    ]  # fmt: skip


def test_half_batch_ends_before_it_is_too_large_and_a_large_message_has_its_own() -> None:
    third = bytes(BATCH_BYTES // 3)
    assert [numbers for _, _, numbers in divided(*[message(number, 0, third) for number in range(5)])] == [
        (0, 1), (2, 3), (4,),
    ]  # fmt: skip
    large = bytes(3 * BATCH_BYTES)
    assert [numbers for _, _, numbers in divided(message(0, 0), message(1, 0, large), message(2, 0, large))] == [
        (0,), (1,), (2,),
    ]  # fmt: skip


def test_frame_says_what_the_half_batch_is() -> None:
    (batch,) = divide([message(0, 3), message(1, 3)], born_time_ms=1, born_host=HOST, store_host=HOST)
    request = decode(memoryview(prepare_frame(7, "G", "T1", 1, 4, batch))[4:])
    fields = read_fields(PrepareFields, request.ext)
    assert (fields.group, fields.tx_id, fields.index, fields.count, fields.queue_id) == ("G", "T1", 1, 4, 3)
    assert (fields.messages, fields.checksum, bytes(request.body)) == (2, crc32(batch.payload), batch.payload)
    assert fields.default_queues == DEFAULT_QUEUES, "a topic has as many queues as if a single message had created it"
