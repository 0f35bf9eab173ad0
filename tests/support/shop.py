"""Load of a broker that may be killed at any moment, with a recorded history, and the check of a store restored from a backup of it."""

import asyncio
import contextlib
import random
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from halfmq.runtime.disk import RealDisk
from halfmq.testing.history import MemoryRecorder, Report, check_events
from halfmq.testing.history.events import Answered, AnyEvent, EndAsked, HalfSent, Local, Logged, Verdict
from halfmq.testing.history.logged import log_events
from tests.support.raw_client import Answer, RawClient
from tests.support.served import Served

GROUP, TOPIC = "orders", "T"
#: RocketMQ's numbers of the verdicts, in END_TRANSACTION.
CODES: Final[dict[Verdict, int]] = {"COMMITTED": 8, "ROLLED_BACK": 12}
KINDS: Final[dict[Verdict, str]] = {"COMMITTED": "commit", "ROLLED_BACK": "rollback"}
#: Whether something was sent is unknown to a client whose connection ends.
_CUT_OFF: Final = (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError)


class Shop:
    """Transactions of several workers at once; each decides by chance, and leaves some to later checks."""

    def __init__(
        self, served: Served, seed: str, *, per_second: float = 0, left: float = 0.1, body_bytes_max: int = 3_000
    ) -> None:
        """``per_second``: transactions that all workers begin together; 0: as many as the broker takes. ``left``: the share of those whose
        process dies before its local transaction, and of the others, after it.
        """
        self.served = served
        self.rng = random.Random(seed)
        self.per_second = per_second
        self.left = left
        self.body_bytes_max = body_bytes_max
        self.history = MemoryRecorder("shop")
        #: Responses to halves, which a later verdict needs.
        self.halves: dict[str, Answer] = {}
        #: The database: what each local transaction did.
        self.local: dict[str, Verdict] = {}
        #: Verdicts that the broker confirmed, with the log position in the response.
        self.acknowledged: dict[str, tuple[Verdict, int]] = {}
        self.over = False
        self._next_at = 0.0

    async def work(self, worker: int) -> None:
        """Transactions, one after the other, until the shop is ``over``."""
        number = 0
        while not self.over:
            with contextlib.suppress(*_CUT_OFF):
                client = await RawClient.connect(self.served.port)
                try:
                    while not self.over:
                        await self._pace()
                        number += 1
                        await self.transaction(client, f"{worker:08X}{number:024X}")
                finally:
                    await client.close()
            await asyncio.sleep(0.02)  # real time: the broker is being started

    async def _pace(self) -> None:
        if self.per_second:
            now = asyncio.get_running_loop().time()
            # A load that was held up does not catch up: its rate is bounded.
            self._next_at = max(now, self._next_at + 1 / self.per_second)
            await asyncio.sleep(self._next_at - now)  # real time: the pace of the load

    async def transaction(self, client: RawClient, tx_id: str) -> None:
        rng, record = self.rng, self.history.record
        fields: dict[str, Any] = {"op": f"h{tx_id}", "group": GROUP, "tx": tx_id, "message": tx_id, "topic": TOPIC}
        record(HalfSent, **fields)
        half = await client.half(TOPIC, bytes(rng.randrange(1, self.body_bytes_max)), unique=tx_id, group=GROUP)
        assert half.code == 0, half
        self.halves[tx_id] = half
        record(Answered, op=f"h{tx_id}", outcome="ok")
        if rng.random() < self.left:
            return  # the process died before its COMMIT
        verdict: Verdict = "COMMITTED" if rng.random() < 0.7 else "ROLLED_BACK"
        self.local[tx_id] = verdict
        record(Local, group=GROUP, tx=tx_id, outcome=verdict)
        if rng.random() < self.left:
            return  # ... or after it
        record(EndAsked, op=f"e{tx_id}", group=GROUP, tx=tx_id, verdict=verdict)
        done = await client.end(half, tx_id, CODES[verdict], group=GROUP, HMQ_TX_ID=tx_id)
        assert (done.code, done.ext["HMQ_VERDICT"]) == (0, verdict)
        position = int(done.ext["HMQ_POSITION"])
        self.acknowledged[tx_id] = verdict, position
        record(Answered, op=f"e{tx_id}", outcome="ok", verdict=verdict, position=position)


class Restored(NamedTuple):
    """What the log of a restored store has of the history."""

    #: Ids of transactions with a half in it, and those of them with a verdict.
    known: frozenset[str]
    settled: frozenset[str]
    report: Report


def check_restored_log(shop: Shop, data: Path, position: int) -> Restored:
    """Compare the store in ``data``, restored up to ``position``, with what the shop was told: a verdict that was acknowledged before the
    position is in it, no later one is, and the history up to there keeps all promises.
    """
    end_us = shop.history.events[-1].t_us + 1
    # Other producers of the same broker have histories of their own, or none.
    log = [
        event
        for event in log_events(RealDisk(), data, t_us=end_us)
        if not isinstance(event, Logged) or event.group in ("", GROUP)
    ]
    records = [event for event in log if isinstance(event, Logged)]
    known = frozenset(event.tx for event in records if event.kind == "half")
    settled = {event.tx: event.kind for event in records if event.kind in KINDS.values()}
    for tx_id, (verdict, at) in shop.acknowledged.items():
        assert (settled.get(tx_id) == KINDS[verdict]) == (at < position), f"{tx_id} at {at}, {position}"
    late = {f"e{tx_id}" for tx_id, (_, at) in shop.acknowledged.items() if at >= position}
    report = check_events([*chain((event for event in shop.history.events if _is_before(event, known, late)), log)])
    assert not report.violations, report.violations[:5]
    assert report.counts
    return Restored(known, frozenset(settled), report)


def _is_before(event: AnyEvent, known: frozenset[str], late: set[str]) -> bool:
    """Whether what the event is about is in the restored log. ``late``: operations that were answered after its end."""
    match event:
        case HalfSent() | EndAsked() | Local():
            return event.tx in known
        case Answered():
            return event.op not in late and event.op[1:] in known
        case _:
            return True
