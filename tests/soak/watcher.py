"""Reads every queue of all topics from its start, in order, across restarts of the broker and of itself.

``python -m tests.soak.watcher DIRECTORY NAME LIFE [SUBSCRIPTION]``. Its positions are in a small file that is replaced
after the messages are recorded: if it is killed in between, it reads some messages again, at the same positions. SIGTERM:
read until every queue responds "nothing new", record the end of each, exit 0. It uses raw frames, so that none of our
clients is between it and the broker. With a subscription it therefore receives exactly what the broker's tag filter
passes; such a watcher records no ends of queues, since it does not receive every message.
"""

import asyncio
import os
import signal
import sys

import msgspec

from halfmq.bench.load import frame
from halfmq.model import properties as names
from halfmq.model.stored_message import body_crc_of, decode
from halfmq.testing.history.events import QueueRead, Seen
from tests.soak.notes import Counter, Notes, now_us
from tests.soak.plan import QUEUES, TOPICS, Plan, load_plan

Queue = tuple[str, int]


class _Answer(msgspec.Struct, gc=False):
    opaque: int
    code: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815


_decode = msgspec.json.Decoder(_Answer).decode


#: None of the examined messages has a subscribed tag; continue at nextBeginOffset.
_NO_MATCH = 20


def _next_offset(answer: _Answer) -> int:
    return int((answer.extFields or {})["nextBeginOffset"])


class Where(msgspec.Struct):
    """The range of one queue that was read: [first, at)."""

    first: int
    at: int


class Watcher:
    """``fresh``: begin at the current start of each queue, like a reader that starts at the end of the round."""

    def __init__(self, plan: Plan, name: str, notes: Notes, *, fresh: bool = False, subscription: str = "*") -> None:
        self._subscription = subscription
        self._port = plan.broker_port
        self._name = name
        self._notes = notes
        self._fresh = fresh
        self._file = plan.path / f"{name}.where"
        self._counter = Counter(plan.counter_file(name))
        self._queues: list[Queue] = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
        self._where = {queue: Where(0, 0) for queue in self._queues}
        if self._file.exists() and not fresh:
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[tuple[str, int, Where]])
            self._where = {(topic, queue): where for topic, queue, where in rows}
        self.stopping = fresh

    async def run(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    if await self._read_on(reader, writer):
                        break
                finally:
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
        if self._subscription != "*":
            return
        self._notes.write(
            *(
                QueueRead(t_us=now_us(), by=self._notes.by, reader=self._name, topic=topic, queue=queue,
                          first=where.first, end=where.at)
                for (topic, queue), where in self._where.items()
            )
        )  # fmt: skip

    async def _read_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pull from all queues in rounds. True when all are at their end and the watcher is to stop."""
        while True:
            stopping = self.stopping
            writer.write(b"".join(self._pull(number) for number in range(len(self._queues))))
            idle = 0
            events: list[Seen] = []
            try:
                for _ in self._queues:
                    async with asyncio.timeout(10):  # the broker may be paused; a new connection does no harm
                        length = int.from_bytes(await reader.readexactly(4), "big")
                        rest = await reader.readexactly(length)
                    body_at = 4 + int.from_bytes(rest[1:4], "big")
                    answer = _decode(rest[4:body_at])
                    idle += not self._look_at(self._queues[answer.opaque], answer, rest[body_at:], events)
            finally:
                # Also if the broker dies between two responses: received messages are not requested again.
                if events:
                    self._notes.write(*events)
                    self._counter.add()
            if idle < len(self._queues):
                self._save()
            elif stopping:
                return True
            if not stopping:
                await asyncio.sleep(0.1)  # larger responses: the services should generate the load

    def _save(self) -> None:
        rows = [(topic, queue, where) for (topic, queue), where in self._where.items()]
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(rows))
        os.replace(new, self._file)

    def _pull(self, number: int) -> bytes:
        topic, queue = self._queues[number]
        ext = {
            "consumerGroup": f"soak-{self._name}", "topic": topic, "queueId": str(queue),
            "queueOffset": str(self._where[topic, queue].at), "maxMsgNums": "500", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": self._subscription, "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        header = {"code": 11, "flag": 0, "language": "JAVA", "opaque": number, "version": 401, "extFields": ext}
        return frame(msgspec.json.encode(header))

    def _look_at(self, queue: Queue, answer: _Answer, body: bytes, events: list[Seen]) -> bool:
        """Whether there was something new."""
        where = self._where[queue]
        if answer.code == 0:
            self._take(queue, body, events)
            if self._subscription != "*":
                where.at = _next_offset(answer)
            return True
        if answer.code == _NO_MATCH and self._subscription != "*":
            before, where.at = where.at, _next_offset(answer)
            return where.at != before
        if answer.code == 21:
            moved = _next_offset(answer)
            if moved == where.at:
                return False
            if not (self._fresh and where.at == 0):
                # Retention was faster: the messages in between were not read, and the recorded range begins after them.
                print(f"overtaken: {queue} from {where.at} to {moved}", file=sys.stderr)
            where.first = where.at = moved
            return True
        if answer.code not in (17, 19, 20):
            print(f"refused: {queue} {answer.code} {answer.remark}", file=sys.stderr)
            return True
        return False

    def _take(self, queue: Queue, body: bytes, events: list[Seen]) -> None:
        where, at = self._where[queue], 0
        while at < len(body):
            message, offset, size = decode(body, at)
            text = names.to_dict(message.properties)
            tx = text.get(names.HMQ_TX_ID) or (text[names.UNIQ_KEY] if text.get(names.TRAN_MSG) == "true" else "")
            events.append(
                Seen(
                    t_us=now_us(), by=self._notes.by, reader=self._name, message=text.get(names.UNIQ_KEY, ""),
                    topic=message.topic, queue=message.queue_id, queue_offset=message.queue_offset, tx=tx,
                    index=int(text.get(names.HMQ_TX_INDEX, "0")), offset=offset, store_time_ms=message.store_time_ms,
                    crc=body_crc_of(message.body), key=text.get(names.SHARDING_KEY, ""),
                )
            )  # fmt: skip
            where.at = message.queue_offset + 1
            at += size


def main(directory: str, name: str, life: str, subscription: str = "*") -> None:
    plan = load_plan(directory)
    watcher = Watcher(plan, name, Notes(plan, f"{name}.{life}"), fresh=life == "fresh", subscription=subscription)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(watcher, "stopping", True))
        await watcher.run()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
