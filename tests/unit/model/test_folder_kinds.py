"""What a user is told who names a folder that is no checkpoint."""

import json
import re
from pathlib import Path

import pytest

from dragoman.model.checkpoint import load_checkpoint, require_run_folder, save_checkpoint
from dragoman.model.errors import CheckpointError
from dragoman.model.folder_kinds import no_bundle
from tests.fakes.bundles import make_checkpoint

TINY_BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
HUGGING_FACE = json.dumps({"model_type": "marian", "architectures": ["MarianMTModel"]})
FOLDERS: dict[str, tuple[dict[str, str | None], str]] = {
    "empty": ({}, "holds no checkpoint, it is empty; a checkpoint is the --out folder of `dragoman train`"),
    "texts": ({"a.txt": ""}, "holds no checkpoint; a checkpoint is the --out folder of `dragoman train`"),
    "hf": ({"config.json": HUGGING_FACE, "pytorch_model.bin": ""}, "`dragoman import hf {path} -o BUNDLE`"),
    "hf safe": ({"config.json": HUGGING_FACE, "model.safetensors": ""}, "is a checkpoint of Hugging Face"),
    "hf cache": ({"snapshots": None, "refs": None}, "`dragoman import hf {path}/snapshots/"),
    "ctranslate2": ({"config.json": '{"bos_token": "<s>"}', "model.bin": ""}, "is a model of CTranslate2"),
    "marian": ({"model.npz": "", "vocab.yml": "", "decoder.yml": ""}, "`dragoman import marian {path} -o BUNDLE`"),
    "bergamot": ({"model.ende.intgemm.alphas.bin": "", "vocab.ende.spm": ""}, "`dragoman import bergamot {path}"),
    "fairseq": ({"model.pt": "", "dict.en.txt": ""}, "`dragoman import fairseq {path}"),
    "joeynmt": ({"best.ckpt": "", "config.yaml": ""}, "`dragoman import joeynmt {path}"),
    "weights": ({"model_step_1000.pt": ""}, "`dragoman import --help` lists"),
    "run": ({"log.jsonl": ""}, "has not saved a checkpoint yet"),
    "no weights": ({"config.json": '{"format_version": 1}'}, "without its weights, model.safetensors"),
    "no object": ({"config.json": "[]"}, "config.json holds no JSON object"),
    "no json": ({"config.json": "{"}, "config.json is damaged"),
    "no model": ({"config.json": '{"format_version": 1}', "model.safetensors": ""}, "its config.json has no 'model'"),
    "wrong model": (
        {"config.json": '{"format_version": 1, "model": []}', "model.safetensors": ""}, "cannot read the checkpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_is_no_checkpoint_is_named_with_the_command_for_it(kind: str, tmp_path: Path) -> None:
    """One sentence, without Python's own."""
    files, expected = FOLDERS[kind]
    for name, content in files.items():
        if content is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(content)

    with pytest.raises(CheckpointError, match=re.escape(expected.format(path=tmp_path))) as caught:
        load_checkpoint(tmp_path)

    assert str(tmp_path) in str(caught.value)


def test_a_bundle_is_no_checkpoint() -> None:
    """It has no weights that can be trained on, and several commands take it."""
    with pytest.raises(CheckpointError, match=r"is a bundle, written by `dragoman export`.*`dragoman serve --model`"):
        load_checkpoint(TINY_BUNDLE)


def test_a_run_of_hugging_face_is_told_from_ours(tmp_path: Path) -> None:
    """Its folders of checkpoints are called like ours."""
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "config.json").write_text(HUGGING_FACE)

    with pytest.raises(CheckpointError, match=re.escape(f"`dragoman import hf {tmp_path}/checkpoint-500 -o")):
        load_checkpoint(tmp_path)


def test_files_are_told_apart(tmp_path: Path) -> None:
    """A path may be a file of another library, or one inside a checkpoint."""
    small = make_checkpoint(num_encoder_layers=1, num_decoder_layers=1)
    saved = save_checkpoint(tmp_path, small.model, small.tokenizer, languages=("en", "de"), step=1)
    (tmp_path / "model.npz").touch()

    for path, expected in {
        saved / "model.safetensors": f"is one file of a checkpoint; give the folder {saved}",
        tmp_path / "model.npz": f"`dragoman import marian {tmp_path}/model.npz",
        tmp_path / "gone": "does not exist",
    }.items():
        with pytest.raises(CheckpointError, match=re.escape(expected)):
            load_checkpoint(path)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    """A config.json that was changed by hand, for example."""
    small = make_checkpoint(num_encoder_layers=1, num_decoder_layers=1)
    saved = save_checkpoint(tmp_path, small.model, small.tokenizer, languages=("en", "de"), step=1)
    content = json.loads((saved / "config.json").read_text())
    content["model"]["d_ff"] += 8
    (saved / "config.json").write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match=r"are not of the same model"):
        load_checkpoint(saved)


NO_BUNDLES: dict[str, tuple[dict[str, str], str]] = {
    "empty": ({}, "is empty; `dragoman export` and `dragoman import` write bundles"),
    "other": ({"a.txt": ""}, "has no manifest.json; `dragoman export` and `dragoman import` write bundles"),
    "hf": ({"config.json": HUGGING_FACE, "model.safetensors": ""}, "`dragoman import hf {path} -o BUNDLE`"),
    "hf run": (
        {"checkpoint-500/config.json": HUGGING_FACE, "checkpoint-500/model.safetensors": ""},
        "`dragoman import hf {path}/checkpoint-500 -o BUNDLE`",
    ),
    "ctranslate2": ({"config.json": '{"bos_token": "<s>"}', "model.bin": ""}, "is a model of CTranslate2, which"),
    "optimum": (
        {"config.json": HUGGING_FACE, "encoder_model.onnx": "", "decoder_model_merged.onnx": ""},
        "holds ONNX graphs of Optimum, which cannot be served",
    ),
    "onnx": ({"model.onnx": ""}, "holds ONNX graphs of another program, which cannot be served"),
    "no manifest": (
        {"encoder.onnx": "", "decoder.onnx": "", "tokenizer.model": ""},
        "has graphs named like a bundle's, but no manifest.json: copy the bundle again",
    ),
    "weights": ({"model_step_1000.pt": ""}, "`dragoman import --help` lists"),
    "run": ({"log.jsonl": ""}, "is a training run that has not saved a checkpoint yet"),
    "no weights": (
        {"checkpoint-00000007/config.json": '{"format_version": 1}'},
        "is a checkpoint without its weights, model.safetensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_BUNDLES)
def test_a_folder_that_is_no_bundle_is_named_with_the_way_to_one(kind: str, tmp_path: Path) -> None:
    """Whatever people take for something that can be served."""
    files, expected = NO_BUNDLES[kind]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)

    assert expected.format(path=tmp_path) in no_bundle(tmp_path)


def test_a_run_and_a_checkpoint_of_ours_can_be_exported(tmp_path: Path) -> None:
    """The sentence has the command; a file of it is named with its folder."""
    small = make_checkpoint(num_encoder_layers=1, num_decoder_layers=1)
    saved = save_checkpoint(tmp_path, small.model, small.tokenizer, languages=("en", "de"), step=1)

    for path in (tmp_path, saved):
        assert no_bundle(path) == (
            f"holds a checkpoint; `dragoman export --checkpoint {path} --out BUNDLE` makes a bundle of it"
        )
    assert f"is one file of a checkpoint; `dragoman export --checkpoint {saved}" in no_bundle(
        saved / "model.safetensors"
    )


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    """One inside a bundle is named with its folder, one of another library with its command."""
    for name in ("model.npz", "notes.txt"):
        (tmp_path / name).touch()

    assert no_bundle(TINY_BUNDLE / "encoder.onnx") == f"is one file of a bundle; give the folder {TINY_BUNDLE}"
    assert no_bundle(TINY_BUNDLE / "manifest.json") == f"is one file of a bundle; give the folder {TINY_BUNDLE}"
    assert f"`dragoman import marian {tmp_path / 'model.npz'} -o BUNDLE`" in no_bundle(tmp_path / "model.npz")
    assert no_bundle(tmp_path / "notes.txt") == "is a file, and a bundle is a folder with manifest.json"


def test_runs_are_not_saved_where_they_would_be_deleted(tmp_path: Path) -> None:
    """Into a bundle, a checkpoint or a model of CTranslate2, at any depth; into a run or beside a bundle they are."""
    files = {
        "bundle": ("manifest.json", "encoder.onnx", "decoder.onnx"),
        "run/checkpoint-00000001": ("config.json",),
        "ct2": ("model.bin", "config.json"),
    }
    for name, content in files.items():
        (tmp_path / name).mkdir(parents=True)
        for file in content:
            (tmp_path / name / file).touch()

    for name in files:
        for place in (tmp_path / name, tmp_path / name / "deep" / "er"):
            with pytest.raises(CheckpointError, match=r"which is replaced or deleted as a whole.*choose another --out"):
                require_run_folder(place, "--out")
    for name in ("run", "new", "bundle.run"):
        require_run_folder(tmp_path / name, "--out")
