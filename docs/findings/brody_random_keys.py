"""Random keys that no query can select, with and without LayerNorm's scaling.

Brody, Alon & Yahav 2023, "On the Expressivity Role of LayerNorm in Transformers' Attention"
(2305.02582), figure 1c and 1d: Gaussian keys in 3 to 15 dimensions, up to 60 of them. A key inside
the convex hull of the others cannot be selected; scaled to one sphere, every key can.

    python docs/findings/brody_random_keys.py
"""

from __future__ import annotations

import argparse

import torch
from shared import table

from interp.norms import mean_removed
from interp.sphere.hull import selection_margins
from interp.sphere.laws import direction
from interp.sphere.selection import self_selected

DIMENSIONS = (3, 5, 8, 10, 15)
COUNTS = (10, 20, 40, 60)


def report(sets: int) -> str:
    """Both figures as one table."""
    rows, scaled_worst, undecided = [], 0.0, 0
    for d in DIMENSIONS:
        row: list[object] = [d]
        for n in COUNTS:
            generator = torch.Generator().manual_seed(1000 * d + n)
            keys = mean_removed(torch.randn(sets, n, d, generator=generator, dtype=torch.float64))
            raw, wins = selection_margins(keys), self_selected(direction(keys))
            row.append(f"{100 * float(raw.unselectable.double().mean()):.1f} %")
            scaled_worst = max(scaled_worst, 1 - float(wins.mean()))
            undecided += int(raw.undecided.sum())
        rows.append(row)
    return f"""### Random keys that no query can select (Brody et al. 2023, figure 1c, 1d)

Without scaling, by dimension (down) and number of keys (across), {sets} sets each:

{table(["d", *(f"{n} keys" for n in COUNTS)], rows)}

With scaling, the worst cell: {100 * scaled_worst:.1f} % (each key wins for the query that equals
it). Left undecided without scaling: {undecided}.

Theirs: without scaling the share grows with the number of keys and falls with the dimension;
with scaling it is 0 everywhere. Ours: the same. Keys are mean-free here, as after LayerNorm's
projection, so they fill d - 1 dimensions.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=20, help="sets of keys for each cell")
    print(report(parser.parse_args().sets))
