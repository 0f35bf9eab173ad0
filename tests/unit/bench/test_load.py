"""The load generator against the baseline server: every thread's transactions are counted once, and it ends by itself."""

import asyncio
import json

import pytest
from tests.support.waiting import soon

from halfmq.bench import load
from halfmq.bench.baseline import BaselineProtocol
from halfmq.bench.load import Plan
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode, encode_response


async def _drive(plan: Plan, protocol: type[asyncio.Protocol] = BaselineProtocol) -> load.Counts:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        connections, counts, finished = await load.connect(plan, "127.0.0.1", port)
        for connection in connections:
            connection.measuring = True
            connection.start()
        await soon(finished.wait())
        for connection in connections:
            connection.transport.close()
        return counts
    finally:
        server.close()


async def test_every_transaction_is_prepared_once_and_ended_once() -> None:
    counts = await _drive(Plan(threads=8, connections=2, body_bytes=100, acked_end=True, transactions_max=400))
    assert counts.committed == 400
    assert len(counts.prepare_us) == 400
    assert len(counts.commit_us) == 400
    assert counts.refused == 0


async def test_shares_of_verdicts_follow_the_plan() -> None:
    plan = Plan(threads=4, body_bytes=10, rollback_share=0.5, unknown_share=0.2, transactions_max=1_000, seed=7)
    counts = await _drive(plan)
    assert counts.committed + counts.rolled_back + counts.unknown == 1_000
    assert 400 < counts.rolled_back < 600
    assert 130 < counts.unknown < 270


async def test_one_way_ends_are_not_waited_for() -> None:
    counts = await _drive(Plan(threads=2, body_bytes=10, transactions_max=50))
    assert counts.committed == 50
    assert counts.commit_us == []


class _RefusesEnds(BaselineProtocol):
    """Answers each END_TRANSACTION with an error, whose text is the topic that it names."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = FrameSplitter()

    def data_received(self, data: bytes) -> None:
        for frame in self._requests.feed(data):
            request = decode(frame)
            if request.code == RequestCode.END_TRANSACTION:
                header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
                text = f"topic {header['extFields'].get('topic')}"
                self.transport.write(encode_response(request, ResponseCode.SYSTEM_ERROR, text))
            else:
                super().data_received(len(frame).to_bytes(4, "big") + frame)


@pytest.mark.parametrize(("names_topic", "text"), [(False, "topic None"), (True, "topic BenchTx")])
async def test_a_refused_end_is_counted_with_its_text(names_topic: bool, text: str) -> None:
    plan = Plan(threads=2, body_bytes=10, acked_end=True, end_names_topic=names_topic, transactions_max=50)
    counts = await _drive(plan, _RefusesEnds)
    assert counts.refusals == {f"1 {text}": 50}
    assert counts.commit_us == []
