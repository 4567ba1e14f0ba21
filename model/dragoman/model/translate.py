"""Texts through a search, in batches of similar length. Torch-free: the search comes as an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tqdm import tqdm

from dragoman.model.samples import Ending, Output
from dragoman.model.tokenizers import Tokenizer

DEFAULT_ROWS = 32

# Sources and limits on new tokens to target tokens, as `dragoman.model.search.greedy`.
Search = Callable[[Sequence[Sequence[int]], Sequence[int]], list[list[int]]]


def translate_all(
    search: Search,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    max_source_tokens: int,
    max_new_tokens: Callable[[int], int],
    rows: int = DEFAULT_ROWS,
    progress: bool = True,
) -> list[Output]:
    """Translate texts, the shortest first.

    Args:
        search: Runs the model.
        tokenizer: The model's.
        sources: Texts.
        max_source_tokens: Longer sources are refused, as the server does; EOS is included.
        max_new_tokens: Limit on target tokens for a number of source tokens, EOS included in both.
        rows: Texts per batch.
        progress: Show a bar on a terminal.

    Returns:
        One output per source, in their order.
    """
    special = tokenizer.special
    encoded = [tokenizer.encode(source) for source in sources]
    outputs = [_without_search(ids, max_source_tokens) for ids in encoded]
    order = sorted((i for i, output in enumerate(outputs) if output is None), key=lambda i: len(encoded[i]))
    with tqdm(total=len(order), unit="sentence", desc="translate", disable=None if progress else True) as bar:
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            found = search([encoded[i] for i in batch], [max_new_tokens(len(encoded[i])) for i in batch])
            for i, ids in zip(batch, found, strict=True):
                outputs[i] = Output(tokenizer.decode(ids), Ending.EOS if ids[-1] == special.eos else Ending.LIMIT)
            bar.update(len(batch))
    return [output for output in outputs if output is not None]


def _without_search(ids: Sequence[int], max_source_tokens: int) -> Output | None:
    if len(ids) > max_source_tokens:
        # EOS is not counted, as in the server's message.
        return Output("", Ending.REFUSED, f"{len(ids) - 1} tokens, the limit is {max_source_tokens - 1}")
    if len(ids) == 1:
        return Output("", Ending.EOS)  # nothing but characters that the tokenizer drops
    return None
