"""Duplicates, validation slice and leaks into test sets."""

from __future__ import annotations

from dragoman.model.corpus.clean import match_key
from dragoman.model.corpus.split import MAX_VALID_SHARE, Record, deduplicate, split


def _records(count: int) -> list[Record]:
    return [Record(f"Sentence number {i}", f"Satz Nummer {i}", "man") for i in range(count)]


def test_near_duplicates_are_removed_and_the_first_stays() -> None:
    """Pairs that differ only in case or punctuation are one; other translations stay."""
    first = Record("Open it.", "Öffne es.", "ddtp")
    again = Record("open it", "ÖFFNE ES!", "man")
    other = Record("Open it.", "Mach es auf.", "man")

    assert deduplicate([first, again, other, first]) == [first, other]


def test_every_training_pair_lands_on_one_side() -> None:
    """Training and validation together are the input, and validation is a small share."""
    records = _records(4000)

    parts = split(records, {})

    assert sorted(parts.train + parts.valid) == sorted(records)
    assert 0 < len(parts.valid) < 2 * MAX_VALID_SHARE * len(records)


def test_one_source_never_sits_on_both_sides() -> None:
    """All translations and spellings of one source share a side."""
    records = [
        Record(text, f"{translation} {i}", "ddtp")
        for i in range(2000)
        for text, translation in ((f"Sentence {i}.", "Satz"), (f"sentence {i}", "Aussage"))
    ]

    parts = split(records, {})

    train_keys = {match_key(record.source) for record in parts.train}
    valid_keys = {match_key(record.source) for record in parts.valid}
    assert parts.valid
    assert train_keys.isdisjoint(valid_keys)


def test_order_of_pairs_does_not_change_the_split() -> None:
    """The side of a pair depends on its source alone."""
    records = _records(1000)

    assert set(split(records, {}).valid) == set(split(records[::-1], {}).valid)


def test_test_pairs_known_from_training_are_removed_and_counted() -> None:
    """A source in training or validation is no test of anything."""
    records = _records(100)
    fresh = Record("Something else", "Etwas anderes", "ding")
    leaks = [Record(record.source.upper() + "!", "Anders", "ding") for record in records]

    parts = split(records, {"ding": [fresh, *leaks]})

    assert parts.tests == {"ding": [fresh]}
    assert parts.leaked == {"ding": 100}


def test_supplement_gives_way_to_held_out_pairs() -> None:
    """Supplementary pairs join training only, and change nothing else."""
    records = _records(4000)
    test = Record("Something else", "Etwas anderes", "ding")
    plain = split(records, {"ding": [test]})
    fresh = Record("house", "Haus", "dict")
    held_out = [Record("something else!", "anders", "dict"), Record(plain.valid[0].source, "Satz", "dict")]

    parts = split(records, {"ding": [test]}, [fresh, *held_out])

    assert parts.train == [*plain.train, fresh]
    assert (parts.valid, parts.tests, parts.leaked) == (plain.valid, plain.tests, plain.leaked)
    assert parts.withheld == 2
