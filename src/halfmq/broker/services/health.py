"""Whether the broker serves all requests; if not, the reason."""

from halfmq.broker.sequencer import Sequencer


class Health:
    """Whether the broker serves, and why not."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        #: Set when the broker begins to stop.
        self.draining = False

    def why_not(self) -> str:
        """Why requests are refused or not answered; empty if they are served. It contains nothing that a crash could revert."""
        if self._sequencer.failed is not None:
            return f"failed: {self._sequencer.failed}"
        if self.draining:
            return "draining: this broker is stopping"
        if self._sequencer.waits_for_space:
            return "disk full: replies are withheld"
        if self._sequencer.view.session.disk_full:
            return "disk full: new messages are refused, verdicts are not"
        return ""
