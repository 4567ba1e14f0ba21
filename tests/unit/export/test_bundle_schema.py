"""manifest.schema.json: what is written validates, what breaks it is refused with field, value and what is allowed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.export import bundle, schema
from dragoman.export.bundle import Manifest, Shape, load_manifest
from dragoman.export.errors import BundleError
from dragoman.export.write import DEVICES
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.vocab import SpecialIds

DATA = Path(__file__).parents[2] / "data"
FORMATS = {f"format {version}": DATA / f"tiny-v{version}" for version in bundle.FORMAT_VERSIONS}
_KEYWORDS = {
    "$ref", "additionalProperties", "const", "dependentRequired", "description", "enum", "items", "maximum", "minItems",
    "minimum", "minProperties", "pattern", "properties", "propertyNames", "required", "type", "uniqueItems",
}  # fmt: skip


def manifest_of(version: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"tiny-v{version}" / bundle.MANIFEST).read_text())
    return content


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is compared with a library that reads it")
    jsonschema.Draft202012Validator.check_schema(schema.load_schema())
    return jsonschema.Draft202012Validator(schema.load_schema())


def test_the_schema_lists_every_format_and_precision() -> None:
    """A new format or precision cannot be written without a place in the schema."""
    common = schema.load_schema()["$defs"]["common"]

    assert schema.format_versions() == tuple(range(1, len(schema.format_versions()) + 1))
    assert [name for name in schema.load_schema()["$defs"] if name.startswith("format-")] == [
        f"format-{version}" for version in schema.format_versions()
    ]
    assert set(common["properties"]["precision"]["enum"]) == set(DEVICES)
    assert set(common["properties"]) >= {*Manifest.__dataclass_fields__}


def test_the_schema_uses_only_what_is_enforced() -> None:
    """A keyword that the check at load does not know would be a promise to nobody."""

    def unknown(subschema: Any) -> set[str]:
        if not isinstance(subschema, dict):
            return set()
        found = set(subschema) - _KEYWORDS
        for name in ("properties",):
            for one in subschema.get(name, {}).values():
                found |= unknown(one)
        for name in ("items", "additionalProperties", "propertyNames"):
            found |= unknown(subschema.get(name))
        return found

    subschemas = schema.load_schema()["$defs"]
    assert {name: unknown(one) for name, one in subschemas.items() if unknown(one)} == {}
    assert [name for name, one in subschemas.items() if "pattern" in one and "description" not in one] == []


@pytest.mark.parametrize("folder", FORMATS.values(), ids=FORMATS)
def test_committed_manifests_validate(folder: Path) -> None:
    """With our own check and with a library that knows the whole of JSON Schema."""
    content = json.loads((folder / bundle.MANIFEST).read_text())

    assert schema.problems(content) == []
    assert list(validator().iter_errors(content)) == []


MANIFESTS: dict[str, Callable[[Manifest], Manifest]] = {
    "as it is": lambda m: m,
    "int8": lambda m: replace(m, precision="int8", devices=("cpu",)),
    "cells": lambda m: replace(m, shape=Shape(400, 2, 8, 3, decoder_layer=bundle.SSRU, cell_width=16)),
    "not verified": lambda m: replace(m, verification={}),
    "suppressed ids": lambda m: replace(m, special=SpecialIds(suppressed=(5, 6))),
    "several languages": lambda m: replace(
        m,
        source_language="",
        several=Languages(
            {"en": LanguageTokens(), "pt-BR": LanguageTokens((4,))},
            {"de": LanguageTokens((5,), (6,), (7, 8)), "zh-Hans": LanguageTokens(first_target=(9,))},
        ),
    ),
    "another tokenizer": lambda m: replace(
        m,
        tokenizer={"kind": "sentencepiece", "files": ["tokenizer.model"], "lower": True},
    ),
    "the last source position": lambda m: replace(m, cross_last=True),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_what_is_written_validates_and_is_read_back(change: Callable[[Manifest], Manifest], tmp_path: Path) -> None:
    """Every kind of manifest that export can make."""
    manifest = change(load_manifest(DATA / "tiny-v1"))
    for name in manifest.files:
        (tmp_path / name).symlink_to(DATA / "tiny-v1" / name)
    manifest.write(tmp_path)
    content = json.loads((tmp_path / bundle.MANIFEST).read_text())

    assert list(validator().iter_errors(content)) == []
    assert bundle._read_manifest(tmp_path) == manifest


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_released_servers_read_what_is_called_format_1(change: Callable[[Manifest], Manifest]) -> None:
    """They refuse unknown fields in these three, so format 1 has none but those of the kind of layer that they know."""
    released = manifest_of(1)
    content = change(load_manifest(DATA / "tiny-v1")).to_dict()
    cells = {"decoder_layer", "cell_width"} if content["shape"].get("decoder_layer") == bundle.SSRU else set()

    for field in ("special", "limits", "shape"):
        known = set(released[field]) | (cells if field == "shape" else set())
        assert content["format_version"] > 1 or set(content[field]) == known
    assert content["format_version"] > 1 or {"tokenizer", "several"}.isdisjoint(content)
    assert (content["format_version"] == 3) == ("cross_last" in content)


# Every entry: what is done to the manifest of a format, and the sentence that must come.
REFUSED: list[tuple[int, tuple[str | int, ...], Any, str]] = [
    (1, ("name",), "", 'name is ""; it must be a text without control characters'),
    (1, ("name",), "a\nb", 'name is "a\\\\nb"; it must be a text without control characters'),
    (1, ("name",), 7, "name is 7; it must be a text"),
    (1, ("source_language",), "en de", 'source_language is "en de"; it must be a language tag such as en or pt-BR'),
    (1, ("precision",), "fp8", 'precision is "fp8"; this version knows fp32, '),
    (1, ("devices",), "cpu", 'devices is "cpu"; it must be a list'),
    (1, ("devices",), [], r"devices is \[\]; it must have at least 1"),
    (1, ("devices",), ["tpu"], r'devices\[0\] is "tpu"; this version knows cpu, cuda'),
    (1, ("devices",), ["cpu", "cpu"], "it must have nothing twice"),
    (1, ("special", "eos"), 400, "special.eos is 400; the vocabulary ends at 399"),
    (1, ("special", "pad"), -1, "special.pad is -1; it must be at least 0"),
    (1, ("special", "pad"), 0.5, "special.pad is 0.5; it must be a whole number"),
    (1, ("special", "pad"), True, "special.pad is true; it must be a whole number"),
    (1, ("special", "mask"), 4, "special.mask is not known; known are pad, unk, start, eos"),
    (1, ("special", "suppressed"), [4], "special.suppressed has no place in this format"),
    (2, ("special", "suppressed"), [4, 10**6], "special.suppressed is 1000000; the vocabulary ends at"),
    (1, ("limits", "max_source_tokens"), 0, "limits.max_source_tokens is 0; it must be at least 1"),
    (1, ("limits", "max_target_tokens"), 10**12, "limits.max_target_tokens is 1000000000000; it must be at most"),
    (1, ("limits", "max_target_tokens"), "9", 'limits.max_target_tokens is "9"; it must be a whole number'),
    (1, ("limits", "length_ratio"), -0.5, "limits.length_ratio is -0.5; it must be at least 0"),
    (1, ("limits", "max_texts"), 9, "limits.max_texts is not known; known are max_source_tokens, max_target_tokens,"),
    (1, ("shape",), [1, 2], r"shape is \[1, 2\]; it must be a JSON object"),
    (1, ("shape", "vocab_size"), -400, "shape.vocab_size is -400; it must be at least 1"),
    (1, ("shape", "decoder_layer"), "lstm", 'decoder_layer is "lstm"; this version knows self-attention, ssru'),
    (1, ("shape", "decoder_layer"), "ssru", "shape.cell_width is 0; an ssru layer needs 1 or more"),
    (1, ("shape", "layers"), 3, "shape.layers is not known; known are vocab_size, "),
    (1, ("model",), "big", 'model is "big"; it must be a JSON object'),
    (1, ("tools", "torch"), 2, "tools.torch is 2; it must be a text"),
    (1, ("tokenizer",), {}, "tokenizer has no place in this format"),
    (1, ("several",), None, "several has no place in this format"),
    (1, ("cross_last",), True, "cross_last has no place in this format"),
    (2, ("cross_last",), True, "cross_last has no place in this format"),
    (3, ("cross_last",), False, "cross_last is false; this version knows true"),
    (3, ("cross_last",), 1, "cross_last is 1; this version knows true"),
    (1, ("sha256", "encoder.onnx"), "ABC", 'encoder.onnx is "ABC"; it must be 64 hexadecimal digits in lower case'),
    (1, ("sha256", "encoder.onnx"), None, "encoder.onnx is null; it must be a text"),
    (1, ("sha256", "../x"), "0" * 64, r'a name in sha256 is "\.\./x"; it must be a name of letters, digits, '),
    (1, ("sha256", "/etc/passwd"), "0" * 64, 'a name in sha256 is "/etc/passwd"; it must be a name of letters'),
    (1, ("sha256", "a\\b"), "0" * 64, r"a name in sha256 is .*; it must be a name of letters"),
    (1, ("sha256", ".."), "0" * 64, r'a name in sha256 is "\.\."; it must be a name of letters'),
    (1, ("sha256", "manifest.json"), "0" * 64, "sha256 has manifest.json; a file cannot have its own hash in it"),
    (2, ("tokenizer",), {"kind": "x"}, "tokenizer.files is missing; tokenizer.kind needs it"),
    (2, ("tokenizer",), {"kind": "x", "files": ["../a"]}, r'tokenizer.files\[0\] is "\.\./a"; it must be a name of'),
    (2, ("tokenizer",), {"kind": "x", "files": ["a", "a"]}, "it must have nothing twice"),
    (2, ("tokenizer",), {"kind": "x", "files": ["a"]}, "sha256.a is missing; tokenizer.files names the file"),
    (2, ("tokenizer",), {"kind": "x", "files": ["encoder.onnx"]}, "encoder.onnx, which is no file of a tokenizer"),
    (2, ("several", "sources"), {}, "several.sources is empty; it must have at least 1"),
    (2, ("several", "targets", "e n"), {}, 'a name in several.targets is "e n"; it must be a language tag'),
    (2, ("several", "targets", "xx"), {"first_target": [10**6]}, r"xx.first_target is \[1000000\]; the vocabulary"),
    (2, ("several", "targets", "xx"), {"before": [1]}, "several.targets.xx.before is not known; known are before_sou"),
    (2, ("source_language",), "xx", 'source_language is "xx"; several.sources has no such language'),
]  # fmt: skip


def changed(version: int, path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    content = manifest_of(version)
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("version", "path", "value", "message"), REFUSED, ids=[f"{r[1]}={r[2]!r:.30}" for r in REFUSED]
)
def test_a_manifest_that_breaks_the_schema_is_refused(
    version: int, path: tuple[str | int, ...], value: Any, message: str, tmp_path: Path
) -> None:
    """The sentence has the field, its value and what is allowed."""
    (tmp_path / bundle.MANIFEST).write_text(json.dumps(changed(version, path, value)))
    with pytest.raises(BundleError, match=message) as caught:
        load_manifest(tmp_path)

    assert "manifest.json cannot be used" in str(caught.value)
    assert "Export the bundle again" in str(caught.value)


@pytest.mark.parametrize("version", bundle.FORMAT_VERSIONS)
def test_every_required_field_is_missed(version: int) -> None:
    """Whatever is taken out of a manifest is either optional or named in the refusal."""
    optional = {"model", "tools", "verification", "limits.length_ratio", "limits.length_margin", "special.suppressed"}
    whole = manifest_of(version)
    paths = [(name,) for name in whole if name != "format_version"]
    paths += [(name, inner) for name in ("special", "limits", "shape") for inner in whole[name]]  # type: ignore[misc]
    for path in paths:
        content = copy.deepcopy(whole)
        place = content if len(path) == 1 else content[path[0]]
        del place[path[-1]]
        where = ".".join(path)
        expected = [] if where in optional else [f"{where} is missing"]
        assert schema.problems(content) == expected


def test_all_problems_are_named_at_once() -> None:
    """Nobody wants to mend a manifest one field at a time."""
    content = manifest_of(1)
    content["name"], content["precision"] = 1, "fp8"
    del content["limits"]

    assert len(schema.problems(content)) == 3


def test_unknown_fields_are_ignored_at_the_top_and_refused_below() -> None:
    """A later version may add what an older one can do without; what changes the graphs' use it cannot."""
    assert schema.problems({**manifest_of(1), "licence": "x"}) == []
    assert schema.problems(changed(1, ("model", "new_setting"), 1)) == []
    assert schema.problems(changed(1, ("shape", "new_setting"), 1)) != []


def test_what_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    """The mistake shows where it was made."""
    manifest = replace(load_manifest(DATA / "tiny-v1"), name="two\nlines")
    with pytest.raises(BundleError, match="name is"):
        manifest.write(tmp_path)

    assert not (tmp_path / bundle.MANIFEST).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a' stands twice in an object"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ("[" * 100_000, "it is nested too deeply"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_json_that_others_would_read_differently_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """What every reader must understand in the same way is no place for extensions."""
    (tmp_path / bundle.MANIFEST).write_text(text, "utf-8")
    with pytest.raises(BundleError, match=f"cannot read manifest.json: .*{message}"):
        load_manifest(tmp_path)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 500), st.sampled_from([0.5, -1.5, 10**10]),
    st.sampled_from(["", "en", "cpu", "fp32", "int8", "cuda", "../x", "a b", "ssru", "0" * 64, "tokenizer.model"]),
    st.lists(st.sampled_from([0, 4, -1, "cpu", "cuda", "a"]), max_size=3),
    st.dictionaries(st.sampled_from(["pad", "kind", "files", "en", "sources", "targets", "../x"]),
                    st.sampled_from([1, "a", ["a"], {"en": {}}, {}, None]), max_size=3),
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), version=st.sampled_from(bundle.FORMAT_VERSIONS))
def test_our_check_agrees_with_a_json_schema_library(data: st.DataObject, version: int) -> None:
    """Manifests with changed, missing and additional fields: both refuse the same ones."""
    content = manifest_of(version)
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from([*keys, "new"] if isinstance(place, dict) else keys))
            if not isinstance(place.get(key) if isinstance(place, dict) else place[key], (dict, list)):
                break
            if not place[key] or data.draw(st.booleans()):
                break
            place = place[key]
        if key != "format_version":
            if isinstance(place, dict) and key in place and data.draw(st.booleans()):
                del place[key]
            else:
                place[key] = data.draw(VALUES)
    subschema = schema.load_schema()["$defs"][f"format-{version}"]
    ours = list(schema._schema_problems(content, subschema, ""))

    assert (ours == []) == validator().is_valid(content), ours
