"""All limits and default times, with unit, purpose and precedent."""

from typing import Final

# --- frames and messages ---------------------------------------------------------------------------------------
#: Bytes that may follow the length field of a frame. Precedent: RocketMQ ``com.rocketmq.remoting.frameMaxLength``.
FRAME_BYTES_MAX: Final = 16_777_216
#: Fields of a header. RocketMQ's longest headers have some 25, with those of its access control.
HEADER_FIELDS_MAX: Final = 128
#: Remark of a response, characters: it may quote what a peer sent.
REMARK_CHARS_MAX: Final = 2_000
#: Partially received requests of all connections, bytes. Protects memory; a connection may have one incomplete frame. At least
#: four frames. See ``broker.peers.unfinished_frames``.
UNFINISHED_BYTES_MAX: Final = 256 << 20
#: The smallest that a broker may be configured to: a quarter of it must hold the largest frame, with its length field.
UNFINISHED_BYTES_MIN: Final = 4 * (FRAME_BYTES_MAX + 4)
#: Unread responses of all connections, bytes. Protects memory. At least four frames. See ``broker.peers.outgoing_bytes``.
OUTGOING_BYTES_MAX: Final = 256 << 20
#: The smallest that a broker may be configured to: twice the largest response, so that it does not close its own reader.
OUTGOING_BYTES_MIN: Final = 4 * FRAME_BYTES_MAX
#: Complete requests in progress of a connection per turn of the sequencer, bytes, plus 1,024 per request: a few ms of small
#: commands, so that others do not wait. As much as one read of a socket. See ``broker.peers.intake``.
INTAKE_TURN_BYTES_MAX: Final = 256 << 10
#: The same for all connections: the size of a batch.
INTAKE_ALL_TURN_BYTES_MAX: Final = 8 << 20
#: Time per turn to handle requests, of a connection and of all, and to decide commands (estimated, except for sends and
#: verdicts), s. One request may exceed each.
INTAKE_TURN_S: Final = 0.005
INTAKE_ALL_TURN_S: Final = 0.020
SEQUENCER_TURN_S: Final = 0.020
#: Time in a round of the loop to follow a verdict on many messages in the indexes, s.
SEQUENCER_STAGE_S: Final = 0.005
#: Maximum delay of index writes that small turns share, s. Readers in other processes see it.
INDEX_WAIT_S: Final = 0.002
#: Requests in progress of a connection, including those that wait for a sync, bytes. Protects memory and other connections.
INTAKE_CONNECTION_BYTES_MAX: Final = 8 << 20
#: Requests in progress of all connections, bytes. Protects memory: above it the broker does not read from connections with more
#: than ``INTAKE_SHARE_BYTES``, a quarter above it from none. One frame may exceed each.
INTAKE_BYTES_MAX: Final = 128 << 20
INTAKE_SHARE_BYTES: Final = 64 << 10
#: Body of one message. Precedent: RocketMQ ``maxMessageSize``.
BODY_BYTES_MAX: Final = 4_194_304
#: Maximum decompressed body, bytes. Protects the memory of consumers; 16 times the maximum uncompressed body.
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
#: Decompressed bodies of half messages checked at once, bytes; the others are fetched again. Protects memory of clients. For
#: consumers the limit is ``client.queue_puller.PREFETCH_BYTES``.
UNPACKED_BYTES_MAX: Final = 64 << 20
#: Property string of a message, bytes; its length is a signed 16-bit number.
PROPERTIES_BYTES_MAX: Final = 32_767
#: Maximum length of the reason that a dead letter keeps, characters: the text of an exception without its traceback.
DEAD_REASON_CHARS_MAX: Final = 1_000
TOPIC_CHARS_MAX: Final = 127
#: Names of ``%RETRY%`` and ``%DLQ%`` topics contain a group name.
RETRY_TOPIC_CHARS_MAX: Final = 255
GROUP_CHARS_MAX: Final = 120
TRANSACTION_ID_CHARS_MAX: Final = 64

# --- transactions ----------------------------------------------------------------------------------------------
TRANSACTION_MESSAGES_MAX: Final = 1_024
TRANSACTION_BYTES_MAX: Final = 64 << 20
#: Payload of a half batch, bytes: a frame holds it, and it takes a few ms of the event loop. Messages in it: as many as fit.
HALF_BATCH_BYTES_MAX: Final = 8 << 20
#: Messages of a batch (320). The loop serves nothing else while they are stored: 6 us each.
BATCH_MESSAGES_MAX: Final = 4_096
#: KEYS of all messages of a batch or half batch, which are separated by blanks: an entry of the key index each, 1 us of the loop. Eight for
#: each row of a Spark sink.
REQUEST_KEYS_MAX: Final = 20_480
#: Half batches of a transaction: some 16 GiB of messages in batches of 1 MiB.
TRANSACTION_HALF_BATCHES_MAX: Final = 16_384
#: Undecided transactions of a query, each a batch in one run. Spark has at most one batch in progress.
QUERY_UNDECIDED_MAX: Final = 16
#: Decisions that the broker remembers of a query, newest first. Spark can repeat only its last batch; its checkpoint holds 100.
QUERY_DECISIONS_MAX: Final = 100
#: Earlier runs of a query that are refused by name.
QUERY_RUNS_MAX: Final = 16
#: Maximum number of queries. A decided one stays for as long as the store does, so this bounds what strangers can leave behind.
QUERIES_MAX: Final = 16_384
#: A query without a decision and without an undecided batch is forgotten after this time, ms: nothing depends on it. Streams begin a
#: batch more often. So is one that is over, such as a batch write without a name: its driver repeats the decision for minutes at most.
QUERY_UNUSED_MS: Final = 3_600_000
#: A query that decided nothing for this time keeps only its last decision, ms. Its earlier ones serve a checkpoint that was restored, and
#: jobs of every week or month that repeat an earlier number. Where there is no space they go sooner (``transaction.query_limits``).
QUERY_IDLE_MS: Final = 90 * 86_400_000
#: Coordinators (``model.coordinator``) of a producer group, and of all: where there is no space, idle ones give way.
COORDINATORS_PER_GROUP_MAX: Final = 16
COORDINATORS_MAX: Final = 1_024
COORDINATOR_NAME_CHARS_MAX: Final = 64
#: A coordinator without undecided transactions may give way to a new one so long after its epoch was taken, ms.
COORDINATOR_IDLE_MS: Final = 3_600_000
#: Undecided transactions of a coordinator: sorting them for each page of a listing takes 5 ms of the loop.
COORDINATOR_UNDECIDED_MAX: Final = 65_536
#: UTF-8 bytes of the name of the client that took an epoch.
EPOCH_TAKER_BYTES_MAX: Final = 96
#: A branch of somebody else's transaction, as text: an xid of X/Open takes up to 268.
BRANCH_CHARS_MAX: Final = 300
#: Grace period: time between the prepare and the first check, ms. Precedent: RocketMQ ``transactionTimeOut``.
CHECK_IMMUNITY_MS: Final = 6_000
#: Maximum of all time settings of checks, ms: a year. Longer values are mistakes.
CHECK_TIMES_MAX_MS: Final = 366 * 86_400_000
#: Back-off of checks: first interval (ms), factor, maximum interval (ms). RocketMQ checks every 30,000 ms.
CHECK_INTERVAL_MS: Final = 5_000
CHECK_BACKOFF_FACTOR: Final = 2
CHECK_INTERVAL_MAX_MS: Final = 60_000
#: Time for the answer to a check, ms; until then it is in flight and not repeated.
CHECK_ANSWER_MS: Final = 5_000
#: Maximum checks in flight per producer group, so that a restarted service is not overloaded.
CHECKS_IN_FLIGHT_MAX: Final = 256
#: Maximum undecided transactions per producer group: number and bytes. Protects memory and disk (FMQ source, 3.3.2).
UNDECIDED_MAX: Final = 1_000_000
UNDECIDED_BYTES_MAX: Final = 16 << 30
#: The same for all producer groups, and the maximum number of groups with undecided transactions. Clients choose group names, so
#: limits per group alone protect nothing.
UNDECIDED_TOTAL_MAX: Final = 2_000_000
UNDECIDED_TOTAL_BYTES_MAX: Final = 32 << 30
UNDECIDED_GROUPS_MAX: Final = 65_536
#: One part in so many of these groups is for those that are known to be somebody's; see ``core.transaction.admission``.
UNDECIDED_GROUPS_KNOWN_PART: Final = 4
#: Maximum of other producer groups in memory (with a live member or a recent verdict); about 2.5 KB each.
PRODUCER_GROUPS_FREE: Final = 65_536
#: A connection in at most this many groups is accepted nevertheless, so that clients with very many groups cannot lock out others.
#: Real producers are in one or two.
PRODUCER_GROUPS_PER_CONNECTION_EXEMPT: Final = 8
#: Maximum producer groups with their own limits or policy. These are durable, and part of each base.
PRODUCERS_SET_MAX: Final = 4_096
#: Minimum age at which a policy may park a transaction, ms: well after the first checks.
SKIP_AGE_MIN_MS: Final = 60_000
#: Maximum wait of a request that fetches checks, ms. Equal to that of a pull (FMQ's Feedback, source 3.3.5, waits 5,000 ms).
CHECK_POLL_WAIT_MAX_MS: Final = 25_000
#: Minimum wait, ms, so that due checks can become durable. Precedent: FMQ's client polls every 100 ms.
CHECK_POLL_WAIT_MIN_MS: Final = 100
#: Maximum checks per request.
CHECK_POLL_CHECKS_MAX: Final = 256
#: Deduplication window: time, ms, and number of ids.
DEDUP_WINDOW_MS: Final = 120_000
DEDUP_IDS_MAX: Final = 262_144
#: Retention by size copies a body forward again only after this time, ms, or if it is at most one part in ``COPY_AGAIN_PART`` of the
#: segments to remove. Limits disk writes if undecided messages exceed the retention: 16 GiB per hour are 4.7 MB/s. Meanwhile
#: the log may exceed its limit by ``COPY_AGAIN_PART`` times the copies.
COPY_AGAIN_MS: Final = 3_600_000
COPY_AGAIN_PART: Final = 4
#: A consumer group that holds retention: default age at which messages are no longer kept for it, ms, and maximum number of topics.
#: Precedent: Kafka forgets the offsets of an idle group after 7 days (``offsets.retention.minutes``).
HOLD_MS: Final = 7 * 86_400_000
HOLD_MS_MAX: Final = 100 * 365 * 86_400_000
HOLD_TOPICS_MAX: Final = 64
#: Length of the type of messages with which an administrator labels a topic.
MESSAGE_TYPE_CHARS_MAX: Final = 31

#: Users (``model.users``), the characters of a name, and the permissions of one.
USERS_MAX: Final = 1_024
USER_NAME_CHARS_MAX: Final = 64
PERMISSIONS_MAX: Final = 256
#: Characters of a secret or password: one that an administrator gives is no shorter.
SECRET_CHARS_MIN: Final = 8
SECRET_CHARS_MAX: Final = 1_024

#: Operator name and reason in the audit log, characters. Longer texts are truncated, or rejected in requests.
OPERATOR_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 400
#: Maximum characters of a transaction's comment for operators; and of its name, where it is shown.
COMMENT_CHARS_MAX: Final = 200
NAME_CHARS_SHOWN: Final = 255
#: Verdicts that a broker remembers to compare them with markers, and findings, together.
COMPARISONS_MAX: Final = 4_096
#: Findings among them of verdicts that no marker was to be compared with: anybody can settle a transaction of its own and contradict
#: itself.
COMPARISONS_REPORTED_MAX: Final = COMPARISONS_MAX // 4
#: Maximum characters of who reports a local outcome, such as "bank A".
COMPARISON_SOURCE_CHARS_MAX: Final = 64
#: Maximum undecided transactions in a response to an operator, so that it is far smaller than a frame.
TRANSACTIONS_LISTED_MAX: Final = 1_000

# --- queues and consumers --------------------------------------------------------------------------------------
QUEUES_PER_TOPIC_MAX: Final = 1_024
#: Maximum topics (including ``%RETRY%`` and ``%DLQ%``) and consumer groups; fewer with small segments, see
#: ``model.settings.BasePart``. Protects memory.
TOPICS_MAX: Final = 65_536
GROUPS_MAX: Final = 16_384
#: Maximum of a pull response, if the client requests it; by default 256 KiB and 32 messages, as in RocketMQ.
PULL_BYTES_MAX: Final = 1 << 20
PULL_MESSAGES_MAX: Final = 1_024
#: Maximum queue entries that a pull with a filter examines. Precedent: RocketMQ max(16,000 bytes / 20, ...) = 800.
PULL_SCAN_MAX: Final = 2_048
#: Queues whose bounds a reader gets at one position (``wire.remoting.position``): 32,768 topics of four.
POSITION_QUEUES_MAX: Final = 131_072
#: A reader that plans asks for the sizes of some messages, to estimate the bytes of a range. So many samples of so many consecutive
#: messages in a request take 1.2 ms of the loop; further samples are for another request.
SIZE_SAMPLES_MAX: Final = 128
SIZE_SAMPLE_MESSAGES: Final = 16
#: Freed memory at the end of its heap that a broker keeps for its next allocations, bytes (``runtime.allocator``).
FREED_BYTES_KEPT: Final = 32 << 20
#: Maximum of a raw read: stored messages with their queue entries, and their number. The loop serves nothing else meanwhile: 4,096 messages
#: of 390 bytes that lie between others take 4 ms, 2 MiB of messages of 1.3 KiB 3 ms; half batches a third of that.
RAW_READ_BYTES_MAX: Final = 8 << 20
RAW_READ_MESSAGES_MAX: Final = 5_120
#: Maximum of a read for a backup. It is read on the maintenance thread, and the loop copies it once into its response.
BACKUP_READ_BYTES_MAX: Final = 1 << 20
#: Epochs of coordinators that a restored store never gives: the store whose backup it is may have given them after the backup.
RESTORE_EPOCHS_SKIPPED: Final = 1 << 24
#: Maximum of a read of the transaction table: rows with their records, which take 2.4 us each, bytes of records, and rows among which the
#: undecided ones are searched, which takes 3.6 ms.
TABLE_READ_ROWS_MAX: Final = 1_024
TABLE_SCAN_ROWS_MAX: Final = 16_384
TABLE_READ_BYTES_MAX: Final = 2 << 20
#: Reading a record that is not near the one before it counts as so many bytes of the log.
TABLE_READ_COST_BYTES: Final = 4_096
#: Tag expression of a subscription or pull: hundreds of tags. Protects memory and CPU.
EXPRESSION_CHARS_MAX: Final = 16_384
#: Client id: address, process, instance name. Stored for each of its groups, and in the log for each queue lock.
CLIENT_ID_CHARS_MAX: Final = 255
#: Memory for all subscriptions of a connection, bytes: thousands of topics.
SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX: Final = 4 << 20
#: Memory for all subscriptions, bytes. Connections with at most ``SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT`` are accepted
#: nevertheless, so that few clients cannot lock out others.
SUBSCRIPTIONS_BYTES_MAX: Final = 256 << 20
SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT: Final = 16_384
#: Memory for waiting pulls, bytes: some 130,000 with few tags. At the limit, the oldest one gets the response "no new message".
HELD_BYTES_MAX: Final = 128 << 20
#: Maximum wait of a pull, ms: less than the Java client's timeout of 30 s.
PULL_SUSPEND_MAX_MS: Final = 25_000
#: Standard delay levels of RocketMQ (``messageDelayLevel``), ms.
DELAY_LEVELS_MS: Final = (
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000,
    360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
)  # fmt: skip
#: Maximum delayed messages in all topics. Protects memory, about 450 bytes each.
DELAYED_TOTAL_MAX: Final = 2_000_000
#: Maximum delay with TIMER_* properties, ms. Precedent: RocketMQ ``timerMaxDelaySec`` = 3 days.
TIMER_DELAY_MAX_MS: Final = 3 * 86_400_000
#: Redeliveries before the dead-letter queue. Precedent: RocketMQ ``retryMaxTimes``.
RETRY_TIMES_MAX: Final = 16
#: Idle time after which a connection is closed, ms. Precedent: RocketMQ ``serverChannelMaxIdleTimeSeconds``.
CONNECTION_IDLE_MS: Final = 120_000
#: Maximum connections; fewer if the limit of open files requires it.
CONNECTIONS_MAX: Final = 16_384
#: Connections reserved for operators, at most a quarter of all; see ``broker.peers.connection_admission``.
OPERATOR_PLACES: Final = 16
#: Default and maximum of --metrics-names-max: each name has up to seven series, of some 150 bytes each in every scrape.
METRICS_NAMES_MAX: Final = 1_000
METRICS_NAMES_MOST: Final = 10_000
#: Maximum HTTP connections; as many older ones may be closing.
HTTP_CONNECTIONS_MAX: Final = 32
#: Maximum producer and consumer groups of a connection. Real clients have a few.
GROUPS_PER_CONNECTION_MAX: Final = 1_024
#: Time after which a queue lock expires unless renewed, ms. Precedent: RocketMQ ``REBALANCE_LOCK_MAX_LIVE_TIME`` of the broker.
QUEUE_LOCK_MS: Final = 60_000
#: Time after a start in which only its last holder may lock a queue, ms: a client uses a lock for 30 s after its confirmation
#: (RocketMQ ``REBALANCE_LOCK_MAX_LIVE_TIME`` of the client, which renews every 20 s), plus network delay.
QUEUE_LOCK_KEPT_MS: Final = 35_000
#: Maximum queue locks in all groups, about 500 bytes each. Above half of it, clients without a heartbeat for the group (RocketMQ's
#: send it first) get no locks. Protects memory.
LOCKS_MAX: Final = 262_144
#: Interval of removing expired locks while ``LOCKS_MAX`` is reached, ms.
LOCKS_EXPIRE_INTERVAL_MS: Final = 5_000
#: Maximum size of lock holders in a base, bytes, unless a fraction of the base is less; in memory some 20 times that.
HOLDERS_BYTES_MAX: Final = 4 << 20

# --- store -----------------------------------------------------------------------------------------------------
#: Maximum records of a batch, bytes: longer turns are split, so that a write stays short.
BATCH_BYTES_MAX: Final = 8 << 20
#: Free disk space below which new messages are rejected, but verdicts accepted, bytes.
DISK_RESERVE_BYTES: Final = 256 << 20

# --- log lines -------------------------------------------------------------------------------------------------
#: Log lines waiting to be written, bytes; more are dropped and counted. Protects memory if the reader is slow.
LOG_WAITING_BYTES_MAX: Final = 1 << 20
#: Maximum log line and traceback, characters. They contain text from peers.
LOG_LINE_CHARS_MAX: Final = 2_000
LOG_TRACE_CHARS_MAX: Final = 16_000
#: Lines of the audit log waiting to be written, bytes; more are dropped and counted.
AUDIT_WAITING_BYTES_MAX: Final = 4 << 20
#: Different refusals of one second, whose equals are counted; further ones are lines of their own.
AUDIT_HELD_MAX: Final = 1_024
#: Of an event: characters of a text, names of topics and groups. They come from peers.
AUDIT_TEXT_CHARS_MAX: Final = 500
AUDIT_NAMES_MAX: Final = 16
#: Size of a file of the audit log, bytes, and number of older ones that are kept.
AUDIT_BYTES_MAX: Final = 64 << 20
AUDIT_FILES_MAX: Final = 8
