"""The settings of a broker as arguments, for type checkers: ``tests/types`` compares them with ``BrokerConfig`` and ``BrokerSettings``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from halfmq.broker.config import TlsMode
from halfmq.store.store import Durability


class BrokerOptions(TypedDict, total=False):
    """Arguments of ``halfmq.testing.Broker``. docs/configuration.md says what they do."""

    advertise_host: str | None
    audit_log: str | Path | None
    audit_log_bytes: int
    audit_log_files: int
    auto_create_groups: bool
    auto_create_topics: bool
    body_bytes_max: int
    broker_name: str
    check_answer_ms: int
    check_immunity_ms: int
    check_interval_max_ms: int
    check_interval_ms: int
    checkpoint_interval_ms: int
    checks_in_flight_max: int
    cluster: str
    connections_max: int
    connections_per_address_max: int | None
    copy_again_ms: int
    dedup_ids_max: int
    dedup_window_ms: int
    default_topic_queues: int
    delayed_total_max: int
    disk_reserve_bytes: int
    drain_ms: int
    durability: Durability
    groups_max: int
    hold_bytes: int | None
    hosts: Sequence[str]
    http_host_names: Sequence[str]
    http_port: int | None
    insecure: bool
    metrics_names_max: int
    name_port: int
    outgoing_bytes_max: int
    port: int
    queries_max: int
    retention_bytes: int
    retention_check_ms: int
    retention_ms: int
    secrets_key_file: str | Path | None
    segment_bytes: int
    store_group: str | None
    store_host: bytes
    tls_cert: str | Path | None
    tls_client_ca: str | Path | None
    tls_key: str | Path | None
    tls_mode: TlsMode
    topics_max: int
    trust_clock: bool
    undecided_bytes_max: int
    undecided_groups_max: int
    undecided_max: int
    undecided_total_bytes_max: int
    undecided_total_max: int
    unfinished_bytes_max: int
    vip_channel: bool
