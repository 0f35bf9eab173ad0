"""Records which entries of a dict are accessed, where work must not grow with their number."""

from collections.abc import Iterator
from typing import Any


class Looked(dict[str, Any]):
    """A dict that records the names that were looked up or iterated over."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.names: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.names.append(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.append(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.names.append(name)
            yield name

    def keys(self) -> Any:
        return [*self]

    def items(self) -> Any:
        return [(name, super(Looked, self).__getitem__(name)) for name in self]

    def values(self) -> Any:
        return [value for _, value in self.items()]
