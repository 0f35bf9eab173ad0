"""Recorded histories: what each process asked, was answered and saw, and a checker of the ten promises over it.

``Recorder`` writes one (``MemoryRecorder`` keeps one), ``check_files`` and ``check_events`` judge one; the events are in
``halfmq.testing.history.events``. At a terminal: ``halfmq check-history``.
"""

from halfmq.testing.history.checker import HistoryCheck, check_events, check_files
from halfmq.testing.history.recorder import MemoryRecorder, Recorder
from halfmq.testing.history.report import Report, Violation

__all__ = ["HistoryCheck", "MemoryRecorder", "Recorder", "Report", "Violation", "check_events", "check_files"]
