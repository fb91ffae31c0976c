"""One page of what the sphere of the shipped model looks like, from initialisation to the end.

Writes docs/findings/sphere.md: the training measures, then each reproduction of this folder. The
two that train models keep their numbers in a JSON file beside them (`brody_small_model.py` and
`brody_majority.py` make it anew), so that this page takes a minute.

    python docs/findings/sphere.py
"""

from __future__ import annotations

from pathlib import Path

import brody_majority
import brody_random_keys
import brody_small_model
import gupta_orthogonal
import norm_growth
import riechers_axes
import self_repair
import torch
from shared import kept, options, table, windows

import interp
from interp.sphere.states import sphere_norms
from model import Run, load


def through_training(run: Path, text: Path | None, n_windows: int) -> str:
    """One row a snapshot."""
    steps = Run.open(run).steps
    last = len(steps) - 1
    chosen = sorted({steps[round(i * last / 11)] for i in range(12)} | {steps[0], steps[-1]})
    rows = []
    for step in chosen:
        model = load(run, step)
        ids = windows(model, text, n_windows)
        radius, path = interp.sphere_radius(model, ids), interp.sphere_path(model, ids)
        kappa = radius["kappa"].median(("batch", "pos"))
        dims = interp.effective_dim(model, ids)
        growth = interp.norm_growth(model, ids)
        rows.append(
            [
                step,
                float(kappa[0]),
                float(kappa[-1]),
                float((radius["radius"] / radius.attrs["sphere"]).min()),
                float(path["hop_angle"].mean()),
                float(path["length"].mean()),
                float(path["directness"].mean()),
                float(dims["participation_ratio"][-1]),
                float(dims["mean_cosine"][-1]),
                float(growth["mean_rate"]),
            ]
        )
    header = [
        "step",
        "kappa, first LayerNorm",
        "kappa, last",
        "smallest radius / sqrt(d)",
        "hop, rad",
        "path, rad",
        "directness",
        "dimension at the end",
        "mean cosine at the end",
        "growth a layer",
    ]
    return table(header, rows)


def at_the_end(run: Path, text: Path | None, n_windows: int) -> str:
    """The trained model, LayerNorm by LayerNorm."""
    model = load(run)
    ids = windows(model, text, n_windows)
    path, split = interp.sphere_path(model, ids), interp.update_split(model, ids)
    held, shaken = interp.frozen_scale_loss(model, ids), interp.scale_jitter(model, ids)
    ceiling, writers = interp.confidence_ceiling(model), interp.null_writers(model)
    seen = model(ids).softmax(-1).amax((0, 1))
    rows = []
    for hop in path["hop"].to_numpy():
        parts = split.sel(component=hop)
        square = parts["mean"] ** 2 + parts["radial"] ** 2 + parts["tangential"] ** 2
        rows.append(
            [
                hop,
                float(path["hop_angle"].sel(hop=hop).mean()),
                100 * float((parts["mean"] ** 2 / square).mean()),
                100 * float((parts["radial"] ** 2 / square).mean()),
                100 * float((parts["tangential"] ** 2 / square).mean()),
                100 * float(parts["killed"].mean()),
            ]
        )
    header = ["update", "hop, rad", "mean, %", "radial, %", "tangential, %", "removed exactly, %"]
    costs = [
        [state, float(held["delta_loss"].sel(state=state)), float(held["spread"].sel(state=state))]
        for state in held["state"].to_numpy()
    ]
    lowest = ceiling["probability"].to_numpy().argsort()[:5]
    rare = ", ".join(
        f"{str(ceiling['tokens'].to_numpy()[i])!r} {float(ceiling['probability'][i]):.4f} "
        f"(seen {float(seen[i]):.4f})"
        for i in lowest
    )
    return f"""## The trained model

What each sublayer's update is made of: share of its squared length along 1 (LayerNorm removes it),
along the stream (all but removed), and across it (what moves the point).

{table(header, rows)}

What it costs to hold a LayerNorm's scale at its mean (loss {float(held["loss"]):.4f} nats):

{table(["LayerNorm that reads", "more loss, nats", "spread of the scale"], costs)}

All held together: {float(held["joint_delta_loss"]):+.4f} nats. With every scale 10 % off,
{100 * float(shaken["pattern_flips"].mean()):.1f} % of queries change their most attended key and
{100 * float(shaken["prediction_flips"]):.1f} % of positions their top token; loss
{float(shaken["delta_loss"]):+.4f} nats.

Confidence ceilings: the lowest are {rare}; largest certified gap
{float(ceiling["gap"].max()):.1e} nats. No token was seen above its ceiling:
{bool((seen.numpy() <= ceiling["probability"].to_numpy() + 1e-6).all())}.

The unembedding leaves {int(writers["exact_null_dim"])} of {len(sphere_norms(model)[-1].basis().T)}
directions unread. The neuron that writes most into them puts
{100 * float(writers["null_share"].max()):.1f} % of its squared output there (a random direction:
{100 * int(writers["null_dim"]) / len(sphere_norms(model)[-1].basis().T):.1f} %).
"""


def frequencies(run: Path) -> str:
    """Whether the unembedding knows how frequent characters are."""
    model = load(run)
    counted = interp.NGrams.load(run / "ngrams.safetensors")
    seen, log_count = counted.keys[0], counted.counts[0].double().log()
    geometry = interp.unembed_geometry(model)

    def correlation(name: str) -> float:
        own = torch.from_numpy(geometry[name].to_numpy()).double()[seen]
        return float(torch.corrcoef(torch.stack([own, log_count]))[0, 1])

    return f"""### Frequency in the unembedding (Kobayashi et al. 2023, 2305.18294)

Theirs: the biases of the prediction head encode word frequency. Ours: the constant part c0 of the
logits correlates {correlation("c0"):+.2f} with the log count of the characters in the training
text, the lengths of the reading directions {correlation("norm"):+.2f}.
"""


def page(run: Path, text: Path | None, n_windows: int) -> str:
    """The whole page."""
    training = through_training(run, text, n_windows)
    end = at_the_end(run, text, n_windows)
    sections = [
        brody_random_keys.report(100),
        brody_small_model.report(kept(brody_small_model.KEPT)),
        brody_majority.report(kept(brody_majority.KEPT)),
        gupta_orthogonal.report(run, text, n_windows),
        riechers_axes.report(run),
        norm_growth.report(run, text, n_windows),
        self_repair.report(run, text, n_windows),
        frequencies(run),
    ]
    return f"""# The sphere of `{run.name}`

Written by `python docs/findings/sphere.py`. What is said of `{run.name}` is measured on
{n_windows} prompts of held-out text.

## Through training

kappa = eps / sigma^2 (median): how much epsilon matters. Below 1e-4 it does not.

{training}

{end}
## Published results beside ours

{chr(10).join(sections)}"""


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("sphere.md"))
    parser.set_defaults(windows=16)
    args = parser.parse_args()
    args.page.write_text(page(args.run, args.text, args.windows), encoding="utf-8")
