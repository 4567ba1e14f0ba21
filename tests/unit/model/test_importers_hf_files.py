"""Folders of Hugging Face: every form of their weights, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.hugging_face import import_model
from dragoman.model.positions import sinusoidal_positions
from tests.fakes.hf_folders import import_arguments, save_folder

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")


class Unsafe:
    """What a pickle can hold: a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


def weights_of(folder: Path, name: str, **options: Any) -> dict[str, Tensor]:
    return import_model(folder, import_arguments(name, **options)).model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def refused(folder: Path, name: str, **options: Any) -> str:
    with pytest.raises(ImportFailed) as error:
        import_model(folder, import_arguments(name, **options))
    return str(error.value)


def change(folder: Path, file: str, **values: Any) -> None:
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**content, **values}))


def held(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def hold(folder: Path, tensors: dict[str, Tensor]) -> None:
    safetensors.torch.save_file(
        {name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )


def split(folder: Path, file: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    """Write the weights in two files and an index."""
    tensors = held(folder)
    stem, suffix = file.rsplit(".", 1)
    names = [f"{stem}-{i}-of-2.{suffix}" for i in (1, 2)]
    places = {name: names[i % 2] for i, name in enumerate(tensors)}
    for part in names:
        save({name: tensor for name, tensor in tensors.items() if places[name] == part}, folder / part)
    (folder / f"{file}.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("name", ["m2m100", "t5 v1.1"])
def test_weights_are_read_in_every_form(name: str, tmp_path: Path) -> None:
    """One file or several, safetensors or pickled data."""
    save_folder(name, tmp_path)
    tensors, expected = held(tmp_path), weights_of(tmp_path, name)

    split(tmp_path, "model.safetensors", safetensors.torch.save_file)
    assert same(weights_of(tmp_path, name), expected)
    (tmp_path / "model.safetensors.index.json").unlink()
    hold(tmp_path, tensors)
    split(tmp_path, "pytorch_model.bin", torch.save)
    assert same(weights_of(tmp_path, name), expected)
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert same(weights_of(tmp_path, name), expected)


def test_an_old_marian_file_is_read(tmp_path: Path) -> None:
    """It has shared matrices under all their names, and the positions."""
    save_folder("marian", tmp_path)
    tensors, expected = held(tmp_path), weights_of(tmp_path, "marian")
    shared = tensors["model.shared.weight"]
    table = sinusoidal_positions(64, 32, "sinusoidal-half-paper")
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_tokens.weight"] = shared
        tensors[f"model.{stack}.embed_positions.weight"] = table.half()
    (tmp_path / "model.safetensors").unlink()
    torch.save({**tensors, "lm_head.weight": shared}, tmp_path / "pytorch_model.bin")
    assert same(weights_of(tmp_path, "marian"), expected)

    tensors["model.decoder.embed_positions.weight"] = sinusoidal_positions(64, 32, "sinusoidal-half")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert "model.decoder.embed_positions.weight is 1.3 away from the formula" in refused(tmp_path, "marian")


def test_matrices_that_differ_are_not_tied(tmp_path: Path) -> None:
    """Whatever the settings say, as transformers does it."""
    save_folder("bart", tmp_path)
    tensors = held(tmp_path)
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + 1
    hold(tmp_path, tensors)
    model = import_model(tmp_path, import_arguments("bart")).model

    assert model.config.tied_embeddings == "source-target"
    assert torch.equal(model.output_weight, tensors["lm_head.weight"])
    del tensors["lm_head.weight"]
    hold(tmp_path, tensors)
    change(tmp_path, "config.json", tie_word_embeddings=False)
    assert "missing tensors: lm_head.weight" in refused(tmp_path, "bart")


def test_a_model_without_a_head_is_read(tmp_path: Path) -> None:
    """BartModel saves the same tensors without "model." in front, and no bias of the logits."""
    save_folder("bart", tmp_path)
    expected = weights_of(tmp_path, "bart")
    tensors = {name.removeprefix("model."): t for name, t in held(tmp_path).items() if name != "final_logits_bias"}
    hold(tmp_path, tensors)

    del expected["output.bias"]
    assert same(weights_of(tmp_path, "bart"), expected)


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    """All weights are float32."""
    save_folder("t5", tmp_path)
    hold(tmp_path, {name: tensor.half() for name, tensor in held(tmp_path).items()})

    assert {tensor.dtype for tensor in weights_of(tmp_path, "t5").values()} == {torch.float32}


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    """Missing and surplus ones together, then those of another shape."""
    save_folder("mbart", tmp_path)
    tensors = held(tmp_path)
    complete = dict(tensors)
    for name in ("model.encoder.layers.0.fc1.weight", "model.decoder.layernorm_embedding.bias", "model.shared.weight"):
        del tensors[name]
    hold(tmp_path, {**tensors, "classification_head.dense.weight": torch.zeros(2, 3)})
    said = refused(tmp_path, "mbart")
    assert "missing tensors: model.shared.weight, model.encoder.layers.0.fc1.weight, model.decoder.layernorm" in said
    assert "no place for: classification_head.dense.weight [2, 3]" in said

    complete["model.encoder.layers.1.fc2.bias"] = torch.zeros(5)
    complete["model.shared.weight"] = complete["model.shared.weight"][:-1]
    hold(tmp_path, complete)
    said = refused(tmp_path, "mbart")
    assert "encoder.layers.1.feed_forward.contract.bias is [5], the configuration says [32]" in said
    assert "embedding.tokens.weight is" in said


def test_t5_tensors_that_nothing_uses_are_left_out(tmp_path: Path) -> None:
    """Only that one; any other is named."""
    save_folder("t5", tmp_path)
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    hold(tmp_path, {**held(tmp_path), unused: torch.zeros(8, 4)})
    assert weights_of(tmp_path, "t5")

    hold(
        tmp_path,
        {**held(tmp_path), "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": torch.ones(1)},
    )
    assert "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight [1]" in refused(tmp_path, "t5")


def test_pickled_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not run."""
    save_folder("bart", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Unsafe()}, tmp_path / "pytorch_model.bin")
    assert "could run code" in refused(tmp_path, "bart")
    torch.save([torch.zeros(1)], tmp_path / "pytorch_model.bin")
    assert "holds no state dict" in refused(tmp_path, "bart")
    (tmp_path / "pytorch_model.bin").unlink()
    assert "has no weights; one of model.safetensors" in refused(tmp_path, "bart")
    assert "must not run" not in capsys.readouterr().out


def test_a_broken_index_is_refused(tmp_path: Path) -> None:
    """Files that are missing or lie elsewhere, tensors that are in none."""
    save_folder("m2m100", tmp_path)
    split(tmp_path, "model.safetensors", safetensors.torch.save_file)
    index = tmp_path / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    for file in ("gone.safetensors", "../model.safetensors"):
        index.write_text(json.dumps({"weight_map": {**places, "model.shared.weight": file}}))
        assert f"not in the folder: {file}" in refused(tmp_path, "m2m100")
    index.write_text(json.dumps({"weight_map": {**places, "model.new.weight": places["model.shared.weight"]}}))
    assert "not in their files: model.new.weight" in refused(tmp_path, "m2m100")
    index.write_text("{}")
    assert "has no weight_map" in refused(tmp_path, "m2m100")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("bart", {"model_type": "pegasus"}, "model_type is 'pegasus'; supported are marian, m2m_100"),
        ("bart", {"model_type": None}, "model_type is None"),
        ("bart", {"decoder_ffn_dim": 64}, "encoder_ffn_dim is 48, decoder_ffn_dim is 64; they must be equal"),
        ("mbart", {"encoder_attention_heads": 8}, "encoder_attention_heads is 8, decoder_attention_heads is 4"),
        ("mbart", {"normalize_before": False}, "normalize_before is False; only True is supported"),
        ("bart", {"normalize_before": True}, "normalize_before is True; only False is supported"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding is False; only True is supported"),
        ("bart", {"static_position_embeddings": True}, "static_position_embeddings is True; only False"),
        ("bart", {"do_blenderbot_90_layernorm": True}, "do_blenderbot_90_layernorm is True"),
        ("marian", {"activation_function": "mish"}, "activation_function is 'mish'; only 'relu', 'gelu'"),
        ("m2m100", {"is_encoder_decoder": False}, "is_encoder_decoder is False; only True"),
        ("m2m100", {"d_model": 33}, "d_model 33 is not a multiple of num_heads 4"),
        ("m2m100", {"d_model": "32"}, "d_model is '32'; it must be a whole number"),
        ("m2m100", {"encoder_layers": 0}, "encoder_layers is 0; it must be at least 1"),
        ("m2m100", {"vocab_size": None}, "vocab_size is missing"),
        ("m2m100", {"scale_embedding": 1}, "scale_embedding is 1; it must be true or false"),
        ("m2m100", {"quantization_config": {"bits": 8}}, "quantization_config is {'bits': 8}; it is not supported"),
        ("m2m100", {"pad_token_id": [1, 2]}, "pad_token_id is [1, 2]; only one id is supported"),
        ("nllb", {"pad_token_id": 5}, "pad_token_id is 5 and eos_token_id is 2; with sentencepiece.bpe.model"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'; only 'relu'"),
        ("t5", {"is_gated_act": True}, "is_gated_act is True; only False is supported"),
        ("t5 v1.1", {"dense_act_fn": "relu"}, "dense_act_fn is 'relu'; only 'gelu_new' is supported"),
        ("t5", {"relative_attention_max_distance": 4}, "relative_max_distance is 4; it must exceed half"),
        ("t5", {"vocab_size": 5, "encoder_attention_heads": 3}, "there are 5 ids"),
        ("bart", {"dropout": 1.5}, "dropout is 1.5; it must be in [0, 1)"),
    ],
)  # fmt: skip
def test_settings_that_we_do_not_follow_are_named(
    name: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """With their values and what would do."""
    save_folder(name, tmp_path)
    for file in ("config.json", "generation_config.json"):
        change(tmp_path, file, **settings)

    assert said in refused(tmp_path, name)


def test_wrong_settings_are_named_all_at_once(tmp_path: Path) -> None:
    """One run is enough to see them."""
    save_folder("bart", tmp_path)
    change(tmp_path, "config.json", decoder_ffn_dim=1, activation_function="mish", d_model=0, is_decoder=True)

    said = refused(tmp_path, "bart")
    assert all(name in said for name in ("decoder_ffn_dim", "activation_function", "d_model", "is_decoder"))


def test_settings_of_training_and_search_are_left_out(tmp_path: Path) -> None:
    """They change neither weights nor what is computed."""
    save_folder("bart", tmp_path)
    expected = weights_of(tmp_path, "bart")
    change(tmp_path, "config.json", num_beams=5, encoder_layerdrop=0.3, init_std=1, max_length=20, id2label={"0": "x"})
    change(tmp_path, "generation_config.json", no_repeat_ngram_size=3, early_stopping=True, min_length=5)

    assert same(weights_of(tmp_path, "bart"), expected)


def test_ids_that_generation_avoids(tmp_path: Path) -> None:
    """Those of one token are suppressed; longer ones are no part of our searches."""
    save_folder("t5", tmp_path)
    change(tmp_path, "generation_config.json", bad_words_ids=[[7]], suppress_tokens=[9])
    special = import_model(tmp_path, import_arguments("t5")).tokenizer.special
    assert {7, 9} < set(special.suppressed)
    assert (special.pad, special.eos, special.unk, special.start) == (0, 1, 2, 0)
    assert len(special.suppressed) == 2 + 2 + 4  # extra ids, and entries without a piece

    change(tmp_path, "generation_config.json", bad_words_ids=[[7, 8]])
    assert "bad_words_ids has [7, 8]; only words of one token" in refused(tmp_path, "t5")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bart", {"source_language": None}, "does not say what it translates; give --source-language"),
        ("mt5", {"source_language": None, "target_language": None}, "give --source-language and --target-language"),
        ("bart", {"target_language": "de_DE"}, "--target-language is 'de_DE'; give a tag such as"),
        ("nllb", {"target_language": "fr"}, "--target-language is 'fr'; the model has ace-Arab, ace-Latn, de, en"),
        ("mbart", {"target_language": "fr"}, "--target-language is 'fr'; the model has de"),
        ("marian, several targets", {"target_language": "it"}, "'it'; the model has de, fr, pt"),
        ("m2m100", {"prefix": "x"}, "--prefix is for T5 and mT5, this is m2m_100"),
        ("t5", {"source_language": "de", "target_language": "en"}, "names no task from de to en, only en-de, en-fr"),
        ("bart", {"max_tokens": 65}, "--max-tokens is 65; the model has learned 64 positions"),
        ("t5", {"max_tokens": 1}, "--max-tokens is 1; a text and its end need 2"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """With what would."""
    save_folder(name, tmp_path)

    assert said in refused(tmp_path, name, **options)


def test_limits_come_from_the_positions_the_tokenizer_or_the_command(tmp_path: Path) -> None:
    """The smallest, and for relative positions 512."""

    def limit(name: str, **options: Any) -> int:
        return import_model(tmp_path / name, import_arguments(name, **options)).model.config.max_target_tokens

    for name in ("bart", "m2m100", "t5"):
        save_folder(name, tmp_path / name)
    assert [limit("bart"), limit("bart", max_tokens=10)] == [64, 10]
    assert [limit("m2m100"), limit("m2m100", max_tokens=100)] == [64, 100]
    assert [limit("t5"), limit("t5", max_tokens=1000)] == [512, 1000]
    change(tmp_path / "t5", "tokenizer_config.json", model_max_length=300)
    change(tmp_path / "bart", "tokenizer_config.json", model_max_length=10**30)
    assert [limit("t5"), limit("bart")] == [300, 64]


def test_tasks_of_t5_that_depend_on_the_source_need_a_choice(tmp_path: Path) -> None:
    """Our languages go with each other in any pair, so one target has one prefix."""
    save_folder("t5", tmp_path)
    tasks = {f"translation_{tag}_to_fr": {"prefix": f"from {tag}: "} for tag in ("en", "de")}
    change(tmp_path, "config.json", task_specific_params=tasks)
    assert "how to ask for fr depends on the source: en-fr, de-fr" in refused(tmp_path, "t5")

    found = import_model(tmp_path, import_arguments("t5", source_language="de", target_language="fr"))
    assert found.languages is not None
    assert list(found.languages.pairs()) == [("de", "fr")]


def test_a_folder_without_its_parts_is_refused(tmp_path: Path) -> None:
    """No settings, no tokenizer, or one of another kind."""
    save_folder("mbart", tmp_path)
    change(tmp_path, "tokenizer_config.json", tokenizer_class="BarthezTokenizerFast")
    assert "tokenizer_class is 'BarthezTokenizer'; supported here are MBartTokenizer" in refused(tmp_path, "mbart")
    change(tmp_path, "tokenizer_config.json", tokenizer_class="MBartTokenizerFast")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"no model")
    assert "not a SentencePiece model" in refused(tmp_path, "mbart")
    (tmp_path / "sentencepiece.bpe.model").unlink()
    assert "sentencepiece.bpe.model: cannot be read" in refused(tmp_path, "mbart")
    (tmp_path / "config.json").unlink()
    assert "has no config.json" in refused(tmp_path, "mbart")
