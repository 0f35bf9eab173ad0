"""Every bound in one place: what it protects, in which unit, and where the number comes from."""

from typing import Final

# --- frames and messages ---------------------------------------------------------------------------------------
#: Bytes that may follow the length field of a frame. Precedent: RocketMQ ``com.rocketmq.remoting.frameMaxLength``.
FRAME_BYTES_MAX: Final = 16_777_216
#: Requests that have come in part, over all connections, bytes; one connection may hold a frame. Protects memory: see
#: ``broker.unfinished_frames``. At least four frames.
UNFINISHED_BYTES_MAX: Final = 256 << 20
#: Answers that peers do not take, over all connections, bytes. Protects memory: see ``broker.outgoing_bytes``. At least four
#: frames.
OUTGOING_BYTES_MAX: Final = 256 << 20
#: Requests that came whole and are not done with, bytes with 1,024 for each: see ``broker.intake``. Of one connection for one
#: turn of the sequencer: keeps requests of others from waiting behind it, a few ms of small commands. One read of a socket.
INTAKE_TURN_BYTES_MAX: Final = 256 << 10
#: Of all connections for one turn. As much as one batch holds.
INTAKE_ALL_TURN_BYTES_MAX: Final = 8 << 20
#: As those two, but time: to handle what came, and to decide what came of it (expected, for all but sends and verdicts).
#: Of one connection, of all, and of the sequencer for one turn. Each may be passed by one request. s.
INTAKE_TURN_S: Final = 0.005
INTAKE_ALL_TURN_S: Final = 0.020
SEQUENCER_TURN_S: Final = 0.020
#: How long other processes may see the indexes without what is published, s: small turns share their writes.
INDEX_WAIT_S: Final = 0.002
#: Of one connection, with what waits to become durable: memory, and the part that one may have of the next bound.
INTAKE_CONNECTION_BYTES_MAX: Final = 8 << 20
#: Of all. Protects memory: above it nobody is read from who has more than the share, and a quarter above it nobody is. Each
#: bound may be passed by one frame.
INTAKE_BYTES_MAX: Final = 128 << 20
INTAKE_SHARE_BYTES: Final = 64 << 10
#: Body of one message. Precedent: RocketMQ ``maxMessageSize``.
BODY_BYTES_MAX: Final = 4_194_304
#: What a packed body may unpack to. Protects a consumer's memory; 16 times what a client may send unpacked.
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
#: What the packed bodies of halves that are checked at once may unpack to together; the rest is handed out again. Protects
#: the same. What a consumer holds unpacked is bounded for all its queues together: ``client.queue_puller.PREFETCH_BYTES``.
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
#: The same over all producer groups, and groups that may have something undecided at once. Names of groups are the peers' choice,
#: so limits for each alone protect nothing.
UNDECIDED_TOTAL_MAX: Final = 2_000_000
UNDECIDED_TOTAL_BYTES_MAX: Final = 32 << 30
UNDECIDED_GROUPS_MAX: Final = 65_536
#: Producer groups that may be known beside those: with a live member, or a recent verdict. About 2.5 KB each.
PRODUCER_GROUPS_FREE: Final = 65_536
#: A connection that is in no more than these is taken all the same, so that a few that name very many keep nobody out. Real
#: producers are in one or two.
PRODUCER_GROUPS_EACH: Final = 8
#: Producer groups with limits or a policy of their own. Those are durable, stand in each base and are never forgotten, so there
#: are far fewer of them than of all: a person sets them.
PRODUCERS_SET_MAX: Final = 4_096
#: Shortest age at which a policy may set a transaction aside, ms: well behind the first checks.
SKIP_AGE_MIN_MS: Final = 60_000
#: How long a client may wait for checks that it fetches, ms, and how many it may fetch at once. As a parked pull (FMQ's
#: Feedback, source 3.3.5, waits 5,000 ms).
FEEDBACK_WAIT_MAX_MS: Final = 25_000
#: Also who does not want to wait gives what is due so long to become durable, ms. Precedent: FMQ's client asks each 100 ms.
FEEDBACK_WAIT_MIN_MS: Final = 100
FEEDBACK_CHECKS_MAX: Final = 256
#: Deduplication window: time, ms, and number of ids.
SENT_AGAIN_MS: Final = 120_000
SENT_AGAIN_IDS_MAX: Final = 262_144
#: A body that retention by size has copied forward is copied again by it after this, ms, or where it is at most one part in
#: ``COPY_AGAIN_PART`` of what goes. Protects the disk where what is undecided is more than retention keeps: 16 GiB in an
#: hour are 4.7 MB/s. Meanwhile the log is longer than asked for, by ``COPY_AGAIN_PART`` times the copies at most.
COPY_AGAIN_MS: Final = 3_600_000
COPY_AGAIN_PART: Final = 4

#: What is kept of who an operator is and why, characters. Longer is cut, or refused where the operator can be told.
OPERATOR_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 400
#: Undecided transactions in one answer to an operator, so that it stays far below a frame.
TRANSACTIONS_LISTED_MAX: Final = 1_000

# --- queues and consumers --------------------------------------------------------------------------------------
QUEUES_PER_TOPIC_MAX: Final = 1_024
#: Topics (with ``%RETRY%`` and ``%DLQ%``) and consumer groups; fewer where the head of a segment does not hold so many, see
#: ``model.settings.named_bytes_max``. Protects memory.
TOPICS_MAX: Final = 65_536
GROUPS_MAX: Final = 16_384
#: What one pull answers at most: RocketMQ's 256 KiB / 32 messages from memory, widened for our own client by what it asks.
PULL_BYTES_MAX: Final = 1 << 20
PULL_MESSAGES_MAX: Final = 1_024
#: Queue entries looked at by one pull while filtering. Precedent: RocketMQ max(16,000 bytes / 20, ...) = 800.
PULL_SCAN_MAX: Final = 2_048
#: Tag expression of a subscription or a pull: hundreds of tags. Protects memory and the time to read it.
EXPRESSION_CHARS_MAX: Final = 16_384
#: Name of a client for itself: address, process, instance name of the application. Kept for each group it is in, and in the
#: log for each queue whose lock it holds.
CLIENT_ID_CHARS_MAX: Final = 255
#: What one connection may subscribe to in all its groups, as it takes memory, bytes: thousands of topics.
SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX: Final = 4 << 20
#: What all may; a connection that subscribes to no more than the second is taken even then, so that a few that want very much
#: keep nobody out.
SUBSCRIPTIONS_BYTES_MAX: Final = 256 << 20
SUBSCRIPTIONS_BYTES_FREE: Final = 16_384
#: Pulls that wait, over all connections, as they take memory, bytes: some 130,000 for everything or a few tags. At it the one
#: that waits longest is told that there is nothing new.
PARKED_BYTES_MAX: Final = 128 << 20
#: A parked pull is answered before the Java client's own 30 s.
PULL_SUSPEND_MAX_MS: Final = 25_000
#: Standard delay levels of RocketMQ (``messageDelayLevel``), ms.
DELAY_LEVELS_MS: Final = (
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000,
    360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip
#: Delayed messages of all topics. Protects memory, about 450 bytes each; names of topics are the peers' choice.
DELAYED_TOTAL_MAX: Final = 2_000_000
#: Longest timer (TIMER_* properties), ms. Precedent: RocketMQ ``timerMaxDelaySec`` = 3 days.
TIMER_DELAY_MAX_MS: Final = 3 * 86_400_000
#: Redeliveries before the dead-letter queue. Precedent: RocketMQ ``retryMaxTimes``.
RETRY_TIMES_MAX: Final = 16
#: A connection that is silent this long is closed. Precedent: RocketMQ ``serverChannelMaxIdleTimeSeconds``.
CONNECTION_IDLE_MS: Final = 120_000
#: Connections at once; fewer where the limit of open files leaves no room for them beside the store's. More are closed.
CONNECTIONS_MAX: Final = 16_384
#: The last of these are for operators, while all others are taken: see ``broker.places``. A quarter where there are few.
OPERATOR_PLACES: Final = 16
#: Connections of ``--http-port`` at once; more are closed.
HTTP_CONNECTIONS_MAX: Final = 32
#: Producer and consumer groups together that one connection may register in. Real clients have a handful.
GROUPS_PER_CONNECTION_MAX: Final = 1_024
#: A queue lock that is not renewed. Precedent: RocketMQ ``REBALANCE_LOCK_MAX_LIVE_TIME`` of the broker.
QUEUE_LOCK_MS: Final = 60_000
#: How long a queue is kept for its last holder after a start: a client handles it for 30 s after its lock was confirmed
#: (RocketMQ ``REBALANCE_LOCK_MAX_LIVE_TIME`` of the client, which renews each 20 s), and answers may be on their way.
QUEUE_LOCK_KEPT_MS: Final = 35_000
#: Queue locks held over all groups, about 500 bytes each; above it no new ones are granted, and above half of it none to clients
#: that sent no heartbeat for the group, which stock clients do first. Protects memory: names of clients are their own choice.
LOCKS_MAX: Final = 262_144
#: How often locks that ran out are looked for among all, while there are as many as may be, ms.
LOCKS_LOOK_MS: Final = 5_000
#: What holders of locks may take in a base, if a part of it is not less; some 20 times that in memory.
HOLDERS_BYTES_MAX: Final = 4 << 20

# --- store -----------------------------------------------------------------------------------------------------
#: Records of one batch, bytes: longer turns are cut, so that one write stays short.
BATCH_BYTES_MAX: Final = 8 << 20
#: Free space below which new messages are refused while verdicts go on, bytes.
DISK_RESERVE_BYTES: Final = 256 << 20

# --- log lines -------------------------------------------------------------------------------------------------
#: Lines that wait to be written, bytes; more are dropped and counted. Protects memory while nobody reads them.
LOG_WAITING_BYTES_MAX: Final = 1 << 20
#: One line and the traceback behind it, characters. What peers chose stands in them.
LOG_LINE_CHARS_MAX: Final = 2_000
LOG_TRACE_CHARS_MAX: Final = 16_000
