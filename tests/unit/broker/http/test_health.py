"""Health says why requests are refused or not answered, the worst first."""

from tests.support.services import CoreSequencer

from halfmq.broker.http.resources import Health
from halfmq.core.session import DiskSpace


def test_a_broker_that_serves_has_nothing_to_say_and_the_worst_reason_is_said_first() -> None:
    sequencer = CoreSequencer()
    health = Health(sequencer)  # type: ignore[arg-type]
    assert health.why_not() == ""
    sequencer.note(DiskSpace(True))
    assert health.why_not() == "disk full: new messages are refused, verdicts are not"
    sequencer.waits_for_space = True
    assert health.why_not() == "disk full: replies are withheld"
    health.draining = True
    assert health.why_not() == "draining: this broker is stopping"
    sequencer.failed = OSError(5, "Input/output error")
    assert health.why_not() == "failed: [Errno 5] Input/output error"


def test_a_broker_that_has_space_again_serves_again() -> None:
    sequencer = CoreSequencer()
    health = Health(sequencer)  # type: ignore[arg-type]
    sequencer.note(DiskSpace(True))
    sequencer.note(DiskSpace(False))
    assert health.why_not() == ""
