"""Text of peers reaches people only through ``halfmq.printable``: no module prints by itself, and none has a logger without it."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "halfmq"
#: Calls that show text. ``write`` counts on ``sys.stdout`` and ``sys.stderr``.
PRINTS = {"print", "echo", "secho", "prompt", "confirm", "print_exc", "print_exception", "Console", "pprint"}
ALLOWED = {
    ("cli/output.py", "echo"): "the one place",
    ("cli/output.py", "prompt"): "the one place",
    ("cli/entry.py", "print"): "the name of a package that is not installed, before typer is there",
    ("bench/baseline.py", "print"): "its port, for its parent",
    ("spark/jobs/reconcile.py", "print"): "JSON of reconciliation.to_json, which is printable",
    ("spark/jobs/reconcile.py", "Console"): "for reconciliation.show",
    ("spark/jobs/reconciliation.py", "print"): "every cell is a Text of printable characters",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""), node


def test_nothing_prints_but_the_output_of_the_command_line() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        for name, node in calls(path):
            writes = name == "write" and ast.unparse(node.func).startswith(("sys.stdout", "sys.stderr"))
            if (name in PRINTS and ast.unparse(node.func) != "output.prompt") or writes:
                found.add((str(path.relative_to(SOURCE)), name))
    found.discard(("cli/output.py", "write"))
    assert found == set(ALLOWED), "use cli/output.py, or say here why it shows no text of a peer"


def test_loggers_in_the_application_are_made_by_the_client() -> None:
    """The broker's process has a formatter of its own; elsewhere the application's writes the lines."""
    found = {
        str(path.relative_to(SOURCE))
        for package in ("client", "sql", "spark", "testing", "cli", "bench")
        for path in (SOURCE / package).rglob("*.py")
        for name, _ in calls(path)
        if name == "getLogger"
    }
    # The second one switches a logger of PySpark off.
    assert found == {"client/log.py", "spark/jobs/source.py"}
