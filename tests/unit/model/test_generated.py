"""Check the generated task: spelling tables, one target per source, the split and the files."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.model.generated import (
    KINDS,
    MAX_SPELLED,
    Example,
    amount_example,
    date_example,
    examples,
    is_held_out,
    number_example,
    spell_english,
    spell_german,
    write_corpus,
)

SPELLINGS = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (7, "seven", "sieben"),
    (11, "eleven", "elf"),
    (12, "twelve", "zwölf"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (20, "twenty", "zwanzig"),
    (21, "twenty-one", "einundzwanzig"),
    (23, "twenty-three", "dreiundzwanzig"),
    (30, "thirty", "dreißig"),
    (40, "forty", "vierzig"),
    (66, "sixty-six", "sechsundsechzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred one", "einhunderteins"),
    (999, "nine hundred ninety-nine", "neunhundertneunundneunzig"),
    (1_000, "one thousand", "eintausend"),
    (1_001, "one thousand one", "eintausendeins"),
    (21_021, "twenty-one thousand twenty-one", "einundzwanzigtausendeinundzwanzig"),
    (101_000, "one hundred one thousand", "einhunderteintausend"),
    (1_000_000, "one million", "eine Million"),
    (1_000_001, "one million one", "eine Million eins"),
    (2_000_000, "two million", "zwei Millionen"),
    (21_000_000, "twenty-one million", "einundzwanzig Millionen"),
    (101_000_000, "one hundred one million", "einhunderteine Millionen"),
    (
        999_999_999,
        "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred ninety-nine",
        "neunhundertneunundneunzig Millionen neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
]

DATES = [
    (
        (1987, 3, 3),
        "the third of March nineteen eighty-seven",
        "dritter März neunzehnhundertsiebenundachtzig",
    ),
    ((2013, 1, 1), "the first of January twenty thirteen", "erster Januar zweitausenddreizehn"),
    ((1900, 12, 7), "the seventh of December nineteen hundred", "siebter Dezember neunzehnhundert"),
    ((1905, 5, 8), "the eighth of May nineteen oh five", "achter Mai neunzehnhundertfünf"),
    (
        (2000, 2, 29),
        "the twenty-ninth of February two thousand",
        "neunundzwanzigster Februar zweitausend",
    ),
    (
        (2001, 7, 31),
        "the thirty-first of July two thousand one",
        "einunddreißigster Juli zweitausendeins",
    ),
    ((1100, 9, 12), "the twelfth of September eleven hundred", "zwölfter September elfhundert"),
    (
        (1716, 6, 19),
        "the nineteenth of June seventeen sixteen",
        "neunzehnter Juni siebzehnhundertsechzehn",
    ),
    (
        (2099, 8, 20),
        "the twentieth of August twenty ninety-nine",
        "zwanzigster August zweitausendneunundneunzig",
    ),
]

AMOUNTS = [
    (
        ((23, "euro"), (5, "cent")),
        "twenty-three euros and five cents",
        "dreiundzwanzig Euro und fünf Cent",
    ),
    (((1, "euro"), (1, "cent")), "one euro and one cent", "ein Euro und ein Cent"),
    (((1, "hour"), (1, "minute")), "one hour and one minute", "eine Stunde und eine Minute"),
    (((1, "metre"),), "one metre", "ein Meter"),
    (((2, "hour"),), "two hours", "zwei Stunden"),
    (((21, "year"),), "twenty-one years", "einundzwanzig Jahre"),
    (((101, "hour"),), "one hundred one hours", "einhunderteine Stunden"),
    (((1_001, "kilogram"),), "one thousand one kilograms", "eintausendein Kilogramm"),
    (((1_000_000, "dollar"),), "one million dollars", "eine Million Dollar"),
]


@pytest.mark.parametrize(("n", "english", "german"), SPELLINGS)
def test_number_is_spelt_as_in_the_table(n: int, english: str, german: str) -> None:
    """Irregular stems, the forms of "eins" and the noun "Million" are right."""
    assert (spell_english(n), spell_german(n)) == (english, german)


@pytest.mark.parametrize(("date", "english", "german"), DATES)
def test_date_is_read_as_in_the_table(date: tuple[int, int, int], english: str, german: str) -> None:
    """Ordinals and the reading of years are right in both languages."""
    assert date_example(*date) == Example(english, german, "date")


@pytest.mark.parametrize(("parts", "english", "german"), AMOUNTS)
def test_amount_is_read_as_in_the_table(parts: tuple[tuple[int, str], ...], english: str, german: str) -> None:
    """Plural and gender of the units are right in both languages."""
    assert amount_example(*parts) == Example(english, german, "amount")


@pytest.mark.parametrize("spell", [spell_english, spell_german])
def test_spelling_is_distinct_for_each_number(spell: Callable[[int], str]) -> None:
    """No two of the numbers 0 to 9999, and of those times one thousand, are spelt alike."""
    numbers = {*range(10_000), *range(0, 10_000_000, 1_000)}

    assert len({spell(n) for n in numbers}) == len(numbers)


@pytest.mark.parametrize("spell", [spell_english, spell_german])
@pytest.mark.parametrize("n", [-1, MAX_SPELLED + 1])
def test_number_out_of_range_is_refused(spell: Callable[[int], str], n: int) -> None:
    """The message names the value and the range."""
    with pytest.raises(ValueError, match=f"n is {n} but must be between 0 and 999999999"):
        spell(n)


def test_all_dates_are_distinct_in_both_languages() -> None:
    """No two dates are read alike, in either language, over every year of the range."""
    dates = [
        date_example(year, month, day)
        for year, month, day in itertools.product(range(1100, 2100), range(1, 13), (1, 28))
    ]

    assert len({example.source for example in dates}) == len(dates)
    assert len({example.target for example in dates}) == len(dates)


def test_date_that_does_not_exist_is_refused() -> None:
    """The message names the last day of that month."""
    with pytest.raises(ValueError, match="day is 29 but must be between 1 and 28"):
        date_example(1900, 2, 29)


def test_unknown_unit_is_refused() -> None:
    """The message lists the known units."""
    with pytest.raises(ValueError, match="unit is 'parsec' but must be one of euro, dollar"):
        amount_example((1, "parsec"))


def test_source_never_has_two_targets() -> None:
    """The task is a function: 200,000 draws hold no source with two targets or kinds."""
    drawn = set(itertools.islice(examples(seed=1, max_number=MAX_SPELLED), 200_000))

    assert len({example.source for example in drawn}) == len(drawn)
    assert {example.kind for example in drawn} == set(KINDS)


def test_stream_depends_on_the_seed_alone() -> None:
    """The same seed gives the same stream, also with the kinds in another order."""
    first = list(itertools.islice(examples(seed=3), 1_000))
    again = list(itertools.islice(examples(seed=3, kinds=KINDS[::-1]), 1_000))
    other = list(itertools.islice(examples(seed=4), 1_000))

    assert first == again
    assert first != other


def test_stream_keeps_to_the_largest_number() -> None:
    """Numbers of every length up to the largest are drawn and none beyond it."""
    known = {spell_english(n): n for n in range(2_000)}
    drawn = itertools.islice(examples(seed=5, kinds=["number"], max_number=1_234), 5_000)
    numbers = {known[example.source] for example in drawn}

    assert max(numbers) <= 1_234
    assert {len(str(n)) for n in numbers} == {1, 2, 3, 4}


def test_one_example_in_ten_is_held_out() -> None:
    """The hash holds out about a tenth of longer sentences."""
    dates = itertools.islice(examples(seed=6, kinds=["date"]), 20_000)

    assert 0.09 < sum(map(is_held_out, dates)) / 20_000 < 0.11


def test_small_forms_are_never_held_out() -> None:
    """Every number below 100, alone or before one unit, may be trained on."""
    assert not any(is_held_out(number_example(n)) for n in range(100))
    assert not any(is_held_out(amount_example((n, "hour"))) for n in range(100))


def test_every_part_of_a_date_is_trained_on() -> None:
    """Each day, month and year occurs in a date that is not held out."""
    dates = itertools.product(range(1100, 2100), range(1, 13), range(1, 29))
    seen = [date for date in dates if not is_held_out(date_example(*date))]

    assert [len(set(part)) for part in zip(*seen, strict=True)] == [1_000, 12, 28]
    for day, month in ((29, 1), (30, 1), (31, 1)):
        assert not all(is_held_out(date_example(y, month, day)) for y in range(1100, 2100))


def _read(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_corpus_has_the_counts_and_no_overlap(tmp_path: Path) -> None:
    """The files hold what was asked for; no test source of one seed is trained on under another."""
    write_corpus(tmp_path / "a", train=2_000, valid=200, test=300, seed=1)
    write_corpus(tmp_path / "b", train=2_000, valid=200, test=300, seed=2)
    files = {
        (folder, name): {source for source, _, _ in _read(tmp_path / folder / f"{name}.tsv")}
        for folder in "ab"
        for name in ("train", "valid", "test")
    }

    for folder in "ab":
        sizes = [len(files[folder, name]) for name in ("train", "valid", "test")]
        assert sizes == [2_000, 200, 300]
        assert not files[folder, "valid"] & files[folder, "test"]
        held_out = files[folder, "valid"] | files[folder, "test"]
        assert not held_out & (files["a", "train"] | files["b", "train"])


def test_corpus_is_reproducible_and_described(tmp_path: Path) -> None:
    """The same arguments give the same bytes, a manifest and no left-over temporary file."""
    for folder in ("a", "b"):
        write_corpus(tmp_path / folder, train=50, valid=5, test=5, seed=1, kinds=["date"])
    names = sorted(path.name for path in (tmp_path / "a").iterdir())

    assert names == ["manifest.json", "test.tsv", "train.tsv", "valid.tsv"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a" / "manifest.json").read_text(encoding="utf-8")) == {
        "format_version": 1,
        "counts": {"train": 50, "valid": 5, "test": 5},
        "seed": 1,
        "kinds": ["date"],
        "max_number": 999_999,
    }


def test_corpus_can_use_up_all_examples(tmp_path: Path) -> None:
    """Asking for exactly as many examples as exist succeeds; one more of each part is refused."""
    held_out = sum(is_held_out(number_example(n)) for n in range(2_001))
    train = 2_001 - held_out

    write_corpus(tmp_path, train=train, valid=0, test=held_out, seed=1, kinds=["number"], max_number=2_000)

    assert len({*map(tuple, _read(tmp_path / "train.tsv"))}) == train
    assert len({*map(tuple, _read(tmp_path / "test.tsv"))}) == held_out


def test_corpus_larger_than_the_task_is_refused(tmp_path: Path) -> None:
    """The message says how many examples of each part exist, and nothing is written."""
    out = tmp_path / "out"
    message = r"train .*: 1000000000, but only 100 .*valid and test .*: 3, but only 0 .*; ask for"

    with pytest.raises(ValueError, match=message):
        write_corpus(out, train=10**9, valid=1, test=2, seed=1, kinds=["number"], max_number=99)

    assert not out.exists()


def test_negative_count_is_refused(tmp_path: Path) -> None:
    """The message names the count."""
    with pytest.raises(ValueError, match="valid is -1 but must be 0 or more"):
        write_corpus(tmp_path, train=1, valid=-1, test=1, seed=1)


def test_unknown_kind_or_range_is_refused_at_the_call() -> None:
    """The message lists the kinds or the range, before the first example is asked for."""
    with pytest.raises(ValueError, match=r"kinds is 'time' but must be .* number, date, amount"):
        examples(seed=1, kinds=["number", "time"])
    with pytest.raises(ValueError, match="kinds is empty"):
        examples(seed=1, kinds=[])
    with pytest.raises(ValueError, match="max_number is 0 but must be between 1 and 999999999"):
        examples(seed=1, max_number=0)
