"""Requests to rows: every check that needs no engine. Raises InvalidArgument naming the field."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizer import Tokenizer
from dragoman.server.errors import InvalidArgument, ModelNotFound
from dragoman.v1 import translation_pb2 as pb

PLAIN_TEXT = "text/plain"
_SHOWN = 40
# Control and format characters, spaces and separators. Not str.isprintable: it is false for private
# use and for characters newer than this Python, which are text.
_BLANK = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Source:
    """A text's tokens; `ids` is empty for a blank text, which is never sent to the engine."""

    ids: Sequence[int]
    max_new_tokens: int

    @property
    def tokens(self) -> int:
        """Source tokens as reported to callers: EOS is not counted."""
        return max(0, len(self.ids) - 1)


def check_model(name: str, manifest: Manifest) -> None:
    """Refuse a model that is not loaded.

    Raises:
        ModelNotFound: Names what is.
    """
    if name not in ("", manifest.name):
        raise ModelNotFound(f"model {_show(name)} is not loaded; this server has {manifest.name!r}")


def check_languages(source: str, target: str, manifest: Manifest) -> None:
    """Refuse a language pair the model was not made for. Empty means the model's own.

    "en-GB" is accepted by a model for "en", but not the other way round.
    """
    offered = (manifest.source_language, manifest.target_language)
    for field, given, own in (
        ("source_language", source, offered[0]),
        ("target_language", target, offered[1]),
    ):
        if given and not (given.lower() == own.lower() or given.lower().startswith(own.lower() + "-")):
            raise InvalidArgument(
                field,
                f"{_show(given)} is not supported; model {manifest.name!r} translates {offered[0]!r} to {offered[1]!r}",
            )


def check_mime_type(mime_type: str) -> None:
    """Refuse markup: it would be translated as if it were text."""
    if mime_type not in ("", PLAIN_TEXT):
        raise InvalidArgument("mime_type", f"{_show(mime_type)} is not supported; use {PLAIN_TEXT!r} or leave it empty")


def check_texts(texts: Sequence[str], max_texts: int) -> None:
    """Refuse an empty or too long list."""
    if not texts:
        raise InvalidArgument("texts", "the list is empty; send at least one text")
    if len(texts) > max_texts:
        raise InvalidArgument("texts", f"{len(texts)} texts were sent, the limit is {max_texts}; split the call")


def tokenize(
    texts: Sequence[str], fields: Sequence[str], options: pb.DecodingOptions, tokenizer: Tokenizer, manifest: Manifest
) -> list[Source]:
    """Return the tokens of each text.

    Args:
        texts: As sent.
        fields: What to call each text in an error.
        options: Of the call.
        tokenizer: Of the bundle.
        manifest: Of the bundle.

    Raises:
        InvalidArgument: A text is too long, or an option is out of range.
    """
    limits = manifest.limits
    asked = options.max_new_tokens
    if asked > limits.max_target_tokens:
        raise InvalidArgument(
            "options.max_new_tokens",
            f"{asked} is more than the model's {limits.max_target_tokens}; ask for less, or 0 for the default",
        )
    sources = []
    for text, field in zip(texts, fields, strict=True):
        ids = [] if is_blank(text) else tokenizer.encode(text)
        if len(ids) == 1:
            ids = []  # nothing but EOS: only characters that the tokenizer drops
        if len(ids) > limits.max_source_tokens:
            raise InvalidArgument(
                field,
                f"{len(ids) - 1} tokens, the limit is {limits.max_source_tokens - 1}; "
                "split the text, for example at sentences",
            )
        sources.append(Source(ids, asked or limits.default_max_new_tokens(len(ids))))
    return sources


def is_blank(text: str) -> bool:
    """Whether a text has nothing to translate: only white space, control and zero-width characters."""
    return all(unicodedata.category(character) in _BLANK for character in text)


def _show(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
