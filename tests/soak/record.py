"""The record of a soak: one line of JSON for each kill and for each round; a later run continues it.

The kills of a round count only with its own line, which is written after the comparison: those of an interrupted round stay
in the file and are not counted. A round that failed by itself is a difference. Nothing is ever removed.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="kill", omit_defaults=True):
    """One SIGKILL. ``load``: transactions finished in the last second; ``undecided``: held by the broker."""

    round: int = -1
    at_s: float
    kind: str
    whom: str
    #: SIGKILL from outside, or "own", at ``point``. From outside the point is "starting" when the broker did not listen
    #: yet, "together" when somebody else was killed in the same moment.
    how: str
    point: str = ""
    paused: bool = False
    disk_full: bool = False
    load: int
    #: -1: the broker was never asked in this round.
    undecided: int
    #: 0: known for this moment; else the broker could not answer now, and this is how old its last answer is.
    undecided_asked_s_ago: float = 0.0
    #: The broker said so, or the log that it left.
    undecided_from: Literal["broker", "log"] = "broker"

    def of_the_dead(self, undecided: int) -> "Kill":
        return msgspec.structs.replace(self, undecided=undecided, undecided_asked_s_ago=0.0, undecided_from="log")


class Round(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="round"):
    round: int
    seed: str
    commit: str
    started: str
    seconds: float
    kills: dict[str, int]
    pauses: dict[str, int]
    fills: dict[str, int]
    #: Connections to the database cut inside a transaction.
    cuts: int
    #: Starts of the broker that the full disk did not allow.
    refused_starts: list[str]
    disk: str
    #: In the databases, by producer group: orders that are there.
    committed: dict[str, int]
    #: Transactions of which the broker acknowledged a half, and that are in no database.
    rolled_back: int
    messages: int
    #: Verdicts by who said them, and records of each kind, as the retained log tells.
    log: dict[str, int]
    settle_seconds: float
    restart_seconds_max: float
    #: What each look counted, and what it found.
    looked_at: dict[str, int]
    differences: list[str]


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="broken"):
    """A round that came to no comparison, since somebody ended who should not have, or nothing settled: ``why``."""

    round: int
    seed: str
    commit: str
    why: str


class Parked(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="set_aside"):
    """Somebody found that a round was red through a fault of the soak itself: neither its kills nor its differences count.

    Its lines stay where they are.
    """

    round: int
    because: str


Line = Kill | Round | Broken | Parked


class Record:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: Line) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def read_lines(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    decode = msgspec.json.Decoder(Line).decode
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode(line)


class Summary:
    """What the finished rounds of a record say together."""

    def __init__(self, lines: Iterator[Line]) -> None:
        everything = list(lines)
        self.set_aside = [line for line in everything if isinstance(line, Parked)]
        aside = {one.round for one in self.set_aside}
        self.rounds = [line for line in everything if isinstance(line, Round) and line.round not in aside]
        self.broken = [line for line in everything if isinstance(line, Broken) and line.round not in aside]
        finished = {one.round for one in self.rounds}
        self.kills = [line for line in everything if isinstance(line, Kill) and line.round in finished]
        self.next_round = max((line.round for line in everything), default=-1) + 1

    @property
    def differences(self) -> int:
        """Of all rounds; one that broke is one."""
        return sum(len(one.differences) for one in self.rounds) + len(self.broken)

    def rows(self) -> Iterator[tuple[str, int, int, str, str]]:
        """For each kind and way: kills, of them with transactions undecided, load and undecided as median (maximum)."""
        ways = Counter((kill.kind, kill.how) for kill in self.kills)
        for (kind, how), count in sorted(ways.items()):
            of_it = [kill for kill in self.kills if (kill.kind, kill.how) == (kind, how)]
            undecided = [max(kill.undecided, 0) for kill in of_it]
            loads = [kill.load for kill in of_it]
            yield (
                f"{kind}, {'by itself' if how == 'own' else how}", count, sum(map(bool, undecided)),
                f"{median(loads):.0f} ({max(loads)})", f"{median(undecided):.0f} ({max(undecided)})",
            )  # fmt: skip
