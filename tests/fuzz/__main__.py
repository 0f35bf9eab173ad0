"""``python -m tests.fuzz TARGET --seconds 60``: look for inputs that break a promise.

With ``atheris`` installed (``pip install --group fuzz``) the search follows coverage; without it, or with ``--blind``,
inputs are mutated by a seeded rng. What is found goes to ``build/fuzz/TARGET`` and, shortened by hand, belongs into
``tests/fuzz/corpus/TARGET``. ``python -m tests.fuzz TARGET --input FILE`` runs one input again.
"""

import argparse
import random
import sys
import time
from pathlib import Path

BUILD = Path("build/fuzz")


def main() -> int:
    arguments = _parser().parse_args()
    atheris = None if arguments.blind or arguments.input or not arguments.target else _atheris()
    if atheris is not None:
        with atheris.instrument_imports(include=["halfmq"]):
            from tests.fuzz import targets
    else:
        from tests.fuzz import targets
    if not arguments.target:
        print("\n".join(f"{target.name:<12}{target.promise}" for target in targets.ALL.values()))
        return 0
    target = targets.ALL[arguments.target]
    if arguments.input:
        target.run(arguments.input.read_bytes())
        print(f"{arguments.input}: every promise holds")
        return 0
    if atheris is not None:
        return _guided(atheris, target, arguments)
    return _blind(target, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", help="without one: the list of targets and what each promises")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the random choices; 0: a new one, which is printed")
    parser.add_argument("--blind", action="store_true", help="do not follow coverage")
    parser.add_argument("--input", type=Path, help="run this one input")
    return parser


def _atheris():  # type: ignore[no-untyped-def]
    try:
        import atheris
    except ImportError:
        print("atheris is not installed, so inputs are mutated without looking at coverage", file=sys.stderr)
        return None
    return atheris


def _guided(atheris, target, arguments) -> int:  # type: ignore[no-untyped-def]
    """Hand the search to libFuzzer; it ends the process. Half of the mutations are its own, half know our formats."""
    from tests.fuzz import corpus
    from tests.fuzz.mutation import Mutator

    inputs = BUILD / target.name / "corpus"
    inputs.mkdir(parents=True, exist_ok=True)
    pool = corpus.pool(target)
    for number, data in enumerate(pool):
        (inputs / f"seed-{number:04d}").write_bytes(data)
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)

    def mutate(data: bytes, size_max: int, rng: int) -> bytes:
        if rng & 1:
            return atheris.Mutate(data, size_max)
        return Mutator(target, random.Random(rng), pool).mutated(bytes(data))[:size_max]

    options = [
        sys.argv[0], str(inputs), f"-max_total_time={arguments.seconds}", f"-seed={seed}", "-max_len=65536",
        f"-artifact_prefix={BUILD / target.name}/", "-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(options, target.run, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


def _blind(target, arguments) -> int:  # type: ignore[no-untyped-def]
    from tests.fuzz import corpus
    from tests.fuzz.mutation import Mutator

    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)
    pool = corpus.pool(target)
    mutator = Mutator(target, random.Random(seed), pool)
    end = time.monotonic() + arguments.seconds
    count = 0
    for data in pool:
        target.run(data)
    while time.monotonic() < end:
        data = mutator.fresh()
        count += 1
        try:
            target.run(data)
        except BaseException:
            path = BUILD / target.name / f"crash-{seed}-{count}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"input {count} of --seed {seed} breaks a promise of {target.name}: {path}", file=sys.stderr)
            raise
    print(f"{target.name}: {len(pool)} seeds, {count} fresh inputs of --seed {seed}, every promise holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
