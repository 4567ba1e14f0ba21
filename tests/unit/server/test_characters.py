import pytest

from dragoman.server.characters import PER_TOKEN, check_characters, is_blank
from dragoman.server.errors import InvalidArgument

LONG = 100_000  # several of the parts that are looked at


@pytest.mark.parametrize("text", ["a", ".", "\u0301", "\U0001f600", "\ue000", "\U000e01ef", "\u200bone", "\U00031350"])
def test_characters_are_not_blank(text: str) -> None:
    """Also those that this Python's Unicode tables do not know, and wherever they stand."""
    assert not is_blank(text)
    assert not is_blank(" " * LONG + text)
    assert not is_blank(text + "\u200b" * LONG)


@pytest.mark.parametrize("text", ["", " ", "\n", "\x00", "\u200b", "\u00a0\t", "\ufeff \u2028"])
def test_white_space_control_and_format_characters_are(text: str) -> None:
    """However many there are."""
    assert is_blank(text)
    assert is_blank(text * LONG)


@pytest.mark.parametrize("between", ["", " ", "\n\u200b", " " * LONG])
def test_the_limit_itself_is_allowed_and_one_more_is_not(between: str) -> None:
    """Counted is what is not blank, wherever it stands."""
    largest = 3 * PER_TOKEN
    check_characters(between + "x" * (largest - 1) + between + "y" + between, "text", 3, "shorten it")
    text = between + "x" * largest + between + "y"
    with pytest.raises(InvalidArgument) as caught:
        check_characters(text, "text", 3, "shorten it")

    problem = f"{len(text)} characters, the limit is 300, white space not counted; shorten it"
    assert (caught.value.field, caught.value.problem) == ("text", problem)
