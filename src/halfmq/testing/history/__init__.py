"""Recorded histories (requests, responses and received messages), and a checker of the ten promises.

``Recorder`` writes a history to a file, ``MemoryRecorder`` keeps it in memory; ``check_files`` and ``check_events`` check it. The
event types are in ``halfmq.testing.history.events``. Command line: ``halfmq check-history``.
"""

from halfmq.testing.history.checker import HistoryCheck, check_events, check_files
from halfmq.testing.history.recorder import MemoryRecorder, Recorder
from halfmq.testing.history.report import Report, Violation

__all__ = ["HistoryCheck", "MemoryRecorder", "Recorder", "Report", "Violation", "check_events", "check_files"]
