"""A short soak with all participants, and the proof that it would have found differences.

``make test`` runs it with about twenty kills. For more: ``python -m tests.soak --kills 1000 --directory DIR``.
"""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from halfmq.testing.history.checker import check_files
from tests.compat.toolchain import require_java
from tests.soak.examined import EXAMINED, names
from tests.soak.oracle import Books, Sight, compare, read_sight
from tests.soak.plan import JAVA_GROUP, POSTGRES_GROUP, SQLITE_GROUP
from tests.soak.plants import PLANTS, Plant, kinds
from tests.soak.processes import CHECKOUT
from tests.soak.record import Kill, Round, read_lines
from tests.soak.round import BOOKS
from tests.soak.small_disk import can_mount

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.postgres, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("HALFMQ_TEST_SOAK_KILLS", "20"))
SEED = int(os.environ.get("HALFMQ_TEST_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)


class Soaked(NamedTuple):
    kills: list[Kill]
    round: Round
    directory: Path
    output: str


def soak(directory: Path, *options: str) -> tuple[int, str]:
    """Exit status and output; skips if a requirement is missing."""
    command = [sys.executable, "-m", "tests.soak", "--seed", str(SEED), "--directory", str(directory), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    if process.returncode == 2:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(output)
    return process.returncode, f"seed {SEED}\n{output}"


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    require_java()
    directory = tmp_path_factory.mktemp("soak")
    disk = [] if can_mount(directory) else ["--no-disk-full"]
    kills = ("--kills", str(KILLS), "--round-kills", str(KILLS))
    status, output = soak(directory, *kills, "--retention", "16", "--keep", *disk)
    assert status == 0, output
    lines = list(read_lines(directory / "record.jsonl"))
    rounds = [line for line in lines if isinstance(line, Round)]
    assert len(rounds) == 1, output
    return Soaked([line for line in lines if isinstance(line, Kill)], rounds[0], directory / "round-000", output)


def test_databases_and_messages_agree_after_kills_of_all_processes(soaked: Soaked) -> None:
    print(soaked.output)
    assert soaked.round.differences == []
    # A process that is to kill itself at a point may do so after the last requested kill.
    assert KILLS <= len(soaked.kills) == sum(soaked.round.kills.values()) <= KILLS + 5
    assert soaked.round.committed.keys() == {SQLITE_GROUP, POSTGRES_GROUP, JAVA_GROUP}
    assert sum(soaked.round.committed.values()) > 10 * KILLS
    assert soaked.round.rolled_back > 0
    assert soaked.round.kills["broker"] > 0


def test_kills_happen_under_load_and_with_undecided_transactions(soaked: Soaked) -> None:
    assert sum(kill.load > 0 for kill in soaked.kills) > len(soaked.kills) / 2
    assert sum(kill.undecided > 0 for kill in soaked.kills) > len(soaked.kills) / 2


def test_every_check_examined_something(soaked: Soaked) -> None:
    looked = soaked.round.looked_at
    assert looked["rows in the databases"] == looked["visible messages"] == looked["effects of consumers"] > 0
    filtered = looked["messages passed by the tag filter"]
    assert looked["effects of the filtering group"] == filtered
    assert looked["effects of consumers"] / 4 < filtered < looked["effects of consumers"]
    by_promise = {name for name, count in looked.items() if name.startswith("promise") and count}
    assert by_promise >= names(EXAMINED)


def evidence(soaked: Soaked) -> tuple[Books, Sight]:
    books = msgspec.msgpack.decode((soaked.directory / BOOKS).read_bytes(), type=Books)
    return books, read_sight(soaked.directory / "history")


@pytest.mark.parametrize(("plant", "seen"), PLANTS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_difference_planted_into_the_real_evidence_is_found(soaked: Soaked, plant: Plant, seen: set[str]) -> None:
    books, sight = evidence(soaked)
    plant(books, sight)
    assert kinds(compare(books, sight).differences) == seen


def test_the_checker_finds_a_violation_planted_into_the_real_histories(soaked: Soaked, tmp_path: Path) -> None:
    """One line of the evidence says the opposite: the database outcome of an order that is visible."""
    assert check_files([soaked.directory / "history"]).clean
    lines = (soaked.directory / "history" / "conductor.jsonl").read_text().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if '"e":"local"' in line and "COMMITTED" in line)
    lines[at] = lines[at].replace("COMMITTED", "ROLLED_BACK")
    for path in (soaked.directory / "history").glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "conductor.jsonl").write_text("".join(lines))
    assert not check_files([tmp_path]).clean


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bug", "seen"),
    [
        ("commit-rolls-back", {"lost", "checker"}),
        ("tags-not-compared", {"not subscribed"}),
        ("tag-hash-lost", {"filtered out", "not consumed"}),
    ],
)
def test_the_soak_finds_a_bug_planted_into_the_broker(bug: str, seen: set[str], tmp_path: Path) -> None:
    status, output = soak(tmp_path, "--kills", "2", "--no-java", "--no-disk-full", "--bug", bug)
    assert status == 1, output
    (one,) = (line for line in read_lines(tmp_path / "record.jsonl") if isinstance(line, Round))
    assert seen <= kinds(one.differences)
