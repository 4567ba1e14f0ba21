"""From the language codes of other libraries to BCP-47 tags. Standard library only.

They write "deu", "deu_Latn", "de_DE" or "de" for what users call "de". A tag says no more than is needed to tell
the languages of one model apart: "en" for "eng_Latn", but "zh-Hans" where there is "zh-Hant", too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_TAG = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")

# Of the codes with three letters (ISO 639-3) those that have one with two.
_SHORT = """
aar aa abk ab afr af aka ak amh am ara ar arg an asm as ava av ave ae aym ay aze az bak ba bam bm bel be ben bn bis bi
bod bo bos bs bre br bul bg cat ca ces cs cha ch che ce chu cu chv cv cor kw cos co cre cr cym cy dan da deu de div dv
dzo dz ell el eng en epo eo est et eus eu ewe ee fao fo fas fa fij fj fin fi fra fr fry fy ful ff gla gd gle ga glg gl
glv gv grn gn guj gu hat ht hau ha hbs sh heb he her hz hin hi hmo ho hrv hr hun hu hye hy ibo ig ido io iii ii iku iu
ile ie ina ia ind id ipk ik isl is ita it jav jv jpn ja kal kl kan kn kas ks kat ka kau kr kaz kk khm km kik ki kin rw
kir ky kom kv kon kg kor ko kua kj kur ku lao lo lat la lav lv lim li lin ln lit lt ltz lb lub lu lug lg mah mh mal ml
mar mr mkd mk mlg mg mlt mt mon mn mri mi msa ms mya my nau na nav nv nbl nr nde nd ndo ng nep ne nld nl nno nn nob nb
nor no nya ny oci oc oji oj ori or orm om oss os pan pa pli pi pol pl por pt pus ps que qu roh rm ron ro run rn rus ru
sag sg san sa sin si slk sk slv sl sme se smo sm sna sn snd sd som so sot st spa es sqi sq srd sc srp sr ssw ss sun su
swa sw swe sv tah ty tam ta tat tt tel te tgk tg tgl tl tha th tir ti ton to tsn tn tso ts tuk tk tur tr twi tw uig ug
ukr uk urd ur uzb uz ven ve vie vi vol vo wln wa wol wo xho xh yid yi yor yo zha za zho zh zul zu
"""
# The one language of a group that its short tag stands for in practice (CLDR), and what is no code at all ("ns").
_USUAL = """
als sq arb ar ayr ay azj az cmn zh ekk et fuv ff gaz om khk mn kmr ku knc kr lvs lv npi ne ns nso ory or pbt ps pes fa
plt mg quy qu swh sw uzn uz ydd yi zsm ms
"""
_WORDS = f"{_SHORT} {_USUAL}".split()
_LANGUAGES = dict(zip(_WORDS[::2], _WORDS[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class _Code:
    """A code in parts: "zho_Hans" has a script, "pt_BR" a region, "en_XX" none of both."""

    whole: str
    language: str
    script: str
    region: str

    @classmethod
    def parse(cls, code: str) -> _Code:
        language, *rest = re.split("[_-]", code)
        script = next((part.title() for part in rest if len(part) == 4 and part.isalpha()), "")
        region = next((part.upper() for part in rest if len(part) == 2 and part.isalpha()), "")
        short = _LANGUAGES.get(language.lower(), language.lower())
        return cls(code, short, script, "" if region == "XX" else region)

    def tags(self) -> tuple[str, ...]:
        """Return what it may be called, the shortest first; the last one is its own."""
        with_script = "-".join(filter(None, (self.language, self.script)))
        whole = "-".join(filter(None, (self.language, self.script, self.region)))
        return self.language, with_script, whole, self.whole.replace("_", "-")


def language_tags(codes: Iterable[str]) -> dict[str, str]:
    """Return a BCP-47 tag for each code, no two the same.

    Args:
        codes: All that one model has for one side.
    """
    given = [_Code.parse(code) for code in codes]
    tags: dict[str, str] = {}
    for length in range(4):
        wanted = defaultdict(list)
        for code in given:
            if code.whole not in tags:
                wanted[code.tags()[length]].append(code)
        taken = set(tags.values())
        tags |= {same[0].whole: tag for tag, same in wanted.items() if len(same) == 1 and tag not in taken}
    return {code.whole: tags.get(code.whole, code.whole) for code in given}


def is_tag(text: str) -> bool:
    """Whether a text may be the name of a language."""
    return _TAG.fullmatch(text) is not None


def listing(tags: Collection[str], most: int = 20) -> str:
    """Return tags for a message, not too many."""
    shown = ", ".join(sorted(tags)[:most])
    return f"{shown} and {len(tags) - most} more" if len(tags) > most else shown
