"""``python -m tests.simulation --seeds N``: many histories; ``--seed S``: one of them, with its story."""

import argparse
import gc
import json
import logging
import statistics
import sys
import time
from collections import Counter

from tests.simulation import breakages, coverage
from tests.simulation.run import Result, run_seed
from tests.simulation.swarm import draw

#: Histories between two collections of what is left of them.
GARBAGE_EVERY = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--until-red", action="store_true", help="stop at the first violation")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    parser.add_argument("--break", dest="breakage", choices=("", *breakages.NAMES), default="")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("halfmq").setLevel(logging.CRITICAL + 1)
    if arguments.seed is not None:
        sys.exit(one(arguments.seed, arguments.breakage))
    sys.exit(many(arguments))


def one(seed: int, breakage: str) -> int:
    print(f"seed {seed}: {draw(seed)}")
    result = run_seed(seed, breakage)
    for line in result.story:
        print(line)
    print({name: count for name, count in sorted(result.counts.items()) if not name.startswith("cover ")})
    print(f"events {result.events}, faults {result.faults}, trace {result.trace_hash}")
    print(result.violation or "all promises held")
    return 1 if result.violation else 0


def many(arguments: argparse.Namespace) -> int:
    began, cpu_began = time.monotonic(), time.process_time()
    counts: Counter[str] = Counter()
    results: list[Result] = []
    red: list[Result] = []
    gc.collect()
    gc.freeze()
    for number, seed in enumerate(range(arguments.first, arguments.first + arguments.seeds), 1):
        if number % GARBAGE_EVERY == 0:
            gc.collect()
        result = run_seed(seed, arguments.breakage)
        counts += result.counts
        results.append(result._replace(counts=Counter(), story=[]))
        if result.violation:
            red.append(result)
            print(result.violation)
            if arguments.until_red:
                break
    seconds = time.monotonic() - began
    summary = {
        "seeds": len(results),
        "violations": len(red),
        "seconds": round(seconds, 1),
        "ms_per_history": round(1000 * seconds / len(results), 1),
        "cpu_ms_per_history": round(1000 * (time.process_time() - cpu_began) / len(results), 1),
        "events_median": statistics.median(result.events for result in results),
        "faults_median": statistics.median(result.faults for result in results),
    }
    if arguments.json:
        if red:
            print(json.dumps({**summary, "seed": red[0].seed, "violation": red[0].violation}))
        else:
            print(json.dumps(summary))
    else:
        for name, count in sorted(counts.items()):
            if not name.startswith("cover "):
                print(f"{count:>10}  {name}")
        print(coverage.table(counts))
        print(summary)
    return 1 if red else 0


if __name__ == "__main__":
    main()
