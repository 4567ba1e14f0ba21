from collections.abc import Iterator
from itertools import islice

import pytest

from dragoman.export import bundle
from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer
from tests.e2e.process import BUNDLE, ServerProcess, start_server

NUM_TEXTS = 64
SEED = 30


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with default settings that many tests share; it has to survive all of them."""
    with start_server() as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, bundle.load_manifest(BUNDLE))


@pytest.fixture(scope="session")
def texts(tokenizer: Tokenizer) -> list[str]:
    """64 different texts of about 1 to 100 tokens, short and long ones mixed."""
    words = " ".join(example.source for example in islice(examples(seed=SEED), 400)).split()
    made = ["and"]
    for number in range(1, NUM_TEXTS):
        wanted, text = 1 + 99 * (number * 29 % NUM_TEXTS) // NUM_TEXTS, ""
        while len(tokenizer.encode(text)) <= wanted:
            text = f"{text} {words.pop()}".strip()
        made.append(text)
    return made
