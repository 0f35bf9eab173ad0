"""Every bound in one place: what it protects, in which unit, and where the number comes from."""

from typing import Final

# --- frames and messages ---------------------------------------------------------------------------------------
#: Bytes that may follow the length field of a frame. Precedent: RocketMQ ``com.rocketmq.remoting.frameMaxLength``.
FRAME_BYTES_MAX: Final = 16_777_216
#: Requests that have come in part, over all connections, bytes; one connection may hold a frame. Protects memory: see
#: ``broker.unfinished_frames``. At least four frames.
UNFINISHED_BYTES_MAX: Final = 256 << 20
#: Body of one message. Precedent: RocketMQ ``maxMessageSize``.
BODY_BYTES_MAX: Final = 4_194_304
#: What a packed body may unpack to. Protects a consumer's memory; 16 times what a client may send unpacked.
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
#: What the packed bodies of one pull may unpack to together; the rest is pulled again. Protects the same.
UNPACKED_BYTES_MAX: Final = 64 << 20
#: Property string of one message; its length field is a signed 16-bit number.
PROPERTIES_BYTES_MAX: Final = 32_767
TOPIC_CHARS_MAX: Final = 127
#: ``%RETRY%`` and ``%DLQ%`` topics: a group name with a prefix.
RETRY_TOPIC_CHARS_MAX: Final = 255
GROUP_CHARS_MAX: Final = 120
TRANSACTION_ID_CHARS_MAX: Final = 64

# --- transactions ----------------------------------------------------------------------------------------------
TRANSACTION_MESSAGES_MAX: Final = 1_024
TRANSACTION_BYTES_MAX: Final = 64 << 20
#: How long a half message rests before its producer is first asked, ms. Precedent: RocketMQ ``transactionTimeOut``.
CHECK_IMMUNITY_MS: Final = 6_000
#: The longest time that any of these settings may be, ms: a year. What is longer is a slip, and due times stay small.
CHECK_TIMES_MAX_MS: Final = 366 * 86_400_000
#: Back-off of checks: first interval, factor, longest interval. RocketMQ asks every 30,000 ms without back-off.
CHECK_INTERVAL_MS: Final = 5_000
CHECK_BACKOFF_FACTOR: Final = 2
CHECK_INTERVAL_MAX_MS: Final = 60_000
#: A check that got no answer may be repeated after this, ms, also when the interval is shorter; until then it is in flight.
CHECK_ANSWER_MS: Final = 5_000
#: Checks in flight per producer group, so that a restarted service is not flooded.
CHECKS_IN_FLIGHT_MAX: Final = 256
#: Undecided transactions per producer group: count and bytes. Protects memory and disk (FMQ source, 3.3.2).
UNDECIDED_MAX: Final = 1_000_000
UNDECIDED_BYTES_MAX: Final = 16 << 30
#: Shortest age at which a policy may set a transaction aside, ms: well behind the first checks.
SKIP_AGE_MIN_MS: Final = 60_000
#: How long a client may wait for checks that it fetches, ms, and how many it may fetch at once. As a parked pull (FMQ's
#: Feedback, source 3.3.5, waits 5,000 ms).
FEEDBACK_WAIT_MAX_MS: Final = 25_000
#: Also who does not want to wait gives what is due so long to become durable, ms. Precedent: FMQ's client asks each 100 ms.
FEEDBACK_WAIT_MIN_MS: Final = 100
FEEDBACK_CHECKS_MAX: Final = 256
#: What "sent again" remembers: age and number of ids.
SENT_AGAIN_MS: Final = 120_000
SENT_AGAIN_IDS_MAX: Final = 262_144

# --- queues and consumers --------------------------------------------------------------------------------------
QUEUES_PER_TOPIC_MAX: Final = 1_024
#: What one pull answers at most: RocketMQ's 256 KiB / 32 messages from memory, widened for our own client by what it asks.
PULL_BYTES_MAX: Final = 1 << 20
PULL_MESSAGES_MAX: Final = 1_024
#: Queue entries looked at by one pull while filtering. Precedent: RocketMQ max(16,000 bytes / 20, ...) = 800.
PULL_SCAN_MAX: Final = 2_048
#: A parked pull is answered before the Java client's own 30 s.
PULL_SUSPEND_MAX_MS: Final = 25_000
#: Standard delay levels of RocketMQ (``messageDelayLevel``), ms.
DELAY_LEVELS_MS: Final = (
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000,
    360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip
#: Longest timer (TIMER_* properties), ms. Precedent: RocketMQ ``timerMaxDelaySec`` = 3 days.
TIMER_DELAY_MAX_MS: Final = 3 * 86_400_000
#: Redeliveries before the dead-letter queue. Precedent: RocketMQ ``retryMaxTimes``.
RETRY_TIMES_MAX: Final = 16
#: A connection that is silent this long is closed. Precedent: RocketMQ ``serverChannelMaxIdleTimeSeconds``.
CONNECTION_IDLE_MS: Final = 120_000
#: Connections at once; fewer where the limit of open files leaves no room for them beside the store's. More are closed.
CONNECTIONS_MAX: Final = 16_384
#: Producer and consumer groups together that one connection may register in. Real clients have a handful.
GROUPS_PER_CONNECTION_MAX: Final = 1_024
QUEUE_LOCK_MS: Final = 60_000

# --- store -----------------------------------------------------------------------------------------------------
#: Records of one batch, bytes: longer turns are cut, so that one write stays short.
BATCH_BYTES_MAX: Final = 8 << 20
#: Free space below which new messages are refused while verdicts go on, bytes.
DISK_RESERVE_BYTES: Final = 256 << 20
