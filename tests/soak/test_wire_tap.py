"""The tap records what is sent and received, in that order, and passes everything on to the client."""

import asyncio
from pathlib import Path

import pytest

from halfmq import AsyncClient, Outcome
from halfmq.client.outgoing import compose
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import body_crc_of
from halfmq.testing.history.events import Answered, AnyEvent, CheckReceived, CheckUnanswered, EndAsked, HalfSent
from halfmq.testing.history.reader import FileSource
from tests.soak.notes import Notes
from tests.soak.plan import Plan
from tests.soak.wire_tap import TappedConnector
from tests.support.in_process import serving

pytestmark = pytest.mark.slow


def plan_in(directory: Path) -> Plan:
    plan = Plan(
        directory=str(directory), seed=1, broker_port=0, name_port=0, sqlite_url="", postgres_url="", jdbc_url="",
        rate=1, retention_s=1, patient_s=1,
    )  # fmt: skip
    plan.save()
    return plan


async def test_a_transaction_and_a_check_are_recorded_as_sent_and_received(tmp_path: Path) -> None:
    notes = Notes(plan_in(tmp_path), "service")
    happened: list[str] = []
    answers = [Outcome.UNKNOWN, Outcome.ROLLBACK]
    settings = BrokerSettings(check_immunity_ms=300, check_interval_ms=100)
    async with serving(tmp_path / "data", settings=settings) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        async with AsyncClient(url, group="g", connector=TappedConnector(notes, happened.append)) as mq:
            mq.add_check("asked", lambda transaction: answers.pop(0))
            async with mq.begin() as tx:
                tx.send("a", b"one", sharding_key="k")
                tx.send("b", b"two")
            asked = await mq.prepare([compose("a", b"three")], tx_id=mq.new_transaction_id(), name="asked")
            while answers:
                await asyncio.sleep(0.02)
    events: list[AnyEvent] = [
        event for block in FileSource(tmp_path / "history" / "service.jsonl").blocks() for event in block.events
    ]
    halves = [event for event in events if isinstance(event, HalfSent)]
    assert [(half.tx, half.index, half.topic, half.crc, half.key) for half in halves[:2]] == [
        (tx.id, 0, "a", body_crc_of(b"one"), "k"),
        (tx.id, 1, "b", body_crc_of(b"two"), ""),
    ]
    answered = {event.op: event for event in events if isinstance(event, Answered)}
    assert all(answered[half.op].outcome == "ok" and answered[half.op].offset >= 0 for half in halves)
    ends = [event for event in events if isinstance(event, EndAsked)]
    assert [(end.tx, end.verdict, end.decided_by) for end in ends] == [
        (tx.id, "COMMITTED", "application"),
        (asked.tx_id, "ROLLED_BACK", "check"),
    ]
    assert (answered[ends[0].op].outcome, answered[ends[0].op].verdict) == ("ok", "COMMITTED")
    assert answered[ends[0].op].position > answered[halves[1].op].offset
    assert [(event.tx, event.times) for event in events if isinstance(event, CheckReceived)] == [
        (asked.tx_id, 1),
        (asked.tx_id, 2),
    ]
    assert [event.tx for event in events if isinstance(event, CheckUnanswered)] == [asked.tx_id]
    assert happened[:4].count("half-sent") == 2
