"""What docs/users.md says that programs need, for tests that give their users exactly that."""

import re
from typing import Final

from tests.documents.pages import table

_PAGE: Final = "docs/users.md"


def programs() -> dict[str, tuple[str, ...]]:
    """The permissions of each row of the table, as they are written, by the text of its first cell."""
    rows = table(_PAGE, "What a user may do", skip=1)
    return {row["program"]: tuple(re.findall(r"`([a-z-]+:[^`]+)`", row["permissions"])) for row in rows}


def rights_of(program: str, **names: str) -> tuple[str, ...]:
    """The permissions of the row that begins with ``program``. ``names``: for what the page has in capitals, such as TOPIC."""
    (found,) = (permissions for title, permissions in programs().items() if title.startswith(program))
    made = []
    for permission in found:
        for word, name in names.items():
            permission = re.sub(rf":{word}\b", f":{name}", permission)
        made.append(permission)
    return tuple(made)
