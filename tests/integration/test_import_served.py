"""From somebody else's folder to translations over gRPC: `dragoman import`, `dragoman serve`, a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.main import main
from dragoman.client import DecodingOptions, TranslationClient
from dragoman.export import bundle
from dragoman.model.cached_search import greedy_cached
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.importers.hugging_face import import_model
from dragoman.model.languages import Languages
from tests.e2e.process import start_server
from tests.fakes.hf_folders import FAMILIES, import_arguments, save_folder

pytest.importorskip("transformers").logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

TEXTS = ("one hundred and five euros", "two words, three signs; one end.", "", "a </s> b", "twenty-two thousand")
NEW_TOKENS = 12


def one_layer(family: str) -> dict[str, int]:
    """Return settings of the configuration: what layers add up to, the importers' own tests show without a server."""
    return {"num_layers": 1} if "t5" in family else {"encoder_layers": 1, "decoder_layers": 1}


def expected(checkpoint: Checkpoint, source: str, target: str) -> list[str]:
    """Return what PyTorch makes of the texts."""
    languages = checkpoint.languages or Languages.pair(source, target)
    tokenizer = checkpoint.tokenizer
    found = []
    for text in TEXTS:
        if not text:
            found.append("")
            continue
        ids, first = languages.frame(tokenizer.encode(text), source, target), languages.first_target(target)
        [tokens] = greedy_cached(checkpoint.model, [ids], [NEW_TOKENS], tokenizer.special, first)
        found.append(tokenizer.decode(tokens))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_an_imported_model_is_served(family: str, tmp_path: Path) -> None:
    """Texts through the server are those of the imported model in PyTorch, for a pair that the client chooses."""
    save_folder(family, tmp_path / "hf", **one_layer(family))
    arguments = import_arguments(family)
    options = [
        argument
        for name, value in vars(arguments).items()
        if value not in (None, False)
        for argument in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = ["import", "hf", str(tmp_path / "hf"), "-o", str(tmp_path / "bundle"), "--no-verify", *options]
    assert main(command) == 0
    manifest = bundle.load_manifest(tmp_path / "bundle")
    source, target = list(manifest.languages.pairs())[-1]
    with (
        start_server(model=tmp_path / "bundle") as server,
        TranslationClient(server.address) as client,
    ):
        result = client.translate(
            list(TEXTS),
            source_language=source,
            target_language=target,
            options=DecodingOptions(max_new_tokens=NEW_TOKENS),
        )
        [model] = client.models()

    wanted = expected(import_model(tmp_path / "hf", arguments), source, target)
    assert [translation.text for translation in result.translations] == wanted
    assert any(wanted)
    # Many languages have more pairs than an answer names.
    assert len(model.language_pairs) == min(len(list(manifest.languages.pairs())), 1000)
