"""``python -m tests.simulation --seeds N``: many histories; ``--seed S``: one of them again, with its story.

--record        continue after the end of the record in the repository, and append what was run; FILE: to that record
--show-record   a summary of the record, with --record FILE of that one
--first F --seeds N --brief
                the figures and the digest of a line of the record, at its commit: the digest must be that of the line
--seconds S     as many new seeds as fit into S seconds
--break NAME    with a planted bug, which must be found
--profile NAME  every seed has this profile ("crowded", "power_loss", "queries"); not with --record, whose seeds draw theirs
--story         with --seed: every event, and what the broker and the clients log
"""

import argparse
import json
import logging
import random
import sys
import time
from pathlib import Path

from tests.simulation import breakages, coverage, record
from tests.simulation.chronicle import line
from tests.simulation.chunks import Sum, run_many
from tests.simulation.run import run_seed
from tests.simulation.swarm import PROFILES, draw

#: Number of seeds of one line of the record.
_RECORD_STEP = 2_000


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=at_least_one, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--new", action="store_true", help="begin at a seed made of commit and time")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--until-red", action="store_true", help="stop at the first violation")
    parser.add_argument("--brief", action="store_true", help="only the figures")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    parser.add_argument("--record", type=Path, nargs="?", const=record.RECORD, metavar="FILE")
    parser.add_argument("--show-record", action="store_true")
    parser.add_argument("--break", dest="breakage", choices=("", *breakages.NAMES), default="")
    parser.add_argument("--profile", choices=("", *PROFILES), default="")
    arguments = parser.parse_args()
    if arguments.profile and arguments.record is not None:
        parser.error("--profile: the record has seeds as they draw themselves")
    if arguments.show_record:
        print(record.summary(arguments.record or record.RECORD))
    elif arguments.seed is not None:
        sys.exit(one(arguments.seed, arguments.breakage, arguments.story, arguments.profile))
    elif arguments.record is not None:
        sys.exit(recorded(arguments))
    else:
        sys.exit(many(arguments))


def one(seed: int, breakage: str, story: bool, profile: str = "") -> int:
    print(f"seed {seed}: {draw(seed, profile)}")
    if story:
        logging.getLogger("halfmq").setLevel(logging.INFO)
        logging.basicConfig(
            level=logging.INFO, stream=sys.stdout, format="           %(name)s %(levelname)s %(message)s"
        )
    result = run_seed(seed, breakage, (lambda event: print(line(event))) if story else None, profile)
    for text in result.story:
        print(text)
    print({name: count for name, count in sorted(result.counts.items()) if not name.startswith("cover ")})
    print(f"events {result.events}, faults {result.faults}, trace {result.trace_hash}")
    print(result.violation or "all promises held")
    return 1 if result.violation else 0


def many(arguments: argparse.Namespace) -> int:
    total = Sum()
    first = new_seed() if arguments.new else arguments.first
    if arguments.new:
        print(f"from seed {first}", flush=True)
    for chunk in run_many(
        first, arguments.seeds, arguments.processes, arguments.breakage, arguments.until_red, arguments.seconds,
        arguments.profile,
    ):  # fmt: skip
        total.add(chunk)
        for result in chunk.red:
            print(result.violation, flush=True)
    figures = total.figures()
    if not arguments.seconds:  # with --seconds the chunks differ, so the digest is not comparable
        figures["digest"] = total.digest.hexdigest()
    if arguments.brief:
        print(figures)
    elif arguments.json:
        found = {"seed": total.red[0].seed, "violation": total.red[0].violation} if total.red else {}
        print(json.dumps({**figures, **found}))
    else:
        for name, count in sorted(total.counts.items()):
            if not name.startswith("cover "):
                print(f"{count:>10}  {name}")
        print(coverage.table(total.counts))
        print(f"cells that are possible and empty: {', '.join(coverage.empty_cells(total.counts)) or 'none'}")
        print(figures)
    return 1 if total.red else 0


def new_seed() -> int:
    """Far from the record's seeds, and different for each second and commit."""
    rng = random.Random(f"{record.commit_now()}/{int(time.time())}")
    return rng.randrange(1, 1 << 20) << 24


def recorded(arguments: argparse.Namespace) -> int:
    """A line after every ``_RECORD_STEP`` seeds, so that little is lost when it is stopped."""
    left = arguments.seeds
    red = 0
    while left > 0:
        first, commit = record.next_seed(arguments.record), record.commit_now()
        step = min(left, _RECORD_STEP)
        total = Sum()
        for chunk in run_many(first, step, arguments.processes):
            total.add(chunk)
            for result in chunk.red:
                print(result.violation, flush=True)
        record.append(arguments.record, first, commit, total)
        print(f"seeds {first} to {first + step - 1}: {total.figures()}", flush=True)
        red += len(total.red)
        left -= step
    return 1 if red else 0


if __name__ == "__main__":
    main()
