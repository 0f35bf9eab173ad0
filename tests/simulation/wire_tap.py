"""Requests and responses of all clients, recorded on the wire: our client, stock ones, operators and readers.

A request is recorded when the client writes it, a response when it is delivered to the client. Nothing depends on what a
client believes about itself.
"""

from collections.abc import Callable
from typing import Any

from halfmq.client.connector import decode as decode_answer
from halfmq.limits import DELAY_LEVELS_MS
from halfmq.model import properties
from halfmq.model.coordinator import Coordinator, parse_coordinator
from halfmq.model.ids import parse_offset_message_id
from halfmq.model.stored_message import body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.testing.history.events import (
    Answered,
    CheckReceived,
    CheckUnanswered,
    EndAsked,
    EpochTaken,
    FileStarted,
    HalfSent,
    PlainSent,
)
from halfmq.wire.remoting.check_polls import decode_handed_out
from halfmq.wire.remoting.codes import (
    EXT_POSITION,
    EXT_VERDICT,
    HMQ_POLL_CHECKS,
    HMQ_PRODUCER,
    HMQ_RESOLVE,
    HMQ_TAKE_EPOCH,
)
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode
from halfmq.wire.remoting.message_codec import split_batch
from halfmq.wire.remoting.producer_groups import decode_change
from tests.simulation.check_rules import CheckLooks
from tests.simulation.chronicle import Chronicle
from tests.simulation.tags import Sent
from tests.support.faulty_network import End

_VERDICTS = {8: "COMMITTED", 12: "ROLLED_BACK", "COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}


#: Recorded requests: sends, batches, ENDs, messages that consumers hand back, operators' verdicts, policies, fetches of checks, and epochs
#: of coordinators.
_TAPPED = frozenset((310, 10, 320, 37, 36, HMQ_RESOLVE, HMQ_PRODUCER, HMQ_POLL_CHECKS, HMQ_TAKE_EPOCH))
#: Name prefix of the machines whose verdicts do not count as requested.
STRANGERS = "x"


def _code_of(frame: bytes) -> int:
    """The code of a request with a JSON header; all clients here write ``code`` first."""
    start = frame.index(b":", 4) + 1
    return int(frame[start : frame.index(b",", start)])


def delay_ms_of(pairs: dict[str, str]) -> int:
    """Delay of a message with these properties, ms."""
    level = int(pairs.get("DELAY", "0"))
    if level:
        return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    return int(pairs.get("TIMER_DELAY_MS", "0")) + 1_000 * int(pairs.get("TIMER_DELAY_SEC", "0"))


class WireTap:
    """A ``Tap``. ``sent`` contains recent requests that the network may repeat: (time, kind, frame)."""

    def __init__(self, chronicle: Chronicle, looks: CheckLooks, sent_tags: Sent) -> None:
        self._chronicle = chronicle
        self._looks = looks
        #: By connection: splitter of the responses, and requests: opaque -> (operation, kind, topic).
        self._heard: dict[int, FrameSplitter] = {}
        self._asked: dict[int, dict[int, tuple[str, str, str]]] = {}
        self.sent: list[tuple[int, str, bytes]] = []
        #: Transaction -> what an END for it must name: group, UNIQ_KEY, half index, log offset of its first half.
        self.places: dict[str, tuple[str, str, int, int]] = {}
        self._firsts: dict[str, tuple[str, str, str]] = {}
        #: Transactions whose halves say where their marker is.
        self.marked: set[str] = set()
        #: Message -> its KEYS.
        self.keys: dict[str, str] = {}
        #: Tags of sent messages.
        self.sent_tags = sent_tags
        #: Message -> end of the log when it was handed back, for each response OK.
        self.handed_back: dict[str, list[int]] = {}
        #: Current end of the log.
        self.log_end: Callable[[], int] = lambda: 0

    # --- requests ----------------------------------------------------------------------------------------------------

    def wrote(self, end: End, data: bytes) -> None:
        at, stop = 0, len(data)
        while at < stop:
            length = int.from_bytes(data[at : at + 4], "big")
            self._request(end, data[at + 4 : at + 4 + length])
            at += 4 + length

    def _request(self, end: End, frame: bytes) -> None:
        code = _code_of(frame)
        if code not in _TAPPED:
            return
        request = decode(frame)
        match code:
            case 310 | 10:
                self._send(end, request, frame)
            case 320:
                self._batch(end, request)
            case 37:
                if not end.machine.startswith(STRANGERS):
                    self._end(end, request, frame)
            case 36:
                self._operation(end, request, "back", f"{request.ext.origin_msg_id} {self.log_end()}")
            case 29_007:
                self._change(end, request)
            case 29_009:
                self._operation(end, request, "fetch", "")
            case 29_019:
                of = f"{request.ext['group']} {request.ext['coordinator']}"
                self._operation(end, request, "epoch", f"{self._chronicle.now_us} {of}")
            case _:
                self._resolve(end, request)

    def _remember(self, end: End, kind: str, frame: bytes) -> None:
        """The network may repeat it, but not a repeat: a chain of them would go on after the deduplication window."""
        if not end.process.name.startswith("ghost"):
            self.sent.append((self._chronicle.now_us, kind, frame))

    def _operation(self, end: End, request: Any, what: str, topic: str) -> str:
        operation = f"{end.number}:{request.opaque}"
        if not request.flag & 2:
            self._asked.setdefault(end.number, {})[request.opaque] = operation, what, topic
        return operation

    def _send(self, end: End, request: Any, frame: bytes) -> None:
        ext = request.ext
        text = ext.properties.encode()
        pairs = properties.to_dict(text)
        chronicle = self._chronicle
        unique = pairs.get("UNIQ_KEY", "")
        self.sent_tags.note(unique, text)
        crc = body_crc_of(request.body)
        key = pairs.get("__SHARDINGKEY", "")
        delay_ms = delay_ms_of(pairs)
        now_us = chronicle.now_us
        if "KEYS" in pairs:
            self.keys[unique] = pairs["KEYS"]
        if pairs.get("TRAN_MSG") == "true":
            self._looks.half(pairs, now_us)
            operation = self._operation(end, request, "half", ext.topic)
            if pairs.get("HMQ_TX_INDEX", "0") == "0":
                group = pairs.get("PGROUP", ext.group)
                self._firsts[operation] = pairs.get("HMQ_TX_ID", unique), group, unique
            if "HMQ_TX_MARKER" in pairs:
                self.marked.add(pairs.get("HMQ_TX_ID", unique))
            coordinator = parse_coordinator(pairs.get("HMQ_COORDINATOR", "")) or Coordinator("", 0)
            chronicle.note(
                HalfSent(
                    t_us=now_us, by=end.process.name, op=operation, group=pairs.get("PGROUP", ext.group),
                    tx=pairs.get("HMQ_TX_ID", unique), index=int(pairs.get("HMQ_TX_INDEX", "0")), message=unique,
                    topic=ext.topic, queue=ext.queue_id, crc=crc, key=key, delay_ms=delay_ms, coordinator=coordinator.name,
                    epoch=coordinator.epoch,
                )
            )  # fmt: skip
            self._remember(end, "half", frame)
        else:
            operation = self._operation(end, request, "delayed" if delay_ms else "plain", ext.topic)
            chronicle.note(
                PlainSent(
                    t_us=now_us, by=end.process.name, op=operation, message=unique, topic=ext.topic, queue=ext.queue_id,
                    crc=crc, key=key, delay_ms=delay_ms,
                )
            )  # fmt: skip
            self._remember(end, "plain", frame)

    def _batch(self, end: End, request: Any) -> None:
        """One response for all messages: the operation has the name of the first; the others are derived from it."""
        operation = self._operation(end, request, "batch", request.ext.topic)
        for number, entry in enumerate(split_batch(request.body)):
            unique = (properties.find(bytes(entry.properties), "UNIQ_KEY") or b"").decode()
            self.sent_tags.note(unique, bytes(entry.properties))
            self._chronicle.note(
                PlainSent(
                    t_us=self._chronicle.now_us, by=end.process.name, op=f"{operation}#{number}", message=unique,
                    topic=request.ext.topic, queue=request.ext.queue_id, crc=body_crc_of(bytes(entry.body)),
                )
            )  # fmt: skip

    def _end(self, end: End, request: Any, frame: bytes) -> None:
        ext = request.ext
        # A stock client answers a check with the fields that it received.
        tx = ext.tx_id or (ext.transaction_id if ext.from_transaction_check else "") or ext.msg_id
        verdict = _VERDICTS.get(ext.commit_or_rollback)
        now_us, by = self._chronicle.now_us, end.process.name
        if verdict is None:
            self._chronicle.note(CheckUnanswered(t_us=now_us, by=by, group=ext.producer_group, tx=tx))
            return
        operation = self._operation(end, request, "end", "")
        decided_by = "application"
        coordinator = parse_coordinator(ext.coordinator) or Coordinator("", 0)
        if coordinator.name:
            decided_by = "coordinator"
        elif ext.from_transaction_check:
            decided_by = "marker" if ext.decided_by == "marker" else "check"
        self._chronicle.note(
            EndAsked(
                t_us=now_us, by=by, op=operation, group=ext.producer_group, tx=tx, verdict=verdict,  # type: ignore[arg-type]
                decided_by=decided_by, coordinator=coordinator.name, epoch=coordinator.epoch,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        self._remember(end, "end", frame)

    def _resolve(self, end: End, request: Any) -> None:
        ext = request.ext
        operation = self._operation(end, request, "end", "")
        self._chronicle.note(
            EndAsked(
                t_us=self._chronicle.now_us, by=end.process.name, op=operation, group=ext.get("group", ""),
                tx=ext.get("txId", ""), verdict=_VERDICTS[ext["verdict"]], decided_by="operator",  # type: ignore[arg-type]
            )
        )  # fmt: skip

    def _change(self, end: End, request: Any) -> None:
        """A group may get a policy: from now on the policy may decide."""
        change = decode_change(request.body)
        group = request.ext["group"]
        if not change.is_empty:
            self._looks.changes.setdefault(group, []).append(change)
        if change.past_limit == "rollback":
            self._chronicle.note(FileStarted(t_us=self._chronicle.now_us, by=end.process.name, policy_groups=(group,)))

    # --- responses ---------------------------------------------------------------------------------------------------

    def hears(self, end: End, data: bytes) -> None:
        self._chronicle.piece(end.number, len(data))
        splitter = self._heard.get(end.number)
        if splitter is None:
            splitter = self._heard[end.number] = FrameSplitter()
        asked = self._asked.get(end.number)
        for frame in splitter.feed(data):
            message = decode_answer(frame)
            if message.is_response:
                what = None if asked is None else asked.pop(message.opaque, None)
                if what is not None and what[1] == "fetch":
                    self._fetched(end, message)
                elif what is not None:
                    self._answer(end, message, *what)
            elif message.code == 39:
                self._check(end, decode_message(message.body)[0].properties)

    def _answer(self, end: End, message: Any, operation: str, what: str, topic: str) -> None:
        ext = message.ext
        note, now_us, by = self._chronicle.note, self._chronicle.now_us, end.process.name
        if what == "back":
            if message.code == 0:
                origin, _, log_end = topic.partition(" ")
                self.handed_back.setdefault(origin, []).append(int(log_end))
        elif what == "epoch":
            if message.code == 0:
                since_us, group, name = topic.split(" ")
                note(
                    EpochTaken(
                        t_us=now_us, by=by, group=group, coordinator=name, epoch=int(ext["epoch"]), since_us=int(since_us)
                    )
                )  # fmt: skip
        elif what == "end":
            verdict = ext.get(EXT_VERDICT)
            outcome = "ok" if message.code == 0 else "settled" if verdict else "refused"
            note(
                Answered(
                    t_us=now_us, by=by, op=operation, outcome=outcome, code=message.code, verdict=verdict,  # type: ignore[arg-type]
                    position=int(ext.get(EXT_POSITION, "-1")),
                )
            )  # fmt: skip
        elif message.code == 0:
            first = self._firsts.pop(operation, None)
            if first is not None:
                tx, group, unique = first
                place = parse_offset_message_id(ext["msgId"])[1]
                self.places[tx] = group, unique, int(ext["queueOffset"]), place
            offsets = [parse_offset_message_id(one)[1] for one in ext["msgId"].split(",")]
            for number, offset in enumerate(offsets):
                note(
                    Answered(
                        t_us=now_us, by=by, op=operation if what != "batch" else f"{operation}#{number}", outcome="ok",
                        offset=offset, topic=topic, queue=int(ext["queueId"]),
                        # For a half this field is the half index, for a delayed message it is meaningless.
                        queue_offset=int(ext["queueOffset"]) + number if what in ("plain", "batch") else -1,
                    )
                )  # fmt: skip
        else:
            verdict = ext.get(EXT_VERDICT)
            note(
                Answered(
                    t_us=now_us, by=by, op=operation if what != "batch" else f"{operation}#0",
                    outcome="settled" if verdict else "refused", code=message.code, verdict=verdict,
                    position=int(ext.get(EXT_POSITION, "-1")),
                )
            )  # fmt: skip

    def _fetched(self, end: End, message: Any) -> None:
        if message.code == 0:
            self._chronicle.counts["knob poll for checks answered"] += 1
            for half in decode_handed_out(bytes(message.body)):
                self._chronicle.counts["knob check fetched"] += 1
                self._check(end, half.message.properties)

    def _check(self, end: End, text: bytes) -> None:
        pairs = properties.to_dict(text)
        event = CheckReceived(
            t_us=self._chronicle.now_us, by=end.process.name, group=pairs.get("PGROUP", ""),
            tx=pairs.get("HMQ_TX_ID") or pairs.get("UNIQ_KEY", ""), times=int(pairs.get("TRANSACTION_CHECK_TIMES", "0")),
        )  # fmt: skip
        self._chronicle.note(event)
        self._looks.check(event)
