"""Tokenizers: text to ids and back. Torch-free; the server uses them."""

from dragoman.model.tokenizers.base import ByteDetokenizer, Detokenizer, Tokenizer
from dragoman.model.tokenizers.byte_level import ByteLevelTokenizer
from dragoman.model.tokenizers.load import describe_tokenizer, load_tokenizer, tokenizer_file_names
from dragoman.model.tokenizers.pieces import PieceSide, PieceTokenizer
from dragoman.model.tokenizers.sentence_piece import SentencePieceTokenizer, train_tokenizer
from dragoman.model.tokenizers.symbols import SymbolSide, SymbolTokenizer

__all__ = [
    "ByteDetokenizer",
    "ByteLevelTokenizer",
    "Detokenizer",
    "PieceSide",
    "PieceTokenizer",
    "SentencePieceTokenizer",
    "SymbolSide",
    "SymbolTokenizer",
    "Tokenizer",
    "describe_tokenizer",
    "load_tokenizer",
    "tokenizer_file_names",
    "train_tokenizer",
]
