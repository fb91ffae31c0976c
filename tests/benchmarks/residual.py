"""Time and peak memory of the analyses of heads, stream and weights, in forward passes.

    python tests/benchmarks/residual.py            course shape and GPT-2 small shape
    python tests/benchmarks/residual.py --quick    course shape only, one round

A forward-equivalent is the time of one `trace` of the same prompt that keeps nothing and ends in
logits; TransformerLens' own forward stands beside it. Rounds are interleaved and medians compared.
Peak memory is what an analysis holds at most beyond the model and the prompt. The last table is
tokens a second over a corpus. Weights are random: time does not depend on them.

Bounds: direct logit attribution of all heads and positions under 2 forward-equivalents; neuron
statistics at 70 % of the plain forward's tokens a second or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from memory import peak_of
from transformer_lens import HookedTransformer

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_models import random_hooked

import interp
from interp.engine import trace

COURSE = {
    "n_layers": 4, "n_heads": 4, "d_head": 32, "d_model": 128, "d_mlp": 512,
    "d_vocab": 65, "n_ctx": 64,
}  # fmt: skip
GPT2_SMALL = {
    "n_layers": 12, "n_heads": 12, "d_head": 64, "d_model": 768, "d_mlp": 3072,
    "d_vocab": 50257, "n_ctx": 128, "act_fn": "gelu_new",
}  # fmt: skip
SHAPES = {"course shape, 64 tokens": COURSE, "GPT-2 small shape, 128 tokens": GPT2_SMALL}
TARGET, OTHER = 3, 5
SLOW_ROUNDS = 3

Analysis = Callable[[HookedTransformer, torch.Tensor], object]
ANALYSES: dict[str, Analysis] = {
    "forward": lambda m, ids: trace(m, ids, sites=[]).logits,
    "TransformerLens forward": lambda m, ids: m(ids),
    "TransformerLens cache": lambda m, ids: m.run_with_cache(ids),
    "logit_lens": lambda m, ids: interp.logit_lens(m, ids),
    "direct_logit_attribution": lambda m, ids: interp.direct_logit_attribution(
        m, ids, TARGET, OTHER
    ),
    "source_attribution": lambda m, ids: interp.source_attribution(m, ids, TARGET, OTHER),
    "neuron_attribution": lambda m, ids: interp.neuron_attribution(m, ids, TARGET, OTHER),
    "accumulated_contributions": lambda m, ids: interp.accumulated_contributions(
        m, ids, TARGET, OTHER
    ),
    "head_scores": lambda m, ids: interp.head_scores(m, ids),
    "moved_by_heads": lambda m, ids: interp.moved_by_heads(m, ids),
    "copy_suppression": lambda m, ids: interp.copy_suppression(m, ids),
    "score_split, last layer": lambda m, ids: interp.score_split(m, ids, m.cfg.n_layers - 1, 0),
    "edit_pattern, one cell": lambda m, ids: interp.edit_pattern(m, ids, {(0, 0, 5, 2): 0.5}),
    "circuit_spectra": lambda m, ids: interp.circuit_spectra(m),
    "composition_scores": lambda m, ids: interp.composition_scores(m),
    "copying_scores": lambda m, ids: interp.copying_scores(m),
}
# Vocabulary-sized for each token of a large vocabulary: minutes, and nobody asks for it twice.
ONLY_SMALL = {"copying_scores"}


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="course shape only, one round")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    rounds = 1 if options.quick else 25
    for title, shape in list(SHAPES.items())[: 1 if options.quick else None]:
        compare(title, shape, rounds if shape is COURSE else min(rounds, SLOW_ROUNDS))
    corpus(min(rounds, 9))


def setting(title: str) -> tuple[HookedTransformer, torch.Tensor]:
    shape = SHAPES[title]
    ids = torch.randint(
        0, shape["d_vocab"], (1, shape["n_ctx"]), generator=torch.Generator().manual_seed(0)
    )
    return random_hooked(0, dtype=torch.float32, **shape), ids


def chosen(shape: dict) -> list[str]:
    return [name for name in ANALYSES if shape is COURSE or name not in ONLY_SMALL]


def compare(title: str, shape: dict, rounds: int) -> None:
    """Seconds, forward-equivalents and megabytes of each analysis."""
    model, ids = setting(title)
    seconds: dict[str, list[float]] = {name: [] for name in chosen(shape)}
    with torch.no_grad():
        for round_ in range(rounds + 1):
            for name, times in seconds.items():
                start = time.perf_counter()
                ANALYSES[name](model, ids)
                if round_:  # the first round warms up
                    times.append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"\n{title} (median of {rounds})")
    print(f"{'':28}{'seconds':>10}{'forwards':>10}{'peak MB':>10}")
    for name, spent in median.items():
        memory = peak_of(lambda name=name: ANALYSES[name](model, ids))
        print(f"{name:28}{spent:10.4f}{spent / median['forward']:10.2f}{memory:10.1f}")
    ratio = median["direct_logit_attribution"] / median["forward"]
    print(f"direct logit attribution: {ratio:.2f} forward-equivalents (bound 2)")


def corpus(rounds: int) -> None:
    """Tokens a second of neuron statistics and of a plain forward, over the same windows."""
    model, _ = setting("course shape, 64 tokens")
    rows = torch.randint(0, 65, (640, 64), generator=torch.Generator().manual_seed(1))
    contenders: dict[str, Callable[[], object]] = {
        "forward": lambda: [trace(model, ids, sites=[]).logits for ids in rows.split(64)],
        "neuron_statistics": lambda: interp.neuron_statistics(model, rows),
        "loss_by_position": lambda: interp.loss_by_position(model, rows),
        "head_scores_over": lambda: interp.head_scores_over(model, rows),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if round_:
                times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(spent) for name, spent in times.items()}
    print(f"\nover a corpus, course shape, {rows.numel()} tokens (median of {rounds})")
    for name, spent in median.items():
        speed, share = rows.numel() / spent, median["forward"] / spent
        print(f"{name:28}{speed:10.0f} tokens/s{100 * share:8.0f} % of the forward")


if __name__ == "__main__":
    main()
