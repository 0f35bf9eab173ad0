"""State that a peer can create: who pays for it, what its maximum is, and how it goes away. The rule, and every such state.

Whoever can connect may create state by naming something, or by not finishing something. So each state has

- somebody who **pays**: it takes a part of a budget that is not everybody's, so that strangers use up only what is for strangers;
- a **maximum** that leaves the operators' part: with a full budget an operator can still connect, see what is there, create and remove;
- what **one** may have of it, so that a flood of one does not refuse the work of others. One is a user; in a broker without users, and
  for who has not said who it is, an address. Of what all share it has three quarters, or the table says what it means that it has more;
- a way to **go away**: with its connection, by age, by retention, or by an operator's command. What must stay (an undecided
  transaction, a decided batch) is refused at the maximum instead of removed.

A new container in ``core`` or ``broker`` needs a line here; ``tests/unit/broker/test_peer_state.py`` fails without one. From this table
``docs/decisions/0056-state-that-a-peer-can-create.md`` gets its own.
"""

from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.base_bytes import DECISIONS_RESERVED
from halfmq.model.settings import COORDINATORS_PART, GROUPS_PART, NAMED_PART, QUERIES_PART, USERS_PART

#: What one user or address may have at most: three quarters of what all share (``model.share``); ...
SHARE: Final = "three quarters"
#: ... what an administrator says of the user, and if nothing is said as much as there is; ...
OWN: Final = "its own limit"
#: ... or as much as there is, and what that means to others.
NOT_SHARED: Final = "no limit"


class PeerState(NamedTuple):
    """One kind of state. ``held_in``: ``module:Class.attribute``, within ``halfmq``. Numbers are those that the rules use, and names in
    ``most`` and ``one`` are options, or constants of ``limits`` or of a module of ``held_in``. ``one`` begins with ``SHARE``, ``OWN`` or
    ``NOT_SHARED``.
    """

    what: str
    pays: str
    most: str
    one: str
    goes: str
    held_in: tuple[str, ...]


TABLE: Final = (
    # --- durable
    PeerState(
        "topic", f"named items' part of a base ({NAMED_PART})", "`--topics-max`; that part. 17 by an operator: all of the base",
        f"{OWN}: `halfmq user set --names`",
        "an operator deletes it",
        (
            "core.state:State.topics_by_name", "core.state:State.topics_by_id", "core.state:Topic.ends", "core.state:Topic.mins",
            "core.state:Topic.half_suffixes", "core.state:Topic.wakes",
        ),
    ),
    PeerState(
        "consumer group", f"groups' part of a base ({GROUPS_PART}), of the named items'", "`--groups-max`; that part",
        f"{OWN}: `halfmq user set --names`",
        "an operator deletes it",
        ("core.state:State.groups", "broker.services.members:Members._durable_groups"),
    ),
    PeerState(
        "offset of a group in a queue", "the base", "groups times queues; without space in the base only in memory",
        f"{NOT_SHARED}: nothing is refused",
        "with its topic or its group",
        (
            "core.state:State.offsets", "core.state:TopicDerived.groups", "core.state:SessionState.fresh_offsets",
            "core.state:SessionState.offsets_refused", "core.state:SessionState.offsets_due", "core.state:SessionState.offsets_to_log",
            "core.state:SessionState.offsets_due_heap", "core.state:SessionState.offsets_logged",
        ),
    ),
    PeerState(
        "holder of a queue", "the base", "a part of a segment in 32, `HOLDERS_BYTES_MAX`",
        f"{NOT_SHARED}: without space the lock is granted, and a restart loses its holder",
        "with its topic or group, or the next holder",
        ("core.state:State.holders", "core.state:DerivedState.held_by"),
    ),
    PeerState(
        "coordinator", f"coordinators' part of a base ({COORDINATORS_PART}), of the named items'",
        f"{limits.COORDINATORS_PER_GROUP_MAX} of a producer group, {limits.COORDINATORS_MAX:,} in all; that part",
        f"{NOT_SHARED} but those of its groups: known ones stay, and new ones of others wait for idle ones",
        "without undecided transactions: for a new one, an hour after its epoch was taken; an operator (`halfmq coordinator forget`)",
        ("core.state:State.coordinators", "core.state:DerivedState.coordinators_of_group"),
    ),
    PeerState(
        "user", f"users' part of a base ({USERS_PART})", f"{limits.USERS_MAX:,}; that part",
        f"{NOT_SHARED}: administrators only",
        "an administrator removes it",
        ("core.state:State.users", "broker.services.users:Users._principals", "broker.services.users:Users._secrets", "broker.services.users:Users._verified"),
    ),
    PeerState(
        "setting that was changed", "the base", "one for each option that may change",
        f"{NOT_SHARED}: administrators only",
        "an administrator gives it the value of the configuration (`halfmq config unset`); a start with another configuration",
        ("core.state:State.recorded_settings",),
    ),
    PeerState(
        "query", f"queries' part of a base ({QUERIES_PART}), of the named items'", "`--queries-max`; that part",
        f"{NOT_SHARED}: known queries stay, and new ones of others wait for an operator",
        "after an hour without a decision and an undecided batch, or once it is over; decided: an operator (`halfmq query forget`)",
        ("core.state:State.queries", "core.state:DerivedState.query_of_run", "core.state:DerivedState.unused_queries"),
    ),
    PeerState(
        "decisions of a query", "queries' part of a base", f"{limits.QUERY_DECISIONS_MAX} of a query; where there is no space, {DECISIONS_RESERVED}",
        f"{NOT_SHARED}: each query has its own",
        "all but the last after 90 days, or for a new one",
        ("core.state:Query.decisions", "core.state:DerivedState.idle_queries"),
    ),
    PeerState(
        "limits and policy of a producer group", "the base", "`PRODUCERS_SET_MAX`",
        f"{NOT_SHARED}: administrators only",
        "an operator removes them",
        (
            "core.state:State.producer_settings", "core.state:DerivedState.policies", "core.state:DerivedState.policies_due",
            "core.state:PolicySession.past", "core.state:PolicySession.last_check_delivered", "core.state:PolicySession.scan",
        ),
    ),
    PeerState(
        "undecided transaction", "its producer group; all groups",
        f"of a group and of all: number and bytes (`--undecided-max` and others); {limits.QUERY_UNDECIDED_MAX} batches of a query",
        f"{SHARE} of the number and the bytes of all; or {OWN}: `halfmq user set --undecided`. Without users: the limits of a group",
        "a verdict: of its producer, a policy, an operator; by a later run of its query",
        (
            "core.state:ProducerGroup.undecided", "core.state:ProducerDerived.scheduled", "core.state:ProducerDerived.parked",
            "core.state:ProducerSession.due", "core.state:ProducerSession.early", "core.state:ProducerSession.in_flight",
            "core.state:ProducerSession.last_unknown", "core.state:DerivedState.undecided_of_query", "core.state:DerivedState.copied",
            "core.state:DerivedState.undecided_of_coordinator", "core.state:DerivedState.undecided_of_user",
            "core.state:DerivedState.group_deadlines", "core.state:SessionState.asking",
        ),
    ),
    PeerState(
        "producer group", "strangers: three quarters of `--undecided-groups-max`; the rest for groups that are somebody's",
        "`--undecided-groups-max`, and `PRODUCER_GROUPS_FREE` without undecided transactions",
        f"{SHARE}: those of strangers together",
        "once it has no member, nothing undecided and no recent verdict",
        ("core.state:State.producer_groups",),
    ),
    PeerState(
        "delayed message", "all topics", "`--delayed-total-max`",
        f"{NOT_SHARED}: delayed messages of others wait until some are due",
        "when it is due",
        (
            "core.state:State.delayed", "core.state:DerivedState.delayed_heap", "core.state:SessionState.delayed_postponed",
        ),
    ),
    PeerState(
        "recent verdict and message", "the deduplication window", "`DEDUP_IDS_MAX` of each",
        f"{NOT_SHARED}: the window becomes shorter, also for others",
        "`--dedup-window-ms`, or the next ones; retention",
        (
            "core.state:State.verdicts", "core.state:State.sent", "core.state:ProducerGroup.settled", "core.state:TopicDerived.sent",
        ),
    ),
    PeerState(
        "verdict to be compared, and finding", "the base", "`COMPARISONS_MAX`, of which `COMPARISONS_REPORTED_MAX` by reports that nobody expected; at the maximum a verdict is given nevertheless, and logged",
        f"{NOT_SHARED}: nothing is refused but a report",
        "its marker agrees; else an operator (`halfmq tx forget`)", ("core.state:State.comparisons",),
    ),
    PeerState(
        "segment of the log", "the disk", "`--retention-bytes`, the disk's reserve",
        f"{NOT_SHARED}: retention is the same for all",
        "retention",
        ("core.state:State.bases", "core.state:State.ties"),
    ),
    # --- until its connection is closed
    PeerState(
        "connection", f"its address: three quarters of the places; the last {limits.OPERATOR_PLACES} are the operators'",
        f"`--connections-max`; {limits.HTTP_CONNECTIONS_MAX} of HTTP",
        f"{SHARE}, or `--connections-per-address-max`",
        "it is closed, also after `CONNECTION_IDLE_MS` of silence",
        (
            "broker.peers.peers:Peers.connected", "broker.peers.peers:Peers.unwritten", "broker.peers.peers:Peers._paused",
            "broker.peers.connection_admission:ConnectionAdmission._address",
            "broker.peers.connection_admission:ConnectionAdmission._of_address", "broker.peers.connection_admission:ConnectionAdmission._quiet",
            "broker.peers.connection_admission:ConnectionAdmission._asked", "broker.http.door:HttpFrontDoor.connections",
            "broker.listener:Listener._tasks", "broker.listener:Listener._beginning", "broker.peers.peers:Peers._beginning",
        ),
    ),
    PeerState(
        "membership in groups, subscriptions", f"its connection; subscriptions: all, {limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT >> 10} KiB of each connection aside",
        "`GROUPS_PER_CONNECTION_MAX`, `SUBSCRIPTIONS_BYTES_MAX`",
        f"{SHARE} of the bytes of subscriptions",
        "with its connection, or the client leaves",
        (
            "core.state:ProducerSession.members", "core.state:ProducerSession.pollers", "core.state:ConsumerSession.members",
            "core.state:ConsumerSession.subscriptions", "core.state:SessionState.consumers", "core.state:SessionState.produces",
            "core.state:SessionState.consumes", "broker.services.members:Members._subscribed", "broker.services.members:Members._subscribers", "broker.services.members:Members._connections",
            "broker.services.members:Members._ids", "broker.services.members:Members._owners", "broker.services.members:Members.software",
            "broker.services.subscription_conflicts:SubscriptionConflicts._groups", "broker.services.subscription_conflicts:_Group.members",
            "broker.services.subscription_conflicts:_Group.counts",
        ),
    ),
    PeerState(
        "connection of a user", "the user's connections, where they are limited (`halfmq user set --connections`)", "as connections",
        f"{SHARE} of `--connections-max`; or {OWN}: `halfmq user set --connections`",
        "with its connection",
        ("broker.services.users:Users._identified", "broker.peers.principal:Principal.connections"),
    ),
    PeerState(
        "what a user was found to be allowed, and named first", "the user", "`_REMEMBERED_MAX`; names: the limit of the user",
        f"{NOT_SHARED}: each user has its own",
        "forgotten together; with the user",
        ("broker.peers.principal:Principal.granted", "broker.peers.principal:Principal.granted_last", "broker.peers.principal:Principal.names"),
    ),
    PeerState(
        "change of a user that waits", "administrators", "`_CHANGES_MAX`",
        SHARE,
        "the ones before it are durable", ("broker.services.users:Users._changing",),
    ),
    PeerState(
        "administrative request that the audit log waits for", "all operators", "`_OPEN_MAX`",
        f"{NOT_SHARED}: nothing is refused, the oldest is written as unanswered",
        "its response, or its connection",
        ("broker.services.audit:Audit._open",),
    ),
    PeerState(
        "backup in progress", "the disk: it keeps segments until that is nearly full", "`BACKUPS_MAX`, each with `READS_MAX` reads",
        f"{NOT_SHARED}: administrators only",
        "its end, `IDLE_S` without a read, or its connection",
        ("broker.services.backups:Backups._leases",),
    ),
    PeerState(
        "queue lock", "all groups; above half only members", "`LOCKS_MAX`",
        SHARE,
        "after `QUEUE_LOCK_MS`, or with its client",
        ("core.state:ConsumerSession.locks", "core.state:SessionState.locks_of_owner"),
    ),
    PeerState(
        "request in progress", "its connection; all connections", "`INTAKE_CONNECTION_BYTES_MAX`, `INTAKE_BYTES_MAX`",
        f"{NOT_SHARED}: nothing is refused, who has used least is next, and who has little in progress is read from first",
        "its response",
        (
            "broker.peers.intake:Intake._stopped_connections", "broker.peers.intake:Intake._pending", "broker.peers.intake:Intake._held",
            "broker.peers.intake:Intake._waiting", "broker.peers.peer:Peer._later", "broker.sequencer:Sequencer._pending",
            "broker.sequencer:Sequencer._held", "broker.sequencer:Sequencer._late_wakes", "broker.services.members:Members._waiting",
        ),
    ),
    PeerState(
        "request received in part", "all connections, shared out", "`--unfinished-bytes-max`",
        SHARE,
        "its rest, or a timeout",
        (
            "broker.peers.unfinished_frames:UnfinishedFrames._held", "broker.peers.unfinished_frames:UnfinishedFrames._admitted",
            "broker.peers.unfinished_frames:UnfinishedFrames._waiting", "broker.peers.unfinished_frames:UnfinishedFrames._by_size",
            "broker.peers.unfinished_frames:UnfinishedFrames._smallest",
        ),
    ),
    PeerState(
        "response that is not read", "its connection; all connections", "`--outgoing-bytes-max`",
        f"{SHARE}: connections of one that has more are closed first",
        "it is read, or the connection is closed",
        ("broker.peers.peer:Peer._out", "broker.peers.outgoing_bytes:OutgoingBytes._full", "broker.peers.bounded_writes:BoundedWrites._left"),
    ),
    PeerState(
        "waiting pull", "all connections", "`HELD_BYTES_MAX`: then the oldest is answered",
        f"{SHARE}: the oldest of one that has more are answered first",
        "a message, `PULL_SUSPEND_MAX_MS`, or its connection",
        (
            "broker.services.pulls:Pulls._held", "broker.services.pulls:Pulls._of_peer", "broker.services.pulls:Pulls._missed",
            "broker.services.pulls:Pulls._oldest",
        ),
    ),
    PeerState(
        "waiting request for checks", "its connection", "one of each of its groups",
        f"{NOT_SHARED}: each connection has its own",
        "a check, `CHECK_POLL_WAIT_MAX_MS`, or its connection",
        (
            "core.state:ProducerSession.held_polls", "broker.services.check_polls:CheckPolls._held", "broker.services.check_polls:CheckPolls._served",
            "broker.services.checks:Checks._missed",
        ),
    ),
    PeerState(
        "request that waits for work of the broker, also for a password or a search of the table", "all clients", "`WAITING_MAX`, `ASKED_MAX`, `CALLS_MAX` of the module",
        SHARE,
        "the work is done, or a timeout",
        (
            "broker.turns:Turns._waiting", "broker.remoting.admin_stats:AdminStats._asked", "broker.services.chosen_ids:ChosenIds._waiting",
            "broker.remoting.client_calls:ClientCommands._calls", "broker.services.group_scan:GroupScan._waiting",
            "broker.peers.shares:Shares._of",
        ),
    ),
    # --- in passing
    PeerState(
        "log line, line of the audit log", "all clients", "`LOG_WAITING_BYTES_MAX`, `AUDIT_WAITING_BYTES_MAX`, `AUDIT_HELD_MAX`; 1,024 conditions",
        f"{NOT_SHARED}: nothing is refused, and of an address and a kind few lines are written",
        "it is written, or dropped and counted",
        (
            "broker.line_queue:LineQueue._lines", "broker.audit_log:AuditLog._held", "runtime.log_throttle:LogThrottle._said", "runtime.log_throttle:LogThrottle._left_out",
        ),
    ),
    PeerState(
        "statistics", "all clients", "`PAIRS_MAX`, `DELIVERED_TO_MAX`",
        f"{NOT_SHARED}: nothing is refused",
        "a day; counted anew beyond the maximum",
        (
            "broker.services.traffic:Traffic._samples", "broker.services.traffic:Traffic._span", "broker.services.traffic:Traffic._tens",
            "broker.services.traffic:Traffic._minutes", "broker.services.traffic:Traffic._hours", "broker.services.traffic:Traffic._delivered_to", "broker.services.traffic:Traffic.delivered_by_pair",
        ),
    ),
    PeerState(
        "series of metrics", "all clients", "`--metrics-names-max`; topics that exist; `BEGAN_MAX` requests of a connection",
        f"{NOT_SHARED}: what is beyond the maximum is summed",
        "its name is gone, or its connection",
        (
            "broker.metrics.shown_names:ShownNames._shown", "broker.metrics.counts:SettledCounts.committed_messages",
            "broker.remoting.gateway:CountedConnection.began", "broker.remoting.gateway:CountedConnection._answered", "core.state:SessionState.rolled_back", "broker.http.metrics:MetricsResource._waiting", "broker.metrics.scrape:Scrape._lags",
        ),
    ),
    PeerState(
        "cached text", "all clients", "a number of entries in each cache",
        f"{NOT_SHARED}: nothing is refused",
        "another one takes its place",
        (
            "broker.services.tag_filter:_parsed_short", "broker.services.tag_filter:_parsed_long", "model.ids:_generated_prefixes", "model.message_facts:tag_hashes",
            "broker.services.send_commands:_group_names", "broker.services.send_commands:_properties_of_user", "store.record_codec:_topic_tails", "store.record_codec:_texts",
            "store.transaction_table:_group_hashes",
        ),
    ),
)  # fmt: skip

#: Containers that no peer makes grow: parts of the broker, and what lives for one step of it.
OF_THE_BROKER: Final = frozenset({
    "broker.metrics.counts:SettledCounts.committed_after", "broker.metrics.counts:SettledCounts.rolled_back_after", "core.state:SettledNow.commits", "core.state:SettledNow.others",
    "broker.metrics.counts:RequestCounts.kinds", "broker.metrics.counts:RequestKind.others",
    "broker.broker:Broker._handlers", "broker.http.door:HttpFrontDoor.resources", "broker.listener:Listener._sockets",
    "broker.maintenance:Maintenance._timers", "broker.ports:BoundPorts._bound", "broker.remoting.gateway:Gateway.handlers", "broker.remoting.gateway:Gateway.pushes",
    "broker.remoting.gateway:Gateway._commands", "broker.remoting.gateway:Gateway._fields_of",
    "broker.sequencer:_TurnPace.took_s", "broker.services.payload_arrays:_ArrayVerification._changes", "core.engine:Engine._problems",
    "core.engine:Engine._no_roll_before", "core.engine:Engine._records", "core.transaction.check_schedule:_Round._ids",
    "core.transaction.check_schedule:_Round._served",
    "core.transaction.check_schedule:_Round.asked", "core.transaction.check_schedule:_Round.taken", "core.transaction.check_schedule:_Round.waiting",
    "core.transaction.retention:CopyProgress.found",
})  # fmt: skip
