"""Keys of a trained model of width 8 that no query can select, before and after LayerNorm.

Brody, Alon & Yahav 2023 (2305.02582), table 2: a GPT-2 with n_embd = 8, 4 heads and 4 layers on
passages of 768 to 1024 words. Here the same shape on characters, trained in minutes. Their keys
are LayerNorm's outputs at full width; a head reads 2 of the 8 dimensions, so its own keys are
measured as well.

    python docs/findings/brody_small_model.py --out runs/width8
"""

from __future__ import annotations

from pathlib import Path

import torch
from shared import options, table, windows

from interp import key_selectability
from interp.engine import trace
from interp.norms import norms
from interp.sphere.hull import selection_margins
from interp.sphere.selection import READINGS
from model import GPTConfig, load
from model.corpus import tiny_shakespeare, tokenise
from model.recipe import Recipe
from model.training import train

THEIRS = {"before": (44.8, 28.5, 22.3, 26.1), "after": (0.0, 0.0, 0.0, 0.0)}


def trained(out: Path, text: Path | None, steps: int) -> Path:
    """The run of width 8, trained the first time."""
    if not (out / "model.safetensors").exists():
        corpus = tokenise([text or tiny_shakespeare()])
        config = GPTConfig(d_vocab=corpus.d_vocab or 0, n_ctx=256, n_layers=4, n_heads=4, d_model=8)
        train(config, corpus, Recipe(steps=steps, batch_size=8), out)
    return out


def full_width(model, ids) -> dict[str, list[float]]:
    """The unselectable share, in per cent, of each layer's keys at full width."""
    run, readers = trace(model, ids), norms(model)
    shares: dict[str, list[float]] = {name: [] for name in READINGS}
    for layer in range(model.cfg.n_layers):
        norm, x = readers[2 * layer], run["resid_pre", layer]
        for name, read in READINGS.items():
            margins = selection_margins(read(norm, x) * norm.gain)
            shares[name].append(100 * float(margins.unselectable.double().mean()))
    return shares


def report(run: Path, text: Path | None, n_windows: int) -> str:
    """Theirs and ours, layer by layer."""
    model = load(run)
    ids = windows(model, text, n_windows)
    with torch.no_grad():
        wide, heads = full_width(model, ids), key_selectability(model, ids)
    per_head = 100 * heads["unselectable"].mean(("head", "batch"))
    rows: list[list[object]] = [
        ["theirs, before LayerNorm", *THEIRS["before"]],
        ["ours, before LayerNorm (raw)", *wide["raw"]],
        ["theirs, after LayerNorm", *THEIRS["after"]],
        ["ours, after LayerNorm", *wide["layernorm"]],
        ["ours, mean removed only", *wide["projected"]],
        ["ours, scaled only", *wide["scaled"]],
    ]
    for name in ("raw", "layernorm"):
        shares = per_head.sel(reading=name).to_numpy().tolist()
        rows.append([f"ours, keys of one head ({name})", *shares])
    return f"""### Keys that no query can select in a model of width 8 (Brody et al. 2023, table 2)

Per cent of keys, by layer. Ours: {model.cfg.model_name}, prompts of {ids.shape[1]} characters
({len(ids)} of them).

{table(["", "layer 0", "layer 1", "layer 2", "layer 3"], rows)}

Fewer are hidden than in theirs because fewer compete: 256 keys to a prompt, not 768 to 1024. The
scaling alone, which puts keys on one sphere, frees them all; removing the mean alone takes a
dimension away and hides more. Keys of one head have d_head = 2 dimensions: the guarantee holds for
the 8-dimensional input of W_K, and on a plane 256 keys hide most of each other whatever the
normalisation. Their table is about the full width; what attention ranks is the head's keys.
"""


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/width8"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.set_defaults(windows=4)
    args = parser.parse_args()
    print(report(trained(args.out, args.text, args.steps), args.text, args.windows))
