"""Named fields whose values peers write as text: of headers and of query strings. One reading of them for every front door and every
client.

A struct says which fields a request or response has. In text a number is what JSON calls one, if it is whole: no sign ``+``, no spaces, no
underscores, no leading zeros, and nothing beyond the bits of its field. A bool is ``true`` or ``false``. Fields that the struct does not
have are ignored.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct, field, inspect

from halfmq import limits

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
UInt32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
#: Numbers and offsets that are not negative, in the ranges of ``Int32`` and ``Int64``.
Count32 = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Count64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
NotEmpty = Annotated[str, Meta(min_length=1)]


class Fields(Struct, gc=False, rename="camel"):
    """Base class. Fields with defaults are optional. ``gc=False``: the structs have text and numbers only, so they cannot form cycles."""


class PageFields(Fields, gc=False, omit_defaults=True):
    """Which page of a list: a number of rows, from ``start`` on, which the response with the page before says."""

    rows: Annotated[int, Meta(ge=1, le=limits.TRANSACTIONS_LISTED_MAX)] = field(
        name="max", default=limits.TRANSACTIONS_LISTED_MAX
    )
    start: Count64 = field(name="from", default=0)


F = TypeVar("F", bound=Struct)
#: How msgspec says that a field is missing, and which one is malformed.
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")
_AT: Final = re.compile(r" - at `\$\.([^.`\[]+)[^`]*`\Z")
#: Characters of a peer's text in a refusal.
_SHOWN_MAX: Final = 64


def read_fields(kind: type[F], texts: Mapping[str, Any]) -> F:
    """The fields that were written. An empty value that cannot be meant is as if it were missing: a binary header cannot have one.

    Raises:
        msgspec.ValidationError: a field is missing or malformed. The text begins with its name: "max: a whole number from 1 to 1000 is
            expected, not '0'".
    """
    try:
        return msgspec.convert(texts, kind, strict=False)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert(without_empty(texts), kind, strict=False)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(_in_words(kind, texts, str(error))) from error


def _in_words(kind: type[Struct], texts: Mapping[str, Any], text: str) -> str:
    """What msgspec says of a field, with the name of the field first, what is expected there, and what was sent."""
    missing = _MISSING.fullmatch(text)
    if missing:
        return f"{missing[1]}: missing"
    at = _AT.search(text)
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    expected = next((_expected(field.type) for field in shape.fields if at and field.encode_name == at[1]), "")
    if at is None or not expected:
        return text
    sent = texts.get(at[1])
    shown = repr(sent[:_SHOWN_MAX]) if isinstance(sent, str) else repr(sent)[:_SHOWN_MAX]
    return f"{at[1]}: {expected} is expected, not {shown}"


def _expected(kind: inspect.Type) -> str:
    """The values of a field, in words; empty: they have none."""
    match kind:
        case inspect.UnionType(types):
            return next((_expected(one) for one in types if not isinstance(one, inspect.NoneType)), "")
        case inspect.Metadata(described, schema) if schema:
            return str(schema.get("description")) if "description" in schema else _expected(described)
        case inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.StrType(min_length=least, max_length=most) if most is not None:
            return f"text of {least or 0} to {most} characters"
        case inspect.StrType(min_length=least):
            return f"text of at least {least} character" if least else "text"
        case inspect.DictType():
            return "an object of texts"
    return ""


def without_empty(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with a value."""
    return {name: text for name, text in texts.items() if text != ""}


def write_fields(fields: Struct) -> dict[str, Any]:
    """The fields by their names on the wire, in the order of the struct; those that are None are missing."""
    return {name: value for name, value in msgspec.to_builtins(fields).items() if value is not None}
