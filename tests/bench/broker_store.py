"""A store as a broker writes it, of any size: the broker's own sequencer gets the commands, without a network."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from halfmq.broker.broker import Broker
from halfmq.broker.config import BrokerConfig
from halfmq.broker.services.send_commands import send_command
from halfmq.core.commands import EndTransaction, RequestedVerdict, SetTopic
from halfmq.core.decision import Sent
from halfmq.model import properties as props
from halfmq.model.records import DecidedBy
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.store import Durability

_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
#: Commands of one turn.
_CHUNK = 2_000


def write_broker_store(
    directory: Path, messages: int, body_bytes: int, *, queues: int = 8, segment_bytes: int, overlap: bool = True
) -> None:
    """``messages`` committed messages of topic ``bench``, every second one a half message of its own transaction.

    ``overlap``: bodies are random, but neighbours have all but one byte in common, which is quick to write, and which codecs compress.
    """
    asyncio.run(_write(directory, messages, body_bytes, queues, segment_bytes, overlap))


async def _write(
    directory: Path, messages: int, body_bytes: int, queues: int, segment_bytes: int, overlap: bool
) -> None:
    config = BrokerConfig(
        directory, settings=BrokerSettings(), port=0, name_port=0, segment_bytes=segment_bytes, durability=Durability.MEMORY,
        drain_ms=10, disk_reserve_bytes=0,
    )  # fmt: skip
    broker = Broker(config, RealDisk(), SystemClock(), SystemEntropy(), asyncio.get_running_loop())
    await broker.start()
    sequencer = broker._sequencer
    assert sequencer is not None
    sequencer.submit(SetTopic("bench", queues, queues, 6), lambda context, reply: None)
    # No two bodies are alike: Parquet would store equal ones once, in a dictionary.
    rng = random.Random(body_bytes)
    noise = rng.randbytes(messages + body_bytes) if overlap else b""
    for start in range(0, messages, _CHUNK):
        end = min(messages, start + _CHUNK)
        halves: list[tuple[str, Sent]] = []
        left = end - start
        done = asyncio.get_running_loop().create_future()

        def replied(context: str, reply: Any) -> None:
            nonlocal left
            assert isinstance(reply, Sent), reply
            if context:
                halves.append((context, reply))  # noqa: B023
            left -= 1
            if not left:
                done.set_result(None)  # noqa: B023

        for number in range(start, end):
            pairs = {"TAGS": "web", "KEYS": f"order-{number}", "UNIQ_KEY": f"7F000001{number:024X}", "WAIT": "true"}
            tx_id = ""
            if number % 2:
                tx_id = pairs["UNIQ_KEY"]
                pairs |= {"TRAN_MSG": "true", "PGROUP": "bench"}
            request: Any = SimpleNamespace(
                group="bench", topic="bench", default_queues=queues, queue_id=number % queues, sys_flag=0,
                born_time_ms=1, flag=0, properties=props.encode(pairs).decode(), reconsume_times=0,
                max_reconsume_times=-1, sent_again=False,
            )  # fmt: skip
            body = noise[number : number + body_bytes] if overlap else rng.randbytes(body_bytes)
            command: Any = send_command(0, _HOST, request, body)
            sequencer.submit_small(command, replied, tx_id)
        await done
        for tx_id, half in halves:
            verdict = EndTransaction(
                0, "bench", tx_id, half.queue_offset, half.log_offset, RequestedVerdict.COMMIT, DecidedBy.PRODUCER, "", None
            )  # fmt: skip
            sequencer.submit_small(verdict, None, None)
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    await broker.drain()
    broker.close()
