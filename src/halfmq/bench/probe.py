"""Latency from commit to consumer: one transaction at a time, received by a long-polling pull on another connection."""

import asyncio
import time

from halfmq.bench import load
from halfmq.bench.load import COMMIT, end_frame, frame, split
from halfmq.client.connector import TcpConnector
from halfmq.errors import EnvironmentFailed
from halfmq.model.address import Address

_TOPIC = "BenchProbe"
_GROUP = "bench-probe"


class _Peer(asyncio.Protocol):
    """A connection that puts each response into a queue: code, fields, time of arrival (ns)."""

    def __init__(self) -> None:
        self.pending = b""
        self.answers: asyncio.Queue[tuple[int, dict[str, str], int]] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        answers, self.pending = split(self.pending + data)
        for answer in answers:
            if answer.flag & 1:
                self.answers.put_nowait((answer.code, answer.extFields or {}, time.perf_counter_ns()))


async def measure(host: str, port: int, stop: asyncio.Event, interval_seconds: float = 0.02) -> list[int]:
    """Until ``stop`` is set: latencies from writing END_TRANSACTION to reading the pull response, microseconds.

    Raises:
        EnvironmentFailed: the broker rejects transactions.
    """
    producer, consumer = _Peer(), _Peer()
    await TcpConnector(None).connect(Address(host, port), lambda: producer)
    await TcpConnector(None).connect(Address(host, port), lambda: consumer)
    latencies: list[int] = []
    offset, serial, body = 0, 0, b"probe"
    try:
        while not stop.is_set():
            serial += 1
            unique = f"{time.time_ns():032X}"
            half = (
                f'{{"code":310,"extFields":{{"a":"{_GROUP}","b":"{_TOPIC}","c":"TBW102","d":"1","e":"0","f":"4","g":"0","h":"0",'
                f'"i":"TRAN_MSG\\u0001true\\u0002UNIQ_KEY\\u0001{unique}\\u0002PGROUP\\u0001{_GROUP}","j":"0","k":"false","m":"false"}},'
                f'"flag":0,"language":"JAVA","opaque":{serial},"version":401}}'
            ).encode()
            producer.transport.write(frame(half, body))
            code, fields, _ = await producer.answers.get()
            if code != 0:
                raise EnvironmentFailed(
                    f"the broker rejects transactions with code {code}", hint="check the free space of --directory"
                )
            pull = (
                f'{{"code":11,"extFields":{{"consumerGroup":"{_GROUP}","topic":"{_TOPIC}","queueId":"0","queueOffset":"{offset}",'
                '"maxMsgNums":"32","sysFlag":"6","commitOffset":"0","suspendTimeoutMillis":"15000","subscription":"*","subVersion":"0"},'
                f'"flag":0,"language":"JAVA","opaque":{serial},"version":401}}'
            ).encode()
            consumer.transport.write(frame(pull))
            await asyncio.sleep(interval_seconds)  # by now the broker has parked the pull
            log_offset = str(int(fields["msgId"][-16:], 16))
            end = end_frame(_GROUP, log_offset, unique, fields["queueOffset"], COMMIT, 2, serial)
            started = time.perf_counter_ns()
            producer.transport.write(end)
            while True:
                code, fields, arrived = await consumer.answers.get()
                if code == 0:
                    break
                # 19: no new message in time; 21: the offset is outside of the queue. Pull again from the returned offset.
                offset = int(fields.get("nextBeginOffset", offset))
                consumer.transport.write(
                    frame(pull.replace(b'"queueOffset":"0"', f'"queueOffset":"{offset}"'.encode()))
                )
            offset = int(fields["nextBeginOffset"])
            latencies.append((arrived - started) // 1_000)
    finally:
        await load.close(producer.transport, consumer.transport)
    return latencies
