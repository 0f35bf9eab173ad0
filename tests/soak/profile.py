"""What happens in a round: every fault at once, or kills only, in quick succession."""

from typing import Final, NamedTuple


class Profile(NamedTuple):
    """``weights``: how often each kind of process is the victim of a kill from outside. Spans are in seconds."""

    weights: dict[str, int]
    #: Between two kills from outside; how long a killed process stays away.
    kill_every_s: tuple[float, float]
    down_s: tuple[float, float]
    #: The broker is killed when so many transactions finished in this life of it, at least.
    broker_warm: int
    #: Share of the kills that wait for load, and for which share of the requested rate; the others happen at any moment.
    under_load: float
    load_share: float
    #: Share of a service's lives that end at a point of their own; and how often it gets there, at most.
    mortal: float
    visits_max: int
    #: Each service dies at each point once; otherwise points are drawn.
    points_in_turn: bool
    #: Share of the transactions whose sender never tells the broker: a check must.
    untold: float
    #: Without them only watchers read. The broker logs offsets of consumer groups every few seconds: one that never lives so
    #: long keeps none, and retention would overtake every group.
    consumers: bool
    #: Pauses, cut connections to the database, kills during a start, and two kills at once.
    other_faults: bool
    segment_bytes: int
    #: Further options of the broker, which override others.
    options: tuple[str, ...]


EVERYTHING: Final = Profile(
    weights={"broker": 40, "order service": 26, "java": 9, "consumer": 12, "watcher": 5},
    kill_every_s=(0.4, 2.2),
    down_s=(0.0, 0.6),
    broker_warm=20,
    under_load=0.85,
    load_share=0.08,
    mortal=0.6,
    visits_max=80,
    points_in_turn=False,
    untold=0.0,
    consumers=True,
    other_faults=True,
    segment_bytes=512 << 10,
    options=("--checkpoint-interval-ms", "1000", "--retention-check-ms", "500"),
)
#: The broker is killed again and again while segments roll and trims copy forward, services at each of their points; few
#: orders lie between two kills, and nothing else disturbs, so that every rejected request is a difference.
KILLS: Final = Profile(
    weights={"broker": 1},
    kill_every_s=(0.2, 1.1),
    down_s=(0.0, 0.2),
    broker_warm=5,
    under_load=0.9,
    load_share=0.3,
    mortal=1.0,
    visits_max=8,
    points_in_turn=True,
    untold=1 / 10,
    consumers=False,
    other_faults=False,
    segment_bytes=128 << 10,
    options=(
        "--checkpoint-interval-ms", "500", "--retention-check-ms", "150", "--dedup-window-ms", "6000",
        # By size only, so that the log has most of the round in the end.
        "--retention-hours", "1", "--retention-bytes", str(3 << 20),
    ),
)  # fmt: skip
PROFILES: Final = {"everything": EVERYTHING, "kills": KILLS}
