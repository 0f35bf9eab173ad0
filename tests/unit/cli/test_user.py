"""`halfmq user`: what is sent, where a secret goes, and that it goes nowhere else. The server is scripted; a real one is in
tests/scenarios/test_users.py.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.scripted_server import ScriptedServer
from typer.testing import CliRunner, Result

from halfmq.cli import requests, user
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.user import _new_file, _shown
from halfmq.model.users import ALL_PERMISSIONS, UserLimits, parse_permissions
from halfmq.wire.remoting.codes import HMQ_REMOVE_USER, HMQ_SET_USER, HMQ_USERS
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.users import CHANGE, NEW_SECRET, USERS, NewSecret, UserChange, UserInfo

NEW = "made-by-the-broker"
OWN = "chosen by somebody"
ALICE = UserInfo("alice", list(ALL_PERMISSIONS), UserLimits(), 1, False, 2)
SHOP = UserInfo("shop", ["send:topic:orders-*", "consume:group:billing"], UserLimits(10, 100, 50, 0), 2, True, 1)


class Broker:
    """Has two users, each on a page of its own, and notes what is asked of it."""

    def __init__(self) -> None:
        self.code = 0
        self.answers = True
        self.server = ScriptedServer(self._answer)

    def _answer(self, request: Request[Any]) -> bytes | None:
        if request.code == HMQ_USERS:
            first = "from" not in request.ext
            ext = {"total": 2, "next": 1 if first else None}
            return encode_response(request, 0, ext=ext, body=USERS.encode([SHOP if first else ALICE]))
        if not self.answers:
            return None
        body = b""
        if request.code == HMQ_SET_USER:
            made = CHANGE.decode(request.body).secret == ""
            body = NEW_SECRET.encode(NewSecret(NEW if made else ""))
        return encode_response(request, self.code, "said so", body=body)

    @property
    def change(self) -> UserChange:
        """The one that was sent last."""
        (*_, last) = [request for request in self.server.requests if request.code == HMQ_SET_USER]
        return CHANGE.decode(last.body)

    def run(self, *arguments: object, typed: str | None = None) -> Result:
        words = [*map(str, arguments), "--url", self.server.url]
        return CliRunner().invoke(user.app, words, input=typed)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.server.close()


def fields(struct: Any) -> dict[str, Any]:
    return dict(msgspec.structs.asdict(struct))


def test_a_new_secret_is_all_that_standard_output_has(broker: Broker) -> None:
    done = broker.run(
        "add", "shop", "--allow", "send:topic:orders-*", "--allow", "consume:*", "--allow", "consume:broker",
        "--connections", 5, "--rate", 100, "--undecided", 7, "--names", 3, "--reason", "new shop",
    )  # fmt: skip
    assert (done.exit_code, done.stdout) == (0, f"{NEW}\n")
    assert done.stderr == "user shop is made\n"
    assert fields(broker.change) == {
        "user": "shop", "is_new": True, "reason": "new shop", "secret": "", "old_secret_s": 0, "password": None,
        "permissions": ["send:topic:orders-*", "consume:topic:*", "consume:group:*", "consume:broker"],
        "limits": UserLimits(5, 100, 7, 3),
    }  # fmt: skip


def test_a_new_secret_goes_to_a_file_that_only_its_owner_reads(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    done = broker.run("add", "alice", "--administrator", "--secret-file", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"user alice is made; it is in {file}\n"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (f"{NEW}\n", 0o600)
    assert broker.change.permissions == list(ALL_PERMISSIONS)
    again = broker.run("rotate", "alice", "--secret-file", file)
    assert (again.exit_code, "File exists; nothing was changed" in again.stderr) == (1, True)
    assert file.read_text() == f"{NEW}\n"
    assert broker.change.is_new, "nothing was sent"


def test_nothing_is_sent_if_the_file_cannot_be_made(broker: Broker, tmp_path: Path) -> None:
    done = broker.run("add", "alice", "--secret-file", tmp_path / "absent" / "secret")
    assert (done.exit_code, "No such file or directory" in done.stderr) == (1, True)
    assert broker.server.requests == []


@pytest.mark.parametrize(("code", "status"), [(16, 4), (2, 4), (29, 2), (1, 1)])
def test_the_file_is_removed_if_the_request_fails(broker: Broker, tmp_path: Path, code: int, status: int) -> None:
    file = tmp_path / "secret"
    broker.code = code
    done = broker.run("add", "alice", "--secret-file", file)
    assert (done.exit_code, done.stdout) == (status, "")
    assert f"halfmq user: said so (code {code})" in done.stderr
    assert not file.exists()


def test_without_a_response_it_is_unknown_what_happened(broker: Broker, tmp_path: Path) -> None:
    broker.answers = False
    for arguments in (["add", "new"], ["set", "shop", "--rate", "1"], ["rotate", "shop"]):
        assert broker.run(*arguments).exit_code == ExitStatus.UNKNOWN_OUTCOME, arguments
    assert broker.run("remove", "shop", "--reason", "r", "--yes").exit_code == ExitStatus.UNKNOWN_OUTCOME


def test_a_secret_that_cannot_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could log in otherwise; and the file would have a part of it."""
    file = tmp_path / "secret"

    def fail_to_write() -> None:
        with _new_file(str(file)) as write:
            (number,) = [
                int(one) for one in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{one}") == str(file)
            ]
            os.dup2(os.open(file, os.O_RDONLY), number)
            write(NEW)

    with pytest.raises(Exception) as raised:  # noqa: PT011 - of typer
        fail_to_write()
    assert getattr(raised.value, "exit_code", None) == ExitStatus.FAILED
    printed = capsys.readouterr()
    assert printed.out == f"{NEW}\n"
    assert NEW not in printed.err
    assert not file.exists()


def test_own_secret_and_password_come_from_files(broker: Broker, tmp_path: Path) -> None:
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text(f" {OWN}\n")
    password.write_text("twelve characters")
    done = broker.run("add", "shop", "--secret-from", secret, "--password-file", password)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "user shop is made\n")
    assert (broker.change.secret, broker.change.password) == (OWN, "twelve characters")
    assert broker.run("rotate", "shop", "--secret-from", secret).stdout == ""
    assert (broker.change.secret, broker.change.is_new) == (OWN, False)
    both = broker.run("add", "shop", "--secret-from", secret, "--secret-file", tmp_path / "new")
    assert (both.exit_code, (tmp_path / "new").exists()) == (2, False)


@pytest.mark.parametrize("text", ["", " \n", "hunter2", "hunter2 " * 200, b"hunter2 \xff hunter2"])
def test_what_is_no_secret_is_not_sent_and_not_shown(broker: Broker, tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for option in ("--secret-from", "--password-file"):
        done = broker.run("add", "shop", option, file)
        assert (done.exit_code, f"{option} {file}" in done.stderr) == (2, True)
        assert "hunter2" not in done.output + repr(done.exception)
    assert broker.run("add", "shop", "--secret-from", tmp_path / "absent").exit_code == 1
    assert broker.server.requests == []


def test_no_text_has_a_secret() -> None:
    change = UserChange("shop", is_new=True, secret="hunter2", password="hunter2")
    assert "hunter2" not in f"{change!r} {change} {NewSecret('hunter2')!r} {change.__rich_repr__()}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "with space"],
        ["add", ".hidden"],
        ["add", "x" * 65],
        ["add", "shop", "--allow", "send:topic"],
        ["add", "shop", "--allow", "sent:topic:orders"],
        ["add", "shop", "--allow", ""],
        ["add", "shop", *(word for n in range(257) for word in ("--allow", f"send:topic:t{n}"))],
        ["add", "shop", "--rate", "-1"],
        ["set", "shop"],
        ["set", "shop", "--no-password", "--password-file", "x"],
        ["rotate", "shop", "--keep-old", "1"],
        ["rotate", "shop", "--keep-old", "367d"],
        ["remove", "shop"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_what_is_invalid_is_not_sent(broker: Broker, arguments: list[str]) -> None:
    assert broker.run(*arguments).exit_code == ExitStatus.USAGE
    assert broker.server.requests == []


def test_what_is_not_given_stays(broker: Broker, tmp_path: Path) -> None:
    unchanged = {
        "user": "shop", "is_new": False, "reason": "", "permissions": None, "limits": None, "secret": None,
        "old_secret_s": 0, "password": None,
    }  # fmt: skip
    assert broker.run("set", "shop", "--rate", 5, "--connections", 0).stdout == "user shop is changed\n"
    assert fields(broker.change) == unchanged | {"limits": UserLimits(0, 5, 50, 0)}
    broker.run("set", "shop", "--allow", "describe:broker", "--reason", "less")
    assert fields(broker.change) == unchanged | {"permissions": ["describe:broker"], "reason": "less"}
    broker.run("set", "shop", "--administrator")
    assert fields(broker.change) == unchanged | {"permissions": list(ALL_PERMISSIONS)}
    broker.run("set", "shop", "--no-password")
    assert fields(broker.change) == unchanged | {"password": ""}
    done = broker.run("rotate", "shop", "--keep-old", "2h")
    assert (done.stdout, done.stderr) == (f"{NEW}\n", "user shop has a new secret\n")
    assert fields(broker.change) == unchanged | {"secret": "", "old_secret_s": 7_200}


def test_who_is_not_there(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for arguments in (
        ["set", "bob", "--rate", 1],
        ["rotate", "bob", "--secret-file", file],
        ["remove", "bob", "--reason", "r"],
    ):
        done = broker.run(*arguments)
        assert (done.exit_code, "knows no user bob" in done.stderr) == (3, True)
    assert not file.exists()


def test_all_pages_are_listed_without_secrets(broker: Broker) -> None:
    listed = broker.run("list")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["USER", "CONNECTIONS", "RATE", "UNDECIDED", "NAMES", "SECRETS", "PASSWORD"],
        ["alice", "2", "-", "-", "-", "1", "-"],
        ["everything", "(administrator)"],
        ["shop", "1", "of", "10", "100", "50", "-", "2", "yes"],
        ["send:topic:orders-*,", "consume:group:billing"],
    ]
    assert listed.stderr == "2 users\n"
    document = json.loads(broker.run("list", "--json").stdout)
    assert document["total"] == 2
    assert document["users"][1]["limits"] == {
        "connections": 10, "requests_per_s": 100, "undecided": 50, "names": 0,
    }  # fmt: skip


def test_a_removal_is_confirmed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = ("remove", "shop", "--reason", "gone")
    assert broker.run(*remove).exit_code == 2
    monkeypatch.setattr(requests, "has_terminal", lambda: True)
    assert broker.run(*remove, typed="yes\n").exit_code == 1
    assert HMQ_REMOVE_USER not in [request.code for request in broker.server.requests]
    done = broker.run(*remove, typed="shop\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "user shop is removed")
    assert "may: send:topic:orders-*, consume:group:billing" in done.stderr
    assert broker.server.requests[-1].ext == {"user": "shop", "reason": "gone"}


def test_permissions_are_shown_as_they_are_given() -> None:
    assert _shown([]) == "nothing"
    for text in ("send:*", "send:topic:*", "describe:broker", "consume:group:a*", "of-a-later-version:topic:x"):
        given = [text] if text.startswith("of") else [str(one) for one in parse_permissions(text)]
        assert _shown(given) == text
    assert _shown([*map(str, parse_permissions("send:*")), "send:topic:orders"]) == "send:*, send:topic:orders"
