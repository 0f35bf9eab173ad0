"""Several names in one field of a header, with a separator between them."""

from halfmq.errors import ProtocolError


def names_in(text: str, separator: str, names_max: int) -> tuple[str, ...]:
    """The names, in order, without duplicates and empty ones.

    Raises:
        ProtocolError: there may be more than ``names_max``. They are counted before they are separated.
    """
    count = text.count(separator) + 1
    if count > names_max:
        raise ProtocolError(f"a field with {count} names; the maximum is {names_max}")
    return tuple(dict.fromkeys([name for name in text.split(separator) if name]))
