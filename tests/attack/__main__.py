"""``python -m tests.attack --seconds 3600``: a user without rights, and strangers, against a broker where others work.

The broker, the honest work and the attack are processes of their own. Honest work (half messages with verdicts, and a consumer) is measured
in phases, by turns without and with the attack. The attack sends requests of every code: valid ones that name what others have, with
fields and bodies changed by chance, and noise; logged in, signed and unsigned, on some connections. At the end

- no response but those that everybody may get had code 0, and none had a byte of a body of the honest ones in it
- the honest ones received each committed message, and no other; topics, groups and users are those of the honest ones
- the audit log has as many refusals as the attack got
- the 99th percentile of honest transactions is at most twice that of the phases without the attack

Prints JSON. Exit status: 0 all of it holds, 1 something does not.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tests.attack.attack import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--phase", type=float, default=10, help="of each phase without and with the attack, seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = run(given.seconds, given.seed, given.phase, Path(directory))
    print(json.dumps(result, indent=2))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
