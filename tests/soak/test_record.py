"""The record continues over several runs, and counts only what was compared."""

from pathlib import Path

from tests.soak.record import Broken, Kill, Parked, Record, Round, Summary, read_lines


def kill(number: int, kind: str = "broker", undecided: int = 3) -> Kill:
    return Kill(round=number, at_s=1.0, kind=kind, whom=f"{kind}.1", how="SIGKILL", load=100, undecided=undecided)


def finished(number: int, differences: list[str]) -> Round:
    return Round(
        round=number, seed="1", commit="abc", started="2026-11-21", seconds=60, kills={"broker": 2}, pauses={}, fills={},
        cuts=0, refused_starts=[], disk="ext4", committed={"g": 10}, rolled_back=1, messages=20, log={}, settle_seconds=3,
        restart_seconds_max=1, looked_at={}, differences=differences,
    )  # fmt: skip


def test_a_second_run_continues_after_the_first(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert Summary(read_lines(path)).next_round == 0
    for number in range(2):
        record = Record(path)
        record.write(kill(number))
        record.write(kill(number, "java", undecided=0))
        record.write(finished(number, []))
    total = Summary(read_lines(path))
    assert (len(total.kills), total.next_round, total.differences) == (4, 2, 0)
    assert list(total.rows()) == [
        ("broker, SIGKILL", 2, 2, "100 (100)", "3 (3)"),
        ("java, SIGKILL", 2, 0, "100 (100)", "0 (0)"),
    ]


def test_kills_of_an_interrupted_round_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = Record(path)
    record.write(kill(0))
    record.write(finished(0, ["lost: one"]))
    record.write(kill(1))
    with path.open("ab") as file:
        file.write(b'{"what":"kill","rou')
    total = Summary(read_lines(path))
    assert (len(total.kills), total.next_round, total.differences) == (1, 2, 1)


def test_a_round_in_which_a_process_ended_by_itself_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = Record(path)
    record.write(kill(0))
    record.write(Broken(round=0, seed="1", commit="abc", why="the broker ended by itself"))
    total = Summary(read_lines(path))
    assert (len(total.kills), total.next_round, total.differences) == (0, 1, 1)


def test_a_round_that_is_set_aside_does_not_count_but_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = Record(path)
    for number in range(2):
        record.write(kill(number))
        record.write(finished(number, ["hole: the watcher forgot what it saw"] * number))
    record.write(Parked(round=1, because="the watcher forgot what it saw"))
    total = Summary(read_lines(path))
    assert (len(total.kills), len(total.rounds), total.next_round, total.differences) == (1, 1, 2, 0)
    assert len(list(read_lines(path))) == 5
