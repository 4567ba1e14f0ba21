"""Training speed against Hugging Face's MarianMTModel: same sizes, same batches, alternating runs.

Both sides make whole updates (forward, backward, clipping, Adam) of random pairs on the CPU. Each
round runs both, in changing order; the ratio of a round compares two neighbours in time. Nothing
else may run beside it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from transformers import MarianConfig, MarianMTModel

from dragoman.model.config import ModelConfig
from dragoman.model.data import Example, collate
from dragoman.model.device import Precision, keep_freed_memory
from dragoman.model.loss import label_smoothed_loss
from dragoman.model.transformer import Transformer, count_parameters

SIZES = {
    "default model": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "num_encoder_layers": 6, "num_decoder_layers": 2},
    "transformer-base": {
        "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
    },
}  # fmt: skip
VOCAB, PAD, START, DROPOUT = 8000, 0, 2, 0.1


def make_batches(tokens: int, count: int) -> list[list[Example]]:
    """Return batches of pairs of 8 to 40 pieces, of one length each, as length buckets make them."""
    generator = random.Random(1)  # data of a benchmark
    batches = []
    for _ in range(count):
        size = generator.randint(8, 40)
        rows = tokens // size
        batches.append(
            [Example(*(tuple(generator.choices(range(4, VOCAB), k=size)) for _ in "st")) for _ in range(rows)]
        )
    return batches


def ours(config: ModelConfig, precision: Precision) -> Callable[[list[Example]], None]:
    """Return a function that makes one update."""
    model = Transformer(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def update(examples: list[Example]) -> None:
        batch = collate(examples, pad=PAD, start=START)
        tokens = sum(len(example.target) for example in examples)
        with precision.autocast():
            states = model(batch.source_ids, batch.source_lengths, batch.target_in)
            real = batch.target_out != PAD
            loss = label_smoothed_loss(states[real], model.output_weight, batch.target_out[real], 0.1) / tokens
        finish(model, optimizer, loss)

    return update


def theirs(config: ModelConfig, precision: Precision) -> Callable[[list[Example]], None]:
    """Return the same of Hugging Face's model."""
    model = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB, d_model=config.d_model, encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers, encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads, encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff,
            activation_function="relu", dropout=DROPOUT, attention_dropout=DROPOUT, activation_dropout=DROPOUT,
            max_position_embeddings=256, pad_token_id=PAD, decoder_start_token_id=START, scale_embedding=True,
        )
    ).train()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def update(examples: list[Example]) -> None:
        batch = collate(examples, pad=PAD, start=START)
        mask = (batch.source_ids != PAD).long()
        with precision.autocast():
            logits = model(
                input_ids=batch.source_ids, attention_mask=mask, decoder_input_ids=batch.target_in, use_cache=False
            ).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, label_smoothing=0.1
            )
        finish(model, optimizer, loss)

    return update


def finish(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def speed(update: Callable[[list[Example]], None], batches: list[list[Example]]) -> float:
    """Return target tokens per second."""
    start = time.perf_counter()
    for batch in batches:
        update(batch)
    return sum(len(e.target) for batch in batches for e in batch) / (time.perf_counter() - start)


def main() -> None:
    """Print one line per size and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4, help="per round and side")
    parser.add_argument("--batch-tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # for both sides
    batches = make_batches(arguments.batch_tokens, arguments.updates)
    print("| size | precision | Dragoman tok/s | MarianMTModel tok/s | ratio (median, range) |")
    print("|---|---|---|---|---|")
    for name in arguments.sizes:
        config = ModelConfig(vocab_size=VOCAB, dropout=DROPOUT, norm_position="post", **SIZES[name])  # type: ignore[arg-type]
        for kind in ("fp32", "auto"):
            precision = Precision.choose(kind, torch.device("cpu"))
            if kind == "auto" and precision.dtype is torch.float32:
                continue
            sides = [ours(config, precision), theirs(config, precision)]
            for side in sides:
                side(batches[0])
            rounds = []
            for number in range(arguments.rounds):
                order = (0, 1) if number % 2 else (1, 0)
                measured = {side: speed(sides[side], batches) for side in order}
                rounds.append((measured[0], measured[1]))
            ratios = sorted(one / other for one, other in rounds)
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            size = f"{name} ({count_parameters(Transformer(config)) / 1e6:.0f} M)"
            print(
                f"| {size} | {str(precision.dtype).removeprefix('torch.')} | {medians[0]:,.0f} | {medians[1]:,.0f} "
                f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
