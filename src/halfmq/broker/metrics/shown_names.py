"""Which names of peers get series of their own. Topics, groups and queries are named by peers, and each series costs memory here and in
whatever collects it, so only a number of names is shown; the others are summed.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

#: The label of all names that are not shown.
OTHER: Final = "_other"

#: A name, or two that belong together, the first of which counts.
N = TypeVar("N", str, tuple[str, str])


class ShownNames(Generic[N]):
    """The names that are shown: those that came first, for as long as they exist, so that a series does not come and go."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._shown: dict[N, None] = {}

    def shows(self, name: N) -> bool:
        """Whether it has series of its own; a new one gets them if there is space.

        None that begins with ``OTHER`` has: peers choose names, and its series would be mixed up with the sum.
        """
        if (name if isinstance(name, str) else name[0]).startswith(OTHER):
            return False
        if name in self._shown:
            return True
        if len(self._shown) >= self._names_max:
            return False
        self._shown[name] = None
        return True

    def keep(self, exists: Callable[[N], bool]) -> None:
        """Forget the names that no longer exist. Their place is for the next new one."""
        for name in [name for name in self._shown if not exists(name)]:
            del self._shown[name]
