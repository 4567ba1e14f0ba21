"""Makes tiny-v2 and tiny-v3, bundles of format 2 and 3: number words of three languages, any of them into any other.

    python tests/data/make_tiny.py 2 OUT
    python tests/data/make_tiny.py 3 OUT

Not run by the tests: the bundles are committed and stay as they are. A language is chosen by a token in front of
the source and by one that the target begins with, as NLLB has it. Format 3 is int8-static: keys and values of
8 bits, and the last source position handed from the encoder to the decoder.
"""

from __future__ import annotations

import io
import random
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import sentencepiece
import torch
from torch.nn.functional import cross_entropy

from dragoman.export import bundle
from dragoman.export.calibration import CalibrationPair
from dragoman.export.write import Precision, write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.padding import pad_rows
from dragoman.model.tokenizers import SentencePieceTokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SpecialIds

WORDS = {
    "en": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
    "fr": ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"],
}
TAGS = list(WORDS)
SPECIAL = SpecialIds(suppressed=(4, 5, 6))
LONGEST = 8
STEPS = 4000
PRECISIONS: dict[int, Precision] = {2: "fp32", 3: "int8-static"}
WIDTHS = {2: 24, 3: 32}  # of two heads; those of 8-bit keys and values are multiples of 8


def make_tokenizer() -> SentencePieceTokenizer:
    """Return a SentencePiece model of the words, with a control token for each language."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([word for words in WORDS.values() for word in words] * 20),
        model_writer=model,
        vocab_size=90,
        model_type="bpe",
        normalization_rule_name="identity",  # the tables of the others take 240 kB
        pad_id=SPECIAL.pad,
        unk_id=SPECIAL.unk,
        bos_id=SPECIAL.start,
        eos_id=SPECIAL.eos,
        control_symbols=[f"__{tag}__" for tag in TAGS],
        num_threads=1,
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue(), SPECIAL)


def make_languages() -> Languages:
    """Return the tokens of each language."""
    ids = {tag: SPECIAL.suppressed[i] for i, tag in enumerate(TAGS)}
    return Languages(
        {tag: LanguageTokens(before_source=(ids[tag],)) for tag in TAGS},
        {tag: LanguageTokens(first_target=(ids[tag],)) for tag in TAGS},
    )


def example(tokenizer: SentencePieceTokenizer, languages: Languages, generator: random.Random) -> CalibrationPair:
    """Return a source and its translation, as the model reads them."""
    source, target = generator.choice(TAGS), generator.choice(TAGS)
    numbers = [generator.randrange(9) for _ in range(generator.randint(1, LONGEST))]
    text, expected = (" ".join(WORDS[tag][i] for i in numbers) for tag in (source, target))
    return CalibrationPair(
        languages.frame(tokenizer.encode(text), source, target),
        [*languages.first_target(target), *tokenizer.encode(expected)],
    )


def train(tokenizer: SentencePieceTokenizer, languages: Languages, width: int) -> Transformer:
    """Return a model of this width that translates nearly everything."""
    torch.manual_seed(0)
    generator = random.Random(0)
    model = Transformer(
        ModelConfig(
            tokenizer.vocab_size, d_model=width, d_ff=48, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
            dropout=0.0, max_source_tokens=48, max_target_tokens=48,
        )
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS)
    for _ in range(STEPS):
        pairs = [example(tokenizer, languages, generator) for _ in range(64)]
        sources, outputs = [pair.source for pair in pairs], [pair.target for pair in pairs]
        inputs = [[SPECIAL.start, *ids[:-1]] for ids in outputs]
        lengths = torch.tensor([len(ids) for ids in sources])
        states = model(pad_rows(sources, SPECIAL.pad), lengths, pad_rows(inputs, SPECIAL.pad))
        expected_ids = pad_rows(outputs, SPECIAL.pad)
        loss = cross_entropy(model.project(states).flatten(0, 1), expected_ids.flatten(), ignore_index=SPECIAL.pad)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    print(f"loss of the last batch: {loss.item():.4f}")
    return model.eval()


def slim(folder: Path) -> None:
    """Drop from the graphs what only the exporter's authors read; it is larger than the weights."""
    manifest = bundle.load_manifest(folder)
    hashes = dict(manifest.sha256)
    for name in bundle.GRAPHS:
        model = onnx.load(folder / name)
        del model.graph.value_info[:]
        for node in model.graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        onnx.save(model, folder / name)
        hashes[name] = bundle.file_sha256(folder / name)
    replace(manifest, sha256=hashes).write(folder)


def main(version: int, out: Path) -> None:
    """Make the bundle of a format."""
    tokenizer, languages = make_tokenizer(), make_languages()
    model = train(tokenizer, languages, WIDTHS[version])
    checkpoint = Checkpoint(Path(), model, tokenizer, "en", "de", STEPS, languages)
    generator = random.Random(1)
    calibration = [example(tokenizer, languages, generator) for _ in range(200)]
    precision = PRECISIONS[version]
    write_bundle(checkpoint, out, name="tiny", precision=precision, verify=None, calibration=calibration)
    slim(out)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
