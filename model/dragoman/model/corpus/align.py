"""Pair up the blocks of two pages that were made from one document.

No statistics on words are involved: translation tools keep the row of blocks,
so structure is enough, and where it differs the doubtful stretch is dropped.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Runs of blocks without any language-free token agree by chance too easily.
_MIN_UNSIGNED_RUN = 3

_SIGNATURE = re.compile(r"[A-Za-z]*[A-Z_]{2,}\w*|\d+|--?[a-z][\w-]+|\w+\(\d\)|/\w[\w/.]+")


class Block(NamedTuple):
    """Hold one block of a page: its kind (element or macro name) and text."""

    kind: str
    text: str


class _Key(NamedTuple):
    kind: str
    signature: tuple[str, ...]


def align_blocks(source: Sequence[Block], target: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """Yield the (source, target) texts of blocks that correspond.

    With the same row of kinds, blocks pair one to one. Otherwise blocks whose
    language-free tokens (numbers, options, constants, paths) agree are
    anchors; a stretch between two anchors is used if its kinds agree.
    """
    if _kinds(source) == _kinds(target):
        yield from _texts(source, target)
        return
    source_keys = [_key(block) for block in source]
    target_keys = [_key(block) for block in target]
    matcher = difflib.SequenceMatcher(None, source_keys, target_keys, autojunk=False)
    source_done = target_done = 0
    for i, j, size in matcher.get_matching_blocks():
        is_signed = any(key.signature for key in source_keys[i : i + size])
        if size and not is_signed and size < _MIN_UNSIGNED_RUN:
            continue
        before_source, before_target = source[source_done:i], target[target_done:j]
        if _kinds(before_source) == _kinds(before_target):
            yield from _texts(before_source, before_target)
        yield from _texts(source[i : i + size], target[j : j + size])
        source_done, target_done = i + size, j + size


def _kinds(blocks: Sequence[Block]) -> list[str]:
    return [block.kind for block in blocks]


def _texts(source: Sequence[Block], target: Sequence[Block]) -> Iterator[tuple[str, str]]:
    return ((s.text, t.text) for s, t in zip(source, target, strict=True) if s.text and t.text)


def _key(block: Block) -> _Key:
    return _Key(block.kind, tuple(sorted(set(_SIGNATURE.findall(block.text)))))
