"""Where a secret comes from, and that no text has it."""

from pathlib import Path

import pytest

from halfmq.client import credentials
from halfmq.client.credentials import Credentials, credentials_of
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.address import PLAIN, Security
from halfmq.runtime import watched_files
from halfmq.wire.remoting.acl import sign_frame
from halfmq.wire.remoting.header import encode_request

FRAME = encode_request(34, 1, {"a": "b"}, b"body")
USER = Security(user="u")


def signs_with(made: Credentials | None, secret: bytes) -> bool:
    assert made is not None
    return made.sign(FRAME) == sign_frame(FRAME, "u", secret)


def test_nobody_signs_nothing() -> None:
    assert credentials_of(PLAIN) is None
    with pytest.raises(UsageError, match="a secret without a user"):
        credentials_of(PLAIN, "hunter2")


def test_given_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.VARIABLE, " of the environment\n")
    assert signs_with(credentials_of(USER), b"of the environment")
    assert signs_with(credentials_of(USER, "given"), b"given")
    monkeypatch.delenv(credentials.VARIABLE)
    with pytest.raises(UsageError, match="there is no secret"):
        credentials_of(USER)
    for wrong in ("", " \n", "x" * 1_025, b"x", 5):
        with pytest.raises(UsageError, match="no secret"):
            credentials_of(USER, wrong)  # type: ignore[arg-type]


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "LOOK_S", 0.0)
    file = tmp_path / "secret"
    of_file = Security(user="u", secretfile=str(file))
    with pytest.raises(EnvironmentFailed, match="No such file"):
        credentials_of(of_file)
    file.write_text("hunter2\n")
    made = credentials_of(of_file)
    assert signs_with(made, b"hunter2")
    file.write_text("the next one")
    assert signs_with(made, b"the next one")
    file.write_text("")
    assert signs_with(made, b"the next one"), "an empty file is none"
    with pytest.raises(UsageError, match="only one of them"):
        credentials_of(of_file, "hunter2")
    assert "next" not in repr(made)


def test_a_refused_secret_is_compared_with_the_file_as_it_is_now(tmp_path: Path) -> None:
    """Also if the file was looked at a moment ago."""
    file = tmp_path / "secret"
    file.write_text("hunter2")
    made = credentials_of(Security(user="u", secretfile=str(file)))
    assert made is not None
    assert not made.is_replaced(b"hunter2")
    file.write_text("the next one")
    assert made.secret() == b"hunter2"
    assert made.is_replaced(b"hunter2")
    assert made.secret() == b"the next one"
    assert made.is_replaced(b"hunter2"), "somebody else was told first"
    given = credentials_of(USER, "hunter2")
    assert given is not None
    assert not given.is_replaced(b"hunter2")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_file_that_other_accounts_can_read_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2")
    file.chmod(mode)
    made = credentials_of(Security(user="u", secretfile=str(file)))
    assert signs_with(made, b"hunter2")
    assert ("chmod 600" in caplog.text) is warns
