"""Options of decoding on the command line: one flag for each field of `DecodingOptions`, grouped for `--help`.

Ranges are the server's to check; its message names the field, whose name is the flag's. Those that are said here are of
the protocol, for the error of what is no number at all.
"""

from __future__ import annotations

import argparse

from dragoman.client.commands import arguments
from dragoman.client.options import DecodingOptions, EarlyStopping, Normalization, Priority, Sampling

_ABOVE_ZERO = "above 0, at most 100"

_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag that changes the translation."""
    _add_limits(parser.add_argument_group("limits and constraints"))
    _add_search(parser.add_argument_group("search"))
    _add_sampling(parser.add_argument_group("sampling (each of these switches it on)"))


def add_priority(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says whose turn it is."""
    parser.add_argument(
        "--priority",
        type=str.upper,
        choices=[priority.value for priority in Priority],
        default=Priority.NORMAL.value,
        help="whose turn it is when the server is busy (default: %(default)s)",
    )


def decoding_options(args: argparse.Namespace) -> DecodingOptions:
    """Return the options that the flags say."""
    given = {name: getattr(args, name) for name in _SAMPLING}
    is_sampling = args.sample or any(value is not None for value in given.values())
    return DecodingOptions(
        max_new_tokens=args.max_new_tokens,
        min_new_tokens=args.min_new_tokens,
        max_length_ratio=args.max_length_ratio,
        beam_size=args.beam_size,
        num_hypotheses=args.num_hypotheses,
        length_penalty=args.length_penalty,
        normalization=Normalization(args.normalization),
        coverage_penalty=args.coverage_penalty,
        patience=args.patience,
        early_stopping=EarlyStopping(args.early_stopping),
        sampling=Sampling(**given) if is_sampling else None,
        repetition_penalty=args.repetition_penalty,
        no_repeat_ngram_size=args.no_repeat_ngram_size,
        suppressed_texts=args.suppress,
        stop_sequences=args.stop_sequence,
        return_scores=args.scores or args.n_best,
        return_token_scores=args.token_scores,
        return_alignment=args.alignment,
        return_alternatives=args.alternatives,
        priority=Priority(args.priority),
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    _count(
        group,
        "--max-new-tokens",
        "most tokens of one translation; 0 is the server's limit, which grows with the source",
    )
    _count(group, "--min-new-tokens", "fewest tokens of one translation")
    group.add_argument(
        "--max-length-ratio",
        type=arguments.number("from 0 to 100"),
        default=0.0,
        metavar="X",
        help="most tokens per token of the source",
    )
    group.add_argument(
        "--target-prefix",
        default="",
        metavar="TEXT",
        help="what every translation begins with; it is part of the output",
    )
    group.add_argument(
        "--stop-sequence",
        action="append",
        default=[],
        metavar="TEXT",
        help="end a translation before this text; may be repeated",
    )
    group.add_argument(
        "--suppress",
        action="append",
        default=[],
        metavar="TEXT",
        help="a word or phrase whose usual tokens may not appear; may be repeated. The model may still spell it with "
        "others: name the forms that it finds, too",
    )
    _factor(
        group,
        "--repetition-penalty",
        "makes tokens less likely that the translation has already (1 does nothing)",
        _ABOVE_ZERO,
    )
    _count(group, "--no-repeat-ngram-size", "no sequence of so many tokens comes twice; 0 allows all")


def _add_search(group: argparse._ArgumentGroup) -> None:
    _count(group, "--beam-size", "hypotheses that the search follows; 1 is greedy search")
    _count(
        group,
        "--num-hypotheses",
        "translations of each line: the best of the beam, or samples; with --n-best or --json",
    )
    _count(
        group, "--alternatives", "translations of each line that begin with different tokens; with --n-best or --json"
    )
    _factor(
        group,
        "--length-penalty",
        "power of the length that scores are divided by; 0 prefers short texts (1)",
        "from -100 to 100",
    )
    group.add_argument(
        "--normalization",
        type=str.upper,
        choices=[one.value for one in Normalization],
        default=Normalization.LENGTH.value,
        help="what that length is (default: %(default)s)",
    )
    group.add_argument(
        "--coverage-penalty",
        type=arguments.number("from 0 to 100"),
        default=0.0,
        metavar="X",
        help="weight of source words that no word of the translation attends to",
    )
    _factor(group, "--patience", "search on until so many times the beam have ended (1)", _ABOVE_ZERO)
    group.add_argument(
        "--early-stopping",
        type=str.upper,
        choices=[one.value for one in EarlyStopping],
        default=EarlyStopping.FALSE.value,
        help="when a search with enough hypotheses ends (default: %(default)s)",
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--sample", action="store_true", help="draw each token instead of taking the best one")
    _factor(group, "--temperature", "what scores are divided by before drawing (1)", _ABOVE_ZERO)
    group.add_argument(
        "--top-k", type=arguments.option_count, metavar="N", help="draw from so many best tokens; 0 is all (50)"
    )
    _factor(group, "--top-p", "draw from the best tokens that together have this probability (1)", "above 0, at most 1")
    group.add_argument(
        "--seed", type=arguments.seed, metavar="N", help="equal seeds give equal translations (drawn by the server)"
    )


def _count(group: argparse._ArgumentGroup, flag: str, text: str) -> None:
    group.add_argument(flag, type=arguments.option_count, default=0, metavar="N", help=text)


def _factor(group: argparse._ArgumentGroup, flag: str, text: str, allowed: str) -> None:
    group.add_argument(flag, type=arguments.number(allowed), metavar="X", help=text)
