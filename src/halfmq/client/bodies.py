"""Bodies as JSON, in both directions: msgspec encodes and decodes what it knows, pydantic what is its own.

Nothing here imports pydantic before the application has: only an object or a type of pydantic's leads to it. Names on the wire are aliases,
as pydantic reads them, and as its JSON Schema has them; without that an application could not read what it has sent.

A pydantic dataclass that is a *field* of another class is msgspec's, which reads and writes it as any dataclass: without its constraints.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from halfmq.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: How deep the search for what has no JSON form goes.
_DEPTH_MAX: Final = 50
#: What JSON's values are decoded into, and what JSON Schema calls them.
_JSON_TYPES: Final[Mapping[type, str]] = {
    dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip
#: What a body can be, for hints.
SUPPORTED: Final = "a dataclass, a msgspec Struct, a pydantic model, or a type made of these"


def is_of_pydantic(kind: Any) -> bool:
    """Whether pydantic decodes ``kind``: a model, a pydantic dataclass, or a type with one in it, such as ``list[Model]`` or
    ``Model | Other``.
    """
    return hasattr(kind, "__pydantic_validator__") or any(is_of_pydantic(one) for one in get_args(kind))


def adapter(kind: Any) -> "TypeAdapter[Any]":
    """Pydantic's decoder of a type for which ``is_of_pydantic``."""
    return _adapter(kind)


@lru_cache(256)
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def from_json(body: bytes, into: Any) -> Any:
    """``body``, decoded as JSON into the type ``into``.

    Raises:
        msgspec.DecodeError: not JSON. ``msgspec.ValidationError``: JSON, but not of this type. ``pydantic.ValidationError``: one of both,
            if the type is pydantic's. All name the field. TypeError: neither decodes into such a type; see ``why_unsupported``.
    """
    validate = getattr(into, "model_validate_json", None)
    if validate is not None:
        return validate(body)
    if is_of_pydantic(into):
        return adapter(into).validate_json(body)
    return msgspec.json.decode(body, type=into, dec_hook=_from_builtins)


def _from_builtins(kind: Any, value: Any) -> Any:
    """For msgspec: what is annotated with a type that it does not know."""
    if not is_of_pydantic(kind):
        return value  # msgspec refuses it unless it is of this type, such as ``object``
    # From JSON, which a strict model reads in another way than objects.
    return from_json(msgspec.json.encode(value), kind)


def json_types(kind: Any) -> list[str]:
    """JSON Schema's names of the values that are instances of ``kind``, a class that msgspec does not know: all of them for ``object``, and
    none for a class of the application, so that no body can be decoded into that.
    """
    try:
        return [name for made, name in _JSON_TYPES.items() if issubclass(made, kind)]
    except TypeError:  # a protocol that is not runtime_checkable
        return []


def why_unsupported(kind: Any) -> str:
    """Why no body can be decoded into ``kind``: the type, or one in it, is not supported. Empty: it is supported.

    Raises:
        NameError: a class that ``kind`` refers to does not exist yet.
    """
    if is_of_pydantic(kind):
        return _why_pydantic_does_not(kind)
    try:
        msgspec.json.Decoder(kind)
        found = msgspec.inspect.type_info(kind)
    except TypeError as error:
        return str(error)
    unknown = (one for one in _unknown_types(found, set()) if not is_of_pydantic(one) and not json_types(one))
    return next((f"type {one!r} is not supported" for one in unknown), "")


def _why_pydantic_does_not(kind: Any) -> str:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        # Not ``adapter``, which keeps it: one of a model whose classes do not all exist yet stays incomplete.
        TypeAdapter(kind)
    except PydanticUserError as error:
        return str(error).splitlines()[0]
    return ""


def _unknown_types(found: Any, seen: set[int]) -> Iterator[type]:
    """The classes in ``found``, of ``msgspec.inspect``, that msgspec does not know. ``seen``: a type may contain itself."""
    if isinstance(found, msgspec.inspect.CustomType):
        yield found.cls
    elif isinstance(found, msgspec.inspect.ExtType):
        yield msgspec.msgpack.Ext  # has a form in MessagePack only
    elif isinstance(found, msgspec.inspect.Field):
        yield from _unknown_types(found.type, seen)
    elif isinstance(found, tuple):
        for one in found:
            yield from _unknown_types(one, seen)
    elif isinstance(found, msgspec.inspect.Type) and id(found) not in seen:
        seen.add(id(found))
        for name in found.__struct_fields__:
            yield from _unknown_types(getattr(found, name), seen)


def to_json(body: object, what: str) -> bytes:
    """``body`` as JSON. ``what``: its name in errors.

    Raises:
        UsageError: it has no JSON form; the error names the field.
    """
    if body is None:
        raise UsageError(f"{what} is None", hint="send bytes, text, or something that has a JSON form")
    try:
        encoded = _encoded(body)
        if b"null" in encoded:
            _refuse_non_finite(_builtins(body), what)
        return encoded
    except (TypeError, ValueError, RecursionError) as error:
        place, found = _without_form(body)
        raise UsageError(
            f"{what}, of type {type(body).__name__}, has no JSON form: {error}"
            + (f" - at `{place}`, of type {type(found).__name__}" if place != "$" else ""),
            hint="send bytes, str, dict, list, a dataclass, a msgspec Struct or a pydantic model",
        ) from error


def _is_object_of_pydantic(value: object) -> bool:
    return not isinstance(value, type) and hasattr(type(value), "__pydantic_serializer__")


def _encoded(body: object) -> bytes:
    if _is_object_of_pydantic(body):
        dump = getattr(body, "model_dump_json", None)
        if dump is not None:
            return str(dump(by_alias=True)).encode()
        return adapter(type(body)).dump_json(body, by_alias=True)
    return _encode(body)


def _builtins(body: object) -> Any:
    """The same of dictionaries, lists and numbers."""
    if _is_object_of_pydantic(body):
        return adapter(type(body)).dump_python(body, by_alias=True)
    return msgspec.to_builtins(body, enc_hook=_dumped)


def _to_builtins(value: Any) -> Any:
    """For msgspec: an object that it does not know."""
    if not _is_object_of_pydantic(value):
        raise _unknown(value)
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def _unknown(value: object) -> TypeError:
    return TypeError(f"nobody encodes objects of type {type(value).__name__}")


_encode: Final = msgspec.json.Encoder(enc_hook=_to_builtins).encode


def _dumped(value: Any) -> Any:
    """The same, with numbers as they are: in the mode "json" those that are not finite are None already."""
    if not _is_object_of_pydantic(value):
        raise _unknown(value)
    return adapter(type(value)).dump_python(value, by_alias=True)


def _refuse_non_finite(value: Any, what: str, place: str = "$") -> None:
    """Reject NaN and infinities, which JSON encoders would silently write as null.

    Raises:
        UsageError: ``value`` contains one.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(
                f"{what} holds {value} at `{place}`, which JSON cannot represent", hint="send None or text in its place"
            )
        return
    for name, one in _parts(value):
        _refuse_non_finite(one, what, f"{place}{name}")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is in ``value``, and where, as msgspec writes places."""
    if isinstance(value, Mapping):
        yield from ((f".{name}", one) for name, one in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", one) for number, one in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name, None)) for name in value.__struct_fields__)


def _without_form(body: object) -> tuple[str, object]:
    """(the place, what stands there) of the innermost part that cannot be encoded."""
    place, found = "$", body
    for _ in range(_DEPTH_MAX):
        inner = next(((name, one) for name, one in _parts(found) if not _has_form(one)), None)
        if inner is None:
            break
        place, found = f"{place}{inner[0]}", inner[1]
    return place, found


def _has_form(part: object) -> bool:
    try:
        _encoded(part)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
