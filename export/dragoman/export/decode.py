"""Runs a bundle's two graphs with plain calls: the reference loop of verification.

No binding, no batching policy, every step copies the states: as simple as a loop over the contract
can be. The server has its own runtime, which the tests compare with this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.export.errors import BundleError
from dragoman.model.beam import BeamSearch, BeamSettings, EarlyStopping, Hypothesis

Array = NDArray[Any]
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int64)": np.int64,
}
_ASKED = {bundle.WITH_CANDIDATES: np.ones(1, np.bool_)}


class BundleSession:
    """The graphs of one bundle on the CPU.

    Attributes:
        manifest: What the bundle says.
        has_normalizer: The decoder returns log_normalizer.
    """

    def __init__(self, folder: Path, *, threads: int = 0) -> None:
        """Load both graphs.

        Args:
            folder: Of the bundle.
            threads: That a graph may use; 0 takes all.

        Raises:
            BundleError: The bundle is damaged.
        """
        self.manifest: Manifest = bundle.load_manifest(folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # out-of-place caches are meant here, not worth a warning
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # small steps, often shared CPUs
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(folder / bundle.ENCODER, options, providers)
        self._decoder = onnxruntime.InferenceSession(folder / bundle.DECODER, options, providers)
        self._layers = range(self.manifest.shape.num_decoder_layers)
        sizes = {value.name: value.shape for value in self._decoder.get_outputs()}
        self._most_candidates = sizes[bundle.CANDIDATE_IDS][2] if bundle.CANDIDATE_IDS in sizes else 0
        self.has_normalizer = bundle.LOG_NORMALIZER in sizes
        self._one_token = _takes_one_token(self._decoder)
        self._dtypes = {value.name: _NUMPY[value.type] for value in self._decoder.get_inputs()}
        self._encoded = [name for i in self._layers for name in bundle.cross_names(i)]
        if bundle.CROSS_LAST in self._dtypes:
            self._encoded.append(bundle.CROSS_LAST)

    def encode(self, sources: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Return everything a decode step needs to know about the sources."""
        lengths = np.array([len(source) for source in sources], np.int64)
        ids = np.full((len(sources), int(lengths.max())), self.manifest.special.pad, np.int64)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        feeds = {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: lengths}
        values = _run(self._encoder, bundle.ENCODER, self._encoded, feeds)
        return {bundle.SOURCE_LENGTHS: lengths, **dict(zip(self._encoded, values, strict=True))}

    def initial_states(self, rows: int, size: int) -> dict[str, Array]:
        """Return the layer states of rows that have read nothing, for up to `size` tokens."""
        shape = self.manifest.shape
        size_of_each = shape.state_size(rows, size)
        names = [name for i in self._layers for name in shape.state_names(i)]
        return {name: np.zeros(size_of_each, self._dtypes[name]) for name in names}

    def step(
        self, input_ids: Array, cache_lengths: Array, states: dict[str, Array], encoded: dict[str, Array]
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Return next_ids [B, Q], logits [B, Q, V] and the updated states."""
        (next_ids, logits), states = self._decode(
            [bundle.NEXT_IDS, bundle.LOGITS], input_ids, cache_lengths, states, encoded
        )
        return next_ids, logits, states

    def best(
        self, input_ids: Array, cache_lengths: Array, states: dict[str, Array], encoded: dict[str, Array], count: int
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Return the `count` most probable ids [B, Q, count], their log-probabilities, and the updated states.

        The graph chooses them; where it does not, or not so many, they are chosen here.
        """
        if count > self._most_candidates:
            logits, normalizer, states = self.normalized_step(input_ids, cache_lengths, states, encoded)
            return *_best(logits - normalizer[..., None], count), states
        (ids, log_probs), states = self._decode(
            [bundle.CANDIDATE_IDS, bundle.CANDIDATE_SCORES],
            input_ids,
            cache_lengths,
            states,
            {**encoded, **_ASKED},
        )
        return ids[..., :count], log_probs[..., :count], states

    def normalized_step(
        self, input_ids: Array, cache_lengths: Array, states: dict[str, Array], encoded: dict[str, Array]
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Return logits [B, Q, V], the logs [B, Q] of the sums of their exp, and the updated states.

        A graph that has no log_normalizer leaves ids that are never generated out of the sums.
        """
        if not self.has_normalizer:
            _, logits, states = self.step(input_ids, cache_lengths, states, encoded)
            return logits, _log_sum_exp(logits), states
        (logits, normalizer), states = self._decode(
            [bundle.LOGITS, bundle.LOG_NORMALIZER], input_ids, cache_lengths, states, {**encoded, **_ASKED}
        )
        return logits, normalizer, states

    def _decode(
        self,
        outputs: list[str],
        input_ids: Array,
        cache_lengths: Array,
        states: dict[str, Array],
        others: dict[str, Array],
    ) -> tuple[list[Array], dict[str, Array]]:
        if self._one_token and input_ids.shape[1] > 1:
            steps = []
            for position in range(input_ids.shape[1]):
                ids, lengths = input_ids[:, position : position + 1], cache_lengths + position
                values, states = self._decode(outputs, ids, lengths, states, others)
                steps.append(values)
            return [np.concatenate(values, axis=1) for values in zip(*steps, strict=True)], states
        feeds = {bundle.INPUT_IDS: input_ids, bundle.CACHE_LENGTHS: cache_lengths, **others, **states}
        updated = [name for i in self._layers for name in self.manifest.shape.updated_state_names(i)]
        values = _run(self._decoder, bundle.DECODER, [*outputs, *updated], feeds)
        return values[: len(outputs)], dict(zip(states, values[len(outputs) :], strict=True))

    def greedy(
        self, sources: Sequence[Sequence[int]], max_new_tokens: Sequence[int], first: Sequence[int] = ()
    ) -> list[list[int]]:
        """Decode like `dragoman.model.search.greedy`."""
        rows = _Rows(self, sources, max(max_new_tokens), first)
        eos = self.manifest.special.eos
        outputs: list[list[int]] = [[] for _ in sources]
        alive = list(range(len(sources)))  # the output of each row
        tokens = rows.first
        while alive:
            chosen = rows.next_ids(tokens)
            for i, token in zip(alive, chosen, strict=True):
                outputs[i].append(token)
            kept = [row for row, i in enumerate(alive) if outputs[i][-1] != eos and len(outputs[i]) < max_new_tokens[i]]
            alive = [alive[row] for row in kept]
            rows.gather(kept, alive)
            tokens = [[chosen[row]] for row in kept]
        return outputs

    def beam(
        self,
        sources: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        *,
        beams: int = 4,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        first: Sequence[int] = (),
        disturb: Callable[[Array], Array] | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode like `dragoman.model.search.beam`; `disturb` is as in `dragoman.model.cached_search.beam_cached`.

        A source whose logits are not numbers may have fewer hypotheses, or none.
        """
        settings = BeamSettings(beams, length_penalty, early_stopping)
        search = BeamSearch(settings, max_new_tokens, eos=self.manifest.special.eos, forced=len(first))
        rows = _Rows(self, sources, max(max_new_tokens), first)
        # What is disturbed may bring up one more.
        count = settings.candidates if disturb is None else max(settings.candidates, self._most_candidates)
        tokens = rows.first
        while search.sources:
            ids, log_probs = rows.best(tokens, count)
            parents = search.advance(ids.tolist(), (log_probs if disturb is None else disturb(log_probs)).tolist())
            rows.gather(parents, search.sources)
            tokens = [[token] for token in search.newest]
        return search.hypotheses


class _Rows:
    """Encoded sources and the states of rows that have read equally many tokens.

    Attributes:
        first: Per row, what it reads first.
    """

    def __init__(
        self, session: BundleSession, sources: Sequence[Sequence[int]], max_new_tokens: int, first: Sequence[int]
    ) -> None:
        self.first = [[session.manifest.special.start, *first]] * len(sources)
        self._session = session
        self._encoded = session.encode(sources)
        # With one position to spare: a cache that is written one step late shall give wrong texts, not an error.
        self._states = session.initial_states(len(sources), len(first) + max_new_tokens + 1)
        self._read = 0
        self._sources = list(range(len(sources)))  # of each row
        self._gathered = self._encoded

    def next_ids(self, tokens: list[list[int]]) -> list[int]:
        """Read tokens [B, Q] and return the most probable id of each row behind the last one."""
        ids, _, self._states = self._session.step(*self._read_next(tokens), self._states, self._gathered)
        chosen: list[int] = ids[:, -1].tolist()
        return chosen

    def best(self, tokens: list[list[int]], count: int) -> tuple[Array, Array]:
        """Read tokens [B, Q] and return the most probable ids behind the last one, and their log-probabilities.

        Both are [B, count].
        """
        ids, log_probs, self._states = self._session.best(*self._read_next(tokens), self._states, self._gathered, count)
        return ids[:, -1], log_probs[:, -1]

    def _read_next(self, tokens: list[list[int]]) -> tuple[Array, Array]:
        input_ids = np.array(tokens, np.int64)
        lengths = np.full(len(tokens), self._read, np.int64)
        self._read += input_ids.shape[1]
        return input_ids, lengths

    def gather(self, parents: list[int], sources: list[int]) -> None:
        """Go on with these rows, in this order; `sources` are theirs."""
        if parents != list(range(len(self._sources))):
            self._states = {name: state[parents] for name, state in self._states.items()}
        if sources != self._sources:
            self._gathered = {name: value[sources] for name, value in self._encoded.items()}
            self._sources = sources


def _log_sum_exp(logits: Array) -> Array:
    """Return logs [...] float64 of the sums of exp of logits [..., V]."""
    with np.errstate(invalid="ignore"):  # what is no number stays none
        largest = logits.max(axis=-1, keepdims=True).astype(np.float64)
        result: Array = (largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True)))[..., 0]
    return result


def _best(log_probs: Array, count: int) -> tuple[Array, Array]:
    """Return ids and log-probabilities of the `count` most probable tokens of each row of [..., V]."""
    count = min(count, log_probs.shape[-1])
    ids = np.argpartition(-log_probs, count - 1, axis=-1)[..., :count]
    return ids, np.take_along_axis(log_probs, ids, axis=-1)


def _takes_one_token(decoder: onnxruntime.InferenceSession) -> bool:
    """Whether a decoder takes one new token per call."""
    return any(value.name == bundle.INPUT_IDS and value.shape[1] == 1 for value in decoder.get_inputs())


def _run(session: onnxruntime.InferenceSession, graph: str, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
    try:
        values: list[Array] = session.run(outputs, feeds)
    except Exception as error:  # ONNX Runtime raises many types
        sizes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
        raise BundleError(f"{graph} does not run with {sizes}: {error}") from error
    return values
