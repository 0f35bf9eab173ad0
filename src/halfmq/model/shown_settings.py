"""A setting of a broker as it is shown: `halfmq config`, and what a running broker says of itself."""

import msgspec

Shown = str | int | float | bool | list[str] | None


class ShownSetting(msgspec.Struct, frozen=True):
    """``value``: as in a configuration file; None: none. ``source``: option, environment, file or default; or recorded, if it was set
    while the broker ran. ``origin``: the option, the variable, or the file; None for a default and for what is recorded.
    """

    value: Shown
    source: str
    origin: str | None = msgspec.field(name="from", default=None)
    #: Of what is recorded: when, ms since 1970, and by whom; and the value that the configuration has.
    set_at_ms: int | msgspec.UnsetType = msgspec.UNSET
    set_by: str | msgspec.UnsetType = msgspec.UNSET
    configured: Shown | msgspec.UnsetType = msgspec.UNSET

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
