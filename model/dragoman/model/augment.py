"""Alterations of training pairs that teach what corpora rarely show. Standard library only.

Users send headlines in capitals, lower-case chat, and sentences with links, version numbers and
emoji. A corpus of documentation has few of these, so a model trained on it alone drops or garbles
them. Every alteration keeps the pair a right translation.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable

from dragoman.model.readers import Pair
from dragoman.model.recipe import Augmentation

_NUMBER = re.compile(r"(?<!\w)\d\d+(?!\w)")  # not "1 file", which would become "7 file", nor "22nd"
_END = re.compile(r"[.!?:…]+$")
_WORDS = [
    "cloud",
    "data",
    "file",
    "help",
    "image",
    "info",
    "mail",
    "map",
    "media",
    "news",
    "office",
    "photo",
    "search",
    "shop",
    "test",
    "tools",
    "user",
    "web",
]
_ENDINGS = ["com", "org", "net", "de", "io", "eu"]
_SUFFIXES = ["txt", "pdf", "png", "jpg", "html", "py", "conf", "tar.gz", "zip", "xml", "odt", "csv"]
_EMOJI = (
    "😀😁😂🤣😃😄😅😆😉😊😋😎😍😘🙂🤗🤔😐😑🙄😏😥😮😯😪😫😴😌😛😜🤤😒😓😔😕🙃😲🙁😖😞😟😤😢😭😦😨😩😬😰😱😳😵😡😠😇🤓😈"
    "👍👎👌👏🙏💪👋✌🤝❤💔💕💯🔥✨⭐🌟🎉🎊🎁🚀⚡☀🌈🌍☕🍕🍺🐱🐶📧📱💻📷📚✅❌❗❓➡⬅⚠💡🔒🔑🕐📅"
)


def augment(pair: Pair, shares: Augmentation, generator: random.Random) -> Pair:
    """Return `pair`, or an altered one with the probabilities of `shares`.

    Args:
        pair: Not changed.
        shares: Probabilities; those of letter case exclude each other.
        generator: Source of all decisions.
    """
    source, target = pair.source, pair.target
    if generator.random() < shares.lone_copies:
        token = _copied(generator)
        return Pair(token, token, pair.origin)
    if generator.random() < shares.numbers:
        source, target = _other_numbers(source, target, generator)
    if generator.random() < shares.copies:
        source, target = _with_token(source, target, _copied(generator), generator)
    draw = generator.random()
    if draw < shares.capitals:
        source, target = source.upper(), target.upper()
    elif draw < shares.capitals + shares.title:
        source = _title(source)
    elif draw < shares.capitals + shares.title + shares.lower:
        source = source.lower()
    return Pair(source, target, pair.origin)


def _title(text: str) -> str:
    """Raise the first letter of each word, and leave the rest: str.title would spoil "GNOME's"."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def _other_numbers(source: str, target: str, generator: random.Random) -> tuple[str, str]:
    """Replace the numbers of both sides if they have the same ones in any order."""
    numbers = _NUMBER.findall(source)
    if not numbers or sorted(numbers) != sorted(_NUMBER.findall(target)):
        return source, target
    others = {number: _digits(len(number), generator) for number in sorted(set(numbers))}
    return tuple(_NUMBER.sub(lambda m: others[m[0]], text) for text in (source, target))  # type: ignore[return-value]


def _with_token(source: str, target: str, token: str, generator: random.Random) -> tuple[str, str]:
    """Put `token` before or behind both sides, in front of a final mark that both have."""
    if generator.random() < 0.3:
        return f"{token} {source}", f"{token} {target}"
    ends = _END.search(source), _END.search(target)
    if ends[0] and ends[1] and generator.random() < 0.5:
        return (
            f"{source[: ends[0].start()]} {token}{ends[0][0]}",
            f"{target[: ends[1].start()]} {token}{ends[1][0]}",
        )
    return f"{source} {token}", f"{target} {token}"


def _copied(generator: random.Random) -> str:
    kinds: tuple[Callable[[random.Random], str], ...] = (_url, _email, _file, _number, _emoji, _version)
    return generator.choice(kinds)(generator)


def _url(generator: random.Random) -> str:
    host = f"{_name(generator)}.{generator.choice(_ENDINGS)}"
    path = "".join(f"/{_name(generator)}" for _ in range(generator.randrange(3)))
    return f"{generator.choice(('https://', 'http://', 'https://www.', 'www.'))}{host}{path}"


def _email(generator: random.Random) -> str:
    return f"{_name(generator)}@{_name(generator)}.{generator.choice(_ENDINGS)}"


def _file(generator: random.Random) -> str:
    folder = generator.choice(("", "", "/etc/", "/home/user/", "/usr/share/", "~/"))
    return f"{folder}{_name(generator)}.{generator.choice(_SUFFIXES)}"


def _number(generator: random.Random) -> str:
    return _digits(generator.randint(1, 7), generator)


def _version(generator: random.Random) -> str:
    return ".".join(_digits(generator.randint(1, 2), generator) for _ in range(generator.randint(2, 3)))


def _emoji(generator: random.Random) -> str:
    return "".join(generator.choice(_EMOJI) for _ in range(generator.choice((1, 1, 1, 2, 3))))


def _name(generator: random.Random) -> str:
    word = generator.choice(_WORDS)
    if generator.random() < 0.5:
        return word
    return word + "".join(generator.choices(string.ascii_lowercase + string.digits, k=generator.randint(1, 6)))


def _digits(count: int, generator: random.Random) -> str:
    first = generator.choice("123456789") if count > 1 else generator.choice(string.digits)
    return first + "".join(generator.choices(string.digits, k=count - 1))
