"""Folders as Hugging Face's checkpoints are: small random models of transformers, and tokenizer files."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece
import torch

from tests.fakes.tokenizer_texts import sentence_piece

_SIZES = {
    "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64,
}  # fmt: skip
_T5_SIZES = {
    "d_model": 32, "d_kv": 6, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 1,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How to make a folder of one kind.

    Attributes:
        model: Class of the model in transformers.
        configuration: Class of its configuration.
        settings: Of the configuration.
        files: Of the tokenizer, by name; what is no bytes is written as JSON.
        options: Of the import command.
        forced: What generation begins with.
        target: Language to translate into, of a model of several.
        tokenizer: Class in transformers, and what to tell it.
    """

    model: str
    configuration: str
    settings: dict[str, Any]
    files: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    target: str = "de"
    forced: int | None = None
    tokenizer: tuple[str, dict[str, Any]] = ("", {})


@functools.cache
def unigram(size: int = 300) -> bytes:
    return sentence_piece(size, model_type="unigram")


@functools.cache
def bpe() -> bytes:
    return sentence_piece(300, model_type="bpe")


@functools.cache
def t5_model() -> bytes:
    extra = [f"<extra_id_{i}>" for i in (1, 0)]
    return sentence_piece(
        300, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=extra
    )


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(processor.get_piece_size())
    return [processor.id_to_piece(i) for i in numbers if not processor.is_control(i) and not processor.is_unknown(i)]


def numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _marian(codes: tuple[str, ...] = (), **tokenizer: str) -> Family:
    vocabulary = numbered(["</s>", "<unk>", *pieces_of(unigram()), *pieces_of(unigram(250)), *codes, "<pad>"])
    pad = vocabulary["<pad>"]
    settings = {
        **_SIZES, "vocab_size": pad + 1, "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0,
        "activation_function": "swish", "scale_embedding": True, "bad_words_ids": [[pad]],
    }  # fmt: skip
    files = {
        "source.spm": unigram(), "target.spm": unigram(250), "vocab.json": vocabulary,
        "tokenizer_config.json": {"model_max_length": 60, **tokenizer},
    }  # fmt: skip
    return Family("MarianMTModel", "MarianConfig", settings, files, tokenizer=("MarianTokenizer", {}))


def _marian_separate() -> Family:
    source = numbered(["<pad>", "<unk>", "</s>", *pieces_of(unigram())])
    target = numbered(["</s>", "<unk>", *pieces_of(unigram(250)), "<pad>"])
    settings = {
        **_SIZES, "vocab_size": len(source), "decoder_vocab_size": len(target), "encoder_layers": 1,
        "scale_embedding": True, "share_encoder_decoder_embeddings": False, "pad_token_id": target["<pad>"],
        "decoder_start_token_id": target["<pad>"], "eos_token_id": 0,
    }  # fmt: skip
    files = {
        "source.spm": unigram(), "target.spm": unigram(250), "vocab.json": source, "target_vocab.json": target,
        "tokenizer_config.json": {"separate_vocabs": True, "source_lang": "eng", "target_lang": "deu"},
    }  # fmt: skip
    return Family("MarianMTModel", "MarianConfig", settings, files, tokenizer=("MarianTokenizer", {}))


def _m2m100() -> Family:
    vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces_of(unigram())])
    settings = {**_SIZES, "vocab_size": len(vocabulary) + 108}
    files = {"sentencepiece.bpe.model": unigram(), "vocab.json": vocabulary}
    return Family(
        "M2M100ForConditionalGeneration", "M2M100Config", settings, files, {"source_language": "en"},
        tokenizer=("M2M100Tokenizer", {"src_lang": "en"}),
    )  # fmt: skip


def _nllb() -> Family:
    codes = ["ace_Arab", "ace_Latn", "deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]
    settings = {**_SIZES, "vocab_size": len(pieces_of(bpe())) + 4 + len(codes) + 3}
    files = {
        "sentencepiece.bpe.model": bpe(), "special_tokens_map.json": {"additional_special_tokens": codes},
        "tokenizer_config.json": {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn"},
    }  # fmt: skip
    return Family(
        "M2M100ForConditionalGeneration", "M2M100Config", settings, files,
        target="zh-Hant", tokenizer=("NllbTokenizer", {"src_lang": "eng_Latn", "extra_special_tokens": codes}),
    )  # fmt: skip


@functools.cache
def byte_level() -> tuple[dict[str, int], bytes]:
    """Return the vocabulary and the merges of a small byte-level BPE."""
    import tokenizers

    from tests.fakes.tokenizer_texts import sentences

    bpe = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(sentences(), vocab_size=400, special_tokens=special, show_progress=False)
    merges = json.loads(bpe.to_str())["model"]["merges"]
    return bpe.get_vocab(), "\n".join(["#version: 0.2", *(" ".join(merge) for merge in merges)]).encode()


def _bart(forced: int | None = None, **settings: Any) -> Family:
    vocabulary, merges = byte_level()
    return Family(
        "BartForConditionalGeneration", "BartConfig", {**_SIZES, "vocab_size": len(vocabulary), **settings},
        {"vocab.json": vocabulary, "merges.txt": merges}, {"source_language": "en", "target_language": "de"},
        forced=forced, tokenizer=("BartTokenizer", {}),
    )  # fmt: skip


def _mbart(name: str, codes: int, **settings: Any) -> Family:
    size = len(pieces_of(unigram())) + 4 + codes + 1
    return Family(
        "MBartForConditionalGeneration", "MBartConfig", {**_SIZES, "vocab_size": size, **settings},
        {"sentencepiece.bpe.model": unigram(), "tokenizer_config.json": {"tokenizer_class": name}},
        {"source_language": "en"}, tokenizer=(name, {"src_lang": "en_XX"}),
    )  # fmt: skip


def _t5(model: str, configuration: str, options: dict[str, Any], **settings: Any) -> Family:
    size = sentencepiece.SentencePieceProcessor(model_proto=t5_model()).get_piece_size()
    return Family(
        model, configuration, {**_T5_SIZES, "vocab_size": size + 4, **settings}, {"spiece.model": t5_model()}, options,
        tokenizer=("T5Tokenizer", {"extra_ids": 0}),
    )  # fmt: skip


def _t5_tasks() -> dict[str, Any]:
    names = {"de": "German", "fr": "French"}
    tasks = {f"translation_en_to_{tag}": {"prefix": f"translate English to {name}: "} for tag, name in names.items()}
    return {"summarization": {"prefix": "summarize: "}, **tasks}


FAMILIES: dict[str, Callable[[], Family]] = {
    "marian": lambda: _marian(source_lang="en", target_lang="de"),
    "marian, separate vocabularies": _marian_separate,
    "marian, several targets": lambda: _marian((">>deu<<", ">>fra<<", ">>pt_br<<"), source_lang="eng+nld"),
    "m2m100": _m2m100,
    "nllb": _nllb,
    "bart": lambda: _bart(forced=0),
    "bart, nothing forced": lambda: _bart(activation_function="relu", scale_embedding=True),
    "mbart": lambda: _mbart("MBartTokenizer", 25, scale_embedding=True, decoder_start_token_id=_code(2)),
    "mbart-50": lambda: _mbart("MBart50Tokenizer", 52, decoder_start_token_id=2),
    "t5": lambda: _t5("T5ForConditionalGeneration", "T5Config", {}, task_specific_params=_t5_tasks()),
    "t5 v1.1": lambda: _t5(
        "T5ForConditionalGeneration", "T5Config",
        {"source_language": "en", "target_language": "de", "prefix": "one hundred: "},
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    ),
    "mt5": lambda: _t5(
        "MT5ForConditionalGeneration", "MT5Config", {"source_language": "en", "target_language": "de"},
        tie_word_embeddings=False,
    ),
}  # fmt: skip
# Of matrices: sharp attention, to the source above all, and a feed-forward layer that does not drown it. Else a text
# repeats its last token, whatever the source.
_GAINS = {
    "embed_tokens": 1.0, "shared": 1.0, "lm_head": 1.0, "fc": 1.0, ".wi": 1.0, ".wo": 1.0, "encoder_attn": 3.0,
    "EncDec": 3.0,
}  # fmt: skip
UNTIED = ("t5 v1.1", "mt5")


def _code(number: int) -> int:
    return len(pieces_of(unigram())) + 4 + number


def save_folder(name: str, folder: Path, *, seed: int = 7, **changes: Any) -> Any:
    """Write the folder of a family and return the model of transformers.

    Args:
        name: In `FAMILIES`.
        folder: To write into.
        seed: Of the weights.
        changes: Settings of the configuration.
    """
    import transformers

    family = FAMILIES[name]()
    configuration = getattr(transformers, family.configuration)(**{**family.settings, **changes})
    model = getattr(transformers, family.model)(configuration).eval()
    if name in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    draw_weights(model, seed)
    model.generation_config.forced_bos_token_id = family.forced
    model.save_pretrained(folder)
    for file, content in family.files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return model


@torch.no_grad()
def draw_weights(model: Any, seed: int) -> None:
    """Draw all weights so that texts vary with the source, and end at EOS or at the limit."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            is_norm = "norm" in name and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + is_norm)
        elif "embed_positions" not in name or "marian" not in type(model).__module__:
            gain = next((gain for part, gain in _GAINS.items() if part in name), 1.5)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * gain * parameter.size(1) ** -0.5)
    eos = model.config.eos_token_id
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator) * 0.1)
        model.final_logits_bias[0, eos] = 1.0
    model.get_output_embeddings().weight[eos] *= 2


def import_arguments(name: str, **options: Any) -> argparse.Namespace:
    """Return what the command line gives the importer for a family."""
    none = {"source_language": None, "target_language": None, "max_tokens": None, "prefix": None}
    return argparse.Namespace(**{**none, **FAMILIES[name]().options, **options})
