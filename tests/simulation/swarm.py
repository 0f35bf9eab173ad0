"""What one seed is about: which faults, which actors, which knobs. Drawn once, before anything runs.

A seed uses a random part of all that could happen, not all of it at once: a bug that needs many partitions and no crash
is found by a seed that has only partitions (swarm testing; TigerBeetle's VOPR and FoundationDB's simulation do the same).
"""

import random
from dataclasses import dataclass, field, replace
from typing import Final

from halfmq import limits
from halfmq.testing.faulty_network import Manners

#: Every kind of fault that the faults' clock may draw; some seeds have few of them, some nearly all.
FAULTS: Final = (
    "kill", "kill_in_step", "power", "power_in_step", "crash_while_it_starts", "pause", "drain",
    "reset", "partition", "one_way", "stall", "refuse", "repeat",
    "client_kill", "client_pause", "database_crash", "database_slow", "clock_step",
    "write_error", "sync_error", "name_error", "full", "rot", "rot_at_rest", "derived_lost", "segment_lost",
)  # fmt: skip
#: What the consumer group of a seed asks for, of the tags in ``tags.py``.
SUBSCRIPTIONS: Final = ("*", "*", "red", "red || blue")
TOPICS: Final = ("Alpha", "Beta", "Gamma")
#: What an administrator may do with a producer group; a seed has none, some or all of it.
ADMINISTRATION: Final = ("rollback", "set-aside", "skip-age", "limits", "ask-now")
#: How long nobody of any service is there, where transactions shall grow old: more than the least age that a policy takes, ms.
_ABSENCE_MS: Final = 66_000
#: Seeds with a character of their own: "crowded" has so many undecided transactions, in small segments under retention, that
#: trims carry most of the time, and a look of a trim goes over few of them.
PROFILES: Final = ("crowded",)
#: Behind this seed one in so many is crowded; those before stay what they were. Other rng draw it.
_CROWDED_BEHIND: Final = 202_800
_CROWDED_ONE_IN: Final = 16


@dataclass(frozen=True, slots=True)
class Swarm:
    """Times in milliseconds of virtual time, sizes in bytes."""

    seed: int
    faults: tuple[str, ...]
    #: How many times longer the day is than usual: everybody does everything as much more seldom.
    pace: int
    #: Mean time between two faults.
    fault_every_ms: int
    #: How long clients work before everything heals.
    work_ms: int
    producers: int
    stock_producers: int
    producer_groups: int
    workers: int
    think_ms: int
    consumers: int
    watchers: int
    operators: int
    #: Operators take queues away from topics. Sharding keys would move, so there are none then.
    narrows: bool
    #: Of ``ADMINISTRATION``.
    administration: tuple[str, ...]
    #: Between work and healing all producers are gone for so long; 0: they stay.
    absence_ms: int
    #: Which producers with our client fetch their checks instead of being sent them: "none", "some" or "all".
    fetching: str
    #: Programs that fetch checks and answer them by themselves.
    fetchers: int
    #: Share of the transactions that say themselves how long they are immune, and of those whose id the application makes.
    own_immunity: float
    own_ids: float
    #: Share of the messages in transactions that are to be shown later.
    delayed_halves: float
    #: Share of the checks to which an application says UNKNOWN while it works.
    unknown: float
    #: Share of the transactions whose application says nothing more once its local transaction is over.
    silent: float
    #: Invariants are looked at after each turn of the broker that wrote something, not only now and then.
    watchful: bool
    topics: tuple[str, ...]
    queues: int
    body_bytes: tuple[int, ...]
    durability: str
    segment_bytes: int
    checkpoint_interval_ms: int
    retention_bytes: int
    #: By age too; 0: not within this seed.
    retention_ms: int
    retention_check_ms: int
    #: Of each start in turn, again and again.
    check_immunities_ms: tuple[int, ...]
    check_interval_ms: int
    check_answer_ms: int
    checks_in_flight_max: int
    undecided_max: int
    disk_reserve_bytes: int
    #: What is remembered of verdicts and sent messages; longer than any call of a client.
    dedup_window_ms: int
    call_timeout_ms: int
    attempt_timeout_ms: int
    sync_us: int
    offload_us: int
    turn_us: int
    database_us: int
    #: Services prune their markers, asking the broker which are still needed.
    prunes: bool
    manners: Manners = field(default_factory=Manners)
    #: Undecided transactions and delayed messages in one look of a trim; 0: as many as ever.
    looked_at_max: int = 0
    #: When retention by size may copy again what it copied.
    copy_again_ms: int = limits.COPY_AGAIN_MS
    #: Which tags the consumer group asks for.
    subscription: str = "*"
    #: What goes by for the broker between two looks at how long its turn takes.
    look_us: int = 0

    def __str__(self) -> str:
        return (
            f"{self.producers}+{self.stock_producers} producers of {self.producer_groups} groups, {self.consumers} consumers, "
            f"{len(self.topics)} topics of {self.queues} queues, {self.durability}, retention {self.retention_bytes}, "
            f"administration {', '.join(self.administration) or 'none'}, {self.fetching} fetch their checks, "
            f"{self.work_ms} ms of work, a fault each {self.fault_every_ms} ms of: {', '.join(self.faults)}"
        )


def draw(seed: int, profile: str = "") -> Swarm:
    """``profile``: one of ``PROFILES``; without one most seeds have none."""
    rng = random.Random(f"{seed}/crowded")
    crowded = seed > _CROWDED_BEHIND and rng.randrange(_CROWDED_ONE_IN) == 0
    swarm = replace(
        _draw(seed),
        look_us=random.Random(f"{seed}/look").choice((0, 0, 300, 8_000)),
        subscription=random.Random(f"{seed}/tags").choice(SUBSCRIPTIONS),
    )
    return _crowded(swarm, rng) if crowded or profile == "crowded" else swarm


def _crowded(swarm: Swarm, rng: random.Random) -> Swarm:
    """Most of what is begun stays undecided until the work is over, in two groups, and is more than retention keeps."""
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
    # So many things are begun, about; each is some ten events.
    begun = rng.choice((34, 48, 64))
    administered = rng.choice((0.0, 0.0, 0.5, 0.8))
    administration = tuple(what for what in ADMINISTRATION if rng.random() < administered)
    retention_bytes = rng.choice((0, 0, 70_000, 150_000))
    # Where there is retention, the log is to outgrow it; where there are policies, they are to come to their limits.
    bodies = (
        ((20, 600, 4_000), (2_000, 6_000), (4_000, 12_000))
        if retention_bytes
        else ((10, 40), (100, 300), (20, 600, 4_000))
    )
    asked_soon = bool(administration)
    # Retention leaves alone what is younger than the deduplication window, and that window must be longer than
    # anything here comes late: such a seed has a longer day, in which as much happens.
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
        # At the level "memory" a power loss takes verdicts back, and the question comes again.
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
