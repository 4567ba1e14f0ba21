"""The precisions a bundle can have, the devices each is for, and how its two graphs come about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.activations import largest_of_both
from dragoman.export.cache_scales import CacheScales
from dragoman.export.calibration import CalibrationPair, calibrate
from dragoman.export.errors import ExportError
from dragoman.export.grouped import use_grouped_attention
from dragoman.export.half import to_half
from dragoman.export.last_source import hand_over
from dragoman.export.optimize import keep_lengths_on_device, keep_sums_apart
from dragoman.export.quantize import quantize
from dragoman.export.reductions import add_reductions
from dragoman.export.static import quantize_static
from dragoman.export.storage import save
from dragoman.export.to_onnx import decoder_graph, encoder_graph
from dragoman.export.weights_only import quantize_weights
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SpecialIds

Precision = Literal["fp32", "fp16", "int8", "int8-static", "int8-weights", "int4"]
DEVICES: dict[Precision, tuple[str, ...]] = {
    "fp32": ("cpu", "cuda"),
    "fp16": ("cuda",),  # most CPUs have no 16-bit products, so the runtime would compute in fp32 and cast
    "int8": ("cpu",),  # integer products have kernels on the CPU only
    "int8-static": ("cpu",),
    "int8-weights": ("cpu",),
    "int4": ("cpu",),
}
_CPU_ONLY = ("cpu",)
_WEIGHT_BITS: dict[Precision, int] = {"int8-weights": 8, "int4": 4}


def devices_for(precision: Precision, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the devices that a bundle is for, in the order of `DEVICES`.

    Args:
        precision: Of the bundle.
        wanted: Some of those that the precision can run on; None takes all.

    Raises:
        ExportError: It cannot run on one of them; says what can.
    """
    able = DEVICES[precision]
    if wanted is None:
        return able
    for device in wanted:
        if device not in able:
            others = [other for other, devices in DEVICES.items() if device in devices]
            raise ExportError(
                f"{precision} cannot run on {device!r}, it is for {' and '.join(able)}; "
                + (f"for {device} take --precision {' or '.join(others)}" if others else "choose cpu or cuda")
            )
    if not wanted:
        raise ExportError(f"a bundle of no device cannot be run; {precision} is for {' and '.join(able)}")
    return tuple(device for device in able if device in wanted)


@dataclass(frozen=True, slots=True)
class Written:
    """Both graphs of a model in a folder.

    Attributes:
        files: The names of all files.
        cross_last: The decoder reads `bundle.CROSS_LAST`.
    """

    files: list[str]
    cross_last: bool


def write_graphs(
    model: Transformer,
    special: SpecialIds,
    folder: Path,
    precision: Precision,
    calibration: Sequence[CalibrationPair] = (),
    devices: Sequence[str] | None = None,
) -> Written:
    """Write both graphs of a model into a folder.

    Args:
        model: In evaluation mode.
        special: Start and end, and ids that are never generated.
        folder: Where the files go.
        precision: Of weights and products.
        calibration: Texts that int8-static takes its scales from.
        devices: As `devices_for` takes them.

    Raises:
        ExportError: The model's numbers are too large for the precision, it needs texts and there are none, or it
            cannot run on a device.
    """
    # What int8 computes around a product of many rows is faster in smaller pieces.
    encoder, decoder = encoder_graph(model, merge=precision != "int8"), decoder_graph(model, special)
    bias = model.output_bias
    add_reductions(decoder, model.config, None if bias is None else bias.detach().numpy())
    cross_last = convert(encoder, decoder, model.config, special, precision, calibration, devices)
    files = [*save(encoder, folder / bundle.ENCODER), *save(decoder, folder / bundle.DECODER)]
    return Written([file.name for file in files], cross_last)


def convert(
    encoder: ir.Model,
    decoder: ir.Model,
    config: ModelConfig,
    special: SpecialIds,
    precision: Precision,
    calibration: Sequence[CalibrationPair] = (),
    devices: Sequence[str] | None = None,
) -> bool:
    """Bring both graphs of a model from fp32 to a precision and its devices, in place.

    Args:
        encoder: fp32 graph.
        decoder: fp32 graph, with what `reductions` adds.
        config: Of the model.
        special: Start and end.
        precision: Of weights and products.
        calibration: Texts that int8-static takes its scales from.
        devices: As `devices_for` takes them.

    Returns:
        Whether the decoder reads `bundle.CROSS_LAST` now, and the encoder writes it.

    Raises:
        ExportError: The model's numbers are too large for it, it needs texts and there are none, or it cannot run on a
            device.
    """
    chosen = devices_for(precision, devices)
    if precision == "fp16":
        of_encoder, of_decoder = largest_of_both(encoder, decoder, config, special)
        to_half(encoder, of_encoder)
        to_half(decoder, of_decoder)
    for graph in (encoder, decoder):
        adapt(graph, precision, chosen)
    scales: CacheScales = {}
    if precision == "int8-static":
        found = calibrate(encoder, decoder, calibration, special)
        quantize_static(encoder, found.encoder)
        quantize_static(decoder, found.decoder)
        scales = found.scales
    cross_last = chosen == _CPU_ONLY and use_grouped_attention(decoder, config, scales)
    if cross_last:
        hand_over(encoder, config, scales)
    return cross_last


def adapt(graph: ir.Model, precision: Precision, devices: Sequence[str] | None = None) -> None:
    """Bring a graph to the operators of a precision and its devices, in place.

    fp16 has its numbers already, int8-static gets them afterwards: both need the two graphs of a model.
    """
    if "cuda" in devices_for(precision, devices):
        keep_lengths_on_device(graph)
    if precision != "fp16":
        keep_sums_apart(graph)
    if precision == "int8":
        quantize(graph)
    elif precision in _WEIGHT_BITS:
        quantize_weights(graph, _WEIGHT_BITS[precision])
