"""What a decode step returns besides logits, computed in the graph so that few numbers per row leave it.

    next_ids             [B,Q]    the best id of each position: greedy search needs nothing else
    candidate_ids,       [B,Q,K]  the K best ids, best first, and their log-probabilities, for beams and samples
    candidate_scores
    log_normalizer       [B,Q]    what to subtract from a logit to have its log-probability
    alignment            [B,Q,S]  attention of one decoder layer to the source, mean of its heads

Probabilities are those of the whole vocabulary. Ids that are never generated are masked in the logits, but they
have their share, as in the libraries that imported models come from: their own logits, a few rows of the output
matrix, are computed beside the others, in fp32 whatever the precision is.

The first is always computed. The others cost nothing unless the inputs `with_candidates` or `with_alignment` ask
for them: they stand in branches of an If, because ONNX Runtime computes every node of a graph, whatever is
fetched. Both inputs are false by default, so that callers who do not know them need not give them; they decide
as they are, because a condition that is computed would be computed on the GPU and waited for.

ArgMax and TopK of ONNX Runtime look at one number at a time. The maximum of each block of about sqrt(V) ids is
found many numbers at a time, and the k best ids are in the k blocks with the largest maxima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import Array, Writer, array_of, required
from dragoman.model.config import ModelConfig

_SMALLEST_VOCABULARY = 1024  # below, one ArgMax is faster than the nodes that avoid it
_BLOCKS = (32, 512)  # sizes that are worth it
_PADDED_BLOCK = 128
MOST_CANDIDATES = 16  # twice as many as beams, because each of the best may be the end of its beam
# The last layer but one says best which word is translated (Garg et al. 2019, "Jointly Learning to Align ...", 5.1).
_ALIGN_FROM_TOP = 2


def add_reductions(model: ir.Model, config: ModelConfig, output_bias: Array | None) -> None:
    """Add them, in place, to a decoder whose first output is logits [B, Q, V]; without a source, no alignment.

    Args:
        model: fp32 graph from `to_onnx`.
        config: Of the model.
        output_bias: [V] float32, of the logits before any is masked; None if they have none.
    """
    graph = model.graph
    logits = graph.outputs[0]
    write = Writer(graph)
    blocks = _Blocks(write, logits, config.vocab_size)
    next_ids = blocks.best()
    graph.outputs.insert(0, next_ids)
    graph.outputs.extend(_candidates(write, blocks, _Masked.of(logits, output_bias)))
    if any(value.name == bundle.SOURCE_LENGTHS for value in graph.inputs):
        graph.outputs.extend(_alignment(write, config))


def block_size(vocab_size: int) -> int:
    """Return how many ids share a maximum: a divisor near sqrt(V), or the size for which V is padded."""
    divisors = [size for size in range(_BLOCKS[0], _BLOCKS[1] + 1) if vocab_size % size == 0]
    return min(divisors, key=lambda size: abs(math.log(size * size / vocab_size)), default=_PADDED_BLOCK)


class _Blocks:
    """Logits [B, Q, V] as blocks [B, Q, N, V / N] and their maxima [B, Q, N]."""

    def __init__(self, write: Writer, logits: ir.Value, vocab_size: int) -> None:
        self.write, self.logits, self.vocab_size = write, logits, vocab_size
        self.leading = required(logits.shape)[:2]
        self.size = block_size(vocab_size) if vocab_size >= _SMALLEST_VOCABULARY else vocab_size
        self.count = -(-vocab_size // self.size)
        if self.count == 1:
            return
        missing, padded = self.count * self.size - vocab_size, logits
        if missing:
            ends = write.constant("padding_of_ids", np.array([0, 0, 0, 0, 0, missing], np.int64))
            lowest = write.constant("lowest_logit", np.array(-np.inf, np.float32))
            padded = write("Pad", [logits, ends, lowest], "padded_logits")
        sizes = write.constant("sizes_of_blocks", np.array([0, 0, self.count, self.size], np.int64))
        self.blocks = write("Reshape", [padded, sizes], "logit_blocks")
        self.maxima = write("ReduceMax", [self.blocks, _last(write)], "block_maxima", attributes={"keepdims": 0})

    def best(self) -> ir.Value:
        """Return the index of the largest logit, the first of equal ones, [B, Q]."""
        write = self.write
        if self.count == 1:
            best = _argmax(write, self.logits, bundle.NEXT_IDS, keep=False)
        else:
            block = _argmax(write, self.maxima, "best_block", keep=True)
            logits = write("GatherND", [self.blocks, block], "best_block_logits", attributes={"batch_dims": 2})
            inside = _argmax(write, logits, "best_in_block", keep=False)
            flat = write("Squeeze", [block, _last(write)], "best_block_index")
            best = write("Add", [self._first_id(write, flat, "best"), inside], bundle.NEXT_IDS)
        best.shape, best.type = ir.Shape(self.leading), ir.TensorType(ir.DataType.INT64)
        return best

    def top(self, write: Writer, number: int) -> tuple[ir.Value, ir.Value]:
        """Return the `number` largest logits, best first, and their indices, each [B, Q, number]."""
        count = write.constant(f"count_{number}", np.array([number], np.int64))
        if self.count == 1:
            best, ids = write.several("TopK", [self.logits, count], ["top_logits", "top_ids"], attributes={"axis": -1})
            return best, ids
        blocks = min(number, self.count)
        enough = write.constant(f"count_{blocks}", np.array([blocks], np.int64))
        _, block = write.several("TopK", [self.maxima, enough], ["top_maxima", "top_blocks"], attributes={"axis": -1})
        index = write("Unsqueeze", [block, _last(write)], "top_block_index")
        logits = write("GatherND", [self.blocks, index], "top_block_logits", attributes={"batch_dims": 2})
        flat = write("Reshape", [logits, _flat(write)], "top_block_logits_flat")
        best, found = write.several("TopK", [flat, count], ["top_logits", "top_found"], attributes={"axis": -1})
        size = write.constant("size_of_block", np.array(self.size, np.int64))
        within = write("Mod", [found, size], "top_in_block")
        which = write("Div", [found, size], "top_which")
        owner = write("GatherElements", [block, which], "top_owner", attributes={"axis": -1})
        return best, write("Add", [self._first_id(write, owner, "top"), within], "top_ids")

    def _first_id(self, write: Writer, block: ir.Value, name: str) -> ir.Value:
        size = write.constant("size_of_block", np.array(self.size, np.int64))
        return write("Mul", [block, size], f"{name}_block_first_id")


@dataclass(frozen=True, slots=True)
class _Masked:
    """What makes the logits of the M ids that the graph masks, without the mask.

    Attributes:
        states: [B, Q, E], that the output matrix is multiplied with.
        rows: [M, E], of the output matrix.
        biases: [M].
    """

    states: ir.Value
    rows: Array
    biases: Array

    @classmethod
    def of(cls, logits: ir.Value, output_bias: Array | None) -> _Masked:
        """Find it by the bias -inf of the product that makes the logits."""
        gemm = required(required(required(logits.producer()).inputs[0]).producer())
        flat, table, bias = map(required, gemm.inputs)
        ids = np.flatnonzero(np.isneginf(required(array_of(bias))))
        states = required(required(flat.producer()).inputs[0])
        biases = np.zeros(len(ids), np.float32) if output_bias is None else output_bias[ids]
        return cls(states, required(array_of(table))[ids], biases)

    def logits(self, write: Writer) -> ir.Value:
        """Return them, [B, Q, M] float32."""
        states = write("Cast", [self.states], "masked_states", attributes={"to": ir.DataType.FLOAT})
        rows = write.constant("output.masked_weight", np.ascontiguousarray(self.rows.T))
        products = write("MatMul", [states, rows], "masked_products")
        return write("Add", [products, write.constant("output.masked_bias", self.biases)], "masked_logits")


def _candidates(write: Writer, blocks: _Blocks, masked: _Masked) -> list[ir.Value]:
    """Add ids and log-probabilities of the best, and what makes a log-probability of any logit."""
    asked = _optional_input(write, bundle.WITH_CANDIDATES)
    branch = _branch(write, "candidates")
    inside = Writer(write.graph, branch=branch)
    number = min(MOST_CANDIDATES, blocks.vocab_size)
    logits, ids = blocks.top(inside, number)
    normalizer = _log_normalizer(inside, blocks.logits, logits, ids, masked)
    scores = inside("Sub", [logits, normalizer], "top_scores")
    flat = inside("Squeeze", [normalizer, _last(inside)], "normalizer_of_position")
    branch.outputs.extend(
        [
            _typed(ids, ir.DataType.INT64, number),
            _typed(scores, ir.DataType.FLOAT, number),
            _typed(flat, ir.DataType.FLOAT, axes=2),
        ]
    )
    return _if_asked(write, asked, branch, bundle.ON_REQUEST[bundle.WITH_CANDIDATES])


def _log_normalizer(write: Writer, logits: ir.Value, top: ir.Value, ids: ir.Value, masked: _Masked) -> ir.Value:
    """Return the log of the sum of exp over all logits, those of masked ids as well, [B, Q, 1].

    LogSoftmax subtracts that of the others. It is seven to ten times as fast as ReduceLogSumExp, which takes one
    number at a time.
    """
    first = write.constant("index_first", np.zeros(1, np.int64))
    best, best_id = (
        write("Gather", [value, first], f"{value.name}_first", attributes={"axis": -1}) for value in (top, ids)
    )
    shares = write("LogSoftmax", [logits], "log_shares", attributes={"axis": -1})
    share = write("GatherElements", [shares, best_id], "log_share_of_best", attributes={"axis": -1})
    normalizer = write("Sub", [best, share], "normalizer_of_generated")
    if not len(masked.rows):
        return normalizer
    terms = write("Concat", [normalizer, masked.logits(write)], "normalizer_terms", attributes={"axis": -1})
    return write("ReduceLogSumExp", [terms, _last(write)], "normalizer_of_all", attributes={"keepdims": 1})


def _alignment(write: Writer, config: ModelConfig) -> list[ir.Value]:
    """Add the mean over heads of softmax(q K^T * scale) of one layer's cross-attention."""
    graph, inputs = write.graph, {value.name: value for value in write.graph.inputs}
    layer = max(0, config.num_decoder_layers - _ALIGN_FROM_TOP)
    key, lengths = inputs[bundle.cross_names(layer)[0]], inputs[bundle.SOURCE_LENGTHS]
    attention = next(node for node in key.consumers() if node.op_type == "Attention")
    query, scale = required(attention.inputs[0]), attention.attributes["scale"].as_float()
    groups = config.key_value_heads
    asked = _optional_input(write, bundle.WITH_ALIGNMENT)
    branch = _branch(write, "alignment")
    inside = Writer(graph, branch=branch)

    def axes(*numbers: int) -> ir.Value:
        return write.constant("axes_" + "_".join(map(str, numbers)), np.array(numbers, np.int64))

    # In fp32 whatever the graph computes in; a group of queries shares a key, so H is [groups, H / groups].
    query32 = inside("Cast", [query], "align_query", attributes={"to": ir.DataType.FLOAT})
    key32 = inside("Cast", [key], "align_key", attributes={"to": ir.DataType.FLOAT})
    sizes = write.constant(
        "align_sizes", np.array([0, groups, config.num_heads // groups, -1, config.head_dim], np.int64)
    )
    grouped = inside("Reshape", [query32, sizes], "align_grouped")
    turned = inside("Transpose", [key32], "align_turned", attributes={"perm": [0, 1, 3, 2]})
    scores = inside("MatMul", [grouped, inside("Unsqueeze", [turned, axes(2)], "align_keys")], "align_products")
    scores = inside("Mul", [scores, write.constant("align_scale", np.array(scale, np.float32))], "align_scores")
    size = inside("Squeeze", [inside("Shape", [key], "align_size", attributes={"start": 2, "end": 3})], "align_length")
    zero, one = (write.constant(f"number_{n}", np.array(n, np.int64)) for n in (0, 1))
    positions = inside("Range", [zero, size, one], "align_positions")
    ends = inside("Unsqueeze", [lengths, axes(1, 2, 3, 4)], "align_ends")
    real = inside("Less", [positions, ends], "align_real")
    lowest = write.constant("align_lowest", np.array(np.finfo(np.float32).min, np.float32))
    weights = inside("Softmax", [inside("Where", [real, scores, lowest], "align_masked")], "align_weights")
    mean = inside("ReduceMean", [weights, axes(1, 2)], "align_mean", attributes={"keepdims": 0})
    branch.outputs.append(_typed(mean, ir.DataType.FLOAT))
    return _if_asked(write, asked, branch, bundle.ON_REQUEST[bundle.WITH_ALIGNMENT])


def _if_asked(write: Writer, asked: ir.Value, branch: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    """Return the outputs of a branch where `asked` [1] is true, and empty tensors elsewhere."""
    nothing = _branch(write, f"no_{branch.name}")
    inside = Writer(write.graph, branch=nothing)
    for output in branch.outputs:
        dtype, sizes = required(output.dtype), required(output.shape)
        empty = ir.tensor(np.zeros([size if isinstance(size, int) else 0 for size in sizes], dtype.numpy()))
        none = inside("Constant", [], f"no_{output.name}", attributes={"value": empty})
        none.shape, none.type = ir.Shape(list(sizes)), ir.TensorType(dtype)
        nothing.outputs.append(none)
    outputs = write.several("If", [asked], names, attributes={"then_branch": branch, "else_branch": nothing})
    for output, inner in zip(outputs, branch.outputs, strict=True):
        output.shape, output.type = inner.shape, inner.type
    return list(outputs)


def _optional_input(write: Writer, name: str) -> ir.Value:
    """Add an input [1] bool that is false where nobody gives it."""
    value = write.constant(name, np.zeros(1, np.bool_))
    write.graph.inputs.append(value)
    return value


def _branch(write: Writer, name: str) -> ir.Graph:
    return ir.Graph([], [], nodes=[], name=name, opset_imports=write.graph.opset_imports)


def _typed(value: ir.Value, dtype: ir.DataType, last: int | None = None, *, axes: int = 3) -> ir.Value:
    """Declare a tensor; but for the last axis, no size is known: those of the batch, or 0."""
    value.shape, value.type = ir.Shape([*[None] * (axes - 1), last]), ir.TensorType(dtype)
    return value


def _argmax(write: Writer, value: ir.Value, name: str, *, keep: bool) -> ir.Value:
    return write("ArgMax", [value], name, attributes={"axis": -1, "keepdims": int(keep)})


def _last(write: Writer) -> ir.Value:
    return write.constant("axis_last", np.array([-1], np.int64))


def _flat(write: Writer) -> ir.Value:
    return write.constant("sizes_flat", np.array([0, 0, -1], np.int64))
