"""The faults of a round: all kinds at once, or only kills, in quick succession."""

from typing import Final, NamedTuple


class Profile(NamedTuple):
    """``weights``: how often each kind of process is the victim of an external kill. Times are in seconds."""

    weights: dict[str, int]
    #: Interval of external kills; time until a killed process is restarted.
    kill_every_s: tuple[float, float]
    down_s: tuple[float, float]
    #: The broker is killed only after at least this many transactions finished in its current life.
    broker_warm: int
    #: Fraction of the kills that wait for load, and the fraction of the requested rate that counts as load; others come at any moment.
    under_load: float
    load_share: float
    #: Fraction of a service's lives that end at a point; and the maximum number of times that it reaches that point.
    mortal: float
    visits_max: int
    #: Whether each service dies at each point once; otherwise points are random.
    points_in_turn: bool
    #: Fraction of the transactions whose sender never sends the verdict, so that a check must find it.
    untold: float
    #: Without them only watchers read. The broker logs offsets of consumer groups every few seconds; one that never lives that
    #: long keeps none, and retention would overtake every group.
    consumers: bool
    #: Pauses, cut connections to the database, kills during a start, and two kills at once.
    other_faults: bool
    segment_bytes: int
    #: Additional options of the broker, which override others.
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
#: The broker is killed repeatedly while segments roll and trims copy forward, services at each of their points. There are few
#: orders between two kills and no other faults, so every rejected request is a difference.
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
        # Only by size, so that at the end the log contains most of the round.
        "--retention-hours", "1", "--retention-bytes", str(3 << 20),
    ),
)  # fmt: skip
PROFILES: Final = {"everything": EVERYTHING, "kills": KILLS}
