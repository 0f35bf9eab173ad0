"""The settings of one seed: which faults, which participants, which parameters. Drawn once, before anything runs.

A seed uses a random subset of all possibilities: a bug that needs many partitions and no crash
is found by a seed that has only partitions (swarm testing; TigerBeetle's VOPR and FoundationDB's simulation do the same).
"""

import random
from dataclasses import dataclass, field, replace
from typing import Final

from halfmq import limits
from tests.support.faulty_network import Manners

#: All kinds of faults that are drawn at intervals; some seeds have few of them, some nearly all.
FAULTS: Final = (
    "kill", "kill_in_step", "power", "power_in_step", "crash_while_it_starts", "pause", "drain",
    "reset", "partition", "one_way", "stall", "refuse", "repeat",
    "client_kill", "client_pause", "database_crash", "database_slow", "clock_step",
    "write_error", "sync_error", "name_error", "full", "rot", "rot_at_rest", "derived_lost", "segment_lost",
)  # fmt: skip
#: Possible subscriptions of a seed's consumer group, with the tags of ``tags.py``.
SUBSCRIPTIONS: Final = ("*", "*", "red", "red || blue")
TOPICS: Final = ("Alpha", "Beta", "Gamma")
#: Actions of an administrator on a producer group; a seed has none, some or all of them.
ADMINISTRATION: Final = ("rollback", "set-aside", "skip-age", "limits", "ask-now")
#: How long all services are absent in seeds in which transactions grow old: more than the minimum age of a policy, ms.
_ABSENCE_MS: Final = 66_000
#: "crowded" has so many undecided transactions, in small segments under retention, that trims copy messages forward most of
#: the time, and each step of a trim examines few of them. "power_loss" has only power losses, mostly during an operation of the
#: disk, and checks everything after each start. "queries" has a query that writes half batches, in small segments under retention.
#: "coordinators" has processes of a coordinator and participants that fence besides the services.
PROFILES: Final = ("crowded", "power_loss", "queries", "coordinators")
#: After this seed one in n is crowded; earlier ones are unchanged. A separate rng draws it.
_CROWDED_BEHIND: Final = 202_800
_CROWDED_ONE_IN: Final = 16
#: After this seed one in n has queries; earlier ones are unchanged. Separate rngs draw them.
_QUERIES_BEHIND: Final = 252_800
_QUERIES_ONE_IN: Final = 4
#: After this seed watchers of every n-th seed read raw; earlier ones are unchanged.
_RAW_BEHIND: Final = 255_400
_RAW_ONE_IN: Final = 2
#: After this seed one in n has coordinators and fences; earlier ones are unchanged. Separate rngs draw them.
_COORDINATORS_BEHIND: Final = 255_400
_COORDINATORS_ONE_IN: Final = 4


@dataclass(frozen=True, slots=True)
class Swarm:
    """Times in milliseconds of virtual time, sizes in bytes."""

    seed: int
    faults: tuple[str, ...]
    #: Factor by which the work phase is longer than usual; everything happens less often by the same factor.
    pace: int
    #: Mean time between two faults.
    fault_every_ms: int
    #: Duration of the work phase, before everything heals.
    work_ms: int
    producers: int
    stock_producers: int
    producer_groups: int
    workers: int
    think_ms: int
    consumers: int
    watchers: int
    operators: int
    #: Operators remove queues of topics. That would move sharding keys, so there are none then.
    narrows: bool
    #: A subset of ``ADMINISTRATION``.
    administration: tuple[str, ...]
    #: How long all producers are gone between work and healing; 0: never.
    absence_ms: int
    #: Which producers with our client fetch their checks: "none", "some" or "all".
    fetching: str
    #: Number of programs that fetch checks and answer them themselves.
    fetchers: int
    #: Fractions of the transactions that set their own grace period, and whose id the application creates.
    own_immunity: float
    own_ids: float
    #: Fraction of the messages in transactions that are delayed.
    delayed_halves: float
    #: Fraction of the checks that an application answers with UNKNOWN during the work phase.
    unknown: float
    #: Fraction of the transactions for which the application sends no verdict after its local transaction.
    silent: float
    #: Invariants are checked after each turn of the broker that wrote something, not only occasionally.
    watchful: bool
    topics: tuple[str, ...]
    queues: int
    body_bytes: tuple[int, ...]
    durability: str
    segment_bytes: int
    checkpoint_interval_ms: int
    retention_bytes: int
    #: Retention by age; 0: not within this seed.
    retention_ms: int
    retention_check_ms: int
    #: Cyclically, one for each start.
    check_immunities_ms: tuple[int, ...]
    check_interval_ms: int
    check_answer_ms: int
    checks_in_flight_max: int
    undecided_max: int
    disk_reserve_bytes: int
    #: Deduplication window; longer than any call of a client.
    dedup_window_ms: int
    call_timeout_ms: int
    attempt_timeout_ms: int
    sync_us: int
    offload_us: int
    turn_us: int
    database_us: int
    #: Services prune their markers, after asking the broker which are still needed.
    prunes: bool
    manners: Manners = field(default_factory=Manners)
    #: Maximum number of undecided transactions and delayed messages that one step of a trim examines; 0: the usual one.
    looked_at_max: int = 0
    #: Minimum age of a copy before retention by size copies it again.
    copy_again_ms: int = limits.COPY_AGAIN_MS
    #: Minimum age of a transaction that a check of the shipped marker table may fence.
    marker_age_ms: int = 0
    #: Tag expression of the consumer group.
    subscription: str = "*"
    #: Watchers send raw reads, not pulls.
    raw_watchers: bool = False
    #: Time that passes for the broker between two readings of the clock in a turn.
    look_us: int = 0
    #: After each start the state is compared with what was acknowledged; requests are never rejected.
    looks_at_starts: bool = False
    nothing_is_refused: bool = False
    #: Number of queries that write half batches; mean pause between two batches of one; fraction of the tasks that write so much
    #: that a batch takes more than half a segment; and how many decisions the broker remembers of a query, 0: the usual number.
    queries: int = 0
    batch_every_ms: int = 0
    large_batches: float = 0.0
    decisions_max: int = 0
    #: Fraction of the batches that take nearly half a segment and are decided together with another query's, so that both decisions
    #: copy half batches.
    decided_together: float = 0.0
    #: Processes of one coordinator, and participants that fence.
    coordinators: int = 0
    fencers: int = 0
    #: Operators force verdicts, often against the database.
    forced: bool = False

    def __str__(self) -> str:
        return (
            f"{self.producers}+{self.stock_producers} producers of {self.producer_groups} groups, {self.consumers} consumers, "
            f"{len(self.topics)} topics of {self.queues} queues, {self.durability}, retention {self.retention_bytes}, "
            f"administration {', '.join(self.administration) or 'none'}, {self.fetching} fetch their checks, "
            f"{self.work_ms} ms of work, a fault each {self.fault_every_ms} ms of: {', '.join(self.faults)}"
        )


def draw(seed: int, profile: str = "") -> Swarm:
    """``profile``: one of ``PROFILES``; without it most seeds have none."""
    rng = random.Random(f"{seed}/crowded")
    crowded = seed > _CROWDED_BEHIND and rng.randrange(_CROWDED_ONE_IN) == 0
    swarm = _draw(seed)
    swarm = replace(
        swarm,
        marker_age_ms=min(swarm.check_immunities_ms) + random.Random(f"{seed}/marker age").choice((0, 0, 3_000)),
        look_us=random.Random(f"{seed}/look").choice((0, 0, 300, 8_000)),
        subscription=random.Random(f"{seed}/tags").choice(SUBSCRIPTIONS),
        raw_watchers=seed % _RAW_ONE_IN == 0 and (seed > _RAW_BEHIND or profile != ""),
    )
    if profile == "power_loss":
        return _power_loss(swarm, random.Random(f"{seed}/power loss"))
    swarm = _crowded(swarm, rng) if crowded or profile == "crowded" else swarm
    rng = random.Random(f"{seed}/queries")
    with_queries = seed > _QUERIES_BEHIND and rng.randrange(_QUERIES_ONE_IN) == 0
    if profile == "queries":
        return _writing(_with_queries(swarm, rng), rng)
    swarm = _with_queries(swarm, rng) if with_queries else swarm
    rng = random.Random(f"{seed}/coordinators")
    with_coordinators = seed > _COORDINATORS_BEHIND and rng.randrange(_COORDINATORS_ONE_IN) == 0
    return _with_coordinators(swarm, rng) if with_coordinators or profile == "coordinators" else swarm


def _with_coordinators(swarm: Swarm, rng: random.Random) -> Swarm:
    """Coordinators and fences besides everything else. Without durability a power loss may take an epoch or a fence back."""
    return replace(
        swarm,
        durability="fsync",
        prunes=False if swarm.durability == "memory" else swarm.prunes,
        coordinators=rng.choice((1, 2, 2)),
        fencers=rng.choice((1, 1, 2)),
        operators=rng.choice((1, 2)),
        forced=True,
        narrows=False,
        unknown=max(swarm.unknown, 0.5),
        think_ms=swarm.think_ms * 2,
        faults=(*swarm.faults, "client_kill", "client_pause", "repeat"),
    )


def _with_queries(swarm: Swarm, rng: random.Random) -> Swarm:
    """Queries besides everything else. Queues stay: a batch in a checkpoint names its queues."""
    return replace(
        swarm,
        queries=rng.choice((1, 2, 2)),
        batch_every_ms=rng.choice((50, 200, 500)) * swarm.pace,
        large_batches=rng.choice((0.0, 0.1, 0.3)),
        decisions_max=rng.choice((0, 0, 1, 3)),
        narrows=False,
    )


def _writing(swarm: Swarm, rng: random.Random) -> Swarm:
    """Little besides the queries; segments roll and trims happen. In half of these seeds only the power fails, and everything is
    compared after each start.
    """
    retention_bytes = rng.choice((0, 70_000, 70_000, 150_000))
    pace = 5 if retention_bytes else 1
    only_power = rng.random() < 0.5
    faults = ("power", "power_in_step", "power_in_step", "crash_while_it_starts", "client_kill", "repeat")
    return replace(
        swarm,
        faults=faults if only_power else (*swarm.faults, "client_kill", "client_kill", "repeat", "repeat"),
        looks_at_starts=only_power,
        durability="fsync" if only_power else swarm.durability,
        pace=pace,
        fault_every_ms=rng.choice((300, 700)) * pace,
        work_ms=rng.choice((4_000, 6_000)) * pace,
        batch_every_ms=rng.choice((50, 200)) * pace,
        producers=1,
        stock_producers=0,
        producer_groups=1,
        workers=1,
        think_ms=1_000 * pace,
        administration=(),
        absence_ms=0,
        operators=0,
        segment_bytes=1 << 16,
        checkpoint_interval_ms=rng.choice((700, 2_000)),
        retention_bytes=retention_bytes,
        retention_ms=0,
        retention_check_ms=500,
        dedup_window_ms=12_000 if retention_bytes else 20_000,
        body_bytes=rng.choice(((100, 600), (600, 2_000, 6_000))),
        undecided_max=1_000,
        call_timeout_ms=4_000,
        disk_reserve_bytes=0,
        copy_again_ms=rng.choice((0, 5_000, limits.COPY_AGAIN_MS)),
        decided_together=rng.choice((0.0, 0.5)),
    )


def _power_loss(swarm: Swarm, rng: random.Random) -> Swarm:
    """Power fails every second or two; segments roll, checkpoints and trims happen in between."""
    retention_bytes = rng.choice((0, 70_000, 150_000))
    pace = 5 if retention_bytes else 1
    # With retention, the log must grow beyond it.
    bodies = ((1_000, 6_000), (2_000, 6_000)) if retention_bytes else ((10, 300, 1_500), (300, 1_500, 4_000))
    producers, workers, stock = rng.choice((1, 2)), rng.choice((1, 2)), rng.choice((0, 1))
    work_ms, begun = rng.choice((3_000, 5_000)) * pace, rng.choice((40, 70))
    return replace(
        swarm,
        faults=("power", "power_in_step", "power_in_step", "power_in_step", "crash_while_it_starts"),
        pace=pace,
        fault_every_ms=rng.choice((500, 900)) * pace,
        work_ms=work_ms,
        producers=producers,
        stock_producers=stock,
        producer_groups=1,
        workers=workers,
        think_ms=work_ms * (producers * workers + stock) // begun,
        consumers=rng.choice((0, 0, 1)),
        watchers=1,
        operators=0,
        narrows=False,
        administration=(),
        absence_ms=0,
        fetching="none",
        fetchers=0,
        silent=rng.choice((0.0, 0.3)),
        durability="fsync",
        body_bytes=rng.choice(bodies),
        segment_bytes=1 << 16,
        checkpoint_interval_ms=1_000,
        retention_bytes=retention_bytes,
        retention_ms=0,
        retention_check_ms=700,
        undecided_max=1_000,
        disk_reserve_bytes=0,
        dedup_window_ms=12_000 if retention_bytes else 20_000,
        call_timeout_ms=4_000,
        prunes=False,
        looks_at_starts=True,
        nothing_is_refused=True,
    )


def _crowded(swarm: Swarm, rng: random.Random) -> Swarm:
    """Most transactions stay undecided until the work ends, in two groups, and are larger than the retention."""
    producers, workers, stock = rng.choice((2, 3)), rng.choice((2, 3)), rng.choice((0, 1))
    work_ms, begun = 30_000, rng.choice((60, 90, 120))
    return replace(
        swarm,
        pace=5,
        fault_every_ms=rng.choice((800, 2_000, 4_000)) * 5,
        work_ms=work_ms,
        producers=producers,
        stock_producers=stock,
        producer_groups=rng.choice((1, 2, 2)),
        workers=workers,
        think_ms=work_ms * (producers * workers + stock) // begun,
        operators=0,
        narrows=False,
        administration=(),
        absence_ms=0,
        silent=rng.choice((0.5, 0.9)),
        unknown=0.95,
        delayed_halves=rng.choice((0.0, 0.2)),
        body_bytes=rng.choice(((600, 2_000), (2_000, 6_000), (600, 4_000, 12_000))),
        segment_bytes=1 << 16,
        checkpoint_interval_ms=rng.choice((700, 2_000)),
        retention_bytes=rng.choice((70_000, 150_000)),
        retention_ms=0,
        retention_check_ms=rng.choice((200, 500)),
        undecided_max=1_000,
        disk_reserve_bytes=0,
        dedup_window_ms=12_000,
        call_timeout_ms=4_000,
        looked_at_max=rng.choice((2, 3, 5)),
        copy_again_ms=rng.choice((0, 5_000, limits.COPY_AGAIN_MS)),
    )


def _draw(seed: int) -> Swarm:
    rng = random.Random(f"{seed}/swarm")
    share = rng.choice((0.2, 0.4, 0.7))
    faults = tuple(fault for fault in FAULTS if rng.random() < share) or ("kill",)
    producers = rng.choice((1, 2, 2, 3))
    stock_producers = rng.choice((0, 1, 1))
    workers = rng.choice((1, 2, 3))
    work_ms = rng.choice((2_500, 4_000, 6_000))
    # Approximate number of transactions and messages; each causes about ten events.
    begun = rng.choice((34, 48, 64))
    administered = rng.choice((0.0, 0.0, 0.5, 0.8))
    administration = tuple(what for what in ADMINISTRATION if rng.random() < administered)
    retention_bytes = rng.choice((0, 0, 70_000, 150_000))
    # With retention, the log must grow beyond it; with policies, transactions must reach their limits.
    bodies = (
        ((20, 600, 4_000), (2_000, 6_000), (4_000, 12_000))
        if retention_bytes
        else ((10, 40), (100, 300), (20, 600, 4_000))
    )
    asked_soon = bool(administration)
    # Retention keeps what is younger than the deduplication window, and that window must be longer than any delay here: such a seed
    # has a longer work phase with the same number of events.
    pace = 5 if retention_bytes else 1
    work_ms = max(4_000, work_ms) * pace if retention_bytes else work_ms
    begun -= 15 if retention_bytes else 0
    durability = rng.choice(("fsync", "fsync", "fsync", "memory"))
    immunities_ms = (0, 0, 200, 1_000) if asked_soon else (0, 200, 1_000, 6_000)
    operators = rng.choice((0, 0, 1))
    queues = rng.choice((1, 1, 2, 4))
    think_ms = work_ms * (producers * workers + stock_producers) // begun
    return Swarm(
        seed=seed,
        faults=faults,
        pace=pace,
        fault_every_ms=rng.choice((200, 400, 800)) * pace,
        work_ms=work_ms,
        producers=producers,
        stock_producers=stock_producers,
        producer_groups=rng.choice((1, 1, 2)),
        workers=workers,
        think_ms=think_ms,
        consumers=rng.choice((0, 0, 1, 3)),
        watchers=rng.choice((0, 1)),
        operators=operators,
        narrows=operators > 0 and queues > 1 and rng.random() < 0.5,
        administration=administration,
        absence_ms=_ABSENCE_MS if "skip-age" in administration and rng.random() < 0.5 else 0,
        fetching=rng.choice(("none", "none", "some", "all")),
        fetchers=rng.choice((0, 0, 0, 1)),
        own_immunity=rng.choice((0.0, 0.3)),
        own_ids=rng.choice((0.0, 0.3)),
        delayed_halves=rng.choice((0.0, 0.0, 0.2)),
        silent=rng.choice((0.2, 0.5) if asked_soon else (0.0, 0.0, 0.3)),
        unknown=rng.choice((0.1, 0.5, 0.9) if asked_soon else (0.1, 0.1, 0.5)),
        watchful=rng.random() < 0.15,
        topics=TOPICS[: rng.choice((1, 2, 2, 3))],
        queues=queues,
        body_bytes=rng.choice(bodies),
        durability=durability,
        segment_bytes=rng.choice((1 << 16, 1 << 16, 1 << 17)),
        checkpoint_interval_ms=rng.choice((700, 2_000, 5_000)) * (2 if retention_bytes else 1),
        retention_bytes=retention_bytes,
        retention_ms=rng.choice((0, 0, 13_000)) if retention_bytes else 0,
        retention_check_ms=rng.choice((500, 2_000)),
        check_immunities_ms=tuple(rng.choice(immunities_ms) for _ in range(rng.choice((1, 1, 3)))),
        check_interval_ms=rng.choice((200, 200, 1_000) if asked_soon else (200, 1_000, 5_000)),
        check_answer_ms=rng.choice((500, 500, 2_000) if asked_soon else (500, 2_000, 5_000)),
        checks_in_flight_max=rng.choice((2, 16, 256)),
        undecided_max=rng.choice((4, 1_000, 1_000)),
        disk_reserve_bytes=rng.choice((0, 0, 30_000, 200_000)),
        dedup_window_ms=12_000 if retention_bytes else rng.choice((20_000, 120_000)),
        call_timeout_ms=rng.choice((1_500, 4_000, 10_000)),
        attempt_timeout_ms=rng.choice((300, 1_000, 3_000)),
        sync_us=rng.choice((300, 3_000, 20_000)),
        offload_us=rng.choice((500, 5_000, 50_000)),
        turn_us=rng.choice((50, 500, 3_000)),
        database_us=rng.choice((300, 2_000, 20_000)),
        # At the level "memory" a power loss may undo verdicts, and they are checked again.
        prunes=durability == "fsync" and rng.random() < 0.3,
        manners=Manners(
            delay_us=rng.choice((50, 500, 5_000)),
            jitter_us=rng.choice((100, 2_000, 20_000)),
            spike_chance=rng.choice((0.0, 0.005, 0.03)),
            spike_us=rng.choice((100_000, 1_000_000)),
            cut_chance=rng.choice((0.0, 0.1, 0.5)),
            joined_chance=rng.choice((0.2, 0.8)),
            window_bytes=rng.choice((2_000, 65_536, 65_536)),
        ),
    )
