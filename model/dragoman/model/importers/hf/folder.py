"""A folder that `save_pretrained` of the library transformers wrote: settings, special tokens and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.tensors import read_json, read_safetensors, read_torch

# In the order that transformers looks for them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_INDEX = ".index.json"


@dataclass(frozen=True, slots=True)
class GenerationIds:
    """Token ids that generation needs, as the folder names them.

    Attributes:
        pad: Fills rows.
        eos: Ends a text.
        start: What the decoder reads first; None if the folder does not say.
        forced: What every target begins with, behind `start`; None if the folder does not say.
        bos: Begins sources, or nothing; None if the folder does not say.
        suppressed: Never generated.
    """

    pad: int
    eos: int
    start: int | None
    forced: int | None
    bos: int | None
    suppressed: tuple[int, ...]


class Folder:
    """Reads the files of one model. They are data: nothing in them is run."""

    def __init__(self, path: Path) -> None:
        """Read the small files.

        Args:
            path: Of the folder.

        Raises:
            ImportFailed: There is no `config.json`, or a file is not JSON.
        """
        if not (path / "config.json").is_file():
            raise ImportFailed(f"{path}: has no config.json; give the folder that `save_pretrained` wrote")
        self.path = path
        self.config = read_json(path / "config.json")
        self.generation = self._json("generation_config.json")
        self.tokenizer = self._json("tokenizer_config.json")
        self._special = self._json("special_tokens_map.json")

    @property
    def tokenizer_class(self) -> str:
        """Name of the tokenizer's class without the "Fast" of its faster form, or ""."""
        name = self.tokenizer.get("tokenizer_class") or self.config.get("tokenizer_class") or ""
        return str(name).removesuffix("Fast")

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            ImportFailed: It is not there.
        """
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ImportFailed(
                f"{self.path / name}: cannot be read: {error.strerror}; if the folder was saved without it, copy it "
                "from the checkpoint that this one was made from"
            ) from error

    def special_names(self) -> list[str]:
        """Return the additional special tokens in their order."""
        for file in (self._special, self.tokenizer):
            for name in ("additional_special_tokens", "extra_special_tokens"):
                if isinstance(file.get(name), list) and file[name]:
                    return [_content(token) for token in file[name]]
        return []

    def added_tokens(self) -> dict[str, int]:
        """Return the ids of tokens that were added to the vocabulary, as far as a file says them."""
        found: dict[str, int] = {}
        try:
            for token in self._json("tokenizer.json").get("added_tokens") or []:
                found[str(token["content"])] = int(token["id"])
            for number, token in (self.tokenizer.get("added_tokens_decoder") or {}).items():
                found[_content(token)] = int(number)
            found |= {str(token): int(number) for token, number in self._json("added_tokens.json").items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ImportFailed(f"{self.path}: the added tokens cannot be read: {error!r}") from error
        return found

    def generation_ids(self) -> GenerationIds:
        """Return the ids that generation needs: of `generation_config.json`, else of `config.json`.

        Raises:
            ImportFailed: Some are wrong, or ask for what our searches do not do.
        """
        problems: list[str] = []
        values = {**self.config, **{name: v for name, v in self.generation.items() if v is not None}}
        if values.get("forced_bos_token_id") is None and values.get("force_bos_token_to_be_generated"):
            values["forced_bos_token_id"] = values.get("bos_token_id")

        def one(name: str) -> int | None:
            value = values.get(name)
            if isinstance(value, list) and len(value) == 1:
                value = value[0]
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                problems.append(f"{name} is {value!r}; only one id is supported")
                return None
            return value

        ids = {name: one(f"{name}_token_id") for name in ("pad", "eos", "decoder_start", "forced_bos", "bos")}
        problems += [f"{name}_token_id is missing" for name in ("pad", "eos") if values.get(f"{name}_token_id") is None]
        words = values.get("bad_words_ids") or []
        if long := [word for word in words if not isinstance(word, list) or len(word) != 1]:
            problems.append(f"bad_words_ids has {long[0]!r}; only words of one token are supported")
        if values.get("begin_suppress_tokens"):
            problems.append(f"begin_suppress_tokens is {values['begin_suppress_tokens']!r}; it is not supported")
        if problems:
            raise ImportFailed(f"{self.path}: {'; '.join(problems)}")
        suppressed = [*(word[0] for word in words), *(values.get("suppress_tokens") or [])]
        return GenerationIds(
            pad=ids["pad"] or 0,
            eos=ids["eos"] or 0,
            start=ids["decoder_start"],
            forced=ids["forced_bos"],
            bos=ids["bos"],
            suppressed=tuple(map(int, suppressed)),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, from one file or from all that an index names.

        Raises:
            ImportFailed: A file is missing or is no file of plain tensors.
        """
        name = next((name for name in _WEIGHTS if self.has(name)), None)
        if name is None:
            raise ImportFailed(f"{self.path}: has no weights; one of {', '.join(_WEIGHTS)} is needed")
        read = read_safetensors if ".safetensors" in name else read_state_dict
        return self._sharded(name, read) if name.endswith(_INDEX) else read(self.path / name)

    def _sharded(self, index: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
        places = read_json(self.path / index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise ImportFailed(f"{self.path / index}: has no weight_map from tensors to files")
        files = sorted(set(places.values()))
        wrong = [file for file in files if PurePosixPath(file).name != file or not self.has(file)]
        if wrong:
            raise ImportFailed(f"{self.path / index}: files that are not in the folder: {', '.join(wrong)}")
        shards = {file: read(self.path / file) for file in files}
        lost = [name for name, file in places.items() if name not in shards[file]]
        if lost:
            raise ImportFailed(f"{self.path / index}: tensors that are not in their files: {', '.join(lost[:20])}")
        return {name: shards[file][name] for name, file in places.items()}

    def _json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name) if self.has(name) else {}


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a plain state dict that `torch.save` wrote.

    Raises:
        ImportFailed: It is none.
    """
    content = read_torch(path)
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ImportFailed(f"{path}: holds no state dict; save model.state_dict()")
    return {str(name): tensor for name, tensor in content.items()}


def _content(token: object) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def id_of(vocabulary: Mapping[str, int], name: str) -> int:
    """Return the id of a token that every vocabulary of a family has.

    Raises:
        ImportFailed: This one has not.
    """
    if name not in vocabulary:
        raise ImportFailed(f"the vocabulary has no {name}")
    return vocabulary[name]


def check_class(folder: Folder, *allowed: str, name: str = "") -> None:
    """Refuse a tokenizer that is none of those allowed; the folder need not name it.

    Raises:
        ImportFailed: Names it and those that are.
    """
    name = name or folder.tokenizer_class
    if name and name not in allowed:
        raise ImportFailed(f"{folder.path}: tokenizer_class is {name!r}; supported here are {', '.join(allowed)}")
