"""`dragoman inspect`: what is in a bundle, and whether a server could load it.

Exit code 0 if the bundle is whole, 1 if a server would refuse it; the message is the server's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.export.errors import ExportError
from dragoman.export.graph_facts import Amounts
from dragoman.export.inspect import BundleFacts, inspect_bundle

HELP = "show what is in a bundle"
ERRORS: tuple[type[Exception], ...] = (ExportError,)
_SHOWN_LANGUAGES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", type=Path, help="bundle folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    """Inspect and print."""
    facts = inspect_bundle(args.bundle)
    if args.json:
        print(json.dumps(facts.to_dict(), indent=2))
    else:
        print("\n".join(_lines(facts)))
    return 1 if facts.problems else 0


def _lines(facts: BundleFacts) -> Iterator[str]:
    manifest, limits = facts.manifest, facts.manifest.limits
    special = manifest.special.to_dict()
    suppressed = len(special.pop("suppressed", ()))
    vocabulary = f"{manifest.shape.vocab_size} tokens"
    if facts.source_vocab_size != manifest.shape.vocab_size:
        vocabulary = f"{facts.source_vocab_size} source tokens, {manifest.shape.vocab_size} target tokens"
    ids = ", ".join(f"{name} {i}" for name, i in special.items())
    yield f"{facts.folder}: {manifest.name}, version {manifest.version}, format {manifest.format_version}"
    yield f"  languages   {_languages(manifest.languages.sources)} -> {_languages(manifest.languages.targets)}"
    yield f"  tokenizer   {facts.tokenizer_kind}, {vocabulary}"
    yield f"  special ids {ids}{f', {suppressed} more are never generated' if suppressed else ''}"
    yield f"  precision   {manifest.precision}, for {' and '.join(manifest.devices)}"
    yield (
        f"  limits      {limits.max_source_tokens} source tokens, {limits.max_target_tokens} target tokens; "
        f"by default {limits.length_ratio:g} per source token + {limits.length_margin}"
    )
    yield f"  on request  {', '.join(f'{name} {kind}' for name, kind in facts.on_request.items()) or 'nothing'}"
    tools = ", ".join(f"{tool} {version}" for tool, version in manifest.tools.items())
    yield f"  made with   {tools or 'unknown tools'}"
    yield f"  verified    {_verification(facts)}"
    yield "\nfile                          bytes"
    for name, size in facts.files.items():
        yield f"  {name:<22} {size:>12,}"
    for graph in facts.graphs:
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opsets.items())
        yield f"\n{graph.name}: {graph.nodes} nodes, opset {opsets}"
        yield f"  {_operators(graph.operators)}"
        yield f"  {'part':<22} {'parameters':>12} {'bytes':>14}  types"
        for part, amounts in graph.parts.items():
            yield _row(part, amounts)
        yield _row("all", graph.amounts)
        if graph.unused:
            yield f"  not read by any node: {', '.join(graph.unused)}"
    state = facts.state
    yield (
        f"\nmemory for each text: {state.per_source_token:,} bytes per source token, {state.per_target_token:,} per "
        f"target token, {state.fixed:,} at any length; {state.longest:,} at the limits"
    )
    for problem in facts.problems:
        yield f"PROBLEM: {problem}"


def _languages(tags: Iterable[str]) -> str:
    names = [tag or "not named" for tag in tags]
    shown = ", ".join(names[:_SHOWN_LANGUAGES])
    return shown if len(names) <= _SHOWN_LANGUAGES else f"{len(names)} languages ({shown}, ...)"


def _verification(facts: BundleFacts) -> str:
    numbers = {name: value for name, value in facts.manifest.verification.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items()) or "no"


def _operators(operators: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in operators.items())


def _row(part: str, amounts: Amounts) -> str:
    count, size = (sum(getattr(amount, name) for amount in amounts.values()) for name in ("parameters", "bytes"))
    types = ", ".join(f"{kind} {amount.parameters:,}" for kind, amount in amounts.items())
    return f"  {part:<22} {count:>12,} {size:>14,}  {types}"
