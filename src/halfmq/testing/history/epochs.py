"""Whether one process of a coordinator acts at a time, and no epoch comes back.

Certain only by what was known: an epoch was answered, or a request in it executed; then an earlier one sent a request which was not
refused, or somebody asked for an epoch and got no higher one. For each epoch the first time that it was known and its last request suffice,
so that memory grows with the number of epochs.

Recoveries at the same moment may be answered in any order. A process that asks twice may get the same epoch twice, for an answer that was
lost. With durability ``memory``, what was known before a power loss proves nothing.
"""

from typing import NamedTuple

from halfmq.testing.history.events import EndAsked, EpochTaken, HalfSent
from halfmq.testing.history.facts import Facts
from halfmq.testing.history.report import At, Findings

#: (coordinator's group, its name)
_Of = tuple[str, str]


class _Known(NamedTuple):
    """When an epoch was known, where, and when what showed it was requested."""

    us: int
    place: int
    since_us: int


class _Taken(NamedTuple):
    """A process got an epoch that it had requested at ``since_us``."""

    since_us: int
    us: int
    place: int
    epoch: int
    by: str


class _Done(NamedTuple):
    """The last request in an epoch."""

    us: int
    place: int
    answered_at: int
    key: str
    what: str


class Epochs:
    """Takes what coordinators did, in any order; then ``judge``."""

    def __init__(self) -> None:
        #: By epoch, the first time.
        self._known: dict[_Of, dict[int, _Known]] = {}
        self._taken: dict[_Of, list[_Taken]] = {}
        self._done: dict[_Of, dict[int, _Done]] = {}
        self._requests = 0

    def taken(self, event: EpochTaken, place: int) -> None:
        """A process got an epoch."""
        since_us = event.t_us if event.since_us < 0 else event.since_us
        one = _Taken(since_us, event.t_us, place, event.epoch, event.by)
        self._taken.setdefault((event.group, event.coordinator), []).append(one)
        self._note(event, _Known(event.t_us, place, since_us))

    def executed(self, request: HalfSent | EndAsked, place: int, answered_us: int, answered_at: int) -> None:
        """A coordinator's request was not refused."""
        self._requests += 1
        self._note(request, _Known(answered_us, answered_at, request.t_us))
        of_this = self._done.setdefault((request.group, request.coordinator), {})
        last = of_this.get(request.epoch)
        if last is None or last.us < request.t_us:
            what = f"{request.verdict} of it" if isinstance(request, EndAsked) else "one of its messages"
            of_this[request.epoch] = _Done(request.t_us, place, answered_at, f"{request.group}\n{request.tx}", what)

    def _note(self, event: EpochTaken | HalfSent | EndAsked, known: _Known) -> None:
        of_this = self._known.setdefault((event.group, event.coordinator), {})
        of_this[event.epoch] = min(known, of_this.get(event.epoch, known))

    def judge(self, facts: Facts, findings: Findings) -> None:
        """Compare what was requested with the epochs that were known by then."""
        if facts.acknowledgements_void:
            return
        findings.examined[At.EPOCHS] += self._requests
        for of, known in self._known.items():
            lasting = {epoch: one for epoch, one in known.items() if not facts.may_have_lost(one.since_us, -1)}
            taken = [one for one in self._taken.get(of, ()) if not facts.may_have_lost(one.since_us, -1)]
            findings.examined[At.EPOCHS_RISE] += len(taken)
            _judge_requests(of, lasting, self._done.get(of, {}), findings)
            _judge_taken(of, lasting, taken, findings)


def _judge_requests(of: _Of, known: dict[int, _Known], done: dict[int, _Done], findings: Findings) -> None:
    """The last request in each epoch came before a higher one was known."""
    rest = sorted(known.items())
    higher: tuple[_Known, int] | None = None
    for epoch, last in sorted(done.items(), reverse=True):
        while rest and rest[-1][0] > epoch:
            number, one = rest.pop()
            higher = min((one, number), higher or (one, number))
        if higher is not None and higher[0].us < last.us:
            text = (
                f"epoch {epoch} of coordinator {of[1]} requested {last.what}, and was not refused, after epoch {higher[1]} was known to be "
                f"taken at {higher[0].us:,} us"
            )
            findings.add(At.EPOCHS, last.key, "", text, (higher[0].place, last.place, last.answered_at))


def _judge_taken(of: _Of, known: dict[int, _Known], taken: list[_Taken], findings: Findings) -> None:
    """One process has each epoch, and it is higher than all that were known when it was requested."""
    whose = f"of coordinator {of[1]} of group {of[0]}"
    first: dict[int, _Taken] = {}
    twice: set[int] = set()
    by_time = sorted(((one, epoch) for epoch, one in known.items()), reverse=True)
    highest: tuple[int, _Known] | None = None
    for one in sorted(taken):
        before = first.setdefault(one.epoch, one)
        if before.by != one.by:
            if one.epoch not in twice:
                text = f"{before.by} and {one.by} both got epoch {one.epoch} {whose}"
                findings.add(At.EPOCHS_RISE, "", "", text, (before.place, one.place))
            twice.add(one.epoch)
        while by_time and by_time[-1][0].us < one.since_us:
            shown, epoch = by_time.pop()
            highest = max((epoch, shown), highest or (epoch, shown))
        if highest is not None and highest[0] > one.epoch and one.epoch not in twice:
            text = f"{one.by} got epoch {one.epoch} {whose}, after epoch {highest[0]} was known at {highest[1].us:,} us"
            findings.add(At.EPOCHS_RISE, "", "", text, (highest[1].place, one.place))
