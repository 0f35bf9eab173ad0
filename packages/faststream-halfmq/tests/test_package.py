"""The built package: what is in it, and what it requires."""

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import faststream_halfmq

PACKAGE = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_has_the_package_and_says_what_it_needs(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
            "--wheel-dir", str(tmp_path), str(PACKAGE),
        ],
        check=True,
        timeout=300,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(archive.read(metadata))
    source = PACKAGE / "src"
    expected = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in (".py", ".typed")}
    assert {name for name in names if ".dist-info" not in name} == expected
    assert said["Version"] == faststream_halfmq.__version__
    assert set(said.get_all("Requires-Dist", [])) == {
        "faststream<0.8,>=0.7.8",
        "halfmq<0.2,>=0.1",
        "halfmq[sql]; extra == 'sql'",
    }


def test_each_public_name_is_there() -> None:
    assert [name for name in faststream_halfmq.__all__ if not hasattr(faststream_halfmq, name)] == []


def test_without_sqlalchemy_it_is_imported() -> None:
    """``publish(session=)`` alone needs it."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; import faststream_halfmq; print('sqlalchemy' in sys.modules)"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"
