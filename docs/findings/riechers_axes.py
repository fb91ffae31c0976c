"""The principal axes of each LayerNorm's ellipsoid, against Riechers' own formula.

Riechers 2024, "Geometry and Dynamics of LayerNorm" (2405.04134): LayerNorm's output lies on the
intersection of an ellipsoid with the hyperplane normal to 1/gain; semi-axes sqrt(d / lambda), with
lambda the eigenvalues of 1/gain^2 projected into that hyperplane.

    python docs/findings/riechers_axes.py
"""

from __future__ import annotations

import math

import torch
from shared import options, table

from interp import gain_ellipsoid
from interp.norms import norms, state_names
from model import load


def riechers(gain: torch.Tensor) -> torch.Tensor:
    """sqrt(d / lambda), longest first."""
    normal = (1 / gain) / (1 / gain).norm()
    plane = torch.eye(len(gain), dtype=gain.dtype) - normal[:, None] * normal
    values = torch.linalg.eigvalsh(plane @ torch.diag(gain**-2) @ plane)[1:]
    return (len(gain) / values).sqrt()


def report(run) -> str:
    """Both, for every LayerNorm of the run's model."""
    model = load(run, dtype=torch.float64)
    shape, rows = gain_ellipsoid(model), []
    for i, (name, norm) in enumerate(zip(state_names(model.cfg), norms(model), strict=True)):
        theirs = riechers(norm.gain)
        ours = torch.tensor(shape["semi_axis"][i].to_numpy())
        rows.append(
            [
                name,
                float(theirs[0]),
                float(ours[0]),
                float(theirs[-1]),
                float(ours[-1]),
                f"{float((ours / theirs - 1).abs().max()):.1e}",
                float(shape["condition"][i]),
                math.degrees(float(shape["tilt"][i])),
            ]
        )
    header = [
        "LayerNorm that reads",
        "longest, theirs",
        "ours",
        "shortest, theirs",
        "ours",
        "largest difference",
        "longest / shortest",
        "tilt of the plane, degrees",
    ]
    return f"""### Principal axes of the gain ellipsoids (Riechers 2024)

{table(header, rows)}

sqrt(d) is {model.cfg.d_model**0.5:.3f}. Ours come from the singular values of gain times a basis of
1's complement, which stays accurate with gains of 0; theirs divides by the gain.
"""


if __name__ == "__main__":
    print(report(options(__doc__).parse_args().run))
