"""A process of a coordinator that prepares or settles after another one has taken over."""

import pytest

from halfmq.testing.history import check_events
from halfmq.testing.history.events import Answered, AnyEvent, EndAsked, EpochTaken, FileStarted, HalfSent
from halfmq.testing.history.report import At


def history(first_us: int, *, epoch: int = 1, outcome: str = "ok", coordinator: str = "transfers") -> list[AnyEvent]:
    """Epoch 2 is known to be taken at 100 us. A process in ``epoch`` prepares at ``first_us``, and settles at ``first_us`` + 20."""
    of = {"group": "bank", "coordinator": coordinator, "epoch": epoch}
    return [
        FileStarted(t_us=0, by="a"),
        EpochTaken(t_us=10, by="a", group="bank", coordinator="transfers", epoch=1),
        EpochTaken(t_us=100, by="b", group="bank", coordinator="transfers", epoch=2),
        HalfSent(t_us=first_us, by="a", op="1", tx="T1", message="M1", topic="t", **of),
        Answered(t_us=first_us + 10, by="a", op="1", outcome=outcome),  # type: ignore[arg-type]
        EndAsked(t_us=first_us + 20, by="a", op="2", tx="T1", verdict="COMMITTED", decided_by="coordinator", **of),
        Answered(t_us=first_us + 30, by="a", op="2", outcome=outcome, verdict="COMMITTED"),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (history(20), 0),
        (history(95), 1),
        (history(120), 1),
        (history(120, epoch=2), 0),
        (history(120, outcome="refused"), 0),
        (history(120, coordinator="other"), 0),
    ],
    ids=["before", "settled after", "prepared and settled after", "the newest", "refused", "another coordinator"],
)
def test_what_an_earlier_epoch_did_after_a_later_one_was_taken_is_found(events: list[AnyEvent], found: int) -> None:
    for order in (events, events[::-1]):
        report = check_events(order)
        said = [one.sentence for one in report.violations if "epoch" in one.sentence]
        assert len(said) == report.counts["unrequested verdict"] == found, said
        assert all("epoch 1 of coordinator transfers requested" in one for one in said)
        assert report.looked[At.EPOCHS].looked == (0 if events[4].outcome == "refused" else 2)  # type: ignore[union-attr]
