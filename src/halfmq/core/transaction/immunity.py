"""How long a half message rests before its producer is first asked.

Measured on broker time from when it was stored, never on the client's clock: in RocketMQ a client whose clock is ahead
makes the age negative and is asked at once.
"""

from typing import Final

from halfmq.model.properties import CHECK_IMMUNITY_SECONDS

#: The longest rest that a message may ask for, ms: without a bound nobody would ever ask about it.
#: As long as the longest timer (RocketMQ ``timerMaxDelaySec``).
IMMUNITY_MAX_MS: Final = 3 * 86_400_000
_CHECK_IMMUNITY_SECONDS: Final = CHECK_IMMUNITY_SECONDS.encode()


def immunity_ms(of_epoch_ms: int, pairs: dict[bytes, bytes]) -> int:
    """What CHECK_IMMUNITY_TIME_IN_SECONDS says, else the broker's setting; so does RocketMQ with -1 and with nonsense.

    ``of_epoch_ms``: ``State.check_immunity_ms``.
    """
    text = pairs.get(_CHECK_IMMUNITY_SECONDS)
    if text is None or not text.isdigit() or len(text) > 12:
        return of_epoch_ms
    return min(int(text) * 1_000, IMMUNITY_MAX_MS)
