"""Types of answers for OpenAPI: the objects that `plain` makes of the store's named tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec


@cache
def object_of(kind: type, hidden: tuple[str, ...] = ()) -> type[msgspec.Struct]:
    """A struct with the fields of a named tuple, but the hidden ones."""
    fields = [
        (name, _json_type(hint))
        for name, hint in get_type_hints(kind).items()
        if name not in hidden
    ]
    return msgspec.defstruct(kind.__name__, fields, namespace={"__doc__": kind.__doc__})


def _json_type(hint: Any) -> Any:
    """The type that JSON has for a hint."""
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return object_of(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_json_type(each) for each in inner)]  # noqa: UP007
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, _json_type(inner[1])]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list[_json_type(inner[0])]  # type: ignore[misc]
    return hint
