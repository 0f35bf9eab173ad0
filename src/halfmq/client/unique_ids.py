"""Ids that this client gives away: unique message ids and transaction ids.

UNIQ_KEY has RocketMQ's layout (``MessageClientIDSetter``), so that its tools can read the time in it: upper-case hex of
IP, process, 4 bytes that are random here, milliseconds since the month began, counter. Transaction ids have the form of
the FMQ source, 3.2.3: client version, client address, start time, process, connection number, transaction number.
"""

import os
from datetime import UTC, datetime
from itertools import count
from typing import Final

from halfmq.runtime.clock import Clock
from halfmq.runtime.entropy import Entropy

_ID_VERSION: Final = "1"


class UniqueIds:
    """One per client. A forked child must make its own: the process number is part of every id.

    Time is the wall clock at the start plus monotonic time since, so that a clock that is set back repeats nothing.
    """

    def __init__(self, clock: Clock, entropy: Entropy, address: bytes = b"\x7f\x00\x00\x01", pid: int | None = None):
        process = os.getpid() if pid is None else pid
        self._clock = clock
        self._process = process
        self._started_ms = clock.wall_ms()
        self._monotonic_at_start_ms = clock.monotonic_ms()
        self._random = entropy.token(4)
        self._month_started_ms = _month_start_ms(self._started_ms)
        # Counters whose ``next`` is one step of the interpreter: blocking clients ask from many threads.
        self._messages = count(1)
        self._transactions = count(1)
        self.use_address(address)

    def use_address(self, address: bytes) -> None:
        """The client's own address, packed, once it is known; of a v6 address the last four bytes."""
        ip = address[-4:]
        self._message_prefix = (ip + (self._process & 0xFFFF).to_bytes(2, "big") + self._random).hex().upper()
        self._transaction_prefix = (
            f"{_ID_VERSION}-{ip.hex()}-{self._started_ms:x}-{self._process:x}-{self._random.hex()}-"
        )

    def message_id(self) -> str:
        """A UNIQ_KEY of 32 characters."""
        counter = next(self._messages) & 0xFFFF
        elapsed = self._clock.monotonic_ms() - self._monotonic_at_start_ms
        since_month = (self._started_ms + elapsed - self._month_started_ms) & 0xFFFFFFFF
        return f"{self._message_prefix}{since_month:08X}{counter:04X}"

    def transaction_id(self) -> str:
        """At most 64 characters, never given twice."""
        return f"{self._transaction_prefix}{next(self._transactions):x}"


def _month_start_ms(now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone()
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(start.timestamp() * 1000)
