"""Writes a MarianMT model of random weights and what Optimum exports from it; for an environment with optimum-onnx.

Called by graphs.py: optimum-onnx needs an older transformers than the rest of the project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Write FOLDER/model (weights) and FOLDER/optimum (graphs) for the sizes given as JSON."""
    import torch
    from optimum.exporters.onnx import onnx_export_from_model  # type: ignore[import-not-found]  # as said above
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(sys.argv[2])
    torch.manual_seed(0)
    config = MarianConfig(
        **sizes,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=256,
        share_encoder_decoder_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=2,
        eos_token_id=3,
        forced_eos_token_id=None,
    )
    model: Any = MarianMTModel(config)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed_positions" not in name:
                parameter.normal_(0, config.d_model**-0.5 if "shared" in name else parameter.size(-1) ** -0.5)
    model.save_pretrained(folder / "model")
    onnx_export_from_model(
        model,
        output=folder / "optimum",
        task="text2text-generation-with-past",
        opset=18,
        do_validation=False,
        preprocessors=None,
    )


if __name__ == "__main__":
    main()
