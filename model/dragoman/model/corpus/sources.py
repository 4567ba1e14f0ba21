"""The catalogue: which packages feed which reader, and what each is for.

The split is by origin. Text of one manual repeats itself, so a random split
would put half of a repeated sentence into the test set; a whole manual held
out cannot leak that way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dragoman.model.corpus.ddtp import read_ddtp
from dragoman.model.corpus.ding import read_ding, read_words
from dragoman.model.corpus.errors import UnknownSourceError
from dragoman.model.corpus.gnomehelp import read_gnomehelp
from dragoman.model.corpus.languages import Language
from dragoman.model.corpus.lohelp import read_lohelp
from dragoman.model.corpus.man import read_man


class Role(Enum):
    """Say what the pairs of a source are used for."""

    TRAIN = "train"  # training and validation
    SUPPLEMENT = "supplement"  # training only; gives way to whatever is held out
    TEST = "test"  # held out as a whole


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Locate what was fetched.

    Attributes:
        packages: Root folder of each unpacked package, by package name.
        descriptions: Contents of package description indexes, by locale.
    """

    packages: Mapping[str, Path]
    descriptions: Callable[[str], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """Describe one source of parallel text.

    Attributes:
        name: Origin written beside every pair.
        role: What its pairs are used for.
        licence: Licence of the text, as the packages state it.
        wanted: Which files of the packages to unpack, matched anywhere in the path.
        packages: Names of the packages needed for a language.
        optional: Packages whose absence only makes the source smaller.
        read: Yields aligned (source, target) paragraphs.
        only: Target language codes it exists for; empty means all.
        keeps_identical: Whether a translation may be spelled as its source, as
            a word may (`hand`, `Hand`) and an untranslated paragraph may not.
    """

    name: str
    role: Role
    licence: str
    wanted: re.Pattern[str]
    packages: Callable[[Language], tuple[str, ...]]
    read: Callable[[Unpacked, Language], Iterator[tuple[str, str]]]
    optional: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    keeps_identical: bool = False


_LOHELP_EN = "libreoffice-help-en-us"
_LOHELP_PAGES = Path("usr/share/libreoffice/help")
_GNOMEHELP = "gnome-user-docs"
_GNOMEHELP_PAGES = Path("usr/share/help")
_DING = "trans-de-en"
_DING_FILE = re.compile(r"/trans/de-en$")
_DING_LICENCE = "GPL-2+"

# Packages with the originals of translated manual pages.
_ENGLISH_MANUALS: tuple[str, ...] = tuple(
    """manpages manpages-dev systemd systemd-container systemd-coredump systemd-homed systemd-boot
    systemd-journal-remote systemd-oomd systemd-resolved systemd-timesyncd systemd-userdbd udev libnss-myhostname
    libnss-mymachines libnss-resolve libnss-systemd libpam-systemd util-linux util-linux-extra mount fdisk eject
    rfkill uuid-runtime uuid-dev libblkid-dev bsdutils bsdextrautils coreutils devscripts debhelper dpkg dpkg-dev
    apt apt-utils init-system-helpers sysvinit-core procps findutils diffutils tar cpio gzip bzip2 grep sed less
    file psmisc passwd login hostname cron kbd parted dosfstools mtools e2fsprogs btrfs-progs nfs-common nano
    mutt make texinfo info gettext gettext-base recutils grub-common grub2-common libsane-common libsane1
    sane-utils sysstat vorbis-tools wdiff thinkfan psutils iptables""".split()  # noqa: SIM905 (one name a line would take 80 lines)
)


def _no_packages(_language: Language) -> tuple[str, ...]:
    return ()


def _lohelp_packages(language: Language) -> tuple[str, ...]:
    return (_LOHELP_EN, f"libreoffice-help-{language.package_suffix}")


def _ddtp(unpacked: Unpacked, language: Language) -> Iterator[tuple[str, str]]:
    return read_ddtp(unpacked.descriptions("en"), unpacked.descriptions(language.locale), language.locale)


def _lohelp(unpacked: Unpacked, language: Language) -> Iterator[tuple[str, str]]:
    english, translated = (unpacked.packages[name] / _LOHELP_PAGES for name in _lohelp_packages(language))
    return read_lohelp(english / "en-US", translated / language.code)


def _man(unpacked: Unpacked, language: Language) -> Iterator[tuple[str, str]]:
    names = (*_ENGLISH_MANUALS, *language.manual_packages)
    return read_man([unpacked.packages[name] for name in names if name in unpacked.packages], language.locale)


def _gnomehelp(unpacked: Unpacked, language: Language) -> Iterator[tuple[str, str]]:
    pages = unpacked.packages[_GNOMEHELP] / _GNOMEHELP_PAGES
    return read_gnomehelp(pages / "C", pages / language.locale)


def _ding(unpacked: Unpacked, _language: Language) -> Iterator[tuple[str, str]]:
    with (unpacked.packages[_DING] / "usr/share/trans/de-en").open(encoding="utf-8") as lines:
        yield from read_ding(lines)


def _dict(unpacked: Unpacked, _language: Language) -> Iterator[tuple[str, str]]:
    with (unpacked.packages[_DING] / "usr/share/trans/de-en").open(encoding="utf-8") as lines:
        yield from read_words(lines)


SOURCES: tuple[Source, ...] = (
    Source(
        name="ddtp",
        role=Role.TRAIN,
        licence="that of the described packages (mixed free licences)",
        wanted=re.compile(r"(?!)"),
        packages=_no_packages,
        read=_ddtp,
    ),
    Source(
        name="lohelp",
        role=Role.TRAIN,
        licence="MPL-2.0",
        wanted=re.compile(r"/help/.*\.html$"),
        packages=_lohelp_packages,
        read=_lohelp,
    ),
    Source(
        name="man",
        role=Role.TRAIN,
        licence="GPL-3+ (translations); free licence of each original page",
        wanted=re.compile(r"/man/.*\.gz$"),
        packages=lambda language: language.manual_packages,
        read=_man,
        optional=_ENGLISH_MANUALS,
    ),
    Source(
        name="dict",
        role=Role.SUPPLEMENT,
        licence=_DING_LICENCE,
        wanted=_DING_FILE,
        packages=lambda _: (_DING,),
        read=_dict,
        only=("de",),
        keeps_identical=True,
    ),
    Source(
        name="gnomehelp",
        role=Role.TEST,
        licence="CC-BY-SA-3.0",
        wanted=re.compile(r"/help/.*\.page$"),
        packages=lambda _: (_GNOMEHELP,),
        read=_gnomehelp,
    ),
    Source(
        name="ding",
        role=Role.TEST,
        licence=_DING_LICENCE,
        wanted=_DING_FILE,
        packages=lambda _: (_DING,),
        read=_ding,
        only=("de",),
    ),
)


def select_sources(language: Language, names: Sequence[str] | None = None) -> tuple[Source, ...]:
    """Return the sources for a language, in catalogue order.

    Args:
        language: Target language.
        names: Source names to keep; None keeps all the language has.

    Raises:
        UnknownSourceError: A name is unknown or the language has no such source.
    """
    available = tuple(s for s in SOURCES if not s.only or language.code in s.only)
    if names is None:
        return available
    allowed = [source.name for source in available]
    unknown = [name for name in names if name not in allowed]
    if unknown or not names:
        given = ", ".join(map(repr, unknown)) or "no source"
        raise UnknownSourceError(f"{given} cannot be used for en-{language.code}; choose from {', '.join(allowed)}")
    return tuple(source for source in available if source.name in names)
