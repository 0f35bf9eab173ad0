"""Offsets of different kinds, as different types, so that a mix-up is a type error.

All are plain ``int`` at run time.
"""

from typing import Final, NewType

#: Position in the log, in bytes since the store was made. The offset of a message is the start of its
#: record; RocketMQ calls the same number ``physicalOffset`` and ``commitLogOffset``. Unique for ever.
LogOffset = NewType("LogOffset", int)

#: Position of a message in one queue of one topic, counted in messages.
QueueOffset = NewType("QueueOffset", int)

#: Number of a half message, counted over the whole store: RocketMQ's ``tranStateTableOffset``.
HalfIndex = NewType("HalfIndex", int)

#: Identity of a topic. A topic made again after deletion gets a new one.
TopicId = NewType("TopicId", int)

#: Length of one open file of the log, in bytes; positions in the log are ``segment number * segment_bytes + place``.
NO_HALF: Final = HalfIndex(-1)
#: Queue entry of a message that was delayed: what leaves is patched, but there is no half behind it.
DELAYED: Final = HalfIndex(-2)
