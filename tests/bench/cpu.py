"""CPU time of processes, from /proc (Linux only)."""

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(*processes: int, ended_children: bool = True) -> float:
    """CPU time of the processes, and of their ended children."""
    total = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += sum(map(int, fields[11 : 15 if ended_children else 13]))
    return total / _TICKS


def descendants(process: int) -> list[tuple[int, str]]:
    """(id, name) of the processes that it started, and those that they started."""
    found = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += [(int(one), Path(f"/proc/{one}/comm").read_text().strip()) for one in children.read_text().split()]
    return found + [one for child, _ in found for one in descendants(child)]
