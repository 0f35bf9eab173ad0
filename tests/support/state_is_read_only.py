"""A plugin of mypy: packages above ``core`` read the engine's state, and cannot change it.

They hold the same objects as the engine (``core/state.py``). To every module outside of ``core``

    no attribute of these objects can be assigned, and none of their methods can be called
    a ``dict`` in them is a ``Mapping``, a ``list`` or ``deque`` a ``Sequence``, a ``set`` an ``AbstractSet``
    a function of ``core`` takes them only as an argument named ``view``: this is how ``core`` names what a function only reads
"""

from collections.abc import Callable
from typing import Final

from mypy.nodes import TypeInfo
from mypy.plugin import AttributeContext, FunctionSigContext, MethodSigContext, Plugin
from mypy.types import FunctionLike, Instance, Type, UnionType, get_proper_type

_CORE: Final = "halfmq.core"
_STATE: Final = "halfmq.core.state."
#: Owns the state, and is given a new one.
_ENGINE: Final = "halfmq.core.engine.Engine"
_READ_ONLY: Final = {
    "builtins.dict": "typing.Mapping",
    "builtins.list": "typing.Sequence",
    "collections.deque": "typing.Sequence",
    "builtins.set": "typing.AbstractSet",
}


class StateIsReadOnly(Plugin):
    """See the module."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        if fullname == f"{_ENGINE}.state" or fullname.startswith(_STATE):
            return _attribute
        return None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        owner, _, name = fullname.rpartition(".")
        return _method if owner.startswith(_STATE) and not name.startswith("_") else None

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return _function if fullname.startswith(f"{_CORE}.") and fullname != _ENGINE else None


def _is_above(context: AttributeContext | MethodSigContext | FunctionSigContext) -> bool:
    module = context.api.tree.fullname  # type: ignore[attr-defined]  # of the checker, which calls the hooks below
    return not (module == _CORE or module.startswith(f"{_CORE}."))


def _attribute(context: AttributeContext) -> Type:
    if not _is_above(context):
        return context.default_attr_type
    if context.is_lvalue:
        context.api.fail("only the engine changes its state: submit a command, or note an event", context.context)
    return _read_only(context, context.default_attr_type)


def _read_only(context: AttributeContext, declared: Type) -> Type:
    declared = get_proper_type(declared)
    if isinstance(declared, UnionType):
        return UnionType.make_union([_read_only(context, one) for one in declared.items])
    if isinstance(declared, Instance) and declared.type.fullname in _READ_ONLY:
        items = [_read_only(context, one) for one in declared.args]
        return context.api.named_generic_type(_READ_ONLY[declared.type.fullname], items)
    return declared


def _method(context: MethodSigContext) -> FunctionLike:
    if _is_above(context):
        context.api.fail("only the engine calls what may change its state", context.context)
    return context.default_signature


def _function(context: FunctionSigContext) -> FunctionLike:
    signature = context.default_signature
    if _is_above(context):
        for name, declared in zip(signature.arg_names, signature.arg_types, strict=True):
            if name != "view" and _can_change(get_proper_type(declared)):
                context.api.fail(
                    f"this function may change the state: core names it {name!r}, not 'view'", context.context
                )
    return signature


def _can_change(declared: Type) -> bool:
    info: TypeInfo | None = declared.type if isinstance(declared, Instance) else None
    return info is not None and info.fullname.startswith(_STATE) and "__slots__" in info.names


def plugin(version: str) -> type[Plugin]:
    """What mypy asks for."""
    return StateIsReadOnly
