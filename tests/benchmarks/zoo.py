"""How well each method finds planted circuits.

    python tests/benchmarks/zoo.py

For every model with a known mechanism: AUROC of the method's scores against the planted nodes or
edges, and precision and recall when as many are picked as were planted (at most those with a
score above 1e-6). Exact patching is the yardstick; ground truth holds for the source run's values
in a site's place. The last rows compare estimates with exact patching on a random model: rank
correlation over all heads and edges.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import xarray as xr

sys.path.insert(0, str(Path(__file__).parents[1]))
import zoo
from random_models import random_hooked

from interp.attribution import attribution_patching
from interp.edges import edge_attribution
from interp.inputs import Contrast, contrast
from interp.metrics import Metric, logit_difference
from interp.patching import activation_patching
from interp.paths import path_patching

HEADS = ("z", ("layer", "head"))


def main() -> None:
    warnings.filterwarnings("ignore")
    print(f"{'model':34}{'method':18}{'AUROC':>7}{'precision':>11}{'recall':>8}")
    for title, model, pair, metric, kind, planted in node_tasks():
        for method, scores in node_scores(model, pair, metric, kind).items():
            truth = np.zeros(scores.shape, dtype=bool)
            for place in planted:
                truth[place] = True
            report(title, method, scores.ravel(), truth.ravel())
    for layer_norm in (False, True):
        model = zoo.induction_model(layer_norm=layer_norm)
        for which, (pair, planted) in zoo.induction_contrasts().items():
            title = f"induction {'LN ' if layer_norm else ''}edges, {which}"
            metric = zoo.induction_metric(model)
            for method, scores in edge_scores(model, pair, metric).items():
                table = scores.to_dataframe("score")["score"].dropna().abs()
                truth = np.array([edge in planted for edge in table.index])
                report(title, method, table.to_numpy(), truth)
    agreement()


def node_tasks():
    """Title, model, pair, metric, site kind, and the planted (layer, head) places."""
    for layer_norm in (False, True):
        model = zoo.induction_model(layer_norm=layer_norm)
        pair, _ = zoo.induction_contrasts()["first A"]
        title = "induction LN heads" if layer_norm else "induction heads"
        yield title, model, pair, zoo.induction_metric(model), "z", [(0, 0), (1, 1)]
    for gate in ("and", "or"):
        model = zoo.gate_model(gate)
        pair = contrast(model, [[0, 0, 2]], [[1, 1, 2]])
        if gate == "or":
            pair = pair.reversed()
        yield f"{gate} gate", model, pair, logit_difference(model, 1, 0), "z", [(0, 0), (0, 1)]
    model = zoo.gate_model("cancel")
    pair = contrast(model, [[0, 0, 2]], [[1, 0, 2]])
    yield "cancelling paths", model, pair, logit_difference(model, 1, 0), "z", [(0, 0)]
    model = zoo.saturated_model()
    pair = contrast(model, [[0, 1, 2, 4]], [[0, 1, 2, 3]])
    yield "saturated query", model, pair, logit_difference(model, 1, 2), "q", [(0, 0)]


def node_scores(model, pair: Contrast, metric: Metric, kind: str) -> dict[str, np.ndarray]:
    exact = activation_patching(model, pair, metric, kind, over=HEADS[1])
    scores = {"exact": np.abs(exact.raw - exact.base)[0].to_numpy()}
    for method in ("atp", "atp*", "ig"):
        estimate = attribution_patching(model, pair, metric, kind, over=HEADS[1], method=method)
        scores[method] = np.abs(estimate)[0].to_numpy()
    return scores


def edge_scores(model, pair: Contrast, metric: Metric) -> dict[str, xr.DataArray]:
    return {
        "exact": path_patching(model, pair, metric).change[0],
        "eap": edge_attribution(model, pair, metric)[0],
        "eap-ig": edge_attribution(model, pair, metric, method="eap-ig", steps=20)[0],
    }


def report(title: str, method: str, scores: np.ndarray, truth: np.ndarray) -> None:
    picked = np.zeros_like(truth)
    best = np.argsort(-scores, kind="stable")[: truth.sum()]
    picked[best] = scores[best] > 1e-6
    hits = (picked & truth).sum()
    precision = hits / picked.sum() if picked.any() else np.nan
    print(
        f"{title:34}{method:18}{auroc(scores, truth):7.3f}{precision:11.3f}"
        f"{hits / truth.sum():8.3f}"
    )


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Chance that a planted one scores above another; ties count half. Scores below 1e-6 of the
    largest are rounding, and tie."""
    scores = np.where(scores > 1e-6 * max(scores.max(), 1e-6), scores, 0)
    high, low = scores[truth][:, None], scores[~truth][None]
    return float(((high > low) + 0.5 * (high == low)).mean())


def agreement() -> None:
    """Rank correlation of estimates with exact patching, random model with LayerNorm."""
    print("\nrandom model, 3 layers, 5 pairs: rank correlation with exact patching")
    model = random_hooked(0, n_layers=3, n_heads=4)
    source = ["abcdefg", "kbcdebc", "gfedcba", "aabbccd", "hijkabc"]
    base = ["abhdefg", "abcdebc", "gfkdcba", "aabkccd", "hajkabc"]
    pair, metric = contrast(model, source, base), logit_difference(model, "a", "b")
    for kind in ("z", "q", "k", "v"):
        exact = activation_patching(model, pair, metric, kind)
        change = np.abs(exact.raw - exact.base).to_numpy().ravel()
        line = f"  {kind:6}"
        for method in ("atp", "atp*", "ig"):
            estimate = np.abs(attribution_patching(model, pair, metric, kind, method=method))
            line += f"  {method} {spearman(change, estimate.to_numpy().ravel()):.3f}"
        print(line)
    exact = path_patching(model, pair, metric).change.to_numpy()
    there = ~np.isnan(exact)
    line = "  edges "
    for method in ("eap", "eap-ig"):
        estimate = edge_attribution(model, pair, metric, method=method).to_numpy()
        line += f"  {method} {spearman(np.abs(exact[there]), np.abs(estimate[there])):.3f}"
    print(line)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    main()
