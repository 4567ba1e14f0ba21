"""Tokenizers: text to ids and back. Torch-free; the server uses them."""

from dragoman.model.tokenizers.base import ByteDetokenizer, Detokenizer, Tokenizer
from dragoman.model.tokenizers.load import describe_tokenizer, load_tokenizer, tokenizer_file_names
from dragoman.model.tokenizers.sentence_piece import SentencePieceTokenizer, run_sampled, train_tokenizer

__all__ = [
    "ByteDetokenizer",
    "Detokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "describe_tokenizer",
    "load_tokenizer",
    "run_sampled",
    "tokenizer_file_names",
    "train_tokenizer",
]
