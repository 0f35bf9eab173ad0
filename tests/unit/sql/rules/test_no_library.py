"""The rules can be used where neither SQLAlchemy nor any driver is installed."""

import importlib.util
from pathlib import Path
from typing import Final

from tests.unit.cli.test_entry import without

_IMPORT_ALL: Final = """
import importlib, pkgutil
for library in ("greenlet", "django", "sqlite3", "psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "aiosqlite", "asyncmy"):
    assert library not in sys.modules
    sys.modules[library] = None
import halfmq.sql, halfmq.sql.rules
for module in pkgutil.walk_packages(halfmq.sql.rules.__path__, "halfmq.sql.rules."):
    importlib.import_module(module.name)
    print(module.name, file=sys.stderr)
assert "halfmq.sql.alchemy" not in sys.modules
"""


def test_every_module_is_imported_without_a_database_library() -> None:
    spec = importlib.util.find_spec("halfmq.sql.rules")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    files = {f"halfmq.sql.rules.{path.stem}" for path in Path(folder).glob("*.py")} - {"halfmq.sql.rules.__init__"}
    assert len(files) > 10
    returncode, said = without("sqlalchemy", _IMPORT_ALL)
    assert (returncode, set(said.split())) == (0, files), said
