"""Requests to rows: every check that needs no engine. Raises InvalidArgument naming the field."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server.errors import InvalidArgument, ModelNotFound
from dragoman.v1 import translation_pb2 as pb

PLAIN_TEXT = "text/plain"
_SHOWN = 40
_SHOWN_LANGUAGES = 12
# Control and format characters, spaces and separators. Not str.isprintable: it is false for private
# use and for characters newer than this Python, which are text.
_BLANK = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Source:
    """A text ready for the engine.

    Attributes:
        ids: Its tokens and those that name the languages; empty for a blank text, which is never sent on.
        max_new_tokens: Limit on new target tokens.
        tokens: As reported to callers: neither EOS nor language tokens are counted.
        first_target: Tokens that the target begins with.
    """

    ids: Sequence[int]
    max_new_tokens: int
    tokens: int
    first_target: Sequence[int] = ()


def check_model(name: str, manifest: Manifest) -> None:
    """Refuse a model that is not loaded.

    Raises:
        ModelNotFound: Names what is.
    """
    if name not in ("", manifest.name):
        raise ModelNotFound(f"model {_show(name)} is not loaded; this server has {manifest.name!r}")


def choose_languages(source: str, target: str, manifest: Manifest) -> tuple[str, str]:
    """Return the model's own tags for a language pair. Empty means the model's default.

    "en-GB" is accepted by a model for "en", but not the other way round.

    Raises:
        InvalidArgument: The model was not made for a language, or has several and none was chosen.
    """
    languages = manifest.languages
    return (
        _choose("source_language", source, manifest.source_language, languages.sources, manifest.name),
        _choose("target_language", target, manifest.target_language, languages.targets, manifest.name),
    )


def _choose(field: str, given: str, default: str, offered: Collection[str], model: str) -> str:
    if not given and default:
        return default
    own = {tag.lower(): tag for tag in offered}
    wanted = given.lower()
    while wanted and wanted not in own:
        wanted = wanted.rpartition("-")[0]
    if wanted:
        return own[wanted]
    listing = ", ".join(map(repr, sorted(offered)[:_SHOWN_LANGUAGES]))
    if len(offered) > _SHOWN_LANGUAGES:
        listing += f" and {len(offered) - _SHOWN_LANGUAGES} more"
    problem = f"{_show(given)} is not supported" if given else "is empty, and the model has no default"
    raise InvalidArgument(field, f"{problem}; model {model!r} has {listing}")


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
    texts: Sequence[str],
    fields: Sequence[str],
    options: pb.DecodingOptions,
    tokenizer: Tokenizer,
    manifest: Manifest,
    languages: tuple[str, str],
) -> list[Source]:
    """Return the tokens of each text.

    Args:
        texts: As sent.
        fields: What to call each text in an error.
        options: Of the call.
        tokenizer: Of the bundle.
        manifest: Of the bundle.
        languages: What `choose_languages` returned.

    Raises:
        InvalidArgument: A text is too long, or an option is out of range.
    """
    limits = manifest.limits
    first = manifest.languages.first_target(languages[1])
    room = limits.max_target_tokens - len(first)
    asked = options.max_new_tokens
    if asked > room:
        raise InvalidArgument(
            "options.max_new_tokens", f"{asked} is more than the model's {room}; ask for less, or 0 for the default"
        )
    sources = []
    for text, field in zip(texts, fields, strict=True):
        ids = [] if is_blank(text) else tokenizer.encode(text)
        tokens = max(0, len(ids) - tokenizer.added_ids)
        if not tokens:
            sources.append(Source((), room, 0))  # blank, or nothing but characters that the tokenizer drops
            continue
        framed = manifest.languages.frame(ids, *languages)
        if len(framed) > limits.max_source_tokens:
            raise InvalidArgument(
                field,
                f"{tokens} tokens, the limit is {limits.max_source_tokens - len(framed) + tokens}; "
                "split the text, for example at sentences",
            )
        limit = asked or min(room, limits.default_max_new_tokens(len(ids)))
        sources.append(Source(framed, limit, tokens, first))
    return sources


def is_blank(text: str) -> bool:
    """Whether a text has nothing to translate: only white space, control and zero-width characters."""
    return all(unicodedata.category(character) in _BLANK for character in text)


def _show(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
