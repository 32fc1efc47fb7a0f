"""Checks a document against `schema.json`: the subset of JSON Schema that it uses, with readable messages.

The schema is the only definition of the format: editors use the same file as this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from importlib import resources
from itertools import islice

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Schema = dict[str, "Json"]
Path = tuple[str | int, ...]

MOST_VIOLATIONS = 50


@cache
def launch_file_schema() -> Schema:
    """The schema of launch files, as published."""
    schema = json.loads(resources.files("warploom.launch_file").joinpath("schema.json").read_text("utf-8"))
    assert isinstance(schema, dict)
    return schema


def show(path: Path) -> str:
    """`args[3].box` for `("args", 3, "box")`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the file"


def violations(document: Json, schema: Schema) -> list[tuple[Path, str]]:
    """The paths in the document that violate the schema, each with the problem; the list is cut after the first few."""
    return list(islice(_check(document, schema, schema, ()), MOST_VIOLATIONS))


def _check(value: Json, schema: Schema, root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    schema = _resolve(schema, root)
    if "oneOf" in schema:
        yield from _check_one_of(value, [_resolve(_schema(s), root) for s in _list(schema["oneOf"])], root, path)
    if "type" in schema and not _is(value, str(schema["type"])):
        yield path, f"{_brief(value)} is not {_ARTICLE[str(schema['type'])]}"
        return
    if "enum" in schema and value not in _list(schema["enum"]):
        words = [str(word) for word in _list(schema["enum"])]
        yield path, f"{_brief(value)} is not one of {', '.join(words)}{_nearest(value, words)}"
    if isinstance(value, dict):
        yield from _check_object(value, schema, root, path)
    elif isinstance(value, list):
        yield from _check_array(value, schema, root, path)
    elif isinstance(value, str):
        yield from _check_text(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(value, schema, path)


def _check_object(value: dict[str, Json], schema: Schema, root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    known = schema.get("properties", {})
    assert isinstance(known, dict)
    for key in _list(schema.get("required", [])):
        if key not in value:
            yield path, f"`{key}` is missing"
    if len(value) > _bound(schema, "maxProperties", len(value)):
        yield path, f"has {len(value)} entries; at most {schema['maxProperties']} are allowed"
        return
    names = _schema(schema.get("propertyNames", {}))
    extra = schema.get("additionalProperties", True)
    for key, item in value.items():
        if "pattern" in names and not re.fullmatch(str(names["pattern"]), key):
            yield path, f"`{_clip(key)}` is not a name (letters, digits and _, not starting with a digit)"
        elif key in known:
            yield from _check(item, _schema(known[key]), root, (*path, key))
        elif extra is False:
            yield path, f"`{_clip(key)}` is not a known key" + (_nearest(key, known) or f"; known: {', '.join(known)}")
        elif isinstance(extra, dict):
            yield from _check(item, extra, root, (*path, key))


def _check_array(value: list[Json], schema: Schema, root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    least, most = _bound(schema, "minItems", 0), _bound(schema, "maxItems", len(value))
    if not least <= len(value) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        yield path, f"has {len(value)} items; needs {wanted}"
        return
    if "items" in schema:
        for index, item in enumerate(value):
            yield from _check(item, _schema(schema["items"]), root, (*path, index))


def _check_text(value: str, schema: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    least, most = _bound(schema, "minLength", 0), _bound(schema, "maxLength", len(value))
    if not least <= len(value) <= most:
        yield path, f"has {len(value)} characters; needs {least} to {most}"
    elif "pattern" in schema and not re.fullmatch(str(schema["pattern"]), value):
        yield path, f"{_brief(value)} does not match {schema['pattern']}"


def _check_number(value: float, schema: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    if "minimum" in schema and value < _number(schema["minimum"]):
        yield path, f"{_brief(value)} is below {schema['minimum']}"
    if "maximum" in schema and value > _number(schema["maximum"]):
        yield path, f"{_brief(value)} is above {schema['maximum']}"


def _check_one_of(value: Json, choices: list[Schema], root: Schema, path: Path) -> Iterator[tuple[Path, str]]:
    """Select an alternative by the value's type and by the first required key, so that its own errors are reported."""
    fitting = [choice for choice in choices if _is(value, str(choice["type"]))]
    if not fitting:
        names = dict.fromkeys(_ARTICLE[str(choice["type"])] for choice in choices)
        yield path, f"{_brief(value)} is not {' or '.join(names)}"
        return
    if not isinstance(value, dict):
        yield from _check(value, fitting[0], root, path)
        return
    heads = {str(_list(choice["required"])[0]): choice for choice in fitting}
    named = [head for head in heads if head in value]
    if len(named) == 1:
        yield from _check(value, heads[named[0]], root, path)
    elif named:
        yield path, f"says {' and '.join(f'`{n}`' for n in named)}; only one of them can be meant"
    else:
        nearest = next((hint for key in value if (hint := _nearest(key, heads))), "")
        yield (
            path,
            f"has {', '.join(f'`{_clip(k)}`' for k in value) or 'no key'}; needs one of {', '.join(heads)}{nearest}",
        )


def _resolve(schema: Schema, root: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    target: Json = root
    for step in str(schema["$ref"]).removeprefix("#/").split("/"):
        target = _schema(target)[step]
    return _schema(target)


_ARTICLE = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def _is(value: Json, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return not isinstance(value, bool) and (
                isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            )
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)


def _schema(value: Json) -> Schema:
    assert isinstance(value, dict)
    return value


def _list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value


def _number(value: Json) -> float:
    assert isinstance(value, int | float)
    return value


def _bound(schema: Schema, key: str, default: int) -> int:
    bound = schema.get(key, default)
    assert isinstance(bound, int)
    return bound


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


def _brief(value: Json) -> str:
    return _clip(json.dumps(value))


def _nearest(value: Json, known: Iterable[str]) -> str:
    close = get_close_matches(str(value)[:100], list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
