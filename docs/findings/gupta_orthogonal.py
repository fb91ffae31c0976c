"""Is the stream orthogonal to 1, and how far does LayerNorm turn it?

Gupta, Ozdemir & Anumanchipalli 2024, "Geometric Interpretation of Layer Normalization and a
Comparative Analysis with RMSNorm" (2409.12951): hidden vectors are on average orthogonal to 1, so
that removing the mean is redundant.

    python docs/findings/gupta_orthogonal.py
"""

from __future__ import annotations

import math
from typing import Any

import torch
from shared import at_both_ends, options, table, windows

from interp.norms import state_names
from interp.sphere.angles import angle
from interp.sphere.states import stream_states


def report(run, text, n_windows: int) -> str:
    """The angle to 1, the rotation by the projection and by the gain, and the length."""
    parts, means, d_model = [], [], 0
    for name, model in at_both_ends(run).items():
        ids, d_model = windows(model, text, n_windows), model.cfg.d_model
        rows: list[list[Any]] = []
        for label, state in zip(state_names(model.cfg), stream_states(model, ids), strict=True):
            to_one = angle(state.x, torch.ones_like(state.x)).cos()
            projected = angle(state.x, state.centred)
            out = state.norm(state.x)
            rows.append(
                [
                    label,
                    float(to_one.mean()),
                    float(to_one.abs().mean()),
                    math.degrees(float(projected.mean())),
                    math.degrees(float(angle(state.x, out).mean())),
                    float(state.x.norm(dim=-1).mean()),
                    float(out.norm(dim=-1).mean()),
                ]
            )
        header = [
            "state",
            "mean cos to 1",
            "mean absolute cos",
            "turned by the mean, degrees",
            "turned in all",
            "length before",
            "length after",
        ]
        means.append(sum(float(row[2]) for row in rows) / len(rows))
        parts.append(f"{name.capitalize()}:\n\n{table(header, rows)}")
    before, after = means
    chance = math.sqrt(2 / (math.pi * d_model))
    return f"""### Orthogonality to 1 (Gupta et al. 2024)

{parts[0]}

{parts[1]}

Theirs: on average orthogonal, so that LayerNorm's first step is redundant. Ours as well: a mean
absolute cos of {before:.3f} at the start and {after:.3f} after training (means over the states),
where a random direction in {d_model} dimensions has {chance:.3f}. The gain turns it much more.
"""


if __name__ == "__main__":
    args = options(__doc__).parse_args()
    print(report(args.run, args.text, args.windows))
