"""Every family of series of ``/metrics``: its name, type, labels, unit and meaning. ``docs/metrics.md`` is made from this table
(``python -m tests.documents.metrics_page``).

Names are RocketMQ 5's (its exporter of the broker) where they mean the same, so that dashboards of it work; these have its labels
``cluster``, ``node_type`` and ``node_id`` besides. Others begin with ``halfmq_`` and have base units.
"""

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

_PAIR: Final = ("consumer_group", "topic")
#: Labels of every series with a name of RocketMQ's.
NODE_LABELS: Final = ("cluster", "node_type", "node_id")
ROCKETMQ: Final = "rocketmq_"


class Family(NamedTuple):
    """Series of one name. ``is_stored``: they show stored state, so that they wait until a crash cannot take that back."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    is_stored: bool = True


_TABLE: Final = (
    # --- transactions
    Family("halfmq_undecided_transactions", GAUGE, "transactions", ("producer_group",), "Transactions without a verdict."),
    Family("halfmq_undecided_oldest_seconds", GAUGE, "seconds", ("producer_group",), "Age of the oldest undecided transaction; 0: there is none."),
    Family("halfmq_undecided_bytes", GAUGE, "bytes", ("producer_group",), "Messages of undecided transactions."),
    Family("halfmq_parked_transactions", GAUGE, "transactions", ("producer_group",), "Undecided transactions that get no more checks, by the policy of their group."),
    Family("halfmq_reachable_producers", GAUGE, "clients", ("producer_group",), "Connected clients of the group that can be checked."),
    Family("halfmq_checks_in_flight", GAUGE, "checks", ("producer_group",), "Checks without a response yet."),
    Family("halfmq_undecided_without_producer", GAUGE, "transactions", ("producer_group",), "Undecided transactions, not parked, that cannot be checked: no producer of their group is connected."),
    Family("halfmq_undecided_transactions_max", GAUGE, "transactions", (), "How many all groups may have undecided (--undecided-total-max)."),
    Family("halfmq_checks_sent_total", COUNTER, "checks", (), "Checks that were sent to a producer."),
    Family("halfmq_checks_undelivered_total", COUNTER, "checks", (), "Checks that reached no producer, because it was gone or did not read. Another one gets them."),
    Family("halfmq_check_answers_total", COUNTER, "answers", ("outcome",), "Answers to checks: commit, rollback or unknown."),
    Family("halfmq_verdicts_total", COUNTER, "transactions", ("decided_by", "outcome"), "Transactions that were settled: by whom, and commit or rollback."),
    Family("halfmq_undecided_seconds", HISTOGRAM, "seconds", ("decided_by", "outcome"), "From a transaction's first half to its verdict, by who gave it, since the start of the broker."),
    Family("halfmq_damaged_transactions", GAUGE, "transactions", (), "Verdicts that contradict what the application's database did (halfmq tx damaged)."),
    Family("halfmq_comparisons", GAUGE, "transactions", (), "Verdicts of operators, policies and coordinators that are remembered to be compared with a marker, and findings."),
    Family("rocketmq_half_messages", GAUGE, "messages", ("topic",), "Half messages, and half batches, of undecided transactions."),
    Family("rocketmq_commit_messages_total", COUNTER, "messages", ("topic",), "Messages of transactions that committed. A half batch counts with its messages."),
    Family("rocketmq_rollback_messages_total", COUNTER, "messages", ("topic",), "Half messages, and half batches, of transactions that rolled back."),
    # --- messages
    Family("rocketmq_messages_in_total", COUNTER, "messages", ("topic",), "Messages that became visible, since the topic was created."),
    Family("rocketmq_messages_out_total", COUNTER, "messages", _PAIR, "Messages delivered to members of a consumer group."),
    Family("rocketmq_consumer_lag_messages", GAUGE, "messages", (*_PAIR, "is_retry"), "Visible messages that the consumer group has not finished."),
    Family("rocketmq_consumer_lag_latency", GAUGE, "milliseconds", (*_PAIR, "is_retry"), "Age of the oldest of them; RocketMQ's unit."),
    Family("halfmq_consumer_lag_seconds", GAUGE, "seconds", (*_PAIR, "is_retry"), "Age of the oldest of them."),
    Family("rocketmq_consumer_inflight_messages", GAUGE, "messages", (*_PAIR, "is_retry"), "Messages that were delivered and are not finished."),
    Family("rocketmq_send_to_dlq_messages_total", COUNTER, "messages", ("consumer_group",), "Dead letters of the consumer group, since its first one."),
    Family("halfmq_delayed_messages", GAUGE, "messages", (), "Messages that wait for their time."),
    Family("rocketmq_topic_number", GAUGE, "topics", (), "Topics, retry and dead-letter topics included."),
    Family("rocketmq_consumer_group_number", GAUGE, "groups", (), "Consumer groups."),
    # --- queries
    Family("halfmq_query_last_batch", GAUGE, "batch number", ("query", "topic"), "The last batch that a query, such as a Spark stream, has decided; -1: none."),
    Family("halfmq_query_position_bytes", GAUGE, "bytes", ("query", "topic"), "Log position of that decision; -1: none."),
    Family("halfmq_query_behind_bytes", GAUGE, "bytes", ("query", "topic"), "From that position to the end of the log: what was written since its last decision, by anybody. Missing before the first one."),
    Family("halfmq_query_undecided_batches", GAUGE, "batches", ("query", "topic"), "Undecided batches of the query."),
    # --- the log
    Family("halfmq_log_bytes", GAUGE, "bytes", (), "Size of the log."),
    Family("halfmq_log_segments", GAUGE, "files", (), "Segments of the log."),
    Family("halfmq_log_end_bytes_total", COUNTER, "bytes", (), "Log position after the last record: its rate is what is written."),
    Family("halfmq_index_lag_bytes", GAUGE, "bytes", (), "How far the indexes are behind the log; more than 0 for long: the disk is full."),
    Family("halfmq_disk_free_bytes", GAUGE, "bytes", (), "Free space on the disk of the store.", False),
    Family("halfmq_disk_size_bytes", GAUGE, "bytes", (), "Size of that disk.", False),
    Family("halfmq_disk_reserve_bytes", GAUGE, "bytes", (), "With less free space, new messages are refused (--disk-reserve-bytes).", False),
    Family("halfmq_sync_seconds", HISTOGRAM, "seconds", (), "Syncs of the log, for which replies wait.", False),
    # --- requests, and the broker
    Family("halfmq_requests_total", COUNTER, "requests", ("request", "outcome"), "Requests that got a response, by the names of both codes. One-way requests get none; what they decide is in halfmq_verdicts_total. UNKNOWN: requests that this broker does not have.", False),
    Family("halfmq_request_seconds", HISTOGRAM, "seconds", ("request",), "From when the broker begins with a request until its response is on its way, the sync included. Pulls that wait for messages count with that time. Of sends and verdicts with responses one in 16 is timed at most.", False),
    Family("halfmq_connections", GAUGE, "connections", (), "Open connections of clients.", False),
    Family("halfmq_replies_waiting", GAUGE, "replies", (), "Replies that wait for the disk.", False),
    Family("halfmq_ready", GAUGE, "", (), "1: the broker serves, as /readyz says; 0: it does not.", False),
    Family("halfmq_state_shown", GAUGE, "", (), "1: with series of stored state; 0: they are missing, since the disk does not make them durable in time.", False),
    Family("halfmq_info", GAUGE, "", ("version", "durability"), "Always 1.", False),
)  # fmt: skip

FAMILIES: Final = {family.name: family for family in _TABLE}
#: Series of the process, which are the library's: Linux only.
PROCESS: Final = {
    "process_virtual_memory_bytes": "Virtual memory.",
    "process_resident_memory_bytes": "Resident memory.",
    "process_start_time_seconds": "Start of the process, since 1970.",
    "process_cpu_seconds_total": "Processor time, user and system.",
    "process_open_fds": "Open file descriptors.",
    "process_max_fds": "Maximum of open file descriptors.",
}
