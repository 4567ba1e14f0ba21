"""The messages of a call, made of what its caller gives. Shared by both clients."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.client.checks import check_instance, check_member, check_ordered, check_text, check_texts
from dragoman.client.options import PRIORITIES, DecodingOptions, Priority
from dragoman.v1 import translation_pb2 as pb

CALLER_KEY = "dragoman-caller"  # metadata that names whose call it is
Metadata = tuple[tuple[str, str], ...]


def translate_request(
    texts: Sequence[str],
    *,
    target_prefixes: Sequence[str],
    model: str,
    source_language: str,
    target_language: str,
    options: DecodingOptions,
    request_id: str,
) -> pb.TranslateRequest:
    """Return the message for many texts.

    Raises:
        TypeError: `texts` or `target_prefixes` is one text instead of a sequence of texts, has no order, or holds
            something else; or another argument is of another type than its parameter.
        ValueError: A text cannot be encoded as UTF-8.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError(
            f"texts is one {type(texts).__name__}; it must be a sequence of str. Write translate([text]), "
            "or translate_text(text) for one text"
        )
    _check_names(model, source_language, target_language, request_id)
    check_instance("options", options, DecodingOptions)
    return pb.TranslateRequest(
        texts=check_texts(texts, "texts"),
        target_prefixes=check_texts(target_prefixes, "target_prefixes"),
        model=model,
        source_language=source_language,
        target_language=target_language,
        options=options.to_proto(),
        id=request_id,
    )


def one_text(text: str, target_prefix: str) -> tuple[list[str], list[str]]:
    """Return the lists of texts and of target prefixes for one text.

    Raises:
        TypeError: One of them is not a str.
        ValueError: One of them cannot be encoded as UTF-8.
    """
    check_text(text, "text")
    check_text(target_prefix, "target_prefix")
    return [text], [target_prefix] if target_prefix else []


def stream_request(
    text: str,
    *,
    target_prefix: str,
    model: str,
    source_language: str,
    target_language: str,
    options: DecodingOptions,
    request_id: str,
) -> pb.StreamTranslateRequest:
    """Return the message for one text whose translation is streamed.

    Raises:
        TypeError: An argument is of another type than its parameter.
        ValueError: One of them cannot be encoded as UTF-8.
    """
    check_text(text, "text")
    check_text(target_prefix, "target_prefix")
    _check_names(model, source_language, target_language, request_id)
    check_instance("options", options, DecodingOptions)
    return pb.StreamTranslateRequest(
        text=text,
        target_prefix=target_prefix,
        model=model,
        source_language=source_language,
        target_language=target_language,
        options=options.to_proto(),
        id=request_id,
    )


def score_request(
    pairs: Sequence[tuple[str, str]],
    *,
    model: str,
    source_language: str,
    target_language: str,
    priority: Priority,
    request_id: str,
) -> pb.ScoreRequest:
    """Return the message for pairs of a text and its translation.

    Raises:
        TypeError: `pairs` has no order, a pair is something else than two str, or an argument is of another type than
            its parameter.
        ValueError: A text cannot be encoded as UTF-8.
    """
    _check_names(model, source_language, target_language, request_id)
    check_member("priority", priority, Priority)
    if isinstance(pairs, (str, bytes)):
        raise TypeError(f"pairs is one {type(pairs).__name__}; it must be a sequence of (source, target)")
    messages = []
    for index, pair in enumerate(check_ordered(pairs, "pairs", "a sequence of (source, target)")):
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"pairs[{index}] is not a pair; it must be (source, target)")
        source, target = pair
        check_text(source, f"pairs[{index}][0]")
        check_text(target, f"pairs[{index}][1]")
        messages.append(pb.ScorePair(source=source, target=target))
    return pb.ScoreRequest(
        pairs=messages,
        model=model,
        source_language=source_language,
        target_language=target_language,
        priority=PRIORITIES[priority],
        id=request_id,
    )


def model_request(name: str) -> pb.GetModelRequest:
    """Return the message that asks for one model.

    Raises:
        TypeError: `name` is not a str.
        ValueError: It cannot be encoded as UTF-8.
    """
    check_text(name, "name")
    return pb.GetModelRequest(name=name)


def call_metadata(caller: str) -> Metadata:
    """Return the metadata of every call.

    Raises:
        TypeError: It is not a str.
        ValueError: gRPC cannot send the name.
    """
    check_text(caller, "caller")
    if not (caller.isascii() and caller.isprintable()):
        raise ValueError(f"caller is {caller!r}; it must be printable ASCII")
    return ((CALLER_KEY, caller),) if caller else ()


def _check_names(model: str, source_language: str, target_language: str, request_id: str) -> None:
    check_text(model, "model")
    check_text(source_language, "source_language")
    check_text(target_language, "target_language")
    check_text(request_id, "id")
