"""The description of the API in OpenAPI 3.1, made of the endpoints and their types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.problems import MEDIA, ProblemAnswer

_encode = msgspec.json.encode
_REF = "#/components/schemas/{name}"
_NULL = {"type": "null"}
_SIZES = {"integer": "int64", "number": "double"}  # else 32 bits: too few for a time in ms
_UNTOLD = {"format", "for"}  # with CSV an answer would be of two types; `for` is a reserved word
_ARTICLE = re.compile(r"\b(?:an?|the) ")
_PARAMETER = re.compile(r"{([a-z_]+)}")
_ABOUT = """Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later.

Every error is `application/problem+json` (RFC 9457): `code` is a word for programs, `at` the place
in the request. In a path write `/` as `%2F`, and a colon before a verb's name as `%3A`.
With `format=csv` a list of messages is CSV."""


def description(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document, as JSON, of a server whose paths have nothing before them."""
    listed = list(endpoints)
    types = [kind for endpoint in listed for kind in _types(endpoint)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in listed:
        operation = _operation(endpoint, schema_of, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    queries = {schema_of[id(each.query)]["$ref"] for each in listed if each.query is not None}
    models = {
        name: _plain(kind)
        for name, kind in components.items()
        if _REF.format(name=name) not in queries
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "delaybridge", "version": __version__, "description": _ABOUT},
        "servers": _servers("/"),
        "paths": paths,
        "components": {
            "schemas": models,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _plain(schema: Any) -> Any:
    """The same schema in words that generators of clients know.

    No field has a default: some generators would have every request give such a field.
    """
    if isinstance(schema, list | tuple):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _plain(value) for name, value in schema.items() if name != "properties"}
    if fields := schema.get("properties"):
        made["properties"] = {
            name: {word: value for word, value in _plain(field).items() if word != "default"}
            for name, field in fields.items()
        }
    return _typed(made)


def _typed(made: dict[str, Any]) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [kind for kind in made.get("anyOf", ()) if kind != _NULL]
    if [kind.get("type") for kind in kinds] == ["object", "array"]:  # pairs: few have such unions
        return kinds[0]
    if len(kinds) == 1 and "type" in kinds[0]:  # it may be null
        del made["anyOf"]
        made |= kinds[0] | {"type": [kinds[0]["type"], "null"]}
    if made.get("items") is False:  # `maxItems` says so, too
        del made["items"]
    if "enum" in made:
        made["type"] = "string"
    if made.get("type") == "object" and not {"properties", "additionalProperties"} & {*made}:
        made["additionalProperties"] = True
    if size := _SIZES.get(str(made.get("type"))):
        made["format"] = size
    return made


def with_base(document: bytes, base: str) -> bytes:
    """The encoded document, of a server whose paths begin with this."""
    return document.replace(_encode(_servers("/")), _encode(_servers(base or "/")), 1)


def _servers(url: str) -> list[dict[str, str]]:
    return [{"url": url}]


def description_of(endpoint: Endpoint) -> str:
    """What an endpoint does, in full: the docstring of its handler."""
    return inspect.getdoc(endpoint.handler) or endpoint.summary


def media_of(kind: Any) -> str:
    """The content type of a request body."""
    return "application/octet-stream" if kind is bytes else "application/json"


def _types(endpoint: Endpoint) -> Iterator[Any]:
    yield ProblemAnswer
    for kind in (endpoint.body, endpoint.query, *endpoint.answers.values()):
        if kind is not None:
            yield kind


def _operation(
    endpoint: Endpoint, schema_of: Mapping[int, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": description_of(endpoint),
        "operationId": _operation_id(endpoint.summary),
        "tags": [_tag(endpoint)],
        "responses": dict(_responses(endpoint, schema_of)),
        "security": [] if endpoint.scope is Scope.OPEN else [{"token": []}],
        "x-scope": endpoint.scope.value,
    }
    if parameters := [*_in_path(endpoint), *_in_query(endpoint, schema_of, components)]:
        found["parameters"] = parameters
    if endpoint.body is not None:
        content = {media_of(endpoint.body): {"schema": schema_of[id(endpoint.body)]}}
        is_required = endpoint.body is not bytes  # no lines are no error
        found["requestBody"] = {"required": is_required, "content": content}
    return found


def _operation_id(summary: str) -> str:
    """`schedule_message` of `Schedule a message`: generators make a function's name of it."""
    return re.sub("[^a-z]+", "_", _ARTICLE.sub("", summary.lower()))


def _tag(endpoint: Endpoint) -> str:
    """The noun of the path: `messages` of `/v1/messages/{id}`."""
    words = [word.partition(":")[0] for word in endpoint.path.split("/") if word != "v1"]
    return words[1]


def _responses(
    endpoint: Endpoint, schema_of: Mapping[int, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    problem = {MEDIA: {"schema": _REF_OF_PROBLEM}}
    for status, kind in sorted(endpoint.answers.items()):
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            response["content"] = {endpoint.media: {"schema": schema_of[id(kind)]}}
        elif status >= HTTPStatus.BAD_REQUEST:
            response["content"] = problem
        yield str(status), response
    yield "default", {"description": "A refusal, or a fault", "content": problem}


_REF_OF_PROBLEM = {"$ref": _REF.format(name=ProblemAnswer.__name__)}


def _in_path(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(endpoint.path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(
    endpoint: Endpoint, schema_of: Mapping[int, Any], components: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    if endpoint.query is None:
        return
    struct = components[schema_of[id(endpoint.query)]["$ref"].rpartition("/")[2]]
    for name, schema in struct["properties"].items():
        if name in _UNTOLD:
            continue
        yield {
            "name": name,
            "in": "query",
            "required": name in struct.get("required", ()),
            "schema": _plain(_without_null(schema)),
        }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: the parameter is missing."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != _NULL]
    if not kinds:
        return schema
    kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return kept | kinds[0] if len(kinds) == 1 else kept | {"anyOf": kinds}


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
