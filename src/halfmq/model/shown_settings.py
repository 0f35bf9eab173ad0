"""A setting of a broker as it is shown: `halfmq config`, and what a running broker says of itself."""

import msgspec

Shown = str | int | float | bool | list[str] | None


class ShownSetting(msgspec.Struct, frozen=True):
    """``value``: as in a configuration file; None: none. ``source``: option, environment, file or default. ``origin``: the option, the
    variable, or the file; None for a default."""

    value: Shown
    source: str
    origin: str | None = msgspec.field(name="from", default=None)

    def __str__(self) -> str:
        """The value on one line."""
        if self.value is None:
            return "-"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return ",".join(self.value) if isinstance(self.value, list) else str(self.value)

    @property
    def where(self) -> str:
        """The source on one line."""
        return f"{self.source} {self.origin or ''}".rstrip()
