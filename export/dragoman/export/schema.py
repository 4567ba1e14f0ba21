"""What a manifest may say: checks it against manifest.schema.json. Standard library only.

The schema that other tools can read is the one that is enforced here, so the two cannot drift apart. This
module knows the keywords that the schema uses and no others, and words each problem so that it names the
field, its value and what is allowed. What a schema cannot say, such as ids that must lie in the vocabulary,
is checked behind it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

SCHEMA = Path(__file__).with_name("manifest.schema.json")
_SHOWN = 60
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "object": (dict, "a JSON object"),
    "array": (list, "a list"),
    "string": (str, "a text"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "null": (type(None), "null"),
}


@functools.cache
def load_schema() -> dict[str, Any]:
    """Return the schema; not to be changed."""
    return cast(dict[str, Any], json.loads(SCHEMA.read_text("utf-8")))


def format_versions() -> tuple[int, ...]:
    """Return the formats that the schema describes, oldest first."""
    return tuple(load_schema()["properties"]["format_version"]["enum"])


def parse(text: str) -> Any:
    """Read JSON as the standard has it: no NaN, no infinity, no name twice in an object.

    Raises:
        ValueError: It is not that.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_name_twice)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def problems(manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong with a manifest, a sentence each; nothing if it can be used.

    Args:
        manifest: Of one of `format_versions()`.
    """
    found = list(_schema_problems(manifest, load_schema()["$defs"][f"format-{manifest['format_version']}"], ""))
    return found or list(_conflicts(manifest))


def _schema_problems(value: Any, schema: Any, where: str) -> Iterator[str]:
    if schema is False:
        yield f"{where} has no place in this format"
        return
    if "$ref" in schema:
        yield from _schema_problems(value, load_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")], where)
    wanted = schema.get("type", [])
    types = [wanted] if isinstance(wanted, str) else wanted
    if types and not any(_is_of(value, name) for name in types):
        yield f"{where} is {_shown(value)}; it must be {' or '.join(_TYPES[name][1] for name in types)}"
        return
    yield from _wrong_value(value, schema, where)
    if isinstance(value, dict):
        yield from _object_problems(value, schema, where)
    elif isinstance(value, list):
        yield from _list_problems(value, schema, where)


def _wrong_value(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    if "enum" in schema and not _is_one_of(value, schema["enum"]):
        known = (item if isinstance(item, str) else json.dumps(item) for item in schema["enum"])
        yield f"{where} is {_shown(value)}; this version knows {', '.join(known)}"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{where} is {_shown(value)}; it must be {schema['description']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is {value}; it must be at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{where} is {_shown(value)}; it must be at most {schema['maximum']}"


def _object_problems(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    named = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_join(where, name)} is missing"
    for name, others in schema.get("dependentRequired", {}).items():
        for other in others:
            if name in value and other not in value:
                yield f"{_join(where, other)} is missing; {_join(where, name)} needs it"
    if len(value) < schema.get("minProperties", 0):
        yield f"{where} is empty; it must have at least {schema['minProperties']}"
    rest = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in named:
            yield from _schema_problems(item, named[name], _join(where, name))
            continue
        if "propertyNames" in schema:
            yield from _schema_problems(name, schema["propertyNames"], f"a name in {where}")
        if rest is False:
            yield f"{_join(where, name)} is not known; known are {', '.join(named)}"
        elif rest is not True:
            yield from _schema_problems(item, rest, _join(where, name))


def _list_problems(value: list[Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{where} is {_shown(value)}; it must have at least {schema['minItems']}"
    if schema.get("uniqueItems") and any(item in value[:i] for i, item in enumerate(value)):
        yield f"{where} is {_shown(value)}; it must have nothing twice"
    for i, item in enumerate(value):
        if "items" in schema:
            yield from _schema_problems(item, schema["items"], f"{where}[{i}]")


def _conflicts(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with values that are right on their own."""
    size, special = manifest["shape"]["vocab_size"], manifest["special"]
    for name, value in special.items():
        for i in value if isinstance(value, list) else [value]:
            if i >= size:
                yield f"special.{name} is {i}; the vocabulary ends at {size - 1}"
    shape = manifest["shape"]
    if shape.get("decoder_layer") == "ssru" and not shape.get("cell_width"):
        yield f"shape.cell_width is {shape.get('cell_width', 0)}; an ssru layer needs 1 or more"
    for name in manifest.get("tokenizer", {}).get("files", []):
        if name in ("manifest.json", "encoder.onnx", "decoder.onnx"):
            yield f"tokenizer.files has {name}, which is no file of a tokenizer"
        elif name not in manifest["sha256"]:
            yield f"sha256.{name} is missing; tokenizer.files names the file"
    if "files" not in manifest.get("tokenizer", {}) and "tokenizer.model" not in manifest["sha256"]:
        yield "sha256.tokenizer.model is missing; a manifest that describes no tokenizer means that file"
    if "manifest.json" in manifest["sha256"]:
        yield "sha256 has manifest.json; a file cannot have its own hash in it"
    if manifest.get("several"):
        yield from _language_conflicts(manifest, size)


def _language_conflicts(manifest: dict[str, Any], target_size: int) -> Iterator[str]:
    model = manifest.get("model", {})
    source_size = model.get("source_vocab_size")
    if not _is_of(source_size, "integer") or source_size < 1:
        source_size = target_size
    for side, tag in (("sources", manifest["source_language"]), ("targets", manifest["target_language"])):
        languages = manifest["several"][side]
        if tag and tag not in languages:
            yield f"{side[:-1]}_language is {_shown(tag)}; several.{side} has no such language"
        for language, tokens in languages.items():
            for place, ids in tokens.items():
                size = target_size if place == "first_target" else source_size
                if any(i >= size for i in ids):
                    yield f"several.{side}.{language}.{place} is {_shown(ids)}; the vocabulary ends at {size - 1}"


def _is_of(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name][0]) and not isinstance(value, bool)


def _is_one_of(value: Any, allowed: list[Any]) -> bool:
    return any(type(value) is type(item) and value == item for item in allowed)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name!r} stands twice in an object")
        values[name] = value
    return values
