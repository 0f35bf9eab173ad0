"""What is known of an object is kept on it, or in a structure that ends with it, and not under its ``id``, which a later object gets."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "halfmq"
#: The objects live longer than what is kept by their identity.
ALLOWED = {
    "client/app.py": "declared: each object once, in one expression, which holds them",
    "client/bodies.py": "the parts of a type, whose description holds them, in one walk through it",
    "django/guard.py": "the name of a savepoint, of the object itself",
    "sql/alchemy/declared.py": "each object once, in one expression, which holds them",
    "sql/alchemy/transaction_guard.py": "the name of a savepoint, of the object itself",
}


def test_nothing_is_kept_by_the_id_of_an_object() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    }
    assert found == set(ALLOWED), "keep it on the object, or say here why the object lives longer"
