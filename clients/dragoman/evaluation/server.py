"""A running server as a system, through the client library.

A few calls run at once. The server refuses a call in which one text is too long and names the text: it
is marked as refused, and the call repeated without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from dragoman.client import (
    AsyncTranslationClient,
    CallError,
    FinishReason,
    ModelInfo,
    TranslationClient,
)
from dragoman.client.commands.lines import Line, batches
from dragoman.client.commands.pipeline import run_in_order
from dragoman.client.commands.report import failure, refused_lines, unreachable
from dragoman.evaluation.system import System
from dragoman.model.samples import Ending, Output

_CALLS_IN_FLIGHT = 4
_ENDINGS = {
    FinishReason.EOS: Ending.EOS,
    FinishReason.LENGTH: Ending.LIMIT,
    FinishReason.UNSPECIFIED: Ending.UNKNOWN,
}


def server_system(
    address: str,
    *,
    data: Path,
    num_texts: int,
    timeout_s: float,
    source_language: str = "",
    target_language: str = "",
) -> System:
    """Connect to a server.

    Args:
        address: HOST:PORT.
        data: File of the sources, line i for source i; named in errors.
        num_texts: Texts per call, unless the server takes fewer.
        timeout_s: Deadline of a call, its retries included.
        source_language: BCP-47 tag; "" for the model's default.
        target_language: Likewise.

    Raises:
        CommandError: Nothing answers there; says what to do. `System.translate` raises it too, and names
            the lines that were not translated.
    """
    try:
        with TranslationClient(address, timeout_s=timeout_s) as client:
            model = client.model()
    except CallError as error:
        raise unreachable(error, server=address, timeout_s=timeout_s) from error
    max_lines = min(num_texts, model.limits.max_texts)

    def translate(sources: Sequence[str]) -> list[Output]:
        lines = [Line(source, "\n", str(data), number) for number, source in enumerate(sources, 1)]
        calls = _Calls(address, timeout_s, (source_language, target_language))
        return asyncio.run(calls.translate(batches(lines, max_lines=max_lines), len(lines)))

    name = f"server {address}: {model.name} {model.precision} version {model.version}"
    return System(name, translate, _languages(model, source_language, target_language))


def _languages(model: ModelInfo, source: str, target: str) -> tuple[str, str] | None:
    """Return what is translated into what, as far as it is known without asking for a translation."""
    if len(model.language_pairs) == 1:
        (pair,) = model.language_pairs
        return source or pair.source_language, target or pair.target_language
    return (source, target) if source and target else None


class _Calls:
    """The calls of one evaluation."""

    def __init__(self, address: str, timeout_s: float, languages: tuple[str, str]) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._source_language, self._target_language = languages

    async def translate(self, groups: Iterator[tuple[Line, ...]], total: int) -> list[Output]:
        """Return the outputs of all lines, in their order."""
        outputs: list[Output] = []
        with tqdm(total=total, unit="sentence", desc="translate", disable=None) as bar:

            def emit(part: list[Output]) -> None:
                outputs.extend(part)
                bar.update(len(part))

            async with AsyncTranslationClient(self._address, timeout_s=self._timeout_s) as client:
                await run_in_order(
                    groups, lambda lines: self._call(client, lines), emit, max_in_flight=_CALLS_IN_FLIGHT
                )
        return outputs

    async def _call(self, client: AsyncTranslationClient, lines: Sequence[Line]) -> list[Output]:
        """Translate lines, leaving out more of them until the server accepts the rest."""
        outputs: list[Output | None] = [None] * len(lines)
        while rest := [i for i, output in enumerate(outputs) if output is None]:
            sent = [lines[i] for i in rest]
            try:
                result = await client.translate(
                    [line.text for line in sent],
                    source_language=self._source_language,
                    target_language=self._target_language,
                )
            except CallError as error:
                refused = refused_lines(error, sent)
                if not refused:
                    raise failure(error, sent, server=self._address, timeout_s=self._timeout_s) from error
                for index, reason in refused.items():
                    outputs[rest[index]] = Output("", Ending.REFUSED, reason)
            else:
                for i, translation in zip(rest, result.translations, strict=True):
                    outputs[i] = Output(translation.text, _ENDINGS[translation.finish_reason])
        return [output for output in outputs if output is not None]
