"""Generates unique message ids and transaction ids.

UNIQ_KEY has RocketMQ's layout (``MessageClientIDSetter``), so that its tools can read the time in it: upper-case hex of
IP address, process id, 4 bytes (random here), milliseconds since the start of the month, counter. Transaction ids have the
format of the FMQ specification, 3.2.3: client version, client address, start time, process, connection number, transaction number.
"""

import os
from datetime import UTC, datetime
from itertools import count
from typing import Final

from halfmq.client import forks
from halfmq.runtime.clock import Clock, SystemClock
from halfmq.runtime.entropy import Entropy, SystemEntropy

_ID_VERSION: Final = "1"


class UniqueIds:
    """One per client; thread-safe. A forked child must make its own, since the process id is part of every id.

    Time is the wall clock at the start plus monotonic time since then, so that a clock step produces no duplicate.
    """

    def __init__(self, clock: Clock, entropy: Entropy, address: bytes = b"\x7f\x00\x00\x01", pid: int | None = None):
        process = os.getpid() if pid is None else pid
        self._clock = clock
        self._process = process
        self._started_ms = clock.wall_ms()
        self._monotonic_at_start_ms = clock.monotonic_ms()
        self._random = entropy.token(4)
        #: Part of each transaction id of this client, whatever its address.
        self._own = f"-{self._started_ms:x}-{process:x}-{self._random.hex()}-"
        self._month_started_ms = _month_start_ms(self._started_ms)
        # ``next`` of a count is atomic in the interpreter: blocking clients call it from many threads.
        self._messages = count(1)
        self._transactions = count(1)
        self.use_address(address)

    def use_address(self, address: bytes) -> None:
        """Set the client's packed IP address once it is known; of an IPv6 address the last four bytes are used."""
        ip = address[-4:]
        self._message_prefix = (ip + (self._process & 0xFFFF).to_bytes(2, "big") + self._random).hex().upper()
        self._transaction_prefix = f"{_ID_VERSION}-{ip.hex()}{self._own}"

    def message_id(self) -> str:
        """A new UNIQ_KEY, 32 characters."""
        counter = next(self._messages) & 0xFFFF
        elapsed = self._clock.monotonic_ms() - self._monotonic_at_start_ms
        since_month = (self._started_ms + elapsed - self._month_started_ms) & 0xFFFFFFFF
        return f"{self._message_prefix}{since_month:08X}{counter:04X}"

    def transaction_id(self) -> str:
        """A new transaction id, at most 64 characters."""
        return f"{self._transaction_prefix}{next(self._transactions):x}"

    def is_own(self, tx_id: str) -> bool:
        """Whether this client made the transaction id: no other process, and no earlier run, has used it."""
        return self._own in tx_id


def _month_start_ms(now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone()
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(start.timestamp() * 1000)


#: ``forks.generation`` of this process, and its ids.
_current: tuple[int, UniqueIds] | None = None


def process_ids() -> UniqueIds:
    """The ids of this process, for messages that no client sends, such as those of an outbox. A forked child has its own."""
    global _current
    if _current is None or _current[0] != forks.generation:
        _current = forks.generation, UniqueIds(SystemClock(), SystemEntropy())
    return _current[1]
