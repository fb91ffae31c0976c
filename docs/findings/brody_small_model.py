"""Keys that no query can select, in models of width 8 with and without LayerNorm's scaling.

Brody, Alon & Yahav 2023 (2305.02582), tables 1 and 2: a GPT-2 with n_embd = 8, 4 heads and 4
layers, on passages of 768 to 1024 tokens; once as it is, once with the LayerNorm before attention
cut down to its projection. As in their code, that LayerNorm has no gain and no bias. Here on the
characters of tiny Shakespeare, trained in minutes. Their keys are LayerNorm's outputs at full
width; a head reads 2 of the 8 dimensions, so its own keys are measured as well.

    python docs/findings/brody_small_model.py            train both, measure, keep, print
    python docs/findings/brody_small_model.py --kept     print what was measured
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from shared import keep, kept, options, table
from torch import Tensor, nn

from interp import progress_bar
from interp.norms import mean_removed
from interp.sphere.hull import selection_margins
from model import GPT, GPTConfig
from model.corpus import tiny_shakespeare
from model.gpt import next_token_loss

KEPT = Path(__file__).with_name("brody_small_model.json")
THEIRS = {
    "table 1, model without scaling": (51.0, 32.2, 34.7, 36.8),
    "table 2, before LayerNorm": (44.8, 28.5, 22.3, 26.1),
}
LENGTHS = (64, 128, 256, 512, 1024)
HELD_BACK = 0.1


class Projection(nn.Module):
    """LayerNorm without its scaling: x minus its mean."""

    def forward(self, x: Tensor) -> Tensor:
        return mean_removed(x)


def model_of_width_8(d_vocab: int, *, scaling: bool) -> GPT:
    """Four layers of four heads on a stream of 8 dimensions."""
    config = GPTConfig(d_vocab=d_vocab, n_ctx=LENGTHS[-1], n_layers=4, n_heads=4, d_model=8)
    gpt = GPT(config)
    for block in gpt.layers:
        norm = nn.LayerNorm(8, eps=config.eps, elementwise_affine=False)
        block.register_module("ln1", norm if scaling else Projection())
    return gpt


def train(gpt: GPT, ids: Tensor, steps: int, batch_size: int) -> float:
    """The mean loss of the last tenth of the steps, in nats."""
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=0.01, betas=(0.9, 0.99))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    n_ctx, losses = gpt.config.n_ctx, []
    with progress_bar("width 8") as progress:
        for step in range(steps):
            starts = torch.randint(0, len(ids) - n_ctx - 1, (batch_size,), generator=draw)
            rows = torch.stack([ids[start : start + n_ctx + 1] for start in starts])
            loss = next_token_loss(gpt(rows[:, :-1]), rows[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
            optimizer.step()
            cosine.step()
            losses.append(loss.item())
            progress(step + 1, steps)
    return float(torch.tensor(losses[-max(1, steps // 10) :]).mean())


def keys_of(gpt: GPT, rows: Tensor) -> list[dict[str, Tensor]]:
    """For each layer: what ln1 reads and gives, [batch, pos, 8], and each head's keys."""
    found: list[dict[str, Tensor]] = []

    def keep(norm: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        found.append({"before": given[0], "after": out})

    hooks = [block.ln1.register_forward_hook(keep) for block in gpt.layers]
    with torch.no_grad():
        gpt(rows)
        for layer, block in enumerate(gpt.layers):
            key = block.attn.qkv_proj(found[layer]["after"]).chunk(3, -1)[1]
            found[layer]["heads"] = key.unflatten(-1, (4, 2)).transpose(1, 2).flatten(0, 1)
    for hook in hooks:
        hook.remove()
    return found


def unselectable(keys: Tensor) -> tuple[float, float]:
    """Per cent of keys that no query can select, and per cent undecided."""
    found = selection_margins(keys)
    hidden, rest = found.unselectable.double().mean(), found.undecided.double().mean()
    return 100 * float(hidden), 100 * float(rest)


def measure(gpt: GPT, ids: Tensor, prompts: int) -> dict[str, Any]:
    """Each layer's unselectable share at each prompt length, and over prompts of 256 by head."""
    starts = torch.linspace(0, len(ids) - LENGTHS[-1], prompts).long()
    rows = torch.stack([ids[start : start + LENGTHS[-1]] for start in starts])
    layers = keys_of(gpt, rows)
    shares: dict[str, Any] = {}
    undecided = 0.0
    for where in ("before", "after", "heads"):
        for n in LENGTHS:
            found = [unselectable(layer[where][:, :n]) for layer in layers]
            shares[f"{where}, {n}"] = [share for share, _ in found]
            undecided = max(undecided, *(rest for _, rest in found))
    return shares | {"undecided": undecided}


def measured(text: Path | None, steps: int, batch_size: int, prompts: int) -> dict[str, Any]:
    """Both models, trained from the same seed on the same batches."""
    whole = (text or tiny_shakespeare()).read_text(encoding="utf-8")
    characters = sorted(set(whole))
    index = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([index[character] for character in whole])
    cut = int((1 - HELD_BACK) * len(ids))
    results: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "prompts": prompts}
    for name, scaling in (("with scaling", True), ("without scaling", False)):
        torch.manual_seed(0)
        gpt = model_of_width_8(len(characters), scaling=scaling)
        untrained = measure(gpt, ids[cut:], prompts)
        loss = train(gpt, ids[:cut], steps, batch_size)
        trained = measure(gpt, ids[cut:], prompts)
        results[name] = {"loss": loss, "before training": untrained, **trained}
    return results


def report(numbers: dict) -> str:
    """Theirs and ours, layer by layer, and what the number of keys does to it."""
    scaled, bare = numbers["with scaling"], numbers["without scaling"]
    longest = LENGTHS[-1]
    rows: list[list[object]] = []
    for n in LENGTHS:
        rows.append([f"ours, {n} keys", *bare[f"after, {n}"]])
    rows.insert(0, ["theirs, 768 to 1024 keys", *THEIRS["table 1, model without scaling"]])
    with_rows: list[list[object]] = [
        ["theirs, before LayerNorm, 768 to 1024 keys", *THEIRS["table 2, before LayerNorm"]],
        *([f"ours, before LayerNorm, {n} keys", *scaled[f"before, {n}"]] for n in LENGTHS),
        ["theirs, after LayerNorm", 0, 0, 0, 0],
        *([f"ours, after LayerNorm, {n} keys", *scaled[f"after, {n}"]] for n in LENGTHS[-2:]),
    ]
    head_rows: list[list[object]] = [
        [f"{name}, {n} keys", *model[f"heads, {n}"]]
        for name, model in (("with scaling", scaled), ("without", bare))
        for n in (64, longest)
    ]
    fresh: list[list[object]] = [
        ["without scaling", *bare["before training"][f"after, {longest}"]],
        ["with scaling, before LayerNorm", *scaled["before training"][f"before, {longest}"]],
    ]
    header = ["", "layer 0", "layer 1", "layer 2", "layer 3"]
    steps, batch, prompts = (numbers[name] for name in ("steps", "batch_size", "prompts"))
    undecided = max(bare["undecided"], scaled["undecided"])
    few, many = (_mean(bare[f"after, {n}"]) for n in (LENGTHS[0], longest))
    theirs = _mean(THEIRS["table 1, model without scaling"])
    return f"""### Keys that no query can select at width 8 (Brody et al. 2023, tables 1 and 2)

Per cent of keys, {prompts} prompts of held-out text. Both models: {steps} steps of {batch}
windows of {longest} characters; loss {scaled["loss"]:.3f} nats with scaling, {bare["loss"]:.3f}
without. Undecided: at most {undecided:.2g} %.

Table 1, the model trained without scaling (its keys have lost their mean):

{table(header, rows)}

Table 2, the model trained with LayerNorm as it is:

{table(header, with_rows)}

The keys that attention really ranks, those of one head (2 dimensions), mean over heads:

{table(header, head_rows)}

The same before training, {longest} keys:

{table(header, fresh)}

The number of keys decides: without scaling {few:.0f} % are hidden among {LENGTHS[0]} keys and
{many:.0f} % among {longest} (mean over layers), in one model; in theirs {theirs:.0f} %. The scaling
frees all of them. Random weights hide the most, training makes it fewer. What is left of the
difference, most of it in their first layer, is untested; their tokens are words and parts of
words, ours characters.

Keys of one head are points of a plane (d_head = 2): nearly all are hidden, with the scaling and
without it. The guarantee is about LayerNorm's output at full width, and W_K does not keep it.
"""


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--kept", action="store_true", help="train nothing, print the kept numbers")
    parser.set_defaults(windows=2)
    args = parser.parse_args()
    if not args.kept:
        found = measured(args.text, args.steps, args.batch_size, args.windows)
        keep(KEPT, found)
    print(report(kept(KEPT)))
