"""Whether the broker serves everybody now; if not, why."""

from halfmq.broker.sequencer import Sequencer


class Health:
    """Whether the broker serves, and why not."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        #: Set when the broker begins to stop.
        self.draining = False

    def why_not(self) -> str:
        """Why requests are refused or not answered; empty: they are served. Says nothing that a crash could take back."""
        if self._sequencer.failed is not None:
            return f"failed: {self._sequencer.failed}"
        if self.draining:
            return "draining: this broker is stopping"
        if self._sequencer.waits_for_space:
            return "disk full: replies are withheld"
        if self._sequencer.view.session.disk_full:
            return "disk full: new messages are refused, verdicts are not"
        return ""
