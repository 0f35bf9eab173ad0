"""A consumer over raw frames that reads every queue of some topics in order, across restarts of the broker.

Run as a process: ``python -m tests.crash.watcher --port P --output FILE --topics A,B --queues N``, with ``--tag TAG`` for the
messages that have one. Each line of FILE is one message seen: ``topic queue offset unique_id transaction_id``. An answer that would skip messages (21, offset moved) is written as a line
``GAP topic queue from to``. SIGTERM: read on until every queue answers "nothing new", then exit 0.
"""

import argparse
import asyncio
import os
import signal

import msgspec

from halfmq.bench.load import frame
from halfmq.model import properties
from halfmq.model.stored_message import decode as decode_message


class _Answer(msgspec.Struct, gc=False):
    opaque: int
    code: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815


_decode = msgspec.json.Decoder(_Answer).decode


class Watcher:
    def __init__(self, port: int, output: str, topics: list[str], queues: int, tag: str = "*") -> None:
        self.port = port
        self.tag = tag
        self.file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.offsets = {(topic, queue): 0 for topic in topics for queue in range(queues)}
        self.seen = 0
        self.stopping = False

    async def run(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    if await self._read_on(reader, writer):
                        return
                finally:
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)

    async def _read_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask all queues in rounds; True when all are at their end and we are to stop."""
        while True:
            stopping = self.stopping
            asked = list(self.offsets)
            writer.write(b"".join(self._pull(topic, queue) for topic, queue in asked))
            idle = 0
            waiting = set(range(len(asked)))
            while waiting:  # in any order: a refusal may overtake an answer that had to be read
                length = int.from_bytes(await reader.readexactly(4), "big")
                rest = await reader.readexactly(length)
                body_at = 4 + int.from_bytes(rest[1:4], "big")
                answer = _decode(rest[4:body_at])
                waiting.remove(answer.opaque)  # KeyError: answered twice
                topic, queue = asked[answer.opaque]
                idle += not self._look_at(topic, queue, answer, rest[body_at:])
            if idle == len(asked):
                if stopping:
                    return True
                await asyncio.sleep(0.05)
            elif not stopping:
                await asyncio.sleep(0.02)  # fuller answers: the load shall be the services'

    def _pull(self, topic: str, queue: int) -> bytes:
        ext = {
            "consumerGroup": "crash-watcher", "topic": topic, "queueId": str(queue),
            "queueOffset": str(self.offsets[topic, queue]), "maxMsgNums": "1000", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": self.tag, "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        opaque = list(self.offsets).index((topic, queue))
        header = {"code": 11, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 401, "extFields": ext}
        return frame(msgspec.json.encode(header))

    def _look_at(self, topic: str, queue: int, answer: _Answer, body: bytes) -> bool:
        """Whether there was something new."""
        if answer.code == 0:
            self._take(topic, queue, body)
            if self.tag != "*":
                self.offsets[topic, queue] = int((answer.extFields or {})["nextBeginOffset"])
            return True
        if answer.code == 20 and self.tag != "*":
            before, self.offsets[topic, queue] = (
                self.offsets[topic, queue],
                int((answer.extFields or {})["nextBeginOffset"]),
            )
            return before != self.offsets[topic, queue]
        if answer.code == 21:
            offset = self.offsets[topic, queue]
            moved = int((answer.extFields or {})["nextBeginOffset"])
            self.offsets[topic, queue] = moved
            if moved != offset:
                os.write(self.file, f"GAP {topic} {queue} {offset} {moved}\n".encode())
                return True
        elif answer.code not in (17, 19, 20):
            os.write(self.file, f"REFUSED {answer.code} {answer.remark}\n".encode())
        return False

    def _take(self, topic: str, queue: int, body: bytes) -> None:
        at, lines, offset = 0, [], self.offsets[topic, queue]
        while at < len(body):
            message, _, size = decode_message(body, at)
            if message.queue_offset != offset and self.tag == "*":
                lines.append(f"GAP {topic} {queue} {offset} {message.queue_offset}")
            unique = properties.find(message.properties, "UNIQ_KEY") or b"-"
            tx_id = properties.find(message.properties, "HMQ_TX_ID") or b"-"
            lines.append(f"{topic} {queue} {message.queue_offset} {unique.decode()} {tx_id.decode()}")
            offset = message.queue_offset + 1
            at += size
        self.offsets[topic, queue] = offset
        self.seen += len(lines)
        os.write(self.file, ("\n".join(lines) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--topics", required=True)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--tag", default="*")
    arguments = parser.parse_args()
    watcher = Watcher(arguments.port, arguments.output, arguments.topics.split(","), arguments.queues, arguments.tag)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(watcher, "stopping", True))
        await watcher.run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
