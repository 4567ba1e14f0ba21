"""A SentencePiece model as a cutter of texts: text in, names of pieces out.

User text is data. SentencePiece reads the names of control tokens ("</s>") as characters, but two things
in a text would still be taken for something else, so both are passed around the library:

- U+2581 stands for "space" inside pieces and would turn into a space. With byte fallback it goes in as its
  three bytes. Without, the vocabulary has no means to write it: like any such character it is unknown.
- A piece that is the name of a special token (a language token among the "user defined" ones, say) would be
  found in a text that spells it. Such pieces become control tokens before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as model_pb2

SPACE_MARK = "\u2581"

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
ModelProto: Any = model_pb2.ModelProto  # type: ignore[attr-defined]  # protobuf makes the class at run time
_Piece = ModelProto.SentencePiece


class Segmenter:
    """Cuts texts. Thread-safe.

    Attributes:
        parts: Names of the pieces that a text may have.
    """

    def __init__(self, proto: Any, name: str, special: Collection[str] = ()) -> None:
        """Load a model.

        Args:
            proto: What `read_model` returned; it is changed.
            name: Of its file, for messages.
            special: Names that no text may have as a piece.

        Raises:
            ValueError: `proto` is not a model that SentencePiece can load.
        """
        for piece in proto.pieces:
            if piece.piece in special and piece.type in (_Piece.NORMAL, _Piece.USER_DEFINED):
                piece.type = _Piece.CONTROL
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        except RuntimeError as error:
            raise ValueError(f"{name}: not a SentencePiece model: {error}") from error
        types = (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.UNUSED, _Piece.BYTE)
        self.parts = frozenset(piece.piece for piece in proto.pieces if piece.type in types)
        self._bytes = {piece.piece: int(piece.piece[3:5], 16) for piece in proto.pieces if piece.type == _Piece.BYTE}

    def __call__(self, text: str) -> list[str]:
        """Return the pieces of `text`; what the model does not know comes back as it is."""
        if SPACE_MARK not in text:
            return self._cut(text)
        stand_in = next((c for c in _NONCHARACTERS if c not in text), _NONCHARACTERS[0])
        pieces = self._cut(text.replace(SPACE_MARK, stand_in))
        if not self._bytes:
            return pieces
        return _replace_run(pieces, _byte_pieces(stand_in), _byte_pieces(SPACE_MARK))

    def text_bytes(self, piece: str) -> bytes:
        """Return the UTF-8 bytes, possibly part of a character, that a piece stands for."""
        if piece in self._bytes:
            return bytes([self._bytes[piece]])
        return piece.replace(SPACE_MARK, " ").encode()

    def _cut(self, text: str) -> list[str]:
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces


def read_model(content: bytes, name: str) -> Any:
    """Parse a SentencePiece model and return its `ModelProto`.

    Args:
        content: Of the file.
        name: Of the file, for messages.

    Raises:
        ValueError: It is none.
    """
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{name}: not a SentencePiece model: {error}") from error
    if not proto.pieces:
        raise ValueError(f"{name}: not a SentencePiece model: it has no pieces")
    return proto


def _byte_pieces(character: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in character.encode()]


def _replace_run(pieces: list[str], old: list[str], new: list[str]) -> list[str]:
    """Return `pieces` with each run of `old` replaced by `new`."""
    result: list[str] = []
    i = 0
    while i < len(pieces):
        if pieces[i : i + len(old)] == old:
            result += new
            i += len(old)
        else:
            result.append(pieces[i])
            i += 1
    return result
