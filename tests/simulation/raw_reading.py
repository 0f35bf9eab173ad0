"""Raw reads, decoded as the Spark source does: the rows are those of pulls.

Some watchers read this way, during faults, and at the end every queue is compared with what pulls returned.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from halfmq.errors import ProtocolError
from halfmq.model.queue_reads import Position
from halfmq.model.stored_message import body_crc_of
from halfmq.model.text_fields import write_fields
from halfmq.spark.network import raw_reader
from halfmq.spark.plan.partitions import QueueRange
from halfmq.spark.rows.stored_rows import record_batch
from halfmq.testing.history.events import AnyEvent, Seen
from halfmq.wire.remoting import position
from halfmq.wire.remoting.codes import HMQ_POSITION, HMQ_RAW_READ
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.raw_read import RawReadFields, decode_found
from tests.simulation.promises import WHOLE, Violation
from tests.simulation.raw_connection import RawLine
from tests.support.raw_client import Answer
from tests.support.virtual_loop import ProcessLoop

RAW: Final = "raw"
#: Faults after which messages may be missing.
_DAMAGE: Final = ("rot", "rot_at_rest", "segment_lost")
_BYTES: Final = (1, 400, 3_000, 1 << 20)
_COLUMNS: Final = ("value", "message_id", "transaction_id", "timestamp", "properties")


class Read(NamedTuple):
    """Messages of one response. ``after``: where to continue. ``lost``: what the reader is told of messages that it cannot have."""

    found: list[Seen]
    after: int
    lost: list[str]


class RawReading:
    """One process that reads raw on one connection. ``now_us``: current time of the history."""

    def __init__(
        self, line: RawLine, rng: random.Random, counts: Counter[str], by: str, reader: str, now_us: Callable[[], int]
    ) -> None:
        self._line = line
        self._rng = rng
        self._counts = counts
        self._by = by
        self._reader = reader
        self._now_us = now_us

    async def bounds(self, topics: tuple[str, ...], timeout_s: float = 3.0) -> Position | None:
        """None: the broker does not answer that now. Raises LineLost."""
        answer = await self._line.ask(HMQ_POSITION, position.request_ext(topics), timeout_s=timeout_s)
        return position.decode_answer(answer.ext, answer.body) if answer.code == 0 else None

    async def read(self, store: str, one: QueueRange, timeout_s: float = 3.0) -> list[Read]:
        """The first messages of the range, in up to three responses: requests that continue are in flight with the first one.

        Raises:
            LineLost: the connection is unusable.
            Violation: a response is malformed, a checksum is wrong, or messages are said to be lost though no damage was done.
        """
        fields = RawReadFields(
            RAW, store, one.topic, one.topic_id, one.queue, one.start, one.end, self._rng.choice(_BYTES),
            int(self._rng.random() < 0.7),
        )  # fmt: skip
        following = replace(fields, first=0, continues=1)
        asked = [fields, *[following] * self._rng.randrange(3)]
        answers = await asyncio.gather(
            *(self._line.ask(HMQ_RAW_READ, write_fields(each), timeout_s=timeout_s) for each in asked)
        )
        reads: list[Read] = []
        at = one.start
        for number, answer in enumerate(answers):
            self._counts[f"raw read{' that continues' if number else ''}, answer {answer.code}"] += 1
            read = self._decoded(answer, one, at)
            if read is None:
                break
            if read.lost and not any(self._counts[f"fault {what}"] for what in _DAMAGE):
                raise Violation(f"Raw read: of {one.in_words()} at {at}: {read.lost}")
            reads.append(read)
            at = read.after
            if answer.code != 0:
                break
        return reads

    def _decoded(self, answer: Answer, one: QueueRange, at: int) -> Read | None:
        """None: nothing is said about messages."""
        following = int(answer.ext.get("nextBeginOffset", -1))
        if answer.code == 21:
            return Read([], following, [])
        if answer.code == 1 and following == at:
            return Read([], at + 1, [f"unreadable: {answer.remark}"])
        if answer.code != 0:
            return None
        lost: list[str] = []
        reader = raw_reader.RawReader(cast(Any, None), cast(Any, None), RAW)
        try:
            response = reader._verified(
                Request(code=0, ext=answer.ext, opaque=answer.opaque), memoryview(answer.body), one, at
            )
        except ProtocolError as error:
            raise Violation(f"Raw read: {one.in_words()} at {at}: {error}") from error
        self._counts["raw read of whole half batches"] += decode_found(answer.ext).half_batches
        if response is None:
            if not reader._suspects:
                raise Violation(f"Raw read: a wrong checksum in a response for {one.in_words()} at {at}")
            return Read([], following, [f"half batches with another checksum: {reader._suspects}"])
        rows = raw_reader._rows(response, one, at, lost.append)
        if lost:
            return Read([], following, lost)
        batch = record_batch(rows, _COLUMNS, lambda offset, why: lost.append(f"{offset}: {why}"))
        if lost:
            return Read([], following, lost)
        log_offsets = response.entries["offset"].tolist()
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        found = []
        for queue_offset, log_offset, row in zip(
            rows.queue_offsets.tolist(), log_offsets, zip(*columns, strict=True), strict=True
        ):
            value, message, transaction, time, properties = row
            pairs = dict(properties)
            found.append(
                Seen(
                    t_us=self._now_us(), by=self._by, reader=self._reader, message=message, topic=one.topic,
                    queue=one.queue, queue_offset=queue_offset, tx=transaction or "", index=int(pairs.get("HMQ_TX_INDEX", "0")),
                    offset=log_offset, store_time_ms=round(time.timestamp() * 1_000), crc=body_crc_of(value),
                    key=pairs.get("__SHARDINGKEY", ""),
                )
            )  # fmt: skip
        return Read(found, following, [])


async def compare(
    process: ProcessLoop, network: Any, events: list[AnyEvent], queues: list[tuple[str, int]], counts: Counter[str],
    seed: int,
) -> None:  # fmt: skip
    """Read every queue, and compare with what pulls returned. Call it after ``final_checks.read_everything``.

    Raises:
        Violation: a message is missing, or differs.
    """
    pulled: dict[tuple[str, int], dict[int, Seen]] = {}
    for event in events:
        if type(event) is Seen and event.reader == WHOLE:
            pulled.setdefault((event.topic, event.queue), {})[event.queue_offset] = event
    line = await RawLine.open(process, network, "reader")
    reading = RawReading(line, random.Random(f"{seed}/raw reads"), counts, process.name, WHOLE, lambda: 0)
    bounds = await reading.bounds(tuple(dict(queues)), 30.0)
    assert bounds is not None
    for topic, queue in queues:
        known = bounds.topics[topic]
        at, end = known.queues[queue]
        there = {offset: one for offset, one in pulled.get((topic, queue), {}).items() if offset >= at}
        while at < end:
            reads = await reading.read(bounds.store, QueueRange(topic, known.topic_id, "", queue, at, end), 30.0)
            if not reads:
                raise Violation(f"Raw read: nothing of {topic}/{queue} from {at} to {end}")
            for read in reads:
                for one in read.found:
                    expected = there.pop(one.queue_offset, None)
                    counts["look raw read"] += 1
                    if expected is None or one != msgspec.structs.replace(expected, t_us=one.t_us, by=one.by):
                        raise Violation(f"Raw read: {one}, and pulled was {expected}", one.message)
                if read.lost or not read.found:  # damaged, or trimmed meanwhile
                    there = {offset: one for offset, one in there.items() if offset >= read.after}
                at = read.after
        if there:
            raise Violation(f"Raw read: {topic}/{queue} has no {sorted(there)}")
    line.close()
