"""The vocabulary of a new run, made from its training pairs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from dragoman.model.errors import ConfigError, DataError, ModelError
from dragoman.model.readers import Pair
from dragoman.model.recipe import TokenizerConfig
from dragoman.model.tokenizers import Tokenizer, train_tokenizer

_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_LARGE = re.compile(r"Vocabulary size too high .*<= (\d+)")
_NO_TEXT = re.compile(r"sentences_\.empty|all_chars_count")


def train_vocabulary(pairs: Iterable[Pair], config: TokenizerConfig) -> Tokenizer:
    """Learn a joint vocabulary from the first pairs.

    Raises:
        ConfigError: The text does not give a vocabulary of this size; names the sizes it gives.
        DataError: There is no text. What reading the pairs raises goes through, too.
        ModelError: SentencePiece refused for another reason.
    """
    interruption: BaseException | None = None

    def texts() -> Iterator[str]:
        # SentencePiece turns whatever is raised in here into a RuntimeError of its own, Ctrl-C included.
        nonlocal interruption
        try:
            for pair in itertools.islice(pairs, config.sample_pairs):
                yield pair.source
                yield pair.target
        except GeneratorExit:
            raise
        except BaseException as error:
            interruption = error
            raise

    try:
        return train_tokenizer(
            texts(), config.vocab_size, split_digits=config.split_digits, user_symbols=config.user_symbols
        )
    except RuntimeError as error:
        if interruption is not None:
            raise interruption from None
        raise _explained(str(error), config) from error


def _explained(message: str, config: TokenizerConfig) -> ModelError:
    """Return SentencePiece's error in words of the recipe."""
    given = f"tokenizer configuration: vocab_size is {config.vocab_size}"
    if found := _TOO_SMALL.search(message):
        return ConfigError(
            f"{given}; this data needs at least {found[1]}: a piece for each of its characters, "
            "each of 256 bytes, each user symbol and the special tokens"
        )
    if found := _TOO_LARGE.search(message):
        return ConfigError(f"{given}; this data gives at most {found[1]} pieces. Lower vocab_size, or add text")
    if _NO_TEXT.search(message):
        return DataError("the training pairs have no text to make a vocabulary of")
    return ModelError(f"SentencePiece cannot make this vocabulary: {message}")
