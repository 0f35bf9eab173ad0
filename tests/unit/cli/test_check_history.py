"""The command as a user calls it: what it prints and how it exits."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from tests.support.histories import Options, made
from tests.support.planted import lost, planted, steps_inside
from tests.support.sample_store import sample_store
from tests.support.tales import Tale
from typer.testing import CliRunner

from halfmq.cli.check_history import app
from halfmq.runtime.disk import RealDisk
from halfmq.testing.history.report import CHECKS

run = CliRunner().invoke


@pytest.fixture
def history(tmp_path: Path) -> Path:
    made(3, Options(transactions=50, kills=1)).write(tmp_path / "history")
    return tmp_path / "history"


def test_a_clean_history_exits_0_and_says_how_much_was_looked_at(history: Path) -> None:
    result = run(app, [str(history)])
    assert result.exit_code == 0, result.output
    assert "halfmq 0.1.0" in result.output
    assert "1 x kill" in result.output
    assert result.output.splitlines()[-1] == "clean"
    (line,) = [line for line in result.output.splitlines() if "messages that were seen" in line]
    assert int(line.split()[3]) > 10


def test_legal_duplicates_are_counted(tmp_path: Path) -> None:
    tale = Tale(at_least_once=("g",))
    tale.written()
    for at in range(3):
        tale.seen("M", at=at)
    (tmp_path / "h").write_bytes(msgspec.json.Encoder().encode_lines(tale.events))
    result = run(app, [str(tmp_path / "h")])
    assert result.exit_code == 0
    assert "2 duplicates of messages of outboxes" in result.output
    assert json.loads(run(app, [str(tmp_path / "h"), "--json"]).stdout)["duplicates"] == 2


def test_an_empty_path_is_not_the_current_directory(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(history)
    for arguments in ([""], [str(history), "--log", ""]):
        result = run(app, arguments)
        assert result.exit_code == 2
        assert "an empty path" in result.output


def test_a_check_without_anything_to_look_at_says_so(tmp_path: Path) -> None:
    (tmp_path / "h").write_text('{"e":"began","t_us":0,"by":"p"}\n')
    result = run(app, [str(tmp_path / "h"), "--allow-empty"])
    assert result.exit_code == 0
    assert result.output.count("nothing to check: ") == len(CHECKS)
    assert "note: no queue was read to its end" in result.output


def test_a_run_that_recorded_nothing_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "h").write_text(
        '{"e":"began","t_us":0,"by":"p"}\n{"e":"half","t_us":1,"by":"p","op":"1","group":"g","tx":"T","message":"M","topic":"t"}\n'
    )  # asked, never answered, never seen: no broker was there
    for more in ([], ["--json"]):
        result = run(app, [str(tmp_path / "h"), *more])
        assert result.exit_code == 2
        assert "nothing to check" in result.stderr
        assert "clean\n" not in result.stdout
    assert run(app, [str(tmp_path / "h"), "--json", "--allow-empty"]).exit_code == 0


def test_violations_exit_1_with_a_sentence_and_lines(history: Path) -> None:
    made_again = made(3, Options(transactions=50, kills=1))
    steps = steps_inside(made_again.marks, made_again.restarts, 0.5)
    lines = msgspec.json.Encoder().encode_lines(planted(lost, steps, made_again.end_us))
    (history / "planter.jsonl").write_bytes(lines)
    result = run(app, [str(history)])
    assert result.exit_code == 1
    assert "lost: planted/T message T.0" in result.output
    assert "it is committed, and reader-0, which read everything, never received it (promise 3)" in result.output
    assert "planter.jsonl:" in result.output
    assert result.output.splitlines()[-1] == "1 violations"
    told = json.loads(run(app, [str(history), "--json"]).stdout)
    assert told["counts"]["lost"] == 1
    assert told["violations"][0]["transaction"] == "planted/T"


def test_unusable_input_exits_2_and_says_which_line(history: Path, tmp_path: Path) -> None:
    assert run(app, [str(tmp_path / "none")]).exit_code == 2
    (history / "other.jsonl").write_text("hello\nworld\n")
    result = run(app, [str(history)])
    assert result.exit_code == 2
    assert "other.jsonl:1: not an event" in result.output


def test_the_log_of_a_store_is_looked_at_too(history: Path, tmp_path: Path) -> None:
    sample_store(tmp_path / "store")
    result = run(app, [str(history), "--log", str(tmp_path / "store")])
    assert result.exit_code == 1  # that store is of other clients: nobody said its verdicts
    assert "unrequested verdict" in result.output
    assert "/tmp/halfmq-log-" not in result.output
    assert f"{tmp_path / 'store'} log offset " in result.output
    assert "was every sender of this broker recorded" in result.output
    assert "a broker runs" not in result.output
    assert run(app, [str(history), "--log", str(tmp_path)]).exit_code == 2


def test_the_log_of_a_running_broker_is_read_with_a_warning(history: Path, tmp_path: Path) -> None:
    sample_store(tmp_path / "store")
    held = RealDisk().lock(tmp_path / "store/lock")
    assert held is not None
    assert (
        f"a broker is running on {tmp_path / 'store'}"
        in run(app, [str(history), "--log", str(tmp_path / "store")]).stderr
    )
    del held
    assert "a broker runs" not in run(app, [str(history), "--log", str(tmp_path / "store")]).stderr


@pytest.mark.timeout(20)
def test_what_cannot_be_read_exits_2(history: Path, tmp_path: Path) -> None:
    (history / "deep.jsonl").write_text('{"e":"began","t_us":0,"by":"d","x":' + "[" * 5_000 + "\n")
    result = run(app, [str(history)])
    assert (result.exit_code, "deep.jsonl:1: not an event" in result.stderr) == (2, True), result.output
    os.mkfifo(tmp_path / "pipe")
    result = run(app, [str(tmp_path / "pipe")])
    assert (result.exit_code, "not a regular file" in result.stderr) == (2, True), result.output


def test_a_number_of_violations_to_show_is_none_or_more(history: Path) -> None:
    assert run(app, [str(history), "--show", "-1"]).exit_code == 2
    assert run(app, [str(history), "--show", "0"]).exit_code == 0
