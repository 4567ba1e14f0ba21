"""Texts to tokens: every check that needs no engine. Raises InvalidArgument naming the field."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server.characters import check_characters, is_blank
from dragoman.server.decoding import Decoding
from dragoman.server.errors import InvalidArgument, ModelNotFound
from dragoman.server.suppression import target_ids

PLAIN_TEXT = "text/plain"
_SHOWN = 40
_SHOWN_LANGUAGES = 12
_SPLIT = "split the text, for example at sentences"


@dataclass(frozen=True, slots=True)
class Text:
    """A text as it was sent, and what its fields are called in an error.

    Attributes:
        text: To be translated.
        field: Its name.
        prefix: What the translation begins with; empty for nothing.
        prefix_field: Its name.
    """

    text: str
    field: str
    prefix: str = ""
    prefix_field: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A text ready for the engine.

    Attributes:
        ids: Its tokens and those that name the languages; empty for a blank text, which is never sent on.
        max_new_tokens: Limit on new target tokens.
        tokens: As reported to callers: neither EOS nor language tokens are counted.
        first_target: Tokens that the target begins with and that are no part of the text.
        prefix: Tokens that the text begins with, behind those.
        own: Where in `ids` the text's own tokens begin; there are `tokens` of them.
        field: What the text is called in an error.
    """

    ids: Sequence[int]
    max_new_tokens: int
    tokens: int
    first_target: Sequence[int] = ()
    prefix: Sequence[int] = ()
    own: int = 0
    field: str = "text"

    @property
    def forced(self) -> tuple[int, ...]:
        """All tokens that the target begins with."""
        return (*self.first_target, *self.prefix)


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
    # No more of it can match, and each try copies what is left: a tag of megabytes would hold up everybody.
    wanted = given[: 1 + max(map(len, own))].lower()
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


def check_prefixes(prefixes: Sequence[str], num_texts: int) -> None:
    """Refuse a list that does not say which text a prefix belongs to."""
    if prefixes and len(prefixes) != num_texts:
        raise InvalidArgument(
            "target_prefixes",
            f'{len(prefixes)} were sent with {num_texts} texts; send none, or one per text, "" where there is none',
        )


def tokenize(
    texts: Sequence[Text], decoding: Decoding, tokenizer: Tokenizer, manifest: Manifest, languages: tuple[str, str]
) -> list[Source]:
    """Return the tokens of each text.

    Args:
        texts: As sent.
        decoding: Options of the call.
        tokenizer: Of the bundle.
        manifest: Of the bundle.
        languages: What `choose_languages` returned.

    Raises:
        InvalidArgument: A text or a prefix is too long, a prefix cannot be written, or a limit on new tokens does
            not go together with the texts.
    """
    limits = manifest.limits
    first = manifest.languages.first_target(languages[1])
    sources = []
    for text in texts:
        framed, tokens, own = encode(text.text, text.field, tokenizer, manifest, languages)
        if not tokens:
            sources.append(Source((), limits.max_target_tokens - len(first), 0, field=text.field))
            continue
        prefix = _prefix(text, tokenizer, limits.max_target_tokens - len(first))
        room = limits.max_target_tokens - len(first) - len(prefix)
        default = min(room, limits.default_max_new_tokens(tokens + tokenizer.added_ids))
        limit = decoding.limit(tokens, default, room, text.field)
        sources.append(Source(framed, limit, tokens, first, prefix, own, text.field))
    return sources


def encode(
    text: str, field: str, tokenizer: Tokenizer, manifest: Manifest, languages: tuple[str, str]
) -> tuple[Sequence[int], int, int]:
    """Return the ids of a source with what is around them, how many are the text's own, and where they begin.

    A blank text, or one of nothing but characters that the tokenizer drops, has none.

    Raises:
        InvalidArgument: The text is too long.
    """
    if is_blank(text):
        return (), 0, 0
    limit = manifest.limits.max_source_tokens
    check_characters(text, field, limit, _SPLIT)
    ids = tokenizer.encode(text)
    tokens = max(0, len(ids) - tokenizer.added_ids)
    if not tokens:
        return (), 0, 0
    framed = manifest.languages.frame(ids, *languages)
    if len(framed) > limit:
        raise InvalidArgument(field, f"{tokens} tokens, the limit is {limit - len(framed) + tokens}; {_SPLIT}")
    source, target = manifest.languages.sources[languages[0]], manifest.languages.targets[languages[1]]
    in_front = tokenizer.added_ids - len(tokenizer.encode(""))  # of blank text comes what stands behind alone
    return framed, tokens, len(target.before_source) + len(source.before_source) + in_front


def _prefix(text: Text, tokenizer: Tokenizer, room: int) -> list[int]:
    check_characters(text.prefix, text.prefix_field, room, "shorten it")
    ids = target_ids(tokenizer, text.prefix) if text.prefix else []
    if tokenizer.special.unk in ids:
        raise InvalidArgument(
            text.prefix_field, f"{_show(text.prefix)} has characters that the model cannot write; leave them out"
        )
    if len(ids) >= room:
        raise InvalidArgument(text.prefix_field, f"{len(ids)} tokens, the limit is {room - 1}; shorten it")
    return ids


def _show(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
