"""The AsyncAPI 3.0 document of an ``App``: what it receives and sends, for other people and their tools. Pure: no I/O, and no broker.

Only what the app knows is in it: its consumers, with the types of their parameters; transactions that name a topic; and what
``App.publishes`` declares. What a function sends beside that is not guessed from its code.

Schemas are those of msgspec, or of pydantic for its own types, both of JSON Schema 2020-12. AsyncAPI's default is draft 7 with a
``discriminator`` that is a string, so ``_draft_7`` rewrites the two keywords that differ.
"""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin
from urllib.parse import quote

import msgspec

from halfmq.client.arguments import checked_text
from halfmq.client.bodies import SUPPORTED, adapter, is_of_pydantic, json_types
from halfmq.client.handler_arguments import arguments_of
from halfmq.errors import UsageError
from halfmq.model.address import ServerUrl, parse_url

if TYPE_CHECKING:
    from halfmq.client.app import App

Json: TypeAlias = dict[str, Any]

_VERSION: Final = "3.0.0"
_REFERENCE: Final = "#/components/schemas/{}"
_CONTENT_TYPES: Final[Mapping[Any, str]] = {bytes: "application/octet-stream", str: "text/plain"}
_JSON_TYPE: Final = "application/json"
#: Keywords of JSON Schema whose value is a schema, a list of schemas, or a dictionary of schemas.
_ONE: Final = frozenset(("items", "additionalProperties", "additionalItems", "not", "propertyNames", "contains"))
_SEVERAL: Final = frozenset(("anyOf", "oneOf", "allOf", "items"))
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs"))


class _Operation(NamedTuple):
    """``kinds``: the types of its bodies; empty: nothing is known of them."""

    name: str
    action: str
    topic: str
    kinds: tuple[Any, ...]
    description: str
    more: Json


def document(app: "App", *, title: str, version: str) -> Json:
    """The document as dictionaries and lists, which have a JSON form. ``title`` and ``version``: of the application's interface.

    Raises:
        UsageError: an argument is no text, or a type has no JSON Schema.
    """
    checked_text(title, "title", "what the application is called")
    checked_text(version, "version", 'such as "1.4.0"')
    found = [*_received(app), *_sent(app)]
    schemas, components = _schemas({kind for one in found for kind in one.kinds})
    channels, references = _channels(found, schemas)
    url = parse_url(app.client().url)
    security = {"user": {"type": "userPassword"}} if url.security.user else {}
    parts = {name: part for name, part in (("schemas", components), ("securitySchemes", security)) if part}
    made = {
        "asyncapi": _VERSION,
        "info": {"title": title, "version": version},
        "defaultContentType": _JSON_TYPE,
        "servers": _servers(url, [{"$ref": _pointer("components", "securitySchemes", name)} for name in security]),
        "channels": channels,
        "operations": _operations(found, references),
        **({"components": parts} if parts else {}),
    }
    try:
        plain: Json = msgspec.json.decode(msgspec.json.encode(made))  # a default may be a tuple
    except UnicodeEncodeError as error:
        raise UsageError("the title or a description has half a surrogate pair", hint="text that UTF-8 has") from error
    return plain


def _channels(found: Iterable[_Operation], schemas: Mapping[Any, Json]) -> tuple[Json, dict[tuple[str, Any], str]]:
    """(channels by their topics, the reference to the message of each topic and type)."""
    channels: dict[str, Json] = {}
    references: dict[tuple[str, Any], str] = {}
    for one in found:
        channel = channels.setdefault(one.topic, {"address": one.topic})
        for kind in one.kinds:
            if (one.topic, kind) in references:
                continue
            messages = channel.setdefault("messages", {})
            name = _free(messages, _name_of(kind, one.topic))
            messages[name] = {"name": name, "contentType": _CONTENT_TYPES.get(kind, _JSON_TYPE)}
            if kind in schemas:
                messages[name]["payload"] = schemas[kind]
            references[one.topic, kind] = _pointer("channels", one.topic, "messages", name)
    return channels, references


def _operations(found: Iterable[_Operation], references: Mapping[tuple[str, Any], str]) -> Json:
    operations: Json = {}
    for one in found:
        made = operations[_free(operations, one.name)] = {
            "action": one.action,
            "channel": {"$ref": _pointer("channels", one.topic)},
        }
        if one.description:
            made["description"] = one.description
        made |= one.more
        if one.kinds:
            made["messages"] = [{"$ref": references[one.topic, kind]} for kind in one.kinds]
    return operations


def _received(app: "App") -> Iterable[_Operation]:
    for one in app.consumers():
        function, reads = one.function, one.reads
        into = arguments_of(function).into
        kinds = () if into is None else _alternatives(into)
        more: Json = {"x-consumer-group": reads.group}
        if reads.tags != "*":
            more["x-subscription-tags"] = reads.tags
        for topic in reads.topics:
            name = _function_name(function) + (f"-{topic}" if len(reads.topics) > 1 else "")
            yield _Operation(name, "receive", topic, kinds, inspect.getdoc(function) or "", more)


def _sent(app: "App") -> Iterable[_Operation]:
    declared = app.published()
    in_transactions = set()
    for transaction in app.transactions():
        if transaction.topic is None:
            continue
        in_transactions.add(transaction.topic)
        kinds = tuple(kind for one in declared if one.topic == transaction.topic for kind in _alternatives(one.kind))
        more = {"x-transaction": transaction.name}
        yield _Operation(
            transaction.__name__, "send", transaction.topic, kinds, inspect.cleandoc(transaction.__doc__ or ""), more
        )
    for one in declared:
        if one.topic not in in_transactions:
            yield _Operation(f"send-{one.topic}", "send", one.topic, _alternatives(one.kind), one.description, {})


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The messages that a union of classes stands for."""
    if get_origin(kind) in (types.UnionType, Union) and all(_is_named(one) for one in get_args(kind)):
        return get_args(kind)
    return (kind,)


def _is_named(kind: Any) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and kind.__module__ != "builtins"


def _name_of(kind: Any, topic: str) -> str:
    return _identifier(kind.__name__) if _is_named(kind) else f"{_identifier(topic)}-message"


def _function_name(function: Callable[..., Any]) -> str:
    # Of a partial or an object that is called, as handler_arguments.
    named: Any = getattr(function, "func", function)
    return _identifier(getattr(named, "__name__", type(named).__name__))


def _identifier(name: str) -> str:
    """What AsyncAPI allows in the keys of its maps."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)


def _free(taken: Mapping[str, Any], name: str) -> str:
    number = 1
    while (free := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return free


def _pointer(*parts: str) -> str:
    """A reference within the document (RFC 6901, in the fragment of a URI). No part has a slash or a tilde: names of topics have none."""
    return "#/" + "/".join(quote(part, safe="") for part in parts)


def _servers(url: ServerUrl, security: list[Json]) -> dict[str, Json]:
    """The name servers of the URL, without its user and files."""
    protocol = "rocketmq" if url.security.tls is None else "rocketmqs"
    names = ["broker"] if len(url.servers) == 1 else [f"broker-{n}" for n in range(1, 1 + len(url.servers))]
    more = {"security": security} if security else {}
    return {
        name: {"host": str(server), "protocol": protocol, **more}
        for name, server in zip(names, url.servers, strict=True)
    }


def _schemas(kinds: Iterable[Any]) -> tuple[dict[Any, Json], dict[str, Json]]:
    """(the schema of each type, the schemas that these refer to). Bytes have none: JSON's would be text.

    Raises:
        UsageError: a type has none.
    """
    ordered = sorted(
        (kind for kind in kinds if kind is not bytes), key=repr
    )  # the document is the same in each process
    others = [kind for kind in ordered if not is_of_pydantic(kind)]
    of_pydantic = [kind for kind in ordered if is_of_pydantic(kind)]

    def unknown_to_msgspec(kind: Any) -> Json:
        if not is_of_pydantic(kind):
            return _schema_of_instances(kind)
        if kind not in of_pydantic:
            of_pydantic.append(kind)
        return {"type": "object"}  # in the place of its own; an empty one would mean none

    try:
        _, components = msgspec.json.schema_components(others, schema_hook=unknown_to_msgspec)
        known, models = _pydantic_schemas(of_pydantic, _REFERENCE.format("{model}"))
        if models.keys() & components.keys():  # a model and another class may have one name
            known, models = _pydantic_schemas(of_pydantic, _REFERENCE.format("{model}.pydantic"))
            models = {f"{name}.pydantic": one for name, one in models.items()}
        schemas, components = msgspec.json.schema_components(
            others,
            schema_hook=lambda kind: known[kind] if kind in known else _schema_of_instances(kind),
            ref_template=_REFERENCE.format("{name}"),
        )
    except TypeError as error:
        raise _without_schema(error) from error
    found = {**known, **dict(zip(others, schemas, strict=True))}
    return (
        {kind: _draft_7(schema) for kind, schema in found.items()},
        {name: _draft_7(schema) for name, schema in sorted({**components, **models}.items())},
    )


def _schema_of_instances(kind: Any) -> Json:
    """Of a class that neither msgspec nor pydantic knows, such as ``object``."""
    if not (found := json_types(kind)):
        raise NotImplementedError
    return {"type": found}


def _pydantic_schemas(kinds: list[Any], reference: str) -> tuple[dict[Any, Json], dict[str, Json]]:
    if not kinds:
        return {}, {}
    from pydantic import PydanticUserError, TypeAdapter

    try:
        # Together, so that pydantic gives models with one name different ones.
        found, more = TypeAdapter.json_schemas(
            [(number, "validation", adapter(kind)) for number, kind in enumerate(kinds)], ref_template=reference
        )
    except PydanticUserError as error:
        raise _without_schema(error) from error
    return {kind: found[number, "validation"] for number, kind in enumerate(kinds)}, more.get("$defs", {})


def _without_schema(error: Exception) -> UsageError:
    # Pydantic's text begins with the reason, msgspec's ends with it.
    lines = [line for line in str(error).splitlines() if line and not line.startswith("For further information")]
    return UsageError(
        f"a body has no JSON Schema: {lines[-1]}",
        hint=SUPPORTED,
    )


def _draft_7(schema: Any) -> Any:
    """``schema`` of JSON Schema 2020-12 as AsyncAPI's default format has it.

    ``discriminator`` is left out: what it says is also said by the constants in the alternatives.
    """
    if not isinstance(schema, dict):
        return schema  # true and false are schemas
    given = {name: value for name, value in schema.items() if name != "discriminator"}
    if "prefixItems" in given:
        rest = given.pop("items", True)
        given |= {"items": given.pop("prefixItems"), "additionalItems": rest}
    return {name: _converted(name, value) for name, value in given.items()}


def _converted(keyword: str, value: Any) -> Any:
    if keyword in _NAMED and isinstance(value, dict):
        return {name: _draft_7(one) for name, one in value.items()}
    if keyword in _SEVERAL and isinstance(value, list):
        return [_draft_7(one) for one in value]
    if keyword in _ONE:
        return _draft_7(value)
    return value
