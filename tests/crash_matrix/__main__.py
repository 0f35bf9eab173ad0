"""``python -m tests.crash_matrix``: the whole matrix, with its table. Exit code 1 if a promise does not hold."""

import argparse
import sys
import time
from collections import Counter

from tests.crash_matrix.call_sites import call_sites
from tests.crash_matrix.matrix import (
    ALL_KEPT,
    FIRST_NAME_LOST,
    KILL,
    NEWEST_NAME_KEPT,
    NOTHING_KEPT,
    Tally,
    go_through,
    random_loss,
)
from tests.crash_matrix.operations import SCRIPTS


def _print_table(tally: Tally) -> None:
    names = list(dict.fromkeys(row.script for row in tally.rows))
    kinds = sorted({row.kind for row in tally.rows})
    print(
        f"{'operation':<44} {'disk operation':<15} {'when':<7} {'loss':<20} {'points':>7} {'runs':>6}  cases; violations"
    )
    for name in names:
        for kind in kinds:
            for row in sorted(row for row in tally.rows if (row.script, row.kind) == (name, kind)):
                cases = " ".join(f"{letter}:{count}" for letter, count in sorted(tally.cases[row].items()))
                bad = f"  VIOLATED {tally.violated[row]}" if tally.violated[row] else ""
                print(
                    f"{name:<44} {kind:<15} {row.when:<7} {row.loss:<20} {tally.rows[row]:>7} {tally.runs[row]:>6}  {cases}{bad}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operation", default="", help="only scripts whose name contains this")
    parser.add_argument("--random-losses", type=int, default=4, help="random losses of power at each point")
    parser.add_argument(
        "--second-level", type=float, default=0.1, help="share of recoveries with another crash in them"
    )
    parser.add_argument("--break", dest="broken", choices=("", "sync", "reply"), default="")
    arguments = parser.parse_args()
    if not any(arguments.operation in script.name for script in SCRIPTS):
        parser.error(
            f"no script has {arguments.operation!r} in its name: {', '.join(script.name for script in SCRIPTS)}"
        )
    losses = (
        KILL,
        NOTHING_KEPT,
        ALL_KEPT,
        FIRST_NAME_LOST,
        NEWEST_NAME_KEPT,
        *(random_loss(seed) for seed in range(1, arguments.random_losses + 1)),
    )
    total = Tally()
    started = time.monotonic()
    for script in SCRIPTS:
        if arguments.operation not in script.name:
            continue
        began = time.monotonic()
        tally = go_through(
            script,
            losses,
            second_level=arguments.second_level,
            sync_is_a_lie=arguments.broken == "sync",
            eager=arguments.broken == "reply",
        )
        print(
            f"{script.name:<44} {tally.operations[script.name]:>4} operations {sum(tally.rows.values()):>6} points "
            f"{sum(tally.runs.values()):>5} runs {len(tally.violations):>4} violations {time.monotonic() - began:6.1f} s",
            file=sys.stderr,
        )
        total.merge(tally)
    _print_table(total)
    cases: Counter[str] = Counter()
    for counted in total.cases.values():
        cases += counted
    sites = [site for site in call_sites() if any(site.holds(hit) for hit in total.sites)]
    print(f"{sum(total.operations.values())} disk operations, {sum(total.rows.values())} points with a loss each, of which "
          f"{sum(total.runs.values())} leave a different disk or different clients; {total.second_level} in a recovery")  # fmt: skip
    print(f"cases of recovery: {dict(sorted(cases.items()))}")
    print(
        f"{len(sites)} of {len(call_sites())} places in the store that change the disk; {time.monotonic() - started:.0f} s"
    )
    print(f"{len(total.violations)} violations")
    for violation in total.violations[:30]:
        print(violation)
    sys.exit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
