"""The promises, verified during a history: each response that a client receives is compared with all earlier ones.

It reads only the recorded history, remembers what was *acknowledged* (anything else may be lost), and counts each comparison. The
history checker reads the same events afterwards and verifies more; this module stops a seed at the first violation.
"""

from collections import Counter
from typing import Final, NamedTuple

from halfmq.testing.history.events import Answered, AnyEvent, EndAsked, Fault, FileStarted, HalfSent, PlainSent, Seen

#: The broker's clock has a resolution of milliseconds.
_TICK_US = 2_000
#: The reader that pulls everything at the end.
WHOLE: Final = "whole"


class Violation(AssertionError):
    """A promise does not hold. ``tx``: the transaction or message concerned."""

    def __init__(self, text: str, tx: str = "") -> None:
        super().__init__(text)
        self.tx = tx


class Half(NamedTuple):
    message: str
    topic: str
    crc: int
    key: str
    delay_ms: int


class Tx:
    """What requests and responses tell about one transaction."""

    __slots__ = ("acked", "asked", "by_operator", "forgotten", "group", "halves", "tx", "verdict", "verdict_us")

    def __init__(self, group: str, tx: str) -> None:
        self.group = group
        self.tx = tx
        #: By index, as sent.
        self.halves: dict[int, Half] = {}
        #: By index: acknowledged log offset.
        self.acked: dict[int, int] = {}
        #: Requested verdicts: time of the first request, and who.
        self.asked: dict[str, tuple[int, str]] = {}
        #: (verdict, log position) of the first response.
        self.verdict: tuple[str, int] | None = None
        self.verdict_us = -1
        #: Durability is ``memory``, and a power loss removed part of it.
        self.forgotten = False
        #: An operator asked for a verdict, also if somebody had asked for the same one before.
        self.by_operator = False


class Plain:
    __slots__ = ("acked", "asks", "crc", "due_us", "key", "message", "topic")

    def __init__(self, message: str, topic: str, crc: int, key: str) -> None:
        self.message = message
        self.topic = topic
        self.crc = crc
        self.key = key
        #: (log offset, queue, queue offset)
        self.acked: tuple[int, int, int] | None = None
        #: The connections on which it was sent.
        self.asks: list[str] = []
        #: Nobody may receive it before.
        self.due_us = 0


class Promises:
    """Call ``hear`` with each event, in order. It raises ``Violation``."""

    def __init__(self, counts: Counter[str], *, nothing_is_refused: bool = False) -> None:
        """``nothing_is_refused``: no limit is reached, no disk is full, and every request is legitimate."""
        self.counts = counts
        self._nothing_is_refused = nothing_is_refused
        self.txs: dict[str, Tx] = {}
        self.plains: dict[str, Plain] = {}
        #: (topic, queue) -> queue offset -> (message, crc), as received by any reader.
        self.seen: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}
        #: message -> transaction
        self.tx_of: dict[str, Tx] = {}
        #: Durability is ``memory``, and something was lost: consumers may later hand out what they fetched before.
        self.forgetful = False
        #: Current start of the log, as far as known.
        self.log_start = 0
        #: Producer groups that ever had the policy "rollback": their transactions may be rolled back without a request.
        self.policy_groups: set[str] = set()
        self._asked: dict[str, HalfSent | PlainSent | EndAsked] = {}
        #: Total by which the broker's clock was stepped forward; delayed messages do not wait that time.
        self._forward_us = 0

    def hear(self, event: AnyEvent) -> None:
        kind = type(event)
        if kind is Answered:
            self._answered(event)  # type: ignore[arg-type]
        elif kind is HalfSent:
            self._half(event)  # type: ignore[arg-type]
        elif kind is EndAsked:
            self._end(event)  # type: ignore[arg-type]
        elif kind is PlainSent:
            self._plain(event)  # type: ignore[arg-type]
        elif kind is Seen:
            self._saw(event)  # type: ignore[arg-type]
        elif kind is Fault and event.what == "clock_step" and event.whom == "broker":  # type: ignore[union-attr]
            self._forward_us += max(0, int(event.detail.split()[0])) * 1_000  # type: ignore[union-attr]
        elif kind is FileStarted:
            self.policy_groups.update(event.policy_groups)  # type: ignore[union-attr]

    def forget_from(self, end: int) -> None:
        """Durability is ``memory``, and after a power loss the log ends here: acknowledgements after this end are void."""
        for tx in self.txs.values():
            kept = {index: offset for index, offset in tx.acked.items() if offset < end}
            # A half that was stored and never acknowledged may be lost as well.
            tx.forgotten = tx.forgotten or kept.keys() != tx.halves.keys()
            tx.acked = kept
            if tx.verdict is not None and tx.verdict[1] >= end:
                tx.verdict = None
        for plain in self.plains.values():
            if plain.acked is not None and plain.acked[0] >= end:
                plain.acked = None
        self.seen.clear()
        self.forgetful = True
        self._asked.clear()
        self.counts["look forgotten"] += 1

    # --- requests ----------------------------------------------------------------------------------------------------

    def _half(self, event: HalfSent) -> None:
        tx = self.txs.get(event.tx)
        if tx is None:
            tx = self.txs[event.tx] = Tx(event.group, event.tx)
        tx.halves[event.index] = Half(event.message, event.topic, event.crc, event.key, event.delay_ms)
        self.tx_of[event.message] = tx
        self._asked[event.op] = event

    def _plain(self, event: PlainSent) -> None:
        plain = self.plains.get(event.message)
        if plain is None:
            plain = self.plains[event.message] = Plain(event.message, event.topic, event.crc, event.key)
            plain.due_us = event.t_us + event.delay_ms * 1_000 if event.delay_ms else 0
        plain.asks.append(event.op.partition(":")[0])
        self._asked[event.op] = event

    def _end(self, event: EndAsked) -> None:
        tx = self.txs.get(event.tx)
        if tx is not None:
            tx.asked.setdefault(event.verdict, (event.t_us, event.decided_by))
            tx.by_operator |= event.decided_by == "operator"
        self._asked[event.op] = event

    # --- responses ---------------------------------------------------------------------------------------------------

    def _answered(self, event: Answered) -> None:
        asked = self._asked.pop(event.op, None)
        if type(asked) is EndAsked:
            self._end_answered(event, asked)
        elif type(asked) is HalfSent:
            self._half_answered(event, asked)
        elif type(asked) is PlainSent:
            self._plain_answered(event, asked)

    def _end_answered(self, event: Answered, asked: EndAsked) -> None:
        tx = self.txs.get(asked.tx)
        if tx is None:
            return
        if event.outcome == "refused":
            self._end_refused(event, asked, tx)
            return
        self.counts["look agreement"] += 1
        right = event.verdict == asked.verdict if event.outcome == "ok" else event.verdict != asked.verdict
        if not right:
            raise Violation(f"Agreement: {tx.tx} was asked {asked.verdict} and answered {event}", tx.tx)
        self._verdict(tx, event)

    def _verdict(self, tx: Tx, event: Answered) -> None:
        assert event.verdict is not None
        heard = (event.verdict, event.position)
        if tx.verdict is None:
            tx.verdict = heard
            tx.verdict_us = event.t_us
        elif tx.verdict != heard:
            raise Violation(f"Agreement: {tx.tx} was {tx.verdict}, and is now said to be {heard}", tx.tx)
        self.counts["look validity"] += 1
        by_policy = event.verdict == "ROLLED_BACK" and tx.group in self.policy_groups
        if event.verdict not in tx.asked and not by_policy:
            raise Violation(f"Validity: {tx.tx} is {event.verdict}, and nobody ever said so", tx.tx)

    def _end_refused(self, event: Answered, asked: EndAsked, tx: Tx) -> None:
        """An END was refused. Legal while halves are missing, past retention, and for halves that were never acknowledged."""
        self.counts["look durable verdict"] += 1
        if (
            tx.verdict is not None
            and tx.verdict_us < asked.t_us
            and tx.verdict[1] >= self.log_start
            and event.code == 1
            and not tx.forgotten  # its halves were stored again, and the request names the old ones
            and not (
                asked.decided_by == "operator" and tx.asked["ROLLED_BACK"][1] == "fence"
            )  # it has no row to find it by
        ):
            raise Violation(f"Durable: {tx.tx} was {tx.verdict}, and now it is not known: {event}", tx.tx)
        if (
            self._nothing_is_refused
            and tx.halves.keys() == tx.acked.keys()
            and min(tx.acked.values()) >= self.log_start
            and (tx.verdict is None or tx.verdict[1] >= self.log_start)
        ):
            raise Violation(f"Refused: {asked.verdict} of {tx.tx}, whose messages are all there: {event}", tx.tx)

    def _half_answered(self, event: Answered, asked: HalfSent) -> None:
        tx = self.txs[asked.tx]
        if event.outcome == "settled":
            self.counts["look half after verdict"] += 1
            self._verdict(tx, event)
        elif event.outcome == "refused":
            self._refused(event, tx.tx)
        elif event.outcome == "ok":
            self.counts["look half"] += 1
            first = tx.acked.setdefault(asked.index, event.offset)
            if first != event.offset:
                raise Violation(f"Once: half {tx.tx}.{asked.index} was at {first}, now {event.offset}", tx.tx)
            if tx.verdict is not None and tx.verdict_us < asked.t_us:
                raise Violation(f"Agreement: a half of {tx.tx} was taken, though {tx.verdict} stands", tx.tx)

    def _plain_answered(self, event: Answered, asked: PlainSent) -> None:
        plain = self.plains[asked.message]
        if event.outcome == "ok":
            self.counts["look plain"] += 1
            place = (event.offset, event.queue, event.queue_offset)
            if plain.acked is None:
                plain.acked = place
            elif plain.acked[0] != event.offset and len(set(plain.asks)) == len(plain.asks):
                raise Violation(f"Once: {plain.message} was at {plain.acked}, now at {place}", plain.message)
        elif event.outcome == "refused":
            self._refused(event, plain.message)

    def _refused(self, event: Answered, what: str) -> None:
        self.counts["look refused"] += 1
        if self._nothing_is_refused:
            raise Violation(f"Refused: {what}, and there is no reason: {event}", what)

    # --- received messages -------------------------------------------------------------------------------------------

    def _saw(self, event: Seen) -> None:
        if event.topic.startswith("%") or (self.forgetful and event.reader != WHOLE):
            return
        self.counts["look seen"] += 1
        seen = self.seen.setdefault((event.topic, event.queue), {})
        value = (event.message, event.crc)
        if seen.setdefault(event.queue_offset, value) != value:
            raise Violation(
                f"Durable: {event.topic}/{event.queue}@{event.queue_offset} was {seen[event.queue_offset]}, now {value}",
                event.message,
            )
        tx = self.tx_of.get(event.message)
        if tx is not None:
            self.counts["look validity of seen"] += 1
            if "COMMITTED" not in tx.asked:
                raise Violation(f"Validity: {event.message} of {tx.tx} is visible, and nobody said COMMIT", tx.tx)
            if tx.verdict is not None and tx.verdict[0] != "COMMITTED":
                raise Violation(f"Validity: {event.message} of {tx.tx} is visible, and it is {tx.verdict}", tx.tx)
            half = tx.halves.get(event.index)
            if half is not None and half.delay_ms:
                self._not_before(event, tx.asked["COMMITTED"][0] + half.delay_ms * 1_000)
        elif event.message not in self.plains:
            raise Violation(f"Validity: {event.message} is visible, and nobody sent it", event.message)
        elif self.plains[event.message].due_us:
            self._not_before(event, self.plains[event.message].due_us)

    def _not_before(self, event: Seen, due_us: int) -> None:
        self.counts["look seen in its time"] += 1
        if event.t_us < due_us - self._forward_us - _TICK_US:
            raise Violation(f"Delay: {event.message} is seen at {event.t_us} us, and is due at {due_us}", event.message)
