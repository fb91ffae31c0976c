"""How fast the residual stream grows with depth.

Heimersheim & Turner 2023, "Residual stream norms grow exponentially over the forward pass": about
1.045 a layer in GPT2-XL (48 layers), position 0 left out.

    python docs/findings/norm_growth.py
"""

from __future__ import annotations

from shared import at_both_ends, options, table, windows

from interp import norm_growth


def report(run, text, n_windows: int) -> str:
    """The rate per layer and the fit, at both ends of training."""
    rows: list[list[object]] = [["GPT2-XL, theirs", 48, 1.045, "", ""]]
    for name, model in at_both_ends(run).items():
        growth = norm_growth(model, windows(model, text, n_windows))
        norm = growth["norm"].isel(pos=slice(1, None)).mean(("batch", "pos"))
        rows.append(
            [
                f"{model.cfg.model_name}, {name}",
                model.cfg.n_layers,
                float(growth["mean_rate"]),
                float(growth["mean_r_squared"]),
                " ".join(f"{value:.3g}" for value in norm.to_numpy()),
            ]
        )
    header = ["model", "layers", "factor a layer", "R^2 of the exponential", "length at each state"]
    return f"""### Growth of the stream (Heimersheim & Turner 2023)

{table(header, rows)}

A rate of 1.045 compounds over 48 layers to a factor of 8. A model of a few layers that ends at a
comparable factor grows faster a layer: the rates are not comparable across depths, the total is.
"""


if __name__ == "__main__":
    args = options(__doc__).parse_args()
    print(report(args.run, args.text, args.windows))
