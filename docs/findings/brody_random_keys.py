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
    """Both figures as tables."""
    hiding: list[list[object]] = []
    hidden: list[list[object]] = []
    scaled_worst, undecided = 0.0, 0
    for d in DIMENSIONS:
        in_sets: list[object] = [d]
        of_keys: list[object] = [d]
        for n in COUNTS:
            generator = torch.Generator().manual_seed(1000 * d + n)
            keys = torch.randn(sets, n, d, generator=generator, dtype=torch.float64)
            raw, wins = selection_margins(keys), self_selected(direction(mean_removed(keys)))
            in_sets.append(f"{100 * float(raw.unselectable.any(1).double().mean()):.0f} %")
            of_keys.append(f"{100 * float(raw.unselectable.double().mean()):.1f} %")
            scaled_worst = max(scaled_worst, 1 - float(wins.mean()))
            undecided += int(raw.undecided.sum())
        hiding.append(in_sets)
        hidden.append(of_keys)
    header = ["d", *(f"{n} keys" for n in COUNTS)]
    return f"""### Random keys that no query can select (Brody et al. 2023, figure 1c, 1d)

Without LayerNorm: the share of sets that hide at least one key, which is what they plot, by
dimension (down) and number of keys (across), {sets} sets each:

{table(header, hiding)}

The share of keys that are hidden:

{table(header, hidden)}

After LayerNorm, the worst cell of either: {100 * scaled_worst:.1f} % (each key wins for the query
that equals it). Left undecided: {undecided}.

Theirs are heat maps without numbers: without LayerNorm nearly every set of few dimensions and many
keys hides one, and none does in many dimensions with few keys; after LayerNorm none does anywhere.
Ours: the same.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=100, help="sets of keys for each cell")
    print(report(parser.parse_args().sets))
