"""Whether the search finds what `transformers.generate` finds: the table of server/SEARCH.md.

All combinations of the options that both have, on a small random model of each family: identical results of the
combinations in which an option has the value of its row. A result is the text with EOS, or all hypotheses in order.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch
import transformers

from tests.fakes.hf_search import FAMILIES, HuggingFace


def main() -> None:
    """Print the table, what differs, and the largest difference of scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES)

    parser.add_argument("--every", type=int, default=1, help="take every n-th combination")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    same: dict[str, Counter[str]] = {}
    total: dict[str, Counter[str]] = {}
    furthest = 0.0
    for family in arguments.families:
        with tempfile.TemporaryDirectory() as folder:
            model = HuggingFace(family, Path(folder))
        cases = model.cases()[:: arguments.every]
        same[family], total[family] = Counter(), Counter()
        for case, found in zip(cases, model.search(cases), strict=True):
            for ours, theirs in zip(found, model.generate(case), strict=True):
                identical = [ids for ids, _ in ours] == [ids for ids, _ in theirs]
                total[family].update([*case.rows, "all"])
                same[family].update([*case.rows, "all"] if identical else [])
                if not identical:
                    print("different:", family, case.ours, ours, theirs, sep="\n  ")
                elif "beams" in case.ours:
                    pairs = zip(ours, theirs, strict=True)
                    furthest = max([furthest, *(abs(one[1] - other[1]) for one, other in pairs)])
    print(f"| option | {' | '.join(arguments.families)} |\n|---|{'---|' * len(arguments.families)}")
    for row in total[arguments.families[0]]:
        counts = (f"{same[family][row]} / {total[family][row]}" for family in arguments.families)
        print(f"| {row} | {' | '.join(counts)} |")
    print(f"\nlargest difference of a beam's score: {furthest:.1e}")


if __name__ == "__main__":
    main()
