"""Every field of every command in the table, with what is no number and what does not fit: refused alike, by the field's name."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect
from tests.support.worst_requests import REQUESTS

from halfmq.broker.remoting.administration import accepted
from halfmq.broker.remoting.commands import COMMANDS, DECODED, fields_of
from halfmq.wire.remoting.fields import SEND_LETTER_OF_NAME
from halfmq.wire.remoting.header import InvalidHeader, Request, decode, encode_request

NO_NUMBERS = (" 5", "5 ", "+5", "1_0", "05", "0x5", "1.5", "\u0665", "\u00b2", "--5", "-", "five", "true", "9" * 400)
NO_BOOLS = ("yes", "2", " true", "t", "\u0661")
NAME_OF_LETTER = {letter: name for name, letter in SEND_LETTER_OF_NAME.items()}


class Field(NamedTuple):
    code: int
    name: str
    kind: inspect.IntType | inspect.BoolType


def scalar(kind: inspect.Type) -> inspect.Type:
    kinds = (
        [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        if isinstance(kind, inspect.UnionType)
        else [kind]
    )
    return kinds[0]


def fields() -> Iterator[Field]:
    for code in COMMANDS:
        if (struct := fields_of(code)) is not None:
            shape = inspect.type_info(struct)
            assert isinstance(shape, inspect.StructType)
            for field in shape.fields:
                kind = scalar(field.type)
                name = (
                    NAME_OF_LETTER.get(field.encode_name, field.encode_name) if code in (10, 324) else field.encode_name
                )
                if isinstance(kind, inspect.IntType | inspect.BoolType):
                    yield Field(code, name, kind)


FIELDS = list(fields())


def in_struct(field: Field) -> str:
    return SEND_LETTER_OF_NAME.get(field.name, field.name) if field.code in (10, 324) else field.name


def read(field: Field, value: Any, *, binary: bool = False) -> Any:
    """The value as the handler gets it, or the text of the refusal."""
    ext, body = REQUESTS[field.code]
    ext = {name: text or "x" for name, text in ext.items()}  # a binary header has no empty ones
    command = COMMANDS[field.code]
    in_body = command.rules is not None and not command.rules.header
    if in_body:
        body = json.dumps({**json.loads(body), field.name: value}).encode()
    try:
        if field.code in DECODED:
            request = decode(
                encode_request(field.code, 1, {**ext, field.name: value}, body, binary=binary)[4:], DECODED
            )
        else:
            assert command.rules is not None
            header = ext if in_body else {**ext, field.name: value}
            request = Request(code=field.code, opaque=1, ext=header, body=b"" if command.rules.header else body)
            request.ext = accepted(command.rules, command.fields, request)
    except (InvalidHeader, msgspec.ValidationError) as error:
        return str(error)
    names = dict(zip(request.ext.__struct_encode_fields__, request.ext.__struct_fields__, strict=True))
    return (getattr(request.ext, names[in_struct(field)]),)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.code}-{field.name}")
def test_what_is_no_number_or_does_not_fit_is_refused_by_name(field: Field) -> None:
    is_number = isinstance(field.kind, inspect.IntType)
    wrong = list(NO_NUMBERS if is_number else NO_BOOLS)
    if isinstance(field.kind, inspect.IntType):
        assert field.kind.ge is not None, "a number has the bits of its field"
        assert field.kind.le is not None
        wrong += [str(field.kind.ge - 1), str(field.kind.le + 1), str(-(1 << 63) - 1), str(1 << 63)]
    for value in wrong:
        for binary in (False, True):
            said = read(field, value, binary=binary)
            assert isinstance(said, str), (field, value, said)
            assert f"{in_struct(field)}: " in said, (field, value, said)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.code}-{field.name}")
def test_what_fits_is_read(field: Field) -> None:
    """The least and the most as text, as Java writes them; and as JSON has them, which the C++ client does."""
    good: list[tuple[Any, Any]] = [("true", True), ("false", False)]
    if isinstance(field.kind, inspect.IntType):
        assert field.kind.ge is not None
        assert field.kind.le is not None
        good = [(kind(value), value) for value in (field.kind.ge, field.kind.le) for kind in (str, int)]
    for value, wanted in good:
        for binary in (False, True):
            assert read(field, value, binary=binary) == (wanted,)


def test_the_walk_sees_the_fields_that_it_is_about() -> None:
    seen = {(field.code, field.name) for field in FIELDS}
    assert {
        (10, "queueId"), (310, "e"), (37, "commitLogOffset"), (17, "perm"), (200, "retryMaxTimes"), (29_002, "from"),
        (29_010, "max"), (29_012, "checksum"), (29_015, "endOffset"), (29_023, "isMarker"), (29_026, "since"),
    } <= seen  # fmt: skip
    assert len(seen) > 100
