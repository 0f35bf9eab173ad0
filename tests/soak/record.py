"""The record of a soak: one line of JSON per kill and per round; a later run continues it.

The kills of a round count only with the line of the round, which is written after the comparison: those of an interrupted round
stay in the file and are not counted. A round that failed by itself is a difference. Nothing is ever removed.
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
    #: External SIGKILL, or "own", at ``point``. For an external one the point is "starting" if the broker did not listen
    #: yet, "together" if another process was killed at the same moment.
    how: str
    point: str = ""
    paused: bool = False
    disk_full: bool = False
    load: int
    #: -1: there was no response from the broker in this round.
    undecided: int
    #: 0: queried at this moment; otherwise the broker could not respond, and this is the age of its last response.
    undecided_asked_s_ago: float = 0.0
    #: The source of ``undecided``: the broker, or the log that it left.
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
    #: Number of connections to the database cut inside a transaction.
    cuts: int
    #: Starts of the broker that failed because of the full disk.
    refused_starts: list[str]
    disk: str
    #: Orders in the databases, by producer group.
    committed: dict[str, int]
    #: Transactions with an acknowledged half that are in no database.
    rolled_back: int
    messages: int
    #: Verdicts by decider, and records by kind, in the retained log.
    log: dict[str, int]
    settle_seconds: float
    restart_seconds_max: float
    #: What each check examined, and what it found.
    looked_at: dict[str, int]
    differences: list[str]


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="broken"):
    """A round without a comparison, because a process ended unexpectedly or nothing settled: ``why``."""

    round: int
    seed: str
    commit: str
    why: str


class Parked(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="set_aside"):
    """A round that was red because of a fault of the soak itself: neither its kills nor its differences count.

    Its lines stay in the file.
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
    """Totals over the finished rounds of a record."""

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
        """Number of differences in all rounds; a broken round counts as one."""
        return sum(len(one.differences) for one in self.rounds) + len(self.broken)

    def rows(self) -> Iterator[tuple[str, int, int, str, str]]:
        """For each kind and way: kills, those with undecided transactions, load and undecided as median (maximum)."""
        ways = Counter((kill.kind, kill.how) for kill in self.kills)
        for (kind, how), count in sorted(ways.items()):
            of_it = [kill for kill in self.kills if (kill.kind, kill.how) == (kind, how)]
            undecided = [max(kill.undecided, 0) for kill in of_it]
            loads = [kill.load for kill in of_it]
            yield (
                f"{kind}, {'by itself' if how == 'own' else how}", count, sum(map(bool, undecided)),
                f"{median(loads):.0f} ({max(loads)})", f"{median(undecided):.0f} ({max(undecided)})",
            )  # fmt: skip
