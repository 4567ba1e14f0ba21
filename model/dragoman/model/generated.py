"""Generate an exactly checkable English -> German corpus from an own grammar.

Owns three kinds of sentence (numbers, dates, amounts), the split into training and held-out
examples, and the corpus files. Must not know about tokenizers, models or PyTorch.

Notable decisions:
- The mapping is a function: every source has exactly one right target, so accuracy is exact match.
- The split is a hash of the source, not a random draw: two corpora built with different seeds
  never have a test sentence of one in the training file of the other.
- "eins" before a noun agrees with it, also at the end of a longer number: "ein Meter",
  "eine Stunde", "einhundertein Meter", "einhunderteine Stunden".
"""

import calendar
import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

Kind = Literal["number", "date", "amount"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MAX_SPELLED: Final = 999_999_999
FIRST_YEAR: Final = 1100
LAST_YEAR: Final = 2099
FORMAT_VERSION: Final = 1

_DEFAULT_MAX_NUMBER: Final = 999_999
_HELD_OUT_ONE_IN: Final = 10
_NEVER_HELD_OUT_BELOW: Final = 100
_MAX_MISSES: Final = 1_000


def _words(*lines: str) -> list[str]:
    return " ".join(lines).split()


_ENGLISH_SMALL: Final = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen",
    "seventeen eighteen nineteen",
)
_ENGLISH_TENS: Final = _words("- - twenty thirty forty fifty sixty seventy eighty ninety")
_IRREGULAR: Final = _words("one:first two:second three:third five:fifth eight:eighth nine:ninth twelve:twelfth")
_ENGLISH_ORDINALS: Final = dict(pair.split(":") for pair in [*_IRREGULAR, "twenty:twentieth", "thirty:thirtieth"])
_ENGLISH_MONTHS: Final = _words("January February March April May June July August September October November December")

_GERMAN_SMALL: Final = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn",
    "siebzehn achtzehn neunzehn",
)
_GERMAN_TENS: Final = _words("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_GERMAN_ORDINALS: Final = {1: "erster", 3: "dritter", 7: "siebter", 8: "achter"}
_GERMAN_MONTHS: Final = _words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")


@dataclass(frozen=True, slots=True)
class Example:
    """Hold one sentence pair of the generated task."""

    source: str
    target: str
    kind: Kind


class _Unit(NamedTuple):
    """Name a unit, in English and in German; `german_one` is "ein" or "eine"."""

    german_one: str
    singular: tuple[str, str]
    plural: tuple[str, str]


_UNITS: Final = {
    "euro": _Unit("ein", ("euro", "Euro"), ("euros", "Euro")),
    "dollar": _Unit("ein", ("dollar", "Dollar"), ("dollars", "Dollar")),
    "cent": _Unit("ein", ("cent", "Cent"), ("cents", "Cent")),
    "kilogram": _Unit("ein", ("kilogram", "Kilogramm"), ("kilograms", "Kilogramm")),
    "gram": _Unit("ein", ("gram", "Gramm"), ("grams", "Gramm")),
    "kilometre": _Unit("ein", ("kilometre", "Kilometer"), ("kilometres", "Kilometer")),
    "metre": _Unit("ein", ("metre", "Meter"), ("metres", "Meter")),
    "mile": _Unit("eine", ("mile", "Meile"), ("miles", "Meilen")),
    "year": _Unit("ein", ("year", "Jahr"), ("years", "Jahre")),
    "month": _Unit("ein", ("month", "Monat"), ("months", "Monate")),
    "week": _Unit("eine", ("week", "Woche"), ("weeks", "Wochen")),
    "day": _Unit("ein", ("day", "Tag"), ("days", "Tage")),
    "hour": _Unit("eine", ("hour", "Stunde"), ("hours", "Stunden")),
    "minute": _Unit("eine", ("minute", "Minute"), ("minutes", "Minuten")),
}

_PAIRS: Final = (  # larger unit, smaller unit, largest count of the smaller one
    ("euro", "cent", 99),
    ("dollar", "cent", 99),
    ("kilogram", "gram", 999),
    ("kilometre", "metre", 999),
    ("year", "month", 11),
    ("hour", "minute", 59),
)
_Found = dict[bool, dict[str, Example]]  # held out or not -> source -> example


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value} but must be between {low} and {high}.")


def spell_english(n: int) -> str:
    """Spell a number in English, without "and": 1001 is "one thousand one".

    Raises:
        ValueError: `n` is not between 0 and 999,999,999.
    """
    _check_range("n", n, 0, MAX_SPELLED)
    if n < 20:
        return _ENGLISH_SMALL[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _ENGLISH_TENS[tens] + (f"-{_ENGLISH_SMALL[ones]}" if ones else "")
    scales = ((1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))
    size, name = next(scale for scale in scales if n >= scale[0])
    count, rest = divmod(n, size)
    return f"{spell_english(count)} {name}" + (f" {spell_english(rest)}" if rest else "")


def spell_german(n: int) -> str:
    """Spell a number in German as it is counted: 1 is "eins", 1001 is "eintausendeins".

    Raises:
        ValueError: `n` is not between 0 and 999,999,999.
    """
    _check_range("n", n, 0, MAX_SPELLED)
    return _german(n, one="eins")


def _german(n: int, *, one: str) -> str:
    """Spell `n`; `one` is the form of a final one: "eins", "ein" or "eine"."""
    if n < 20:
        return one if n == 1 else _GERMAN_SMALL[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return (f"{_german(ones, one='ein')}und" if ones else "") + _GERMAN_TENS[tens]
    if n < 1_000_000:
        size, name = (1_000, "tausend") if n >= 1_000 else (100, "hundert")
        count, rest = divmod(n, size)
        return _german(count, one="ein") + name + (_german(rest, one=one) if rest else "")
    # "Million" is a feminine noun: it is a word of its own and "eine" agrees with it.
    count, rest = divmod(n, 1_000_000)
    noun = "Million" if count == 1 else "Millionen"
    return f"{_german(count, one='eine')} {noun}" + (f" {_german(rest, one=one)}" if rest else "")


def _english_ordinal(day: int) -> str:
    head, dash, last = spell_english(day).rpartition("-")
    return head + dash + _ENGLISH_ORDINALS.get(last, f"{last}th")


def _german_ordinal(day: int) -> str:
    """Spell an ordinal as it stands before a month without article: "dritter März"."""
    return _GERMAN_ORDINALS.get(day, spell_german(day) + ("ter" if day < 20 else "ster"))


def _english_year(year: int) -> str:
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return spell_english(year)
    if rest == 0:
        return f"{spell_english(century)} hundred"
    return f"{spell_english(century)} {'oh ' if rest < 10 else ''}{spell_english(rest)}"


def _german_year(year: int) -> str:
    if year >= 2000:
        return spell_german(year)
    century, rest = divmod(year, 100)
    return f"{spell_german(century)}hundert" + (spell_german(rest) if rest else "")


def number_example(n: int) -> Example:
    """Pair the English and the German spelling of a number."""
    return Example(spell_english(n), spell_german(n), "number")


def date_example(year: int, month: int, day: int) -> Example:
    """Pair the two readings of a Gregorian date: "the third of March ..." and "dritter März ...".

    Raises:
        ValueError: The year is not between 1100 and 2099, or the date does not exist.
    """
    _check_range("year", year, FIRST_YEAR, LAST_YEAR)
    _check_range("month", month, 1, 12)
    _check_range("day", day, 1, calendar.monthrange(year, month)[1])
    return Example(
        f"the {_english_ordinal(day)} of {_ENGLISH_MONTHS[month - 1]} {_english_year(year)}",
        f"{_german_ordinal(day)} {_GERMAN_MONTHS[month - 1]} {_german_year(year)}",
        "date",
    )


def amount_example(*parts: tuple[int, str]) -> Example:
    """Pair the two readings of an amount, for example of `(23, "euro"), (5, "cent")`.

    Raises:
        ValueError: A unit is unknown or a count out of range.
    """
    english, german = [], []
    for count, name in parts:
        if name not in _UNITS:
            raise ValueError(f"unit is {name!r} but must be one of {', '.join(_UNITS)}.")
        unit = _UNITS[name]
        nouns = unit.singular if count == 1 else unit.plural
        english.append(f"{spell_english(count)} {nouns[0]}")
        german.append(f"{_german(count, one=unit.german_one)} {nouns[1]}")
    return Example(" and ".join(english), " und ".join(german), "amount")


def examples(*, seed: int, kinds: Sequence[str] = KINDS, max_number: int = _DEFAULT_MAX_NUMBER) -> Iterator[Example]:
    """Yield examples for ever, the same ones for the same arguments, with repetitions.

    Args:
        seed: Seed of the stream.
        kinds: Kinds to draw from with equal chance; their order has no influence.
        max_number: Largest number, also in an amount. Each number of digits is equally likely.

    Raises:
        ValueError: A kind is unknown, none is given, or `max_number` is out of range.
    """
    return _draw(_seeded(seed), _checked_kinds(kinds, max_number), max_number)


def _checked_kinds(kinds: Sequence[str], max_number: int) -> tuple[Kind, ...]:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        given = ", ".join(map(repr, unknown or kinds)) or "empty"
        raise ValueError(f"kinds is {given} but must be one or more of {', '.join(KINDS)}.")
    _check_range("max_number", max_number, 1, MAX_SPELLED)
    return tuple(kind for kind in KINDS if kind in kinds)


def _seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - sentences need to be repeatable, not secret


def _draw(rng: random.Random, kinds: Sequence[Kind], max_number: int) -> Iterator[Example]:
    units = tuple(_UNITS)
    while True:
        kind = rng.choice(kinds)
        if kind == "number":
            yield number_example(_draw_number(rng, 0, max_number))
        elif kind == "date":
            year, month = rng.randint(FIRST_YEAR, LAST_YEAR), rng.randint(1, 12)
            yield date_example(year, month, rng.randint(1, calendar.monthrange(year, month)[1]))
        elif rng.random() < 0.5:
            yield amount_example((_draw_number(rng, 1, max_number), rng.choice(units)))
        else:
            large, small, limit = rng.choice(_PAIRS)
            count = _draw_number(rng, 1, max_number)
            yield amount_example((count, large), (rng.randint(1, limit), small))


def _draw_number(rng: random.Random, low: int, high: int) -> int:
    """Draw the number of digits first, then the digits; one number in eight is made round."""
    digits = rng.randint(1, len(str(high)))
    smallest = low if digits == 1 else 10 ** (digits - 1)
    n = rng.randint(smallest, min(10**digits - 1, high))
    if digits > 1 and rng.random() < 0.125:
        n -= n % 10 ** rng.randint(1, digits - 1)
    return n


def _every(kinds: Sequence[Kind], max_number: int) -> Iterator[Example]:
    """Yield every example of the kinds once."""
    if "number" in kinds:
        yield from map(number_example, range(max_number + 1))
    if "date" in kinds:
        for year, month in itertools.product(range(FIRST_YEAR, LAST_YEAR + 1), range(1, 13)):
            for day in range(1, calendar.monthrange(year, month)[1] + 1):
                yield date_example(year, month, day)
    if "amount" in kinds:
        for count in range(1, max_number + 1):
            yield from (amount_example((count, name)) for name in _UNITS)
            for large, small, limit in _PAIRS:
                for rest in range(1, limit + 1):
                    yield amount_example((count, large), (rest, small))


_NEVER_HELD_OUT: Final = frozenset(
    example.source
    for n in range(_NEVER_HELD_OUT_BELOW)
    for example in (number_example(n), *(amount_example((n, name)) for name in _UNITS))
)


def is_held_out(example: Example) -> bool:
    """Tell whether an example is kept from training: one source in ten, by its hash alone.

    Numbers below 100, alone or before one unit, are never held out: they are the words that every
    longer sentence is made of.
    """
    if example.source in _NEVER_HELD_OUT:
        return False
    digest = hashlib.blake2b(example.source.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0


def write_corpus(
    out: Path,
    *,
    train: int,
    valid: int,
    test: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
    max_number: int = _DEFAULT_MAX_NUMBER,
) -> None:
    """Write `train.tsv`, `valid.tsv`, `test.tsv` and, last, `manifest.json` into `out`.

    A line is source, tab, target, tab, kind. All examples are distinct, over the three files too.
    `train.tsv` has none that `is_held_out`, the other two have only such ones.

    Raises:
        ValueError: An argument is wrong or asks for more than exists. Nothing is written then.
    """
    counts = {"train": train, "valid": valid, "test": test}
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count} but must be 0 or more.")
    checked = _checked_kinds(kinds, max_number)
    rng = _seeded(seed)
    seen, held_out = _collect(rng, checked, max_number, train=train, held_out=valid + test)
    # The rare short examples come early: without the shuffle they would all be in valid.tsv.
    rng.shuffle(held_out)
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", seen), ("valid", held_out[:valid]), ("test", held_out[valid:])):
        lines = (f"{example.source}\t{example.target}\t{example.kind}\n" for example in part)
        _write_atomically(out / f"{name}.tsv", lines)
    manifest = {
        "format_version": FORMAT_VERSION,
        "counts": counts,
        "seed": seed,
        "kinds": checked,
        "max_number": max_number,
    }
    _write_atomically(out / "manifest.json", [json.dumps(manifest, indent=2) + "\n"])


def _collect(
    rng: random.Random, kinds: Sequence[Kind], max_number: int, *, train: int, held_out: int
) -> tuple[list[Example], list[Example]]:
    """Collect distinct examples to train on and held-out ones, by drawing, then by listing."""
    wanted = {False: train, True: held_out}
    found: _Found = {False: {}, True: {}}
    misses = 0
    for example in _draw(rng, kinds, max_number):
        # Drawing is of no use any more once nearly all of a small set of examples is found.
        if misses == _MAX_MISSES:
            _complete(rng, found, wanted, _every(kinds, max_number))
        if all(len(found[part]) == wanted[part] for part in found):
            break
        part, misses = is_held_out(example), misses + 1
        if len(found[part]) < wanted[part] and example.source not in found[part]:
            found[part][example.source], misses = example, 0
    return list(found[False].values()), list(found[True].values())


def _complete(rng: random.Random, found: _Found, wanted: dict[bool, int], every: Iterable[Example]) -> None:
    """Fill `found` up to `wanted` from all the examples that drawing has missed."""
    missed: dict[bool, list[Example]] = {False: [], True: []}
    for example in every:
        part = is_held_out(example)
        if example.source not in found[part]:
            missed[part].append(example)
    problems = [
        f"{name} examples asked for: {wanted[part]}, but only {num_distinct} distinct ones exist"
        for part, name in ((False, "train"), (True, "valid and test"))
        if (num_distinct := len(found[part]) + len(missed[part])) < wanted[part]
    ]
    if problems:
        raise ValueError(f"{'; '.join(problems)}; ask for fewer, add kinds or raise max_number.")
    for part, candidates in missed.items():
        for example in rng.sample(candidates, wanted[part] - len(found[part])):
            found[part][example.source] = example


def _write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write beside `path`, then rename, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
