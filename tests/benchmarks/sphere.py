"""Time and peak memory of every sphere analysis on 64 x 64 tokens of the course model's shape.

    python tests/benchmarks/sphere.py

Random weights: the time does not depend on them, save for the searches (selectability, ceilings),
which are listed apart with what takes many forward passes. One trace serves all the others; the
bound is one second for them together, the trace included, on two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from memory import peak_of
from transformer_lens import HookedTransformer, HookedTransformerConfig

import interp

BOUND = 1.0


def course(seed: int = 0) -> HookedTransformer:
    """Four layers, four heads, width 128, 65 tokens, context 64."""
    torch.manual_seed(seed)
    cfg = HookedTransformerConfig(
        n_layers=4,
        n_heads=4,
        d_model=128,
        d_head=32,
        d_mlp=512,
        d_vocab=65,
        n_ctx=64,
        act_fn="gelu",
        normalization_type="LN",
        device="cpu",
        model_name="course",
    )
    return HookedTransformer(cfg).eval()


def measure(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Best seconds, and the peak above what the process held before, MB."""
    call()
    peak, best = peak_of(call), float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = course()
    ids = torch.randint(0, 65, (64, 64), generator=torch.Generator().manual_seed(0))
    of_states = (
        interp.sphere_radius,
        interp.eps_regime,
        interp.sphere_path,
        interp.update_split,
        interp.sphere_view,
        interp.layernorm_gains,
        interp.norm_growth,
        interp.effective_dim,
        interp.query_uniformity,
    )
    run = interp.trace(model, ids)
    analyses: dict[str, Callable[[], object]] = {"trace": lambda: interp.trace(model, ids)}
    for analysis in of_states:
        analyses[analysis.__name__] = lambda analysis=analysis: analysis(model, run)
    analyses["direct_effect"] = lambda: interp.direct_effect(model, run, 3, 7)
    last = {"layer": 3, "pos": -1}
    analyses["neuron_split (layer 3, last pos)"] = lambda: interp.neuron_split(model, run, **last)
    for of_weights in (interp.gain_ellipsoid, interp.unembed_geometry, interp.null_writers):
        analyses[of_weights.__name__] = lambda of_weights=of_weights: of_weights(model)
    apart: dict[str, Callable[[], object]] = {
        "ablation_effect": lambda: interp.ablation_effect(model, ids[:1], 3, 7),
        "frozen_scale_loss": lambda: interp.frozen_scale_loss(model, ids),
        "scale_jitter": lambda: interp.scale_jitter(model, ids),
        "token_reachable": lambda: interp.token_reachable(model),
        "confidence_ceiling": lambda: interp.confidence_ceiling(model),
        "key_selectability (1 x 64)": lambda: interp.key_selectability(model, ids[:1]),
    }
    total = 0.0
    print(f"{'analysis':32} {'ms':>8} {'peak MB':>8}   ({args.threads} threads)")
    for name, call in analyses.items():
        seconds, megabytes = measure(call, args.repeats)
        total += seconds
        print(f"{name:32} {1e3 * seconds:8.1f} {megabytes:8.1f}")
    print(f"{'together':32} {1e3 * total:8.1f}          bound {1e3 * BOUND:.0f}")
    print("\nmany forward passes, and searches:")
    for name, call in apart.items():
        seconds, megabytes = measure(call, args.repeats)
        print(f"{name:32} {1e3 * seconds:8.1f} {megabytes:8.1f}")


if __name__ == "__main__":
    main()
