"""The committed bundle of every format still loads, translates and is served. They are never made again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, start_server

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Example:
    """What a committed bundle makes of a text."""

    source_language: str
    target_language: str
    source: str
    target: str


NUMBERS = [
    Example("en", "de", "three one seven", "drei eins sieben"),
    Example("en", "fr", "three one seven", "trois un sept"),
    Example("fr", "en", "neuf neuf quatre cinq six", "nine nine four five six"),
    Example("de", "fr", "acht sechs zwei", "huit six deux"),
    Example("fr", "de", "cinq", "fünf"),
    Example("de", "de", "sieben vier", "sieben vier"),
]
EXAMPLES = {
    1: [
        Example("en", "de", "twenty-two minutes", "zweiundzwanzig Minuten"),
        Example("en", "de", "the twelfth of April sixteen sixty-six", "zwölfter April sechzehnhundertsechsundsechzig"),
    ],
    2: NUMBERS,
    3: NUMBERS,
}
FOLDERS = {version: DATA / f"tiny-v{version}" for version in EXAMPLES}
formats = pytest.mark.parametrize("version", bundle.FORMAT_VERSIONS)


def test_every_format_has_a_bundle() -> None:
    """A new format comes with one."""
    assert set(FOLDERS) == set(bundle.FORMAT_VERSIONS)
    assert {version: load_manifest(folder).format_version for version, folder in FOLDERS.items()} == {
        version: version for version in FOLDERS
    }


@formats
def test_the_reference_session_translates(version: int) -> None:
    """With the tokens of the languages around the source and in front of the target."""
    session = BundleSession(FOLDERS[version])
    tokenizer = bundle.load_tokenizer(FOLDERS[version], session.manifest)
    languages = session.manifest.languages
    for example in EXAMPLES[version]:
        pair = (example.source_language, example.target_language)
        ids = languages.frame(tokenizer.encode(example.source), *pair)
        [found] = session.greedy([ids], [40], first=languages.first_target(pair[1]))
        assert tokenizer.decode(found) == example.target


@formats
def test_the_server_translates(version: int) -> None:
    """One call per pair of languages, and one streamed; a language that the model lacks is refused."""
    manifest = load_manifest(FOLDERS[version])
    with start_server(model=FOLDERS[version]) as server:
        described = server.stub.GetModel(pb.GetModelRequest(), timeout=WAIT_S).model
        for example in EXAMPLES[version]:
            one, other = example.source_language, example.target_language
            request = pb.TranslateRequest(texts=[example.source] * 2, source_language=one, target_language=other)
            translations = server.stub.Translate(request, timeout=WAIT_S).translations
            assert [translation.text for translation in translations] == [example.target] * 2
            streamed = pb.StreamTranslateRequest(text=example.source, source_language=one, target_language=other)
            stream = server.stub.StreamTranslate(streamed, timeout=WAIT_S)
            assert "".join(message.text for message in stream) == example.target
        unknown = pb.TranslateRequest(texts=["x"], source_language="en", target_language="xx")
        with pytest.raises(grpc.RpcError) as caught:
            server.stub.Translate(unknown, timeout=WAIT_S)

    pairs = {(pair.source_language, pair.target_language) for pair in described.language_pairs}
    assert pairs == set(manifest.languages.pairs())
    assert described.version == manifest.version
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
