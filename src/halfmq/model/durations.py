"""Durations as text for people, in log lines, refusals and on the command line."""


def span(ms: int) -> str:
    """A duration for people: 850 ms, 12 s, 5 min, 3 h, 2 days."""
    ms = max(0, ms)
    for unit_ms, name in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= 2 * unit_ms or (unit_ms == 1_000 and ms >= unit_ms):
            return f"{ms // unit_ms} {name}"
    return f"{ms} ms"
