from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import decoding, scoring, validate
from dragoman.server.decoding import Allowed, Decoding
from dragoman.server.errors import InvalidArgument, ModelNotFound
from dragoman.server.validate import Source, Text
from dragoman.v1 import translation_pb2 as pb

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return bundle.load_manifest(BUNDLE)


@pytest.fixture(scope="module")
def tokenizer(manifest: Manifest) -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, manifest)


def options(**values: Any) -> Decoding:
    allowed = Allowed("tiny", vocab_size=400, max_target_tokens=128, slots=8, can_align=True)
    return decoding.read(pb.DecodingOptions(**values), allowed)


def tokenize(
    tokenizer: Tokenizer, manifest: Manifest, *texts: str, prefixes: tuple[str, ...] = (), max_new_tokens: int = 0
) -> list[Source]:
    given = [
        Text(text, f"texts[{index}]", prefixes[index] if prefixes else "", f"target_prefixes[{index}]")
        for index, text in enumerate(texts)
    ]
    return validate.tokenize(given, options(max_new_tokens=max_new_tokens), tokenizer, manifest, ("en", "de"))


def text_of(tokenizer: Tokenizer, tokens: int) -> str:
    """Return a text of exactly so many tokens, EOS not included."""
    text = "one"
    while len(tokenizer.encode(text)) - 1 < tokens:
        text += " one" if len(tokenizer.encode(text + " one")) - 1 <= tokens else "."
    assert len(tokenizer.encode(text)) - 1 == tokens
    return text


@pytest.mark.parametrize("name", ["", "tiny"])
def test_the_models_name_and_none_are_accepted(manifest: Manifest, name: str) -> None:
    """Empty means the default model."""
    validate.check_model(name, manifest)


def test_another_model_is_not_found(manifest: Manifest) -> None:
    """The message names what was asked for and what is there."""
    with pytest.raises(ModelNotFound, match="'huge' is not loaded; this server has 'tiny'"):
        validate.check_model("huge", manifest)


def test_a_very_long_value_is_shown_in_part(manifest: Manifest) -> None:
    """A message stays readable, and small enough for a gRPC header, whatever was sent."""
    with pytest.raises(ModelNotFound) as caught:
        validate.check_model("x" * 100_000, manifest)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("pair", [("", ""), ("en", "de"), ("en-US", "de-AT"), ("EN", "De"), ("en-us", "")])
def test_the_models_languages_and_their_variants_are_accepted(manifest: Manifest, pair: tuple[str, str]) -> None:
    """Tags compare without case, and a variant is understood by a model of the language."""
    assert validate.choose_languages(*pair, manifest) == ("en", "de")


@pytest.mark.parametrize(
    ("source", "target", "field", "value"),
    [
        ("fr", "de", "source_language", "'fr'"),
        ("de", "en", "source_language", "'de'"),
        ("en", "fr", "target_language", "'fr'"),
        ("eng", "de", "source_language", "'eng'"),
        ("en", "d", "target_language", "'d'"),
    ],
)
def test_another_language_is_refused(manifest: Manifest, source: str, target: str, field: str, value: str) -> None:
    """The error names the field, the value and what the model does."""
    with pytest.raises(InvalidArgument) as caught:
        validate.choose_languages(source, target, manifest)

    assert caught.value.field == field
    assert f"{value} is not supported" in caught.value.problem
    assert "model 'tiny' has '" in caught.value.problem


def test_only_plain_text_is_accepted() -> None:
    """Markup would be translated as if it were text."""
    validate.check_mime_type("")
    validate.check_mime_type("text/plain")
    with pytest.raises(InvalidArgument, match="mime_type: 'text/html' is not supported; use 'text/plain'") as caught:
        validate.check_mime_type("text/html")

    assert caught.value.field == "mime_type"


def test_the_number_of_texts_is_limited() -> None:
    """None at all and too many are refused, with the count and the limit."""
    validate.check_texts(["one"] * 3, max_texts=3)
    with pytest.raises(InvalidArgument, match="texts: the list is empty"):
        validate.check_texts([], max_texts=3)
    with pytest.raises(InvalidArgument, match="texts: 4 texts were sent, the limit is 3") as caught:
        validate.check_texts(["one"] * 4, max_texts=3)

    assert caught.value.field == "texts"


def test_texts_become_tokens_in_their_order(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """Each text has its ids, EOS last, and its own default limit."""
    short, long = tokenize(tokenizer, manifest, "one", "one hundred twenty-three thousand four hundred fifty-six")

    assert short.ids == tokenizer.encode("one")
    assert short.ids[-1] == manifest.special.eos
    assert short.tokens == len(short.ids) - 1
    assert short.max_new_tokens == 2 * len(short.ids) + 16
    assert long.max_new_tokens == 2 * len(long.ids) + 16


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "\t\r\n", "\u200b", "\u00a0\u2003", "\x00", "\ufeff \u2028", "\u200b\n\u200d"]
)
def test_blank_texts_have_no_tokens(tokenizer: Tokenizer, manifest: Manifest, text: str) -> None:
    """White space, control and zero-width characters alone never reach the engine."""
    [source] = tokenize(tokenizer, manifest, text)

    assert list(source.ids) == []
    assert source.tokens == 0


@pytest.mark.parametrize(
    "text", ["</s>", "<s>", "<pad>", "<unk>", "\u2581", "__de__", "one</s>two", "a\u2581b", "one\x00two"]
)
def test_user_text_is_data(tokenizer: Tokenizer, manifest: Manifest, text: str) -> None:
    """What looks like a special token is plain characters: one EOS, at the end, and no other special id."""
    special = manifest.special

    [source] = tokenize(tokenizer, manifest, text)

    assert source.ids[-1] == special.eos
    assert not {special.pad, special.unk, special.start, special.eos} & set(source.ids[:-1])
    assert tokenizer.decode(source.ids[:-1]).replace("\x00", "") == text.replace("\x00", "")


def test_the_longest_text_is_accepted_and_one_token_more_is_not(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """The limit counts tokens without EOS, as the message and GetModel do."""
    [source] = tokenize(tokenizer, manifest, text_of(tokenizer, 127))
    with pytest.raises(InvalidArgument) as caught:
        tokenize(tokenizer, manifest, "one", text_of(tokenizer, 128))

    assert source.tokens == 127
    assert caught.value.field == "texts[1]"
    assert "128 tokens, the limit is 127" in caught.value.problem


@pytest.mark.parametrize("character", ["x", "x ", "\u00e4", "\U0001f600"])
def test_a_text_of_megabytes_is_not_tokenized(manifest: Manifest, character: str) -> None:
    """It would take a second to find out that it does not fit: nothing of it reaches the tokenizer."""
    nobody = cast(Tokenizer, None)
    text = character * 2_000_000
    [pair] = [pb.ScorePair(source="one", target=text)]
    with pytest.raises(InvalidArgument) as source:
        validate.tokenize([Text(text, "texts[0]")], options(), nobody, manifest, ("en", "de"))
    with pytest.raises(InvalidArgument) as prefix:
        validate._prefix(Text("one", "text", text, "target_prefix"), nobody, 128)
    with pytest.raises(InvalidArgument) as target:
        scoring.tokenize([pair], bundle.load_tokenizer(BUNDLE, manifest), manifest, ("en", "de"))

    problem = f"{len(text)} characters, the limit is 12800, white space not counted; "
    assert (source.value.field, source.value.problem) == (
        "texts[0]", problem + "split the text, for example at sentences",
    )  # fmt: skip
    assert (prefix.value.field, prefix.value.problem) == ("target_prefix", problem + "shorten it")
    assert (target.value.field, target.value.problem) == (
        "pairs[0].target", problem.replace("12800", "12700") + "split the pair, for example at sentences",
    )  # fmt: skip


def test_white_space_counts_for_nothing(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """A short text stays short between any number of blanks, and a blank one stays blank."""
    short, blank = tokenize(tokenizer, manifest, "one" + " \n" * 50_000 + "two", "\u200b \x00" * 50_000)

    assert list(short.ids) == tokenizer.encode("one two")
    assert list(blank.ids) == []


def test_a_language_tag_of_megabytes_is_refused_at_once(manifest: Manifest) -> None:
    """Only as much of it as can match is looked at; each part of it used to be tried, on the loop that serves all."""
    tag = "fr" + "-x" * 2_000_000
    with pytest.raises(InvalidArgument, match="'fr-x-x"):
        validate.choose_languages(tag, "de", manifest)

    assert validate.choose_languages(tag.replace("fr", "EN"), "de" + "-" * 2_000_000, manifest) == ("en", "de")
    assert validate.choose_languages("pt-BR" + tag[2:], "zh-Hans" + tag[2:], several(manifest))[1] == "zh-Hans"


def test_max_new_tokens_is_used_as_given_up_to_the_models_limit(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """0 means the default; the limit itself is allowed, and `decoding` refuses more."""
    [own] = tokenize(tokenizer, manifest, "one", max_new_tokens=5)
    [largest] = tokenize(tokenizer, manifest, "one", max_new_tokens=128)

    assert (own.max_new_tokens, largest.max_new_tokens) == (5, 128)


def several(manifest: Manifest, **changes: str) -> Manifest:
    """Return a manifest of a model of several languages."""
    languages = Languages(
        {tag: LanguageTokens(before_source=(20,)) for tag in ("en", "pt-BR")},
        {tag: LanguageTokens(first_target=(30,)) for tag in ("de", "fr", "zh-Hans")},
    )
    return replace(manifest, **{"several": languages, "source_language": "", "target_language": "", **changes})  # type: ignore[arg-type]  # mypy does not know which field is which


def test_a_model_of_several_languages_wants_to_be_told(manifest: Manifest) -> None:
    """An empty field is refused with what there is, unless the model has a default."""
    with pytest.raises(InvalidArgument, match="is empty, and the model has no default; model 'tiny' has 'en', 'pt-BR'"):
        validate.choose_languages("", "de", several(manifest))

    assert validate.choose_languages("", "FR", several(manifest, source_language="en")) == ("en", "fr")
    assert validate.choose_languages("pt-br", "zh-hans-CN", several(manifest)) == ("pt-BR", "zh-Hans")


def test_language_tokens_are_added_and_counted_by_nobody(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """The caller's limit on new tokens and the reported source tokens are about the text."""
    text = [Text("one", "text")]
    [plain] = validate.tokenize(text, options(max_new_tokens=2), tokenizer, manifest, ("en", "de"))
    [framed] = validate.tokenize(text, options(max_new_tokens=2), tokenizer, several(manifest), ("en", "de"))

    assert list(framed.ids) == [20, *plain.ids]
    assert (framed.tokens, framed.max_new_tokens, framed.first_target) == (plain.tokens, 2, (30,))
    assert framed.forced == (30,)
    for source in (plain, framed):
        assert tokenizer.decode(source.ids[source.own : source.own + source.tokens]) == "one"


def test_language_tokens_take_their_room(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """The longest source and the longest target become one token shorter, and the message says so."""
    limits = manifest.limits
    text = text_of(tokenizer, limits.max_source_tokens - 1)
    with pytest.raises(InvalidArgument, match=f"the limit is {limits.max_source_tokens - 2};"):
        validate.tokenize([Text(text, "text")], options(), tokenizer, several(manifest), ("en", "de"))
    largest = options(max_new_tokens=limits.max_target_tokens)
    with pytest.raises(InvalidArgument, match=f"more than the model's {limits.max_target_tokens - 1} for text;"):
        validate.tokenize([Text("one", "text")], largest, tokenizer, several(manifest), ("en", "de"))


def test_prefixes_are_none_or_one_per_text() -> None:
    """Anything else leaves open whose they are."""
    validate.check_prefixes([], 3)
    validate.check_prefixes(["", "a", ""], 3)
    with pytest.raises(InvalidArgument, match="target_prefixes: 2 were sent with 3 texts; send none, or one per text"):
        validate.check_prefixes(["a", "b"], 3)


def test_a_prefix_begins_the_target_and_takes_its_room(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """Behind the language's tokens; the limit on new tokens does not count it."""
    prefix = tokenizer.encode("zwei und")[:-1]
    [with_prefix] = tokenize(tokenizer, manifest, "one", prefixes=("zwei und",), max_new_tokens=5)
    [without] = tokenize(tokenizer, manifest, "one", prefixes=("",))
    with pytest.raises(InvalidArgument, match=f"128 is more than the model's {128 - len(prefix)} for"):
        tokenize(tokenizer, manifest, "one", prefixes=("zwei und",), max_new_tokens=128)

    assert (list(with_prefix.prefix), with_prefix.max_new_tokens) == (prefix, 5)
    assert with_prefix.forced == tuple(prefix)
    assert list(without.prefix) == []


def test_a_prefix_that_leaves_no_room_is_refused(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """One token has to be left for what follows."""
    [longest] = tokenize(tokenizer, manifest, "one", prefixes=(text_of(tokenizer, 127),))
    with pytest.raises(InvalidArgument, match="128 tokens, the limit is 127") as caught:
        tokenize(tokenizer, manifest, "one", "one", prefixes=("", text_of(tokenizer, 128)))

    assert longest.max_new_tokens == 1
    assert caught.value.field == "target_prefixes[1]"


def test_a_prefix_that_the_model_cannot_write_is_refused() -> None:
    """Without byte fallback a character may be unknown; dropping it would change what the caller gave."""
    folder = BUNDLE.parent / "tiny-v2"
    manifest = bundle.load_manifest(folder)
    tokenizer = bundle.load_tokenizer(folder, manifest)
    with pytest.raises(InvalidArgument, match="has characters that the model cannot write") as caught:
        validate.tokenize(
            [Text("one", "text", "\U0001f600", "target_prefix")], options(), tokenizer, manifest, ("en", "de")
        )

    assert caught.value.field == "target_prefix"


def test_a_blank_text_needs_no_prefix(tokenizer: Tokenizer, manifest: Manifest) -> None:
    """Its translation is blank, so a prefix for all lines of a file does no harm."""
    [blank] = tokenize(tokenizer, manifest, " ", prefixes=("zwei",))

    assert list(blank.ids) == []
