"""MODULE:NAME on the command line: what is imported, and what is said if it cannot be."""

import sys
from pathlib import Path

import pytest
import typer
from tests.support.shop_module import shop_module

from halfmq.cli.application import load, load_app
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import Commands

COMMANDS = Commands("halfmq relay")


def failure(capsys: pytest.CaptureFixture[str], target: str) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as ended:
        load_app(COMMANDS, target)
    return ended.value.exit_code, capsys.readouterr().err


def test_an_application_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_module(monkeypatch, tmp_path, tables=False)
    assert load_app(COMMANDS, "shop:app") is shop.app
    assert load(COMMANDS, "shop:app.relay") == shop.app.relay, "an attribute of an object"


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("shop", ExitStatus.USAGE, "'shop' is not MODULE:NAME"),
        (":app", ExitStatus.USAGE, "is not MODULE:NAME"),
        ("no_such_shop:app", ExitStatus.USAGE, "there is no module no_such_shop, neither in"),
        ("shop.main:app", ExitStatus.USAGE, "there is no module shop.main"),
        ("shop:ap", ExitStatus.USAGE, "module shop has no 'ap'"),
        ("shop:metadata", ExitStatus.USAGE, "shop:metadata is not a halfmq.App, but of type MetaData"),
        (
            "needs:app",
            ExitStatus.FAILED,
            "importing needs failed: ModuleNotFoundError: No module named 'not_installed'",
        ),
        ("broken:app", ExitStatus.FAILED, "importing broken failed: ZeroDivisionError"),
        ("leaves:app", ExitStatus.FAILED, "importing leaves failed: SystemExit: 0"),
        ("shop:leave", ExitStatus.FAILED, "calling shop:leave failed: SystemExit: 0"),
    ],
)
def test_what_is_wrong_with_it_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    status: ExitStatus,
    said: str,
) -> None:
    shop = shop_module(monkeypatch, tmp_path, tables=False)
    (tmp_path / "needs.py").write_text("import not_installed\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    shop.leave = lambda: sys.exit(0)
    found, text = failure(capsys, target)
    assert (found, said in text) == (status, True), text
    assert ("broken.py" in text) == target.startswith("broken"), "with the place where the application failed"
    assert "importlib" not in text, "and not that of the import"


def test_a_function_without_arguments_makes_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = shop_module(monkeypatch, tmp_path, tables=False)
    (tmp_path / "factories.py").write_text(
        "import shop\ndef make(): return shop.app\ndef broken(): 1 / 0\ndef nothing(): pass\nasync def later(): return shop.app\n"
    )
    assert load_app(COMMANDS, "factories:make") is shop.app
    status, text = failure(capsys, "factories:broken")
    assert (status, "calling factories:broken failed: ZeroDivisionError" in text) == (ExitStatus.FAILED, True)
    for name, kind in (("nothing", "NoneType"), ("later", "coroutine")):
        status, text = failure(capsys, f"factories:{name}")
        assert (status, f"is not a halfmq.App, but of type {kind}" in text) == (ExitStatus.USAGE, True)
