"""Whether a process of a coordinator did something after another one had taken over from it.

Certain only by what was known: an epoch was answered, then an earlier one sent a request, and the request succeeded. For each epoch the first
time that it was known and its last request suffice, so that memory grows with the number of epochs.
"""

from halfmq.testing.history.events import EndAsked, EpochTaken, HalfSent
from halfmq.testing.history.report import AT_EPOCHS, Findings

#: (time, place) of the first response with an epoch; (time, place, place of the response, transaction, what) of its last request.
_Taken = tuple[int, int]
_Done = tuple[int, int, int, str, str]


class Epochs:
    """Takes what coordinators did, in any order; then ``judge``."""

    def __init__(self) -> None:
        #: By producer group and coordinator, then epoch.
        self._taken: dict[tuple[str, str], dict[int, _Taken]] = {}
        self._done: dict[tuple[str, str], dict[int, _Done]] = {}
        self._examined = 0

    def taken(self, event: EpochTaken, place: int) -> None:
        """A process got an epoch."""
        of_this = self._taken.setdefault((event.group, event.coordinator), {})
        of_this[event.epoch] = min((event.t_us, place), of_this.get(event.epoch, (event.t_us, place)))

    def succeeded(self, request: HalfSent | EndAsked, place: int, answered_at: int) -> None:
        """A coordinator's request was executed."""
        self._examined += 1
        of_this = self._done.setdefault((request.group, request.coordinator), {})
        last = of_this.get(request.epoch)
        if last is None or last[0] < request.t_us:
            what = f"{request.verdict} of it" if isinstance(request, EndAsked) else "one of its messages"
            of_this[request.epoch] = (request.t_us, place, answered_at, f"{request.group}\n{request.tx}", what)

    def judge(self, findings: Findings) -> None:
        """Compare the last request of each epoch with the time from which a higher one was known."""
        findings.examined[AT_EPOCHS] += self._examined
        for of, done in self._done.items():
            taken = sorted(self._taken.get(of, {}).items())
            higher: tuple[int, int, int] | None = None
            for epoch, (us, place, answered_at, key, what) in sorted(done.items(), reverse=True):
                while taken and taken[-1][0] > epoch:
                    number, (at_us, at_place) = taken.pop()
                    higher = min((at_us, at_place, number), higher or (at_us, at_place, number))
                if higher is not None and higher[0] < us:
                    text = (
                        f"epoch {epoch} of coordinator {of[1]} requested {what}, and was not refused, after epoch {higher[2]} was known to be "
                        f"taken at {higher[0]:,} us"
                    )
                    findings.add(AT_EPOCHS, key, "", text, (higher[1], place, answered_at))
