"""Whether a process of a coordinator did something after another one had taken over from it.

Certain only by what was known: an epoch was answered, then an earlier one sent a request, and the request succeeded. Coordinators do little,
so what they did is kept in memory.
"""

from halfmq.testing.history.events import EndAsked, EpochTaken, HalfSent
from halfmq.testing.history.report import AT_EPOCHS, Findings

#: (time, epoch, place) of an epoch that was taken; (time, epoch, place, place of the response, transaction, what) of a request.
_Taken = tuple[int, int, int]
_Done = tuple[int, int, int, int, str, str]


class Epochs:
    """Takes what coordinators did, in any order; then ``judge``."""

    def __init__(self) -> None:
        #: By producer group and coordinator.
        self._taken: dict[tuple[str, str], list[_Taken]] = {}
        self._done: dict[tuple[str, str], list[_Done]] = {}

    def taken(self, event: EpochTaken, place: int) -> None:
        """A process got an epoch."""
        self._taken.setdefault((event.group, event.coordinator), []).append((event.t_us, event.epoch, place))

    def succeeded(self, request: HalfSent | EndAsked, place: int, answered_at: int) -> None:
        """A coordinator's request was executed."""
        what = f"{request.verdict} of it" if isinstance(request, EndAsked) else "one of its messages"
        key = f"{request.group}\n{request.tx}"
        done = (request.t_us, request.epoch, place, answered_at, key, what)
        self._done.setdefault((request.group, request.coordinator), []).append(done)

    def judge(self, findings: Findings) -> None:
        """Compare each request with the epochs that were taken before it."""
        for of, done in self._done.items():
            highest: _Taken = (-1, 0, 0)
            taken = sorted(self._taken.get(of, ()))
            for us, epoch, place, answered_at, key, what in sorted(done):
                findings.examined[AT_EPOCHS] += 1
                while taken and taken[0][0] < us:
                    highest = max(highest, taken.pop(0), key=lambda one: one[1])
                if epoch < highest[1]:
                    text = (
                        f"epoch {epoch} of coordinator {of[1]} requested {what}, and was not refused, after epoch {highest[1]} was taken at "
                        f"{highest[0]:,} us"
                    )
                    findings.add(AT_EPOCHS, key, "", text, (highest[2], place, answered_at))
