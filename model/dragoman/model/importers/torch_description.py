"""What a file of `torch.nn.Transformer` weights does not say about itself, written down in YAML.

state_dict: model_state_dict        # where in the file, "a.b" for a in b; nothing if the file is the state dict
prefix: module.                     # in front of every name, as nn.DataParallel puts it; taken off
ignore: ["criterion.*"]             # tensors that are no part of the model
names:
  transformer: transformer          # the nn.Transformer; or `encoder` and `decoder`, where they are two modules
  source_embedding: src_emb.weight
  target_embedding: tgt_emb.weight
  source_positions: pe.table        # learned positions; of a formula only to be compared with it
  target_positions: pe.table
  output: generator.weight          # the name of an embedding where the two are one
  output_bias: generator.bias       # nothing if there is none
model:
  heads: 8
  norm_first: false
  activation: relu                  # or gelu
  norm_epsilon: 1.0e-5
  positions: sinusoidal             # columns in turn; sinusoidal-half, sinusoidal-half-paper, learned, none
  scale_embedding: true             # embeddings times sqrt(d_model)
  max_source_tokens: 256
  max_target_tokens: 256
source:
  language: en                      # BCP-47
  symbols: {file: source.txt}       # a line each, or JSON; or a list; or {characters: "abc", first: ["<unk>"]}
  split: characters                 # or words, or pieces
  lowercase: false
  space: "_"                        # of characters: what stands for a space
  codes: bpe.codes                  # of words: a file of subword-nmt
  joiner: "@@"                      # of words: ends what the next symbol continues
  model: source.model               # of pieces: a SentencePiece file
  unk: "<unk>"                      # special symbols by name or number
  pad: "<pad>"
  start: "<bos>"
  eos: "<eos>"
  add_start: false                  # what stands around the ids of a source text
  add_eos: true
target: ...                         # likewise, without `add_start` and `add_eos`
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.symbol_files import read_symbol_file
from dragoman.model.settings import wrong_types

Section = TypeVar("Section")


@dataclass(frozen=True, slots=True)
class Names:
    """What the tensors are called; empty where there is none."""

    source_embedding: str
    target_embedding: str
    output: str
    transformer: str = ""
    encoder: str = ""
    decoder: str = ""
    source_positions: str = ""
    target_positions: str = ""
    output_bias: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tensors' sizes do not say."""

    heads: int
    positions: Literal["sinusoidal", "sinusoidal-half", "sinusoidal-half-paper", "learned", "none"]
    scale_embedding: bool
    norm_first: bool = False
    activation: Literal["relu", "gelu"] = "relu"
    norm_epsilon: float = 1e-5
    max_source_tokens: int = 256
    max_target_tokens: int = 256


@dataclass(frozen=True, slots=True)
class SideText:
    """How one side writes a text; special symbols by name or number."""

    split: Literal["characters", "words", "pieces"]
    eos: int | str
    pad: int | str
    unk: int | str | None = None
    start: int | str | None = None
    language: str = ""
    lowercase: bool = False
    space: str | None = None
    codes: str | None = None
    joiner: str | None = None
    model: str | None = None
    add_start: bool = False
    add_eos: bool = True


@dataclass(frozen=True, slots=True)
class SideIds:
    """Numbers of the special symbols of one side.

    Attributes:
        unk: That of the padding if the side has none of its own.
        pad: Fills rows.
        start: That of the end if the side has none.
        eos: Ends a text.
    """

    unk: int
    pad: int
    start: int
    eos: int


@dataclass(frozen=True, slots=True)
class Top:
    """The rest."""

    state_dict: str = ""
    prefix: str = ""
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """A checked description.

    Attributes:
        top: Where the tensors are.
        names: Of the tensors.
        shape: Of the model.
        sides: Of source and target.
        ids: Of source and target.
        symbols: Of source and target, by id.
        folder: What file names are relative to.
    """

    top: Top
    names: Names
    shape: Shape
    sides: tuple[SideText, SideText]
    ids: tuple[SideIds, SideIds]
    symbols: tuple[tuple[str, ...], tuple[str, ...]]
    folder: Path


@dataclass(slots=True)
class _Problems:
    """Collects what is wrong, so that all of it is said at once."""

    found: list[str] = field(default_factory=list)

    def section(self, cls: type[Section], where: str, values: Any) -> Section | None:
        """Return an object of `cls`, or None and a problem for each setting that is wrong."""
        if not isinstance(values, dict):
            self.found.append(f"{where} is {'missing' if values is None else repr(values)}; it must be a table")
            return None
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
        unknown = [name for name in values if name not in known]
        missing = [name for name in needed if name not in values]
        given = {name: _value(value, str(known[name].type)) for name, value in values.items() if name in known}
        made = cls(**{**dict.fromkeys(missing), **given})
        wrong = [text for text in wrong_types(made) if text.split(" is ", 1)[0] in given]
        self.found += [f"{where}: {name} is not a setting; those are {', '.join(known)}" for name in unknown]
        self.found += [f"{where}: {name} is missing" for name in missing]
        self.found += [f"{where}: {text}" for text in wrong]
        return made if not unknown and not missing and not wrong else None

    def ids(self, where: str, side: SideText, symbols: tuple[str, ...]) -> SideIds:
        """Return the numbers of the special symbols of a side."""

        def number(name: str, instead: int) -> int:
            value = getattr(side, name)
            if value is None:
                return instead
            if isinstance(value, str) and value in symbols:
                return symbols.index(value)
            if isinstance(value, str) or not 0 <= value < len(symbols):
                self.found.append(f"{where}: {name} is {value!r}; it is none of the {len(symbols)} symbols")
                return 0
            return int(value)

        pad, eos = number("pad", 0), number("eos", 0)
        return SideIds(unk=number("unk", pad), pad=pad, start=number("start", eos), eos=eos)

    def symbols(self, where: str, given: Any, folder: Path) -> tuple[str, ...]:
        """Return symbols by id; none and a problem if they are not described well."""
        if isinstance(given, list) and given and all(isinstance(symbol, str) for symbol in given):
            return tuple(given)
        if isinstance(given, dict) and set(given) == {"file"}:
            try:
                return read_symbol_file(folder / str(given["file"]))
            except ImportFailed as error:
                self.found.append(f"{where}: {error}")
                return ()
        if isinstance(given, dict) and "characters" in given and set(given) <= {"first", "characters"}:
            first, characters = given.get("first", []), given["characters"]
            if isinstance(characters, str) and isinstance(first, list) and all(isinstance(s, str) for s in first):
                return (*first, *characters)
        self.found.append(
            f"{where}: symbols is {str(given)[:60]!r}; it must be a list of texts, {{file: NAME}} or "
            f"{{first: [SYMBOLS], characters: TEXT}}"
        )
        return ()


def read_description(path: Path) -> Description:
    """Read and check a description.

    Raises:
        ImportFailed: It cannot be read, or something in it is wrong; says everything that is.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ImportFailed(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise ImportFailed(f"{path}: holds no table of settings")
    problems = _Problems()
    rest = {name: value for name, value in content.items() if name not in ("names", "model", "source", "target")}
    top = problems.section(Top, "description", rest)
    names = problems.section(Names, "names", content.get("names"))
    if names is not None and bool(names.transformer) == bool(names.encoder or names.decoder):
        problems.found.append("names: give `transformer`, or both `encoder` and `decoder`")
    elif names is not None and bool(names.encoder) != bool(names.decoder):
        problems.found.append("names: give both `encoder` and `decoder`")
    shape = problems.section(Shape, "model", content.get("model"))
    if names is not None and shape is not None and shape.positions == "learned":
        for name in ("source_positions", "target_positions"):
            if not getattr(names, name):
                problems.found.append(f"names: {name} is missing; learned positions are tensors")
    described = [_side(problems, where, content.get(where), path.parent) for where in ("source", "target")]
    if problems.found or top is None or names is None or shape is None or None in described:
        raise ImportFailed(f"{path}: {'; '.join(problems.found)}")
    (source, source_ids, source_symbols), (target, target_ids, target_symbols) = (side for side in described if side)
    return Description(
        top=top,
        names=names,
        shape=shape,
        sides=(source, target),
        ids=(source_ids, target_ids),
        symbols=(source_symbols, target_symbols),
        folder=path.parent,
    )


def _side(
    problems: _Problems, where: str, values: Any, folder: Path
) -> tuple[SideText, SideIds, tuple[str, ...]] | None:
    rest = {name: value for name, value in values.items() if name != "symbols"} if isinstance(values, dict) else values
    side = problems.section(SideText, where, rest)
    if where == "target" and isinstance(values, dict):
        problems.found += [
            f"target: {name} is of the source only" for name in ("add_start", "add_eos") if name in values
        ]
    symbols = problems.symbols(where, values.get("symbols"), folder) if isinstance(values, dict) else ()
    if side is None or not symbols:
        return None
    if side.start is None and where == "target":
        problems.found.append("target: start is missing; it is what the decoder reads first")
    elif side.start is None and side.add_start:
        problems.found.append("source: add_start is true, but start is missing")
    return side, problems.ids(where, side, symbols), symbols


def _value(value: Any, kind: str) -> Any:
    """Return a value of YAML as the field wants it: "1e-5" is a text there, and a list is not a tuple."""
    if kind == "float" and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return tuple(value) if isinstance(value, list) else value
