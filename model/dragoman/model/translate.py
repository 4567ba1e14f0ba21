"""Texts to translations, in batches of similar length. Torch-free: the search comes as an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tqdm import tqdm

from dragoman.model.errors import ConfigError
from dragoman.model.languages import Languages
from dragoman.model.samples import Ending, Output
from dragoman.model.tokenizers import Tokenizer

DEFAULT_ROWS = 32
_SHOWN_LANGUAGES = 20

# Sources and limits on new tokens to target tokens, as `dragoman.model.search.greedy`.
Search = Callable[[Sequence[Sequence[int]], Sequence[int]], list[list[int]]]


def translate_all(
    search: Search,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    max_source_tokens: int,
    max_new_tokens: Callable[[int], int],
    frame: Callable[[list[int]], list[int]] = list,
    rows: int = DEFAULT_ROWS,
    progress: bool = True,
) -> list[Output]:
    """Translate texts, the shortest first.

    Args:
        search: Runs the model.
        tokenizer: The model's.
        sources: Texts.
        max_source_tokens: Longer sources are refused, as the server does; EOS and what `frame` adds are included.
        max_new_tokens: Limit on target tokens for a number of source tokens, EOS included in both.
        frame: Puts the tokens of the languages around a source, see `Languages.frame`.
        rows: Texts per batch.
        progress: Show a bar on a terminal.

    Returns:
        One output per source, in their order.
    """
    special = tokenizer.special
    encoded = [tokenizer.encode(source) for source in sources]
    framed = [frame(ids) for ids in encoded]
    outputs = [_without_search(ids, len(full), max_source_tokens) for ids, full in zip(encoded, framed, strict=True)]
    order = sorted((i for i, output in enumerate(outputs) if output is None), key=lambda i: len(encoded[i]))
    with tqdm(total=len(order), unit="sentence", desc="translate", disable=None if progress else True) as bar:
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            found = search([framed[i] for i in batch], [max_new_tokens(len(encoded[i])) for i in batch])
            for i, ids in zip(batch, found, strict=True):
                outputs[i] = Output(tokenizer.decode(ids), Ending.EOS if ids[-1] == special.eos else Ending.LIMIT)
            bar.update(len(batch))
    return [output for output in outputs if output is not None]


def choose_languages(languages: Languages, default: tuple[str, str], source: str, target: str) -> tuple[str, str]:
    """Return the model's own tags for a language pair, by the rules of the server.

    Args:
        languages: Of the model.
        default: Source and target where none is given; "" if there is no default.
        source: What was asked for: a tag of the model, a narrower one ("en-GB" of a model for "en"), or "".
        target: Likewise.

    Raises:
        ConfigError: The model has no such language, or several and none was chosen.
    """
    return (
        _choose("source language", source, default[0], languages.sources),
        _choose("target language", target, default[1], languages.targets),
    )


def _choose(name: str, given: str, default: str, offered: Collection[str]) -> str:
    if not given and default in offered:
        return default
    if not given and len(offered) == 1:
        return next(iter(offered))
    own = {tag.lower(): tag for tag in offered}
    wanted = given.lower()
    while wanted and wanted not in own:
        wanted = wanted.rpartition("-")[0]
    if wanted:
        return own[wanted]
    tags = sorted(tag for tag in offered if tag)
    listing = ", ".join(tags[:_SHOWN_LANGUAGES]) or "not said"
    if len(tags) > _SHOWN_LANGUAGES:
        listing += f" and {len(tags) - _SHOWN_LANGUAGES} more"
    problem = f"{given!r} is not a {name} of the model" if given else f"the model has no default {name}"
    raise ConfigError(f"{problem}; give --{name.replace(' ', '-')} with one of its own: {listing}")


def _without_search(ids: Sequence[int], framed: int, max_source_tokens: int) -> Output | None:
    if framed > max_source_tokens:
        # Neither EOS nor what languages add is counted, as in the server's message.
        limit = max_source_tokens - 1 - framed + len(ids)
        return Output("", Ending.REFUSED, f"{len(ids) - 1} tokens, the limit is {limit}")
    if len(ids) == 1:
        return Output("", Ending.EOS)  # nothing but characters that the tokenizer drops
    return None
