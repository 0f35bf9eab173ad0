"""The typed command headers: same values from text, from numbers, and from either serialisation."""

import json
from typing import get_args, get_type_hints

import msgspec
import pytest

from halfmq.wire.remoting.binary_header import encode_binary_header
from halfmq.wire.remoting.codes import EXT_SENT_AGAIN, RequestCode
from halfmq.wire.remoting.fields import FIELDS_OF_COMMAND, SEND_LETTER_OF_NAME, SendFields
from halfmq.wire.remoting.frame import assemble
from halfmq.wire.remoting.header import InvalidHeader, decode

AS_TEXT = {str: "T", int: "5", bool: "true"}
AS_SCALAR = {str: "T", int: 5, bool: True}


def sample(shape, values) -> dict:
    hints = get_type_hints(shape)
    names = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    kinds = {name: next((one for one in get_args(hint) if one is not type(None)), hint) for name, hint in hints.items()}
    return {wire: values[kinds[name]] for name, wire in names}


def in_json(code: int, ext: dict) -> bytes:
    header = json.dumps({"code": code, "extFields": ext, "flag": 0, "opaque": 1}, separators=(",", ":"))
    return assemble(header.encode())[4:]


def in_binary(code: int, ext: dict) -> bytes:
    return assemble(encode_binary_header(code, 1, 0, None, ext.items()), binary=True)[4:]


@pytest.mark.parametrize("code", FIELDS_OF_COMMAND, ids=lambda code: RequestCode(code).name)
def test_every_typed_command_is_read_alike_from_text_scalars_and_binary(code):
    shape = FIELDS_OF_COMMAND[code]
    text, scalars = sample(shape, AS_TEXT), sample(shape, AS_SCALAR)
    expected = decode(in_json(code, text)).ext
    assert type(expected) is shape
    assert decode(in_json(code, scalars)).ext == expected
    assert decode(in_binary(code, text)).ext == expected
    assert {getattr(expected, name) for name in shape.__struct_fields__} <= {"T", 5, True}


@pytest.mark.parametrize("code", FIELDS_OF_COMMAND, ids=lambda code: RequestCode(code).name)
def test_every_typed_command_refuses_to_miss_a_mandatory_field(code):
    shape = FIELDS_OF_COMMAND[code]
    text = sample(shape, AS_TEXT)
    mandatory = len(shape.__struct_fields__) - sum(1 for field in _fields(shape) if not field.required)
    refused = 0
    for wire in text:
        try:
            decode(in_json(code, {name: value for name, value in text.items() if name != wire}))
        except InvalidHeader:
            refused += 1
    assert refused == mandatory
    assert mandatory > 0 or code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "older tools say nothing there"


def _fields(shape):

    return msgspec.structs.fields(shape)


def test_the_names_of_version_1_reach_every_field_of_a_send():
    letters = set(SendFields.__struct_encode_fields__) - {EXT_SENT_AGAIN}  # ours; whoever says it sends 310
    assert letters <= set(SEND_LETTER_OF_NAME.values())
    assert len(set(SEND_LETTER_OF_NAME.values())) == len(SEND_LETTER_OF_NAME)


def test_numbers_beyond_their_java_type_are_refused():
    text = sample(SendFields, AS_TEXT)
    for wire, beyond in (("e", 1 << 31), ("e", -(1 << 31) - 1), ("g", 1 << 63), ("g", -(1 << 63) - 1)):
        with pytest.raises(InvalidHeader):
            decode(in_json(310, text | {wire: str(beyond)}))
