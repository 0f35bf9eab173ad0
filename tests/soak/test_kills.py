"""The profile "kills": the broker killed repeatedly, services at each of their points, and everything compared at once.

Differences that the comparison must find are planted into the evidence: those of databases, readers and tags in ``test_soak`` and
``test_oracle``, those of the log here. ``HALFMQ_TEST_CRASH_KILLS`` sets the number of kills.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmq.testing.history.checker import check_files
from tests.soak.order_service import POINTS
from tests.soak.record import Kill, Round, read_lines
from tests.soak.test_soak import Soaked, soak
from tests.support.amount import amount

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]

#: Some 44 of them are services at their points; the others are the broker.
KILLS = amount(60, 100, "HALFMQ_TEST_CRASH_KILLS")
Line = dict[str, Any]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    directory = tmp_path_factory.mktemp("kills")
    kills = ("--kills", str(KILLS), "--round-kills", str(KILLS))
    status, output = soak(directory, "--profile", "kills", *kills, "--rate", "400", "--keep")
    assert status == 0, output
    lines = list(read_lines(directory / "record.jsonl"))
    (one,) = (line for line in lines if isinstance(line, Round))
    return Soaked([line for line in lines if isinstance(line, Kill)], one, directory / "round-000", output)


def test_nothing_is_lost_torn_duplicated_or_wrongly_visible(killed: Soaked) -> None:
    print(killed.output)
    assert killed.round.differences == []
    assert killed.round.kills["broker"] > (KILLS - 44) / 2
    assert killed.round.messages > 12 * KILLS, "too little load to mean anything"


def test_services_died_at_each_of_their_points(killed: Soaked) -> None:
    died = Counter(kill.point for kill in killed.kills if kill.kind == "order service")
    checks = {point for point in POINTS if "check" in point}
    assert set(POINTS) - checks <= died.keys(), died
    assert checks & died.keys(), died


def test_meanwhile_segments_rolled_and_the_log_was_trimmed_and_copied_forward(killed: Soaked) -> None:
    log = killed.round.log
    assert log["base"] > 1, "no segment was rolled"
    assert log["trim"] > 0, "no trim happened"
    assert log["copied_half"] > 0, "no half message was copied forward"
    assert log["committed"] > 50
    assert log["rolled_back"] > 5
    assert log["verdict by marker"] > 0, "no check settled anything"


# --- differences of the log ------------------------------------------------------------------------------------------


class Records(list[Line]):
    """The records of the log. ``acknowledged``: positions of the verdicts that were acknowledged to a client."""

    acknowledged: set[int]


def _nth(records: Records, kind: str, number: int = 20) -> int:
    """Index of the n-th record of that kind; for verdicts, of an acknowledged one, since the loss of others is legal."""
    found = [
        at
        for at, record in enumerate(records)
        if record["kind"] == kind and (kind == "half" or record["offset"] in records.acknowledged)
    ]
    return found[min(number, len(found) - 1)]


def commit_record_gone(records: Records) -> None:
    del records[_nth(records, "commit")]


def rollback_record_gone(records: Records) -> None:
    del records[_nth(records, "rollback")]


def half_messages_and_verdict_gone(records: Records) -> None:
    tx = records[_nth(records, "commit")]["tx"]
    records[:] = [record for record in records if record.get("tx") != tx]


def commit_elsewhere_than_acknowledged(records: Records) -> None:
    records[_nth(records, "commit")]["offset"] += 8


def commit_became_rollback(records: Records) -> None:
    record = records[_nth(records, "commit")]
    record["kind"] = "rollback"
    record.pop("shown")


def second_commit_record(records: Records) -> None:
    again = records[_nth(records, "commit")]
    shown = [[topic, queue, offset + 1_000_000, log] for topic, queue, offset, log in again["shown"]]
    records.append({**again, "offset": 1 << 40, "shown": shown})


def rollback_after_the_commit(records: Records) -> None:
    tx = records[_nth(records, "commit")]["tx"]
    records.append({**records[_nth(records, "rollback")], "tx": tx, "offset": 1 << 40})


def half_message_twice(records: Records) -> None:
    records.append({**records[_nth(records, "half")], "offset": 1 << 40})


def place_taken_twice(records: Records) -> None:
    first, second = (records[_nth(records, "commit", number)]["shown"] for number in (20, 21))
    second[0][:3] = first[0][:3]


def commit_without_one_message(records: Records) -> None:
    next(record for record in records if len(record.get("shown", ())) > 1)["shown"].pop()


def commit_with_one_message_twice(records: Records) -> None:
    shown = next(record for record in records if len(record.get("shown", ())) > 1)["shown"]
    shown[1] = [*shown[0][:2], shown[0][2] + 1_000_000, shown[0][3]]


def positions_in(histories: Path) -> set[int]:
    events = (
        json.loads(line)
        for path in histories.glob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"e":"answered"' in line and line.endswith("}")
    )
    return {event["position"] for event in events if event.get("position", -1) >= 0}


@pytest.mark.parametrize(
    "plant",
    [
        commit_record_gone,
        rollback_record_gone,
        half_messages_and_verdict_gone,
        commit_elsewhere_than_acknowledged,
        commit_became_rollback,
        second_commit_record,
        rollback_after_the_commit,
        half_message_twice,
        place_taken_twice,
        commit_without_one_message,
        commit_with_one_message_twice,
    ],
)
def test_difference_planted_into_the_log_is_found(
    killed: Soaked, plant: Callable[[Records], None], tmp_path: Path
) -> None:
    for path in (killed.directory / "history").glob("*.jsonl"):
        (tmp_path / path.name).symlink_to(path)
    lines = [json.loads(line) for line in (tmp_path / "conductor.jsonl").read_text().splitlines()]
    records = Records(line for line in lines if line["e"] == "log")
    records.acknowledged = positions_in(tmp_path)
    plant(records)
    others = [line for line in lines if line["e"] != "log"]
    at = next(at for at, line in enumerate(lines) if line["e"] == "log")
    (tmp_path / "conductor.jsonl").unlink()
    changed = [*others[:at], *records, *others[at:]]
    (tmp_path / "conductor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert not check_files([tmp_path]).clean
