"""A service under fire: transactions over raw frames from many connections, with a record of what was acknowledged.

It plays the application whose database is never wrong: what a transaction's verdict should be is a function of its id
(``verdict_of``). It keeps every transaction until the broker has settled it: a lost answer to a half is followed by the
same half again (same UNIQ_KEY), perhaps to another queue; a lost answer to an end by the same end again; some
transactions are never ended, so that only the check can settle them. So at the end all are settled, and what is visible
must be exactly the messages of the transactions whose verdict is commit.

Cheap on purpose, so that the broker is what is busy: no task and no future per request, halves of one transaction leave
together, and one write to the record and one to the socket per packet that came in. The record is written first: what
follows from an answer leaves only when the answer is recorded.

Run as a process: ``python -m tests.crash.recorder --port P --output FILE --seed S --rate TX_PER_S``. SIGTERM: start no
more, settle what is open, print a summary as JSON, exit 0. Lines of FILE: ``B id n`` begun with n messages, ``C id
position`` commit acknowledged, ``R id position`` rollback acknowledged, ``K id`` answered to a check.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from zlib import crc32

import msgspec

from halfmq.bench.load import frame

TOPICS = ("CrashA", "CrashB")
COMMIT, ROLLBACK = 8, 12
_STANDING = {"COMMITTED": COMMIT, "ROLLED_BACK": ROLLBACK}
#: In ``Link.waiting`` instead of the number of a half.
_END = -1


def verdict_of(tx_id: str) -> int:
    """The truth about ``tx_id``: three in four commit."""
    return ROLLBACK if crc32(tx_id.encode()) % 4 == 0 else COMMIT


def left_to_check(tx_id: str) -> bool:
    """One in thirty is never ended by its sender."""
    return crc32(tx_id.encode(), 7) % 30 == 0


def tag_of(unique: str) -> str:
    """Of each message, from its id: half of them have each."""
    return "even" if crc32(unique.encode(), 11) % 2 == 0 else "odd"


class _Answer(msgspec.Struct, gc=False):
    opaque: int
    code: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815


_decode = msgspec.json.Decoder(_Answer).decode


class Transaction:
    """One transaction and how far it is known to be. ``places``: (half index, log offset) of each acknowledged half."""

    __slots__ = ("body", "count", "ends_sent", "halves_sent", "home", "places", "slot", "started", "tx_id", "waits")

    def __init__(self, tx_id: str, count: int, body: bytes, home: "dict[str, Transaction]", started: float) -> None:
        self.tx_id = tx_id
        self.count = count
        self.body = body
        self.home = home
        self.started = started
        self.places: dict[int, tuple[str, int]] = {}
        self.halves_sent = False
        self.ends_sent = 0
        #: Whether the next transaction of its link starts when it is done.
        self.slot = True
        #: It was refused and is tried again soon.
        self.waits = False


class Recorder:
    """All connections of one process; state survives their loss. ``window``: transactions in flight per connection."""

    def __init__(self, port: int, output: str, seed: int, connections: int, window: int, rate: float) -> None:
        self.port = port
        self.file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.rng = random.Random(seed)
        self.prefix = f"{seed}-{os.getpid()}"
        #: Of its own: a check must reach a process that knows the transaction, as with any two services.
        self.group = f"crash-{seed}"
        self.connections = connections
        self.window = window
        self.pause_s = window * connections / rate
        self.serial = 0
        self.open: dict[str, Transaction] = {}
        self.counts = dict.fromkeys(
            ("begun", "committed", "rolled_back", "checks", "half_again", "end_again", "refused", "past_retention"), 0
        )
        self.refusals: dict[str, int] = {}
        self.stopping = False
        self.notes: list[str] = []

    def flush(self) -> None:
        """Into the page cache, where a killed broker cannot take it back; this process is not killed."""
        if self.notes:
            os.write(self.file, ("\n".join(self.notes) + "\n").encode())
            self.notes.clear()

    def begin(self, home: dict[str, Transaction]) -> Transaction:
        self.serial += 1
        rng = self.rng
        tx = Transaction(
            f"{self.prefix}-{self.serial}", rng.randint(1, 4), rng.randbytes(rng.randint(20, 400)), home,
            time.monotonic(),
        )  # fmt: skip
        self.open[tx.tx_id] = home[tx.tx_id] = tx
        self.counts["begun"] += 1
        self.notes.append(f"B {tx.tx_id} {tx.count}")
        return tx

    def settled(self, tx: Transaction, answer: _Answer) -> None:
        """The verdict that stands must be the true one."""
        fields = answer.extFields or {}
        standing = _STANDING.get(fields.get("HMQ_VERDICT", ""))
        if standing != verdict_of(tx.tx_id):
            raise AssertionError(f"{tx.tx_id}: the truth is {verdict_of(tx.tx_id)}; answered {answer}")
        if self.forget(tx):
            self.counts["committed" if standing == COMMIT else "rolled_back"] += 1
            self.notes.append(f"{'C' if standing == COMMIT else 'R'} {tx.tx_id} {fields['HMQ_POSITION']}")

    def forget(self, tx: Transaction) -> bool:
        tx.home.pop(tx.tx_id, None)
        return self.open.pop(tx.tx_id, None) is not None

    async def run(self) -> None:
        workers = [asyncio.create_task(self._connection(number)) for number in range(self.connections)]
        while not self.stopping:
            await asyncio.sleep(0.05)
        deadline = time.monotonic() + 90
        while self.open and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self.flush()

    async def _connection(self, number: int) -> None:
        """Connect, work until the connection is lost, connect again; its open transactions go on where they were."""
        home: dict[str, Transaction] = {}
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, link = await loop.create_connection(lambda: Link(self, number, home), "127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                await link.lost
            finally:
                link.transport.abort()
            await asyncio.sleep(0.02)


class Link(asyncio.Protocol):
    """One life of one connection."""

    def __init__(self, owner: Recorder, number: int, home: dict[str, Transaction]) -> None:
        self.owner = owner
        self.number = number
        self.home = home
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opaque = 10
        #: What each request is about: the transaction, and the number of the half or ``_END``.
        self.waiting: dict[int, tuple[Transaction, int]] = {}
        self.pending = b""
        self.out: list[bytes] = []

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        owner = self.owner
        heartbeat = {
            "clientID": f"crash@{owner.prefix}#{self.number}",
            "producerDataSet": [{"groupName": owner.group}],
            "consumerDataSet": [],
        }
        header = b'{"code":34,"flag":0,"language":"JAVA","opaque":1,"version":401,"extFields":{}}'
        self.out.append(frame(header, json.dumps(heartbeat).encode()))
        for tx in list(self.home.values()):
            tx.slot = tx.waits = False
            self._carry_on(tx, again=True)
        for _ in range(owner.window):
            self._begin()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        data = self.pending + data if self.pending else data
        at, end = 0, len(data)
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            body_at = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            answer = _decode(data[at + 8 : body_at])
            if answer.flag & 1:
                tx, what = self.waiting.pop(answer.opaque, (None, 0))
                if tx is not None:
                    self._take(tx, what, answer)
            elif answer.code == 39:
                self._answer_check(data[body_at:stop])
            at = stop
        self.pending = data[at:]
        self._flush()

    def _flush(self) -> None:
        self.owner.flush()
        if self.out and not self.transport.is_closing():
            self.transport.write(b"".join(self.out))
        self.out.clear()

    # --- transactions ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self.owner.stopping:
            self._carry_on(self.owner.begin(self.home), again=False)

    def _next(self, tx: Transaction) -> None:
        """``tx`` needs us no more for now: its place is free, not before the rate allows."""
        if not tx.slot:
            return
        tx.slot = False
        wait_s = tx.started + self.owner.pause_s - time.monotonic()
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._later, None)
        else:
            self._begin()

    def _later(self, tx: Transaction | None) -> None:
        if self.lost.done():
            return
        if tx is None:
            self._begin()
        elif tx.waits and tx.tx_id in self.home:
            tx.waits = False
            self._carry_on(tx, again=True)
        self._flush()

    def _carry_on(self, tx: Transaction, again: bool) -> None:
        """Send what is missing: the halves that have no place, else the end."""
        if len(tx.places) < tx.count:
            if again and tx.halves_sent:
                self.owner.counts["half_again"] += tx.count - len(tx.places)
            tx.halves_sent = True
            for index in range(tx.count):
                if index not in tx.places:
                    self._send_half(tx, index)
        elif left_to_check(tx.tx_id) and not tx.ends_sent:
            self._next(tx)  # only a check may make us say it; when that answer is lost we ask again like anybody
        else:
            if again:
                self.owner.counts["end_again"] += 1
            self._send_end(tx, from_check=False)

    def _take(self, tx: Transaction, what: int, answer: _Answer) -> None:
        if answer.code == 604 or (what == _END and answer.code == 0):
            # 604 to a half: settled meanwhile, which only a check can have done.
            self.owner.settled(tx, answer)
            self._next(tx)
        elif answer.code == 0:
            fields = answer.extFields or {}
            tx.places[what] = (fields["queueOffset"], int(fields["msgId"][-16:], 16))
            if len(tx.places) == tx.count:
                self._carry_on(tx, again=False)
        elif what == _END and answer.code == 1 and "past retention" in (answer.remark or "") and tx.ends_sent > 1:
            # Its verdict was given, the answer lost, and the record of it trimmed since: nobody knows more than that.
            # The log is small here so that this can happen. What became of its messages the other witnesses tell.
            if self.owner.forget(tx):
                self.owner.counts["past_retention"] += 1
            self._next(tx)
        else:
            self._refused(tx, answer)

    def _refused(self, tx: Transaction, answer: _Answer) -> None:
        self.owner.counts["refused"] += 1
        text = f"{answer.code} {answer.remark}"
        self.owner.refusals[text] = self.owner.refusals.get(text, 0) + 1
        if not tx.waits:
            tx.waits = True
            asyncio.get_running_loop().call_later(0.2, self._later, tx)

    def _answer_check(self, body: bytes) -> None:
        """A check may come for any transaction of the group, also for one that is still being prepared."""
        at = body.index(b"HMQ_TX_ID\x01") + len(b"HMQ_TX_ID\x01")
        tx_id = body[at : body.index(b"\x02", at)].decode()
        tx = self.owner.open.get(tx_id)
        if tx is None or len(tx.places) < tx.count:
            return  # settled, or not wholly prepared: unknown, ask again
        self.owner.counts["checks"] += 1
        self.owner.notes.append(f"K {tx_id}")
        self._send_end(tx, from_check=True)

    # --- frames ---------------------------------------------------------------------------------------------------

    def _ask(self, tx: Transaction, what: int, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.opaque += 1
        self.waiting[self.opaque] = (tx, what)
        header = {"code": code, "flag": 0, "language": "JAVA", "opaque": self.opaque, "version": 401, "extFields": ext}
        self.out.append(frame(msgspec.json.encode(header), body))

    def _send_half(self, tx: Transaction, index: int) -> None:
        group = self.owner.group
        properties = (
            f"UNIQ_KEY\x01{tx.tx_id}.{index}\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02HMQ_TX_ID\x01{tx.tx_id}\x02"
            f"TAGS\x01{tag_of(f'{tx.tx_id}.{index}')}\x02HMQ_TX_INDEX\x01{index}\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02"
        )
        if index == tx.count - 1:
            properties += f"HMQ_TX_COUNT\x01{tx.count}\x02"
        ext = {
            "a": group, "b": TOPICS[index % 2], "c": "TBW102", "d": "8", "e": str(self.owner.rng.randrange(8)),
            "f": "4", "g": "1795246382304", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self._ask(tx, index, 310, ext, tx.body)

    def _send_end(self, tx: Transaction, *, from_check: bool) -> None:
        tx.ends_sent += 1
        half_index, log_offset = tx.places[0]
        ext = {
            "producerGroup": self.owner.group, "HMQ_TX_ID": tx.tx_id, "msgId": f"{tx.tx_id}.0",
            "tranStateTableOffset": half_index, "commitLogOffset": str(log_offset),
            "commitOrRollback": str(verdict_of(tx.tx_id)), "fromTransactionCheck": "true" if from_check else "false",
        }  # fmt: skip
        self._ask(tx, _END, 37, ext)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--window", type=int, default=8, help="transactions in flight per connection")
    parser.add_argument("--rate", type=float, default=1_500, help="transactions per second at most")
    arguments = parser.parse_args()
    recorder = Recorder(
        arguments.port, arguments.output, arguments.seed, arguments.connections, arguments.window, arguments.rate
    )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        failures: list[str] = []

        def failed(_: object, context: dict[str, object]) -> None:
            failures.append(repr(context.get("exception") or context.get("message")))
            recorder.stopping = True

        loop.set_exception_handler(failed)
        loop.add_signal_handler(signal.SIGTERM, lambda: setattr(recorder, "stopping", True))
        await recorder.run()
        cpu = os.times()
        summary = {
            **recorder.counts,
            "open": len(recorder.open),
            "refusals": recorder.refusals,
            "cpu_s": round(cpu.user + cpu.system, 1),
            "failures": failures[:5],
        }
        print(json.dumps(summary), flush=True)
        if failures:
            raise SystemExit(1)

    asyncio.run(run())


if __name__ == "__main__":
    main()
