"""The key of users' secrets: who may have its file, and what is readable with it and without it."""

import base64
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from halfmq.errors import EnvironmentFailed
from halfmq.runtime import sealing
from halfmq.runtime.entropy import SystemEntropy
from halfmq.runtime.sealing import SecretsKey, hash_password, is_password, load_key

ENTROPY = SystemEntropy()
SECRET = b"hunter2 hunter2"


def load(path: Path, *, may_create: bool = False) -> SecretsKey:
    return load_key(path, may_create=may_create, entropy=ENTROPY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key file."""
    path = tmp_path / "secrets.key"
    load(path, may_create=True)
    return path


def test_a_created_key_is_the_owners_alone_and_the_next_start_reads_what_the_first_sealed(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    sealed = load(path, may_create=True).seal("shop", SECRET, ENTROPY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode(path.read_bytes())) == 32
    assert path.read_bytes().endswith(b"\n")
    assert os.listdir(tmp_path) == [path.name], "the name under which it was written is gone"
    assert load(path).unseal("shop", sealed) == SECRET
    assert load(path, may_create=True).unseal("shop", sealed) == SECRET, "it is not created again"


def test_starts_at_the_same_time_have_one_key(tmp_path: Path) -> None:
    keys: list[SecretsKey] = []
    threads = [threading.Thread(target=lambda: keys.append(load(tmp_path / "key", may_create=True))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 16
    sealed = keys[0].seal("shop", SECRET, ENTROPY)
    assert [key.unseal("shop", sealed) for key in keys] == [SECRET] * 16


def test_a_key_is_complete_and_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        done.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}')).partition('.')[0] or 'file'}")
        fsync(descriptor)

    def linked(old: Path, new: Path) -> None:
        assert len(old.read_bytes()) == 45
        done.append("name")
        link(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    load(path, may_create=True)
    assert done == ["sync file", "name", f"sync {tmp_path.name}"]


def test_a_missing_key_is_not_replaced_by_a_new_one_where_there_are_secrets(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"there is no such file .*backup"):
        load(tmp_path / "key")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="its directory does not exist"):
        load(tmp_path / "missing" / "key", may_create=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_have_access_to_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(EnvironmentFailed, match=rf"others have access to it \(mode {mode:o}\) \(chmod 600 "):
        load(file)


def test_a_key_of_somebody_else_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(EnvironmentFailed, match=f"it belongs to uid {own}, and the broker is uid {own + 1}"):
        load(file)


def test_what_is_no_regular_file_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for may_create in (False, True):
            with pytest.raises(EnvironmentFailed, match="it is not a regular file"):
                load(path, may_create=may_create)


KEY = base64.b64encode(bytes(range(32)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        KEY[:-4],
        KEY + KEY,
        KEY + b"\n\n",
        b" " + KEY,
        base64.b64encode(bytes(31)),
        base64.b64encode(bytes(33)),
        b"-----BEGIN PRIVATE KEY-----\n",
        bytes(range(0, 256, 8)),
        KEY + b"\0" * 100,
    ],
)
def test_other_content_is_no_key_and_is_not_shown(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    for may_create, advice in ((True, "openssl rand -base64 32"), (False, "take it from a backup")):
        with pytest.raises(EnvironmentFailed, match=f"it contains no 32 bytes in base64 .*{advice}") as refused:
            load(file, may_create=may_create)
        assert "BEGIN" not in str(refused.value)
    assert file.read_bytes() == content


def test_a_key_without_line_end_is_one(file: Path) -> None:
    file.write_bytes(KEY)
    load(file)


def test_a_link_to_a_key_is_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    sealed = load(file).seal("shop", SECRET, ENTROPY)
    assert load(tmp_path / "link").unseal("shop", sealed) == SECRET


def test_the_way_to_make_a_key_by_hand_makes_one(tmp_path: Path) -> None:
    command = sealing._MAKE_ONE.removesuffix(" makes one").replace("FILE", "by-hand")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)
    load(tmp_path / "by-hand")


def test_a_sealed_secret_says_nothing_and_is_another_one_each_time(file: Path) -> None:
    key = load(file)
    sealed = {key.seal("shop", SECRET, ENTROPY) for _ in range(100)}
    assert len(sealed) == 100
    assert len({one[:12] for one in sealed}) == 100
    for one in sealed:
        assert SECRET not in one
        assert len(one) == len(SECRET) + 28
        assert key.unseal("shop", one) == SECRET


def test_a_sealed_secret_is_no_other_users(file: Path) -> None:
    key = load(file)
    sealed = key.seal("shop", SECRET, ENTROPY)
    with pytest.raises(EnvironmentFailed, match="the secret of user admin cannot be read"):
        key.unseal("admin", sealed)


def test_another_key_reads_no_secret_and_says_which_file_is_meant(file: Path, tmp_path: Path) -> None:
    sealed = load(file).seal("shop", SECRET, ENTROPY)
    with pytest.raises(EnvironmentFailed, match="the key file is not the one that the store was made with") as refused:
        load(tmp_path / "other", may_create=True).unseal("shop", sealed)
    assert refused.value.__cause__ is None
    assert "hunter2" not in str(refused.value)


def test_damage_at_every_byte_and_length_is_noticed(file: Path) -> None:
    key = load(file)
    sealed = key.seal("shop", SECRET, ENTROPY)
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        for wrong in (bytes(damaged), sealed[:at]):
            with pytest.raises(EnvironmentFailed, match="cannot be read"):
                key.unseal("shop", wrong)


def test_the_key_is_in_no_text(file: Path) -> None:
    text = file.read_text().strip()
    key = load(file)
    assert repr(key) == str(key) == "SecretsKey(...)"
    assert text not in repr(key)


def test_a_password_is_known_by_its_hash() -> None:
    phc = hash_password("hunter2 Grüße", ENTROPY)
    assert phc.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert "hunter2" not in phc
    assert is_password("hunter2 Grüße", phc)
    assert not is_password("hunter2 Grüsse", phc)
    assert not is_password("", phc)
    assert hash_password("hunter2 Grüße", ENTROPY) != phc, "each has a salt of its own"


@pytest.mark.parametrize("phc", ["", "hunter2", "$argon2id$v=19$m=19456,t=2,p=1$$", "$1$abc$def", "\0", "\ud800"])
def test_what_is_no_hash_is_nobodys_password(phc: str) -> None:
    assert not is_password("hunter2", phc)
    assert not is_password("", phc)


def test_the_library_is_imported_by_those_who_have_users_only() -> None:
    code = (
        "import sys, halfmq.runtime.sealing, halfmq.broker.process, halfmq.cli.serve;"
        "print([name for name in sys.modules if name.startswith('cryptography')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_missing_library_is_said_with_what_installs_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ciphers", "kdf"):
        monkeypatch.setitem(sys.modules, f"cryptography.hazmat.primitives.{module}", None)
    for call in (lambda: load(file), lambda: hash_password("hunter2", ENTROPY), lambda: is_password("hunter2", "")):
        with pytest.raises(EnvironmentFailed, match=r"need the package cryptography .*halfmq\[server\]") as refused:
            call()
        assert refused.value.code == "missing-dependency"
