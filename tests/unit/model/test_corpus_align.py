"""Alignment of two rows of blocks."""

from __future__ import annotations

from dragoman.model.corpus.align import Block, align_blocks


def test_same_kinds_pair_one_to_one() -> None:
    """With equal structure every block has its counterpart, empty marks excepted."""
    source = [Block("SH", "Name"), Block("RS", ""), Block("P", "Text")]
    target = [Block("SH", "Bezeichnung"), Block("RS", ""), Block("P", "Inhalt")]

    assert list(align_blocks(source, target)) == [("Name", "Bezeichnung"), ("Text", "Inhalt")]


def test_extra_block_is_dropped_between_anchors() -> None:
    """Blocks with the same options anchor the rows; the stretch that differs is left out."""
    source = [
        Block("T", "--all"),
        Block("D", "Show everything."),
        Block("D", "New in 2023."),
        Block("T", "--quiet"),
        Block("D", "Show nothing."),
    ]
    target = [
        Block("T", "--all"),
        Block("D", "Alles zeigen."),
        Block("T", "--quiet"),
        Block("D", "Nichts zeigen."),
    ]

    pairs = list(align_blocks(source, target))

    assert pairs == [
        ("--all", "--all"),
        ("Show everything.", "Alles zeigen."),
        ("--quiet", "--quiet"),
        ("Show nothing.", "Nichts zeigen."),
    ]


def test_nothing_is_guessed_without_anchors() -> None:
    """Rows of different structure with nothing in common give no pair."""
    source = [Block("P", "One."), Block("D", "Two.")]
    target = [Block("D", "Zwei."), Block("D", "Drei."), Block("P", "Eins.")]

    assert list(align_blocks(source, target)) == []
