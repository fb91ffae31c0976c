"""What share of a head's direct effect the final LayerNorm undoes when the head is removed.

Rushing & Nanda 2024, "Explorations of Self-Repair in Language Models" (2402.15390): rescaling by
the final LayerNorm repairs about 30 % of a head's direct effect.

    python docs/findings/self_repair.py
"""

from __future__ import annotations

import torch
from shared import options, table, windows

from interp.components import write_sites, writes
from interp.engine import trace
from interp.readout import readout
from interp.sphere.effects import LastState
from model import load


def shares(model, ids) -> list[list[object]]:
    """For each head, over its 2 % of tokens with the largest direct effect on the next token."""
    run, read = trace(model, ids, sites=write_sites(model.cfg)), readout(model)
    last, following = LastState(read, run.stream[-1][:, :-1]), ids[:, 1:, None]
    rows: list[list[object]] = []
    for write in writes(run):
        if write.kind != "head":
            continue
        frozen, rescale = last.without(write.value[:, :-1])
        row: list[object] = [write.label]
        for centred in (False, True):
            terms = [
                (term - term.mean(-1, keepdim=True) if centred else term).gather(-1, following)
                for term in (frozen, rescale)
            ]
            direct, repair = (term.flatten() for term in terms)
            top = direct.abs().topk(max(1, len(direct) // 50)).indices
            row.append(-100 * float(repair[top].sum() / direct[top].sum()))
            if not centred:
                row.insert(1, float(direct[top].mean()))
        rows.append(row)
    return rows


def report(run, text, n_windows: int) -> str:
    """Theirs beside ours, head by head."""
    model = load(run)
    rows = shares(model, windows(model, text, n_windows))
    undone = torch.tensor([float(str(row[2])) for row in rows])
    centred = torch.tensor([float(str(row[3])) for row in rows])
    header = ["head", "direct effect, logits", "undone, % of it", "undone, mean logit removed, %"]
    return f"""### Direct effect undone by the final LayerNorm (Rushing & Nanda 2024)

Theirs: about 30 %. Ours: median over heads {float(undone.median()):.1f} % (of the raw logit),
{float(centred.median()):.1f} % (of the logit less the mean logit); single heads below.

{table(header, rows)}

Each head at the 2 % of tokens where its direct effect on the correct next token is largest in
size. A negative number: LayerNorm adds to the loss instead. The rescaling is the exact closed
form, with nothing run again. Theirs is on large models, ours on one of {model.cfg.n_layers} layers.
The share depends on where the logit's zero is put, because rescaling multiplies it: so
there are two columns, and neither means much for a head whose direct effect is near 0.
"""


if __name__ == "__main__":
    args = options(__doc__).parse_args()
    print(report(args.run, args.text, args.windows))
