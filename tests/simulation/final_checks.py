"""The end of a history: everything is read, and compared with everything that was recorded.

All queues are read to their ends over the wire, the log is read from the disk, and the outcomes from the databases.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from halfmq.broker.recovery import recover
from halfmq.model import properties
from halfmq.model.records import (
    Committed,
    CopiedHalf,
    Decided,
    DecidedBy,
    DelayedRecord,
    HalfRecord,
    MessageRecord,
    RolledBack,
    Trim,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.store.store import Store
from halfmq.store.verify import verify_store
from halfmq.testing.history.events import Answered, Event, HalfSent, Local, Logged, QueueRead, Seen
from halfmq.wire.remoting.header import decode as decode_request
from tests.simulation.broker_host import DATA, BrokerHost
from tests.simulation.check_rules import CheckLooks
from tests.simulation.chronicle import Chronicle
from tests.simulation.coordinating import COORDINATED
from tests.simulation.database import Database
from tests.simulation.delays import Delays
from tests.simulation.machine import Machine
from tests.simulation.policy_rules import look_at_log
from tests.simulation.producers import OWN_ID
from tests.simulation.promises import WHOLE, Promises, Violation
from tests.simulation.query_promises import messages_shown
from tests.simulation.raw_connection import RawLine
from tests.simulation.wire_tap import WireTap
from tests.support import invariants
from tests.support.durable_digest import durable_digest
from tests.support.faulty_disk import FaultyDisk
from tests.support.hand_flush import HandFlush
from tests.support.raw_client import pull_ext, send_ext
from tests.support.virtual_loop import ProcessLoop, SeededEntropy, VirtualClock

#: Broker time is in whole ms.
_ROUNDING_MS = 2
_DECIDED_BY = {
    DecidedBy.PRODUCER: "application",
    DecidedBy.CHECK: "check",
    DecidedBy.MARKER: "marker",
    DecidedBy.OPERATOR: "operator",
    DecidedBy.POLICY: "policy",
    DecidedBy.COORDINATOR: "coordinator",
    DecidedBy.FENCE: "fence",
}


async def ask_again(
    process: ProcessLoop, network: Any, tap: WireTap, promises: Promises, most: int, queues: int, *, keeps_all: bool
) -> None:
    """Send END again for settled transactions, with the same verdict and with the opposite. ``queues``: of a topic.

    ``keeps_all``: the log is not trimmed. Then half messages of settled transactions with chosen ids are sent again, too.
    """
    line = await RawLine.open(process, network, "reader")
    # The next batch of the log makes the broker forget remembered verdicts.
    await line.ask(
        310, send_ext("Alpha", "reader", 0, {"UNIQ_KEY": f"READER{process.name}"}, queues=queues), b"x", timeout_s=30.0
    )
    known = [tx for tx in promises.txs.values() if tx.verdict is not None and tx.tx in tap.places and not tx.forgotten]
    for tx in known[:: max(1, len(known) // most)]:
        group, unique, half_index, offset = tap.places[tx.tx]
        for wanted in ("8", "12"):
            ext = {
                "producerGroup": group, "HMQ_TX_ID": tx.tx, "msgId": unique, "tranStateTableOffset": str(half_index),
                "commitLogOffset": str(offset), "commitOrRollback": wanted, "fromTransactionCheck": "false",
            }  # fmt: skip
            await line.ask(37, ext, timeout_s=30.0)
            promises.counts["look asked again"] += 1
    if keeps_all:
        settled = {tx.tx for tx in known}
        for frame in [frame for _, kind, frame in tap.sent if kind == "half" and OWN_ID in frame][-most:]:
            request = decode_request(frame)
            fields = request.ext
            if properties.to_dict(fields.properties.encode()).get("HMQ_TX_ID") in settled:
                ext = {
                    "a": fields.group, "b": fields.topic, "c": "TBW102", "d": str(queues), "e": str(fields.queue_id),
                    "f": str(fields.sys_flag), "g": str(fields.born_time_ms), "h": str(fields.flag), "i": fields.properties,
                    "j": "0", "k": "false", "m": "false",
                }  # fmt: skip
                await line.ask(310, ext, request.body, timeout_s=30.0)  # the wire tap checks the answer
                promises.counts["look used id"] += 1
    line.close()


async def read_everything(
    process: ProcessLoop, network: Any, chronicle: Chronicle, queues: list[tuple[str, int]]
) -> None:
    """Every message of every queue, as ``Seen`` by the reader "whole", and then a ``QueueRead`` for each queue."""
    line = await RawLine.open(process, network, "reader")
    for topic, queue in queues:
        offset, first = 0, -1
        while True:
            answer = await line.ask(11, pull_ext(topic, WHOLE, queue, offset, count=1_000), timeout_s=30.0)
            offset_next = int(answer.ext.get("nextBeginOffset", offset))
            if answer.code == 0:
                for event in seen_of(answer.body, chronicle.now_us, process.name, WHOLE):
                    first = event.queue_offset if first < 0 else first
                    chronicle.note(event)
            elif offset_next <= offset:
                break
            offset = offset_next
        end = offset
        chronicle.note(
            QueueRead(
                t_us=chronicle.now_us, by=process.name, reader=WHOLE, topic=topic, queue=queue, first=max(first, 0) if first >= 0 else end,
                end=end,
            )
        )  # fmt: skip
    line.close()


def seen_of(body: bytes, now_us: int, by: str, reader: str) -> list[Seen]:
    """The messages of a pull response. A damaged body ends it, as for a reader that verifies."""
    found, at = [], 0
    while at < len(body):
        message, offset, size = decode_message(body, at)
        if body_crc_of(message.body) != message.body_crc:
            break
        found.append(seen(message, offset, now_us, by, reader))
        at += size
    return found


def seen(message: StoredMessage, offset: int, now_us: int, by: str, reader: str) -> Seen:
    pairs = properties.to_dict(message.properties)
    transactional = pairs.get("TRAN_MSG") == "true"
    unique = pairs.get("UNIQ_KEY", "")
    return Seen(
        t_us=now_us, by=by, reader=reader, message=unique, topic=message.topic, queue=message.queue_id,
        queue_offset=message.queue_offset, tx=pairs.get("HMQ_TX_ID", unique) if transactional else "",
        index=int(pairs.get("HMQ_TX_INDEX", "0")), offset=offset, store_time_ms=message.store_time_ms, crc=message.body_crc,
        key=pairs.get("__SHARDINGKEY", ""),
    )  # fmt: skip


def note_locals(chronicle: Chronicle, promises: Promises, databases: dict[str, Database]) -> None:
    for tx in promises.txs.values():
        database = databases.get(tx.group)
        if database is not None:
            outcome = "COMMITTED" if database.said(tx.tx) == "C" else "ROLLED_BACK"
            chronicle.note(
                Local(t_us=chronicle.now_us, by=f"database.{tx.group}", group=tx.group, tx=tx.tx, outcome=outcome)
            )  # type: ignore[arg-type]


# --- the log ---------------------------------------------------------------------------------------------------------


def copy_of(disk: FaultyDisk, *, log_only: bool) -> FaultyDisk:
    copied = disk.fork(1)
    if log_only:
        for path in copied.paths():
            if path.parent != DATA and path.parent.name != "log":
                copied.remove(path)
    return copied


def redo(host: BrokerHost, disk: FaultyDisk, records: list[Any] | None = None, settings: Any = None) -> Any:
    """The state after a start from ``disk``; ``records`` receives all redone records. ``settings``: by default those of the
    running broker.
    """
    if settings is None:
        assert host.broker is not None
        settings = host.broker._sequencer.engine.state.settings
    store = Store.open(
        disk,
        DATA,
        entropy=SeededEntropy("redo"),
        segment_bytes=host.swarm.segment_bytes,
        make_syncer=HandFlush,
        reserve_bytes=0,
    )
    if records is not None:
        redone = store.redo

        def keeping() -> Any:
            for batch in redone():
                records.extend((batch, record) for record in batch.records)
                yield batch

        store.redo = keeping  # type: ignore[method-assign]
    try:
        return recover(store, settings)[0].state
    finally:
        store.close()


def read_log(host: BrokerHost, chronicle: Chronicle, looks: CheckLooks, delays: Delays) -> list[Any]:
    """Read the whole log as ``Logged`` events, and return its records; for each second seed also the state after a start from all files."""
    records: list[Any] = []
    alone = redo(host, copy_of(host.disk, log_only=True), records)
    invariants.check(alone)
    if host.swarm.seed % 2 == 0:
        _compare_recoveries(host, chronicle, alone)
    names = {topic.topic_id: topic.name for topic in alone.topics_by_id.values()}
    look_at_log(records, host.broker._sequencer.engine.state.settings, looks.changes, chronicle.counts)  # type: ignore[union-attr]
    last_time = 0
    for batch, record in records:
        if batch.broker_time_ms < last_time:
            raise Violation(f"Time: the batch at {batch.offset} is older than the one before")
        last_time = batch.broker_time_ms
        if type(record) is Decided:
            for topic, queue_offset, offset, message in messages_shown(host.disk, host.swarm.segment_bytes, record):
                fields = {**_of_message(message), "queue_offset": queue_offset}
                note = Logged(t_us=chronicle.now_us, by="log", kind="batched", offset=offset, tx=record.tx_id, **fields)
                assert note.topic == topic
                chronicle.note(note)
        chronicle.note(_logged(record, names, chronicle.now_us))
    delays.close(records)
    return [record for _, record in records]


def verify(host: BrokerHost, counts: Counter[str]) -> None:
    """Run the checks of ``halfmq store verify`` on the store. All bit rot was repaired or overwritten.

    Raises:
        Violation: something is damaged.
    """
    report = verify_store(copy_of(host.disk, log_only=False), DATA)
    counts["look verify"] += 1
    for what, count in report.counted.items():
        counts[f"verified {what}"] += count
    damaged = [f"{finding.part}: {finding.what}" for finding in report.findings if finding.damage]
    if damaged:
        raise Violation(f"Store: {len(damaged)} damages, first: {damaged[0]}")


def _compare_recoveries(host: BrokerHost, chronicle: Chronicle, alone: Any) -> None:
    """Recover with the current snapshots, checkpoint and indexes."""
    from_log = durable_digest(alone)
    from_all = durable_digest(redo(host, copy_of(host.disk, log_only=False)))
    chronicle.counts["look recovery"] += 1
    if from_log != from_all:
        difference = [name for name, value in from_all.items() if from_log[name] != value]
        raise Violation(f"Recovery: snapshot and redo differ from the log alone in {difference}")


def _logged(record: Any, names: dict[int, str], now_us: int) -> Logged:
    common: dict[str, Any] = {"t_us": now_us, "by": "log", "offset": record.offset}
    match record:
        case MessageRecord() | DelayedRecord():
            return Logged(kind="message", **common, **_of_message(record.message))
        case HalfRecord():
            return Logged(
                kind="half", **common, group=record.group, tx=record.tx_id, index=record.index,
                **{**_of_message(record.message), "queue_offset": -1},
            )  # fmt: skip
        case CopiedHalf():
            return Logged(
                kind="copy", **common, group=record.group, tx=record.tx_id, index=record.half.index,
                topic=names.get(record.half.topic_id, ""), queue=record.half.queue_id,
            )  # fmt: skip
        case Committed():
            shown = tuple((names.get(r.topic_id, ""), r.queue_id, r.queue_offset, r.offset) for r in record.refs)
            return Logged(
                kind="commit", **common, group=record.group, tx=record.tx_id,
                decided_by=_DECIDED_BY[DecidedBy(record.decided_by)], shown=shown,
            )  # fmt: skip
        case Decided():
            by = "query" if record.digest else _DECIDED_BY[DecidedBy(record.decided_by)]
            return Logged(kind="commit", **common, group=record.group, tx=record.tx_id, decided_by=by)
        case RolledBack():
            by = "query" if record.tx_id.startswith("query.") else _DECIDED_BY[DecidedBy(record.decided_by)]
            return Logged(kind="rollback", **common, group=record.group, tx=record.tx_id, decided_by=by)
        case Trim():
            return Logged(kind="trim", **common, log_start=record.log_start)
    return Logged(kind="other", **common)


def _of_message(message: StoredMessage) -> dict[str, Any]:
    pairs = properties.to_dict(message.properties)
    return {
        "message": pairs.get("UNIQ_KEY", ""),
        "topic": message.topic,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "crc": message.body_crc,
        "key": pairs.get("__SHARDINGKEY", ""),
    }


# --- the final checks ------------------------------------------------------------------------------------------------


def final_looks(chronicle: Chronicle, promises: Promises, databases: dict[str, Database], log_start: int) -> None:
    """Checks that need the whole history."""
    counts = chronicle.counts
    places: dict[str, tuple[str, int, int]] = {}
    offsets: dict[str, int] = {}
    last: dict[tuple[str, int], int] = {}
    for event in chronicle.events:
        if type(event) is not Seen or event.reader != WHOLE or event.topic.startswith("%"):
            continue
        counts["look once"] += 1
        place = (event.topic, event.queue, event.queue_offset)
        if event.message in places and not sent_twice_on_one_connection(promises, event.message):
            raise Violation(
                f"Once: {event.message} at {places[event.message]} and at {place}", event.tx or event.message
            )
        places[event.message] = place
        offsets[event.message] = event.offset
        counts["look time"] += 1
        if event.store_time_ms < last.get(place[:2], 0):
            raise Violation(f"Time: store times of {place[:2]} go back at {place[2]}", event.tx or event.message)
        last[place[:2]] = event.store_time_ms
    by_hand = {
        event.tx
        for event in chronicle.events
        if type(event) is Logged and event.decided_by == "operator" and event.kind in ("commit", "rollback")
    }
    # The broker's verdict is the decision of a coordinator, which has no database.
    by_hand |= {tx.tx for tx in promises.txs.values() if tx.group == COORDINATED}
    by_policy = {event.tx for event in chronicle.events if type(event) is Logged and event.decided_by == "policy"}
    counts["decided by policy"] += len(by_policy)
    for tx in promises.txs.values():
        shown = [offsets.get(half.message, -1) for half in tx.halves.values()]
        if tx.tx in by_policy or may_be_a_policys(tx, promises, log_start, chronicle.events):
            if max(shown, default=-1) >= 0:
                raise Violation(f"Validity: {tx.tx} is visible, and a policy rolled it back", tx.tx)
            continue
        _look_at_transaction(tx, shown, databases.get(tx.group), counts, log_start, by_hand)
    for plain in promises.plains.values():
        if plain.acked is not None and plain.acked[0] >= log_start:
            counts["look durable plain"] += 1
            if plain.message not in places:
                raise Violation(
                    f"Durable: {plain.message} was acknowledged at {plain.acked} and is gone", plain.message
                )


def look_at_fences(
    chronicle: Chronicle, databases: dict[str, Database], machines: list[Machine], broker: VirtualClock, age_ms: int
) -> None:
    """No check of the shipped marker table fences a transaction younger than ``age_ms``. The age is computed from the broker's
    timestamp, so a client's clock that is ahead, or a broker's that is behind, makes a transaction older than it is.

    Raises:
        Violation: one was fenced too early.
    """
    ahead_ms = {machine.name: machine.clock.ahead_ms for machine in machines}
    begun_us: dict[str, int] = {}
    for event in chronicle.events:
        if type(event) is HalfSent:
            begun_us.setdefault(event.tx, event.t_us)
    for database in databases.values():
        for tx_id, (fenced_us, process) in database.fenced.items():
            if tx_id not in begun_us:
                continue
            chronicle.counts["look age of a fence"] += 1
            trusted_ms = age_ms - ahead_ms[process.partition(".")[0]] - broker.behind_ms
            if fenced_us - begun_us[tx_id] < (trusted_ms - _ROUNDING_MS) * 1_000:
                raise Violation(f"Fence: {tx_id} was fenced {fenced_us - begun_us[tx_id]:,} us after its half", tx_id)


def sent_twice_on_one_connection(promises: Promises, message: str) -> bool:
    """A remaining case of duplicates that docs/promises.md lists under "Deduplication"."""
    plain = promises.plains.get(message)
    return plain is not None and len(set(plain.asks)) != len(plain.asks)


def may_be_a_policys(tx: Any, promises: Promises, log_start: int, events: Iterable[Event]) -> bool:
    """Whether a policy may have rolled it back, in a record that was trimmed: nobody had requested it when it was in the log.

    It was in the log at the latest when a client was told the verdict, or told a log offset behind it.
    """
    if tx.verdict is None or tx.verdict[0] != "ROLLED_BACK" or tx.verdict[1] >= log_start:
        return False
    if tx.group not in promises.policy_groups:
        return False
    if "ROLLED_BACK" not in tx.asked:
        return True
    asked_us = tx.asked["ROLLED_BACK"][0]
    told = (
        max(event.offset, event.position)
        for event in events
        if type(event) is Answered and event.t_us < asked_us and event.outcome == "ok"
    )
    return tx.verdict_us < asked_us or max(told, default=-1) > tx.verdict[1]


def _look_at_transaction(
    tx: Any, offsets: list[int], database: Database | None, counts: Any, log_start: int, by_hand: set[str]
) -> None:
    """``offsets``: place of the body of each visible message; -1: not visible."""
    shown = [offset >= 0 for offset in offsets]
    truth = "COMMITTED" if database is not None and database.said(tx.tx) == "C" else "ROLLED_BACK"
    if any(shown):
        counts["look all or none"] += 1
        # The log may have been trimmed while the queues were read: then the received parts are before its start.
        # In a trimmed log, messages that became visible later than the others may be there alone.
        at_once = [
            offset
            for half, offset in zip(tx.halves.values(), offsets, strict=True)
            if not (half.delay_ms and log_start)
        ]
        if max(at_once, default=-1) >= log_start and min(at_once) < 0:
            raise Violation(f"All or none: {tx.tx} shows {shown}", tx.tx)
    if tx.tx in by_hand or (log_start and tx.by_operator):
        return
    counts["look database"] += 1
    if any(shown) and truth != "COMMITTED":
        raise Violation(f"Validity: {tx.tx} is visible, and the database rolled it back", tx.tx)
    if (
        truth == "COMMITTED"
        and not any(shown)
        and not tx.forgotten
        # Halves that were never acknowledged may have been before the log's start, and decided there.
        and min(tx.acked.values(), default=0) >= log_start
    ):
        raise Violation(f"Lost: the database committed {tx.tx}, and nothing of it is visible; {tx.verdict}", tx.tx)
    if tx.verdict is not None and tx.verdict[0] != truth:
        raise Violation(f"Agreement: {tx.tx} is {tx.verdict}, and the database says {truth}", tx.tx)
