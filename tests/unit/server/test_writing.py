"""Stop sequences and prefixes: text in pieces equals text in one, whatever is written beyond the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.export import bundle
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer, Tokenizer
from dragoman.model.vocab import SpecialIds
from dragoman.server.suppression import target_ids
from dragoman.server.writing import StopMatcher, Writer, write

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
TOKENIZER = bundle.load_tokenizer(BUNDLE, bundle.load_manifest(BUNDLE))
# What takes several tokens of a byte-fallback vocabulary: none of these is in the tiny one.
TEXTS = [
    "今天天气很好，我们去公园吧。",
    "吾輩は猫である。名前はまだ無い。",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈, 👍🏽!",
    "e\u0301a\u0308 क्षि Z\u0351\u036b\u0343 naïve",
    "one hundred",
    "",
]
STOPS = ["。", "気", "👧", "\u200d", "\u0301", "hund", "ndr", "!", " ", "は猫", "名前はま", "🏽"]


def ids_of(text: str) -> list[int]:
    return target_ids(TOKENIZER, text)


def stream(prefix: str, ids: list[int], stops: list[str], tokenizer: Tokenizer = TOKENIZER) -> tuple[str, Writer]:
    """Return what is streamed and the writer that did it; no piece may be a broken character."""
    writer = Writer(tokenizer, target_ids(tokenizer, prefix), stops)
    pieces = [writer.prefix, *map(writer.push, ids), writer.finish()]
    for piece in pieces:
        piece.encode()
    return "".join(pieces), writer


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stop", STOPS)
def test_a_text_ends_before_the_first_stop_sequence(text: str, stop: str) -> None:
    """Streamed and whole; without one it is whole."""
    ids = ids_of(text)
    written = write(TOKENIZER, (), ids, [stop])
    streamed, writer = stream("", ids, [stop])
    whole = TOKENIZER.decode(ids)

    assert written.text == streamed == whole.split(stop)[0]
    assert written.stopped == writer.stopped == (stop in whole)
    assert written.tokens == writer.tokens


@given(
    st.lists(st.sampled_from([i for text in TEXTS for i in ids_of(text)]), max_size=40),
    st.lists(st.sampled_from(STOPS), max_size=4),
    st.sampled_from(TEXTS),
)
def test_streamed_equals_whole_for_any_tokens(ids: list[int], stops: list[str], prefix: str) -> None:
    """Broken characters included, which become U+FFFD in both; pieces join to the text behind the prefix."""
    written = write(TOKENIZER, ids_of(prefix), ids, stops)
    streamed, writer = stream(prefix, ids, stops)

    assert streamed == written.text == writer.prefix + "".join(written.pieces)
    assert (writer.stopped, writer.tokens) == (written.stopped, written.tokens)
    assert not any(stop in streamed[len(writer.prefix) :] for stop in stops)


@given(st.integers(0, 30), st.sampled_from(TEXTS), st.lists(st.sampled_from(STOPS), min_size=1, max_size=3))
def test_what_is_made_beyond_the_end_changes_nothing(beyond: int, text: str, stops: list[str]) -> None:
    """The engine learns late that it may stop; text and number of tokens do not depend on how late."""
    ids = ids_of(f"{text}。気👧\u200d\u0301hundred! は猫名前はま🏽")
    needed = write(TOKENIZER, (), ids, stops)
    assert needed.stopped

    late = write(TOKENIZER, (), [*ids[: needed.tokens], *ids_of(TEXTS[0])[:beyond]], stops)

    assert late == needed


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4))
def test_the_chunks_of_a_text_do_not_matter(text: str, stops: list[str]) -> None:
    """Few letters make overlapping sequences; letter by letter gives what one push gives."""
    whole, letters = StopMatcher(stops), StopMatcher(stops)
    at_once = whole.push(text) + whole.finish()
    one_by_one = "".join(map(letters.push, text)) + letters.finish()

    assert at_once == one_by_one
    assert whole.stopped == letters.stopped == any(stop in text for stop in stops)
    assert not any(stop in at_once for stop in stops)
    assert text.startswith(at_once)


def test_a_possible_beginning_is_held_back_and_given_when_it_is_none() -> None:
    """No longer than needed."""
    matcher = StopMatcher(["</b>"])

    assert [matcher.push(text) for text in ("a<", "/", "b", "c<", "</b", "> more")] == ["a", "", "", "</bc", "<", ""]
    assert matcher.stopped
    assert matcher.finish() == ""


def test_the_sequence_that_is_complete_first_wins() -> None:
    """Not the one that begins first: that is not known before its end."""
    assert StopMatcher(["abcd", "c"]).push("xabcd") == "xab"
    assert StopMatcher(["bc", "abc"]).push("xabc") == "x"


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_prefix_and_continuation_are_joined_as_one_text(text: str) -> None:
    """Wherever the tokens are cut: within a word, or within a character."""
    ids = ids_of(text)
    for cut in range(len(ids) + 1):
        written = write(TOKENIZER, ids[:cut], ids[cut:], ())

        assert written.text == TOKENIZER.decode(ids)
        assert written.text.endswith("".join(written.pieces))
    assert write(TOKENIZER, ids_of(" one "), ids_of("two"), ()).text == "one two"


def test_a_prefix_is_not_searched_for_stop_sequences() -> None:
    """It was given; what follows it ends at the first one."""
    assert write(TOKENIZER, ids_of("one. two."), ids_of("three. four"), ["."]).text == "one. two. three"
    assert stream("one. two.", ids_of("three. four"), ["."])[0] == "one. two. three"


def test_words_get_their_spaces_from_the_tokenizer() -> None:
    """Not every tokenizer's pieces carry their own."""
    words = SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "eins@@", "zwei", "drei"), "words", unk=1, joiner="@@")
    tokenizer = SymbolTokenizer(words, SpecialIds())

    written = write(tokenizer, [4], [5, 6, 5], ["drei"])
    streamed, writer = stream("", [4, 5, 6, 5], ["drei"], tokenizer)

    assert written.text == streamed == "einszwei "
    assert (written.pieces, written.tokens, writer.tokens) == (("zwei", " "), 2, 3)
