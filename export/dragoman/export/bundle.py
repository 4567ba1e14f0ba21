"""The bundle: what export writes and the server reads. Torch-free.

A bundle is a folder with a manifest, two graphs and a tokenizer. Every tensor name and axis of the
graphs is defined here and nowhere else. Letters: B rows, S source length, Q new target tokens,
H heads of keys and values, T_max cache positions, D head_dim, E width of a recurrent cell,
V vocabulary, i decoder layer.

    encoder.onnx   input_ids [B,S] int64, source_lengths [B] int64
                   -> cross_key.i, cross_value.i [B,H,S,D]
    decoder.onnx   input_ids [B,Q] int64, source_lengths [B] int64, cache_lengths [B] int64,
                   the state of each layer, cross_key.i, cross_value.i [B,H,S,D]
                   -> next_ids [B,Q] int64, logits [B,Q,V] float32, the updated state of each layer
                   with_candidates [1] bool -> candidate_ids [B,Q,K] int64, candidate_scores [B,Q,K] float32,
                                               log_normalizer [B,Q] float32
                   with_alignment [1] bool  -> alignment [B,Q,S] float32

The last two inputs are optional and false by default; without them their outputs are empty and cost nothing.
Candidates are the K most probable ids (the shape of the output says how many), best first, with their
log-probabilities. The log-probability of any id is its logit - log_normalizer: ids that are never generated have a
logit of -inf but keep their share of the probability, as in the model. Alignment is one decoder layer's attention
to the source, the mean of its heads. Bundles from before there were such inputs have neither; in those from
before log_normalizer the scores are log-probabilities among the ids that may be generated. Keys, values and cells
are float32, or float16 in a bundle of precision fp16; keys and values may be int8: the graphs' inputs say so.

The state is what a decoder layer knows of the `cache_lengths` tokens that a row has read before.
`Shape.decoder_layer` says of which kind it is:

    self-attention   self_key.i, self_value.i [B,H,T_max,D]
                     -> updated_self_key.i, updated_self_value.i [B,H,T_max,D]
    ssru             cell.i [B,E] -> updated_cell.i [B,E]

Caches: the outputs are the inputs with Q positions written behind `cache_lengths`; what lies there
before is never read. Bind each to the buffer of its input and the runtime writes in place; bound
elsewhere, it copies the whole cache. Cells: a row that has read nothing must have zeros, and no output
may share memory with its input. There is no T_max; `cache_lengths` only says where the tokens stand.

Decoders for CPUs may have updated_cross_key.i and updated_cross_value.i [B,H,S,D] besides, with the content of
their inputs: bind them in the same way. They take one new token per call, Q = 1, as the shape of input_ids says.
Such decoders and their encoders may have, from format 3 on,

    cross_last [B,2L,H*D] float32   the keys (row 2i) and values (row 2i + 1) of layer i at the last source position

which is an output of the encoder and an input of the decoder in every step, and keys and values of int8, in both:
round(value / scale) with a constant scale per channel that stands in the graphs. Nobody else needs to know it, and
cross_last is not rounded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dragoman.export import schema
from dragoman.export.errors import BundleError
from dragoman.model import tokenizers
from dragoman.model.folder_kinds import no_bundle
from dragoman.model.languages import Languages
from dragoman.model.limits import LENGTH_MARGIN, LENGTH_RATIO, default_max_new_tokens
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.vocab import SpecialIds

# 1: one SentencePiece model, one pair of languages. 2: any tokenizer, several languages. 3: a decoder that reads
# cross_last. What an older format can say is written in that, so that older servers go on reading it.
# manifest.schema.json has the details.
FORMAT_VERSIONS = schema.format_versions()
MANIFEST = "manifest.json"
ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
GRAPHS = (ENCODER, DECODER)

INPUT_IDS = "input_ids"
SOURCE_LENGTHS = "source_lengths"
CACHE_LENGTHS = "cache_lengths"
CROSS_LAST = "cross_last"
NEXT_IDS = "next_ids"
LOGITS = "logits"
WITH_CANDIDATES = "with_candidates"
CANDIDATE_IDS = "candidate_ids"
CANDIDATE_SCORES = "candidate_scores"
LOG_NORMALIZER = "log_normalizer"
WITH_ALIGNMENT = "with_alignment"
ALIGNMENT = "alignment"
# Optional inputs of the decoder and the outputs that they ask for.
ON_REQUEST = {WITH_CANDIDATES: (CANDIDATE_IDS, CANDIDATE_SCORES, LOG_NORMALIZER), WITH_ALIGNMENT: (ALIGNMENT,)}

SELF_ATTENTION = "self-attention"
SSRU = "ssru"
_SELF_CONTAINED = "outside the bundle, which would be lost with the next copy; put the file itself there (cp -L)"
_STATE_TENSORS = {SELF_ATTENTION: ("self_key", "self_value"), SSRU: ("cell",)}


def cross_names(layer: int) -> tuple[str, str]:
    """Return the names of a layer's cross-attention key and value."""
    return f"cross_key.{layer}", f"cross_value.{layer}"


def updated_cross_names(layer: int) -> tuple[str, str]:
    """Return the names of the outputs that some decoders have for a layer's cross-attention key and value."""
    key, value = cross_names(layer)
    return f"updated_{key}", f"updated_{value}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the graphs can take, in tokens with EOS, and the default limit on new tokens.

    Attributes:
        max_source_tokens: Longest source.
        max_target_tokens: Longest target; also the largest T_max that is ever needed.
        length_ratio: A translation may by default have this many tokens per source token ...
        length_margin: ... plus this many.
    """

    max_source_tokens: int
    max_target_tokens: int
    length_ratio: float = LENGTH_RATIO
    length_margin: int = LENGTH_MARGIN

    def default_max_new_tokens(self, source_tokens: int) -> int:
        """Return the default limit for a source of `source_tokens` tokens, EOS included."""
        return default_max_new_tokens(
            source_tokens, self.max_target_tokens, ratio=self.length_ratio, margin=self.length_margin
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that the server needs to allocate its buffers.

    Attributes:
        vocab_size: V.
        num_heads: H, heads of keys and values, which may be fewer than those of queries.
        head_dim: D.
        num_decoder_layers: Each has keys and values of the source, and a state.
        decoder_layer: Kind of the state, `SELF_ATTENTION` or `SSRU`.
        cell_width: E; 0 without cells.
    """

    vocab_size: int
    num_heads: int
    head_dim: int
    num_decoder_layers: int
    decoder_layer: str = SELF_ATTENTION
    cell_width: int = 0

    def __post_init__(self) -> None:
        """Check what decides about the state.

        Raises:
            ValueError: The kind of layer is not known, or has no width.
        """
        if self.decoder_layer not in _STATE_TENSORS:
            raise ValueError(f"decoder_layer is {self.decoder_layer!r}; this version knows {', '.join(_STATE_TENSORS)}")
        if self.decoder_layer == SSRU and self.cell_width < 1:
            raise ValueError(f"cell_width is {self.cell_width}; an {SSRU} layer needs 1 or more")

    def state_names(self, layer: int) -> tuple[str, ...]:
        """Return the names of a layer's state inputs."""
        return tuple(f"{tensor}.{layer}" for tensor in _STATE_TENSORS[self.decoder_layer])

    def updated_state_names(self, layer: int) -> tuple[str, ...]:
        """Return the names of a layer's state outputs, in the order of `state_names`."""
        return tuple(f"updated_{name}" for name in self.state_names(layer))

    def state_size(self, rows: int, positions: int) -> tuple[int, ...]:
        """Return the size of each state tensor of `rows` rows that may read `positions` tokens."""
        if self.decoder_layer == SSRU:
            return rows, self.cell_width
        return rows, self.num_heads, positions, self.head_dim


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of manifest.json.

    Attributes:
        name: Of the model, as callers give it.
        source_language: BCP-47 tag; of a model of several languages, what callers get who name none, or "".
        target_language: BCP-47 tag, likewise.
        precision: A key of `precision.DEVICES` in the exporter.
        devices: Device kinds the graphs are meant for, "cpu" or "cuda".
        special: Token ids with a meaning.
        limits: What the graphs can take.
        shape: Buffer sizes.
        model: The model's configuration, for people and tools.
        tools: Versions of what wrote the bundle.
        verification: Numbers of the last verification; empty if there was none.
        sha256: Of each file.
        tokenizer: Kind, files and settings as `describe_tokenizer` gives them; empty for SentencePiece.
        several: Of a model of several languages; None for one pair.
        cross_last: The decoder reads `CROSS_LAST`.
    """

    name: str
    source_language: str
    target_language: str
    precision: str
    devices: tuple[str, ...]
    special: SpecialIds
    limits: Limits
    shape: Shape
    model: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    several: Languages | None = None
    cross_last: bool = False

    @property
    def format_version(self) -> int:
        """The oldest format that can say all this."""
        if self.cross_last:
            return 3
        return 2 if self.tokenizer or self.several is not None or self.special.suppressed else 1

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files besides the manifest: graphs, tokenizer, and what else has a hash, such as weights."""
        named = (*GRAPHS, *tokenizers.tokenizer_file_names(self.tokenizer))
        return (*named, *sorted(set(self.sha256) - set(named)))

    @property
    def languages(self) -> Languages:
        """All languages, also of a model of one pair."""
        return self.several or Languages.pair(self.source_language, self.target_language)

    @property
    def version(self) -> str:
        """Content hash: equal versions have equal graphs and tokenizer."""
        joined = "\n".join(f"{name} {self.sha256[name]}" for name in sorted(self.sha256))
        return hashlib.sha256(joined.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of manifest.json, in the oldest format that can say it."""
        content = {**asdict(self), "special": self.special.to_dict(), "format_version": self.format_version}
        content["several"] = self.several.to_dict() if self.several is not None else None
        if self.format_version < 3:
            del content["cross_last"]
        if self.format_version == 1:
            del content["tokenizer"], content["several"]
        if self.shape.decoder_layer == SELF_ATTENTION:
            # Servers from before there were two kinds refuse fields that they do not know.
            del content["shape"]["decoder_layer"], content["shape"]["cell_width"]
        content["devices"] = list(self.devices)
        if "suppressed" in content["special"]:
            content["special"]["suppressed"] = list(self.special.suppressed)
        return content

    def write(self, folder: Path) -> None:
        """Write manifest.json into `folder`.

        Raises:
            BundleError: Nobody could read it; names every field that is wrong.
        """
        content = self.to_dict()
        if problems := schema.problems(content):
            raise BundleError(f"cannot write {folder / MANIFEST}: {'; '.join(problems)}")
        (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def is_bundle(folder: Path) -> bool:
    """Whether a folder holds a bundle and nothing besides, so that replacing it loses nothing else."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    try:
        listed = set(json.loads((folder / MANIFEST).read_text("utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        listed = {*GRAPHS, *tokenizers.tokenizer_file_names({})}
    return set(GRAPHS) <= names <= {MANIFEST, *listed}


def file_sha256(path: Path) -> str:
    """Return the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_manifest(folder: Path) -> None:
    """Refuse what is no bundle at all, at no cost.

    Raises:
        BundleError: Says what it is instead, and which command makes a bundle of it, where there is one.
    """
    if not folder.exists():
        raise BundleError(f"{folder} is not a bundle: there is no such folder")
    if not (folder / MANIFEST).exists():
        raise BundleError(f"{folder} is not a bundle: it {no_bundle(folder)}")


def load_manifest(folder: Path) -> Manifest:
    """Read and check a bundle's manifest and the hash of every file.

    Raises:
        BundleError: Names everything that is wrong.
    """
    require_manifest(folder)
    manifest = _read_manifest(folder)
    problems = [problem for name in manifest.files if (problem := _file_problem(folder, name, manifest.sha256[name]))]
    if problems:
        raise BundleError(
            f"{folder}: {'; '.join(problems)}. Copy the bundle again from where it is whole, or export it again"
        )
    return manifest


def require_unchanged(folder: Path, manifest: Manifest) -> None:
    """Check that a folder still holds the bundle whose manifest was read before its other files.

    An export replaces a folder in one step. What was loaded by name while that happened would be parts of two bundles.

    Raises:
        BundleError: It holds another one.
    """
    if _read_manifest(folder) != manifest:
        raise BundleError(f"{folder} was replaced while it was being loaded; load it again")


def load_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """Load the tokenizer of a bundle whose manifest was read.

    Raises:
        BundleError: It is none, or belongs to another model.
    """
    try:
        tokenizer = tokenizers.load_tokenizer(folder, manifest.tokenizer, manifest.special)
    except ValueError as error:
        raise BundleError(str(error)) from error
    if tokenizer.vocab_size != manifest.shape.vocab_size:
        raise BundleError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, the graphs {manifest.shape.vocab_size}; "
            "the bundle is put together from different models, export it again"
        )
    return tokenizer


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if (outside := _outside(folder, path)) is not None:
        raise BundleError(f"{path} is a link to {outside}, {_SELF_CONTAINED}")
    try:
        content = schema.parse(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder} is not a bundle: cannot read {MANIFEST}: {error}") from error
    found = content.get("format_version") if isinstance(content, dict) else None
    if type(found) is not int or found not in FORMAT_VERSIONS:
        raise BundleError(
            f"{folder} has bundle format {found}; this version reads {', '.join(map(str, FORMAT_VERSIONS))}. "
            "Use the version of Dragoman that wrote it or a newer one, or export it again with this one"
        )
    if problems := schema.problems(content):
        raise BundleError(
            f"{path} cannot be used: {'; '.join(problems)}. Export the bundle again, or use the version that wrote it"
        )
    return _manifest_from(content)


def _file_problem(folder: Path, name: str, sha256: str) -> str | None:
    path = folder / name
    if (outside := _outside(folder, path)) is not None:
        return f"{name} is a link to {outside}, {_SELF_CONTAINED}"
    if not path.is_file():
        return f"{name} is no file" if path.exists() else f"{name} is missing"
    try:
        found = file_sha256(path)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if found != sha256:
        return f"{name} does not have the sha256 that the manifest names; the file is damaged or replaced"
    return None


def _outside(folder: Path, path: Path) -> Path | None:
    """Return where a link leads that leaves the folder, or None."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a link to itself: as good as missing
        return None
    return None if target.is_relative_to(folder.resolve()) else target


def _manifest_from(content: dict[str, Any]) -> Manifest:
    known = {f.name for f in fields(Manifest)}
    values = {name: value for name, value in content.items() if name in known}
    return Manifest(
        **{
            **values,
            "devices": tuple(content["devices"]),
            "special": SpecialIds.from_dict(content["special"]),
            "limits": Limits(**content["limits"]),
            "shape": Shape(**content["shape"]),
            "several": Languages.from_dict(content["several"]) if content.get("several") else None,
        }
    )
