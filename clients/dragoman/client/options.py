"""Options of a call, and the requests made of them. Shared by both clients.

Checks only what the type system and the wire cannot carry; limits belong to the server, which
knows its model and answers with the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.v1 import translation_pb2 as pb

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How to decode. The defaults are the server's.

    Attributes:
        max_new_tokens: Most target tokens of one text, end of sentence included; 0 is the model's
            default, which grows with the length of the source.
    """

    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value does not fit the message.
        """
        if not 0 <= self.max_new_tokens <= _MAX_UINT32:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens}; it must be from 0 (the model's default) to {_MAX_UINT32}"
            )

    def to_proto(self) -> pb.DecodingOptions:
        """Return the message."""
        return pb.DecodingOptions(max_new_tokens=self.max_new_tokens)


DEFAULT_OPTIONS = DecodingOptions()


def translate_request(
    texts: Sequence[str],
    *,
    model: str,
    source_language: str,
    target_language: str,
    options: DecodingOptions,
    request_id: str,
) -> pb.TranslateRequest:
    """Return the message for many texts.

    Raises:
        TypeError: `texts` is one text instead of a sequence of texts, or holds something else.
        ValueError: A text cannot be encoded as UTF-8.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError(
            f"texts is one {type(texts).__name__}; it must be a sequence of str. Write translate([text]), "
            "or translate_text(text) for one text"
        )
    given = tuple(texts)  # once, so that an iterator works too
    for index, text in enumerate(given):
        _check_text(text, f"texts[{index}]")
    return pb.TranslateRequest(
        texts=given,
        model=model,
        source_language=source_language,
        target_language=target_language,
        options=options.to_proto(),
        id=request_id,
    )


def stream_request(
    text: str,
    *,
    model: str,
    source_language: str,
    target_language: str,
    options: DecodingOptions,
    request_id: str,
) -> pb.StreamTranslateRequest:
    """Return the message for one text whose translation is streamed.

    Raises:
        TypeError: `text` is not a str.
        ValueError: The text cannot be encoded as UTF-8.
    """
    _check_text(text, "text")
    return pb.StreamTranslateRequest(
        text=text,
        model=model,
        source_language=source_language,
        target_language=target_language,
        options=options.to_proto(),
        id=request_id,
    )


def _check_text(text: str, name: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; it must be str")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate, U+{ord(text[error.start]):04X}, at index {error.start}; "
            "it cannot be sent as UTF-8. Decode the text with its real encoding"
        ) from error
