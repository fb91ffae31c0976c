"""One page of what the heads, the stream and the text statistics of the shipped model look like.

Writes docs/findings/residual.md, and beside the run the small tables that the text is needed for:
`ngrams.safetensors` (counts of 1 to 3 characters in the training text) and
`tuned_lens.safetensors`.

    python docs/findings/residual.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import xarray as xr
from shared import options, table
from torch import Tensor
from transformer_lens import HookedTransformer

import interp
from interp.corpus import windows
from interp.inputs import text_ids
from model import load
from model.corpus import tiny_shakespeare

SHIPPED_ORDER = 3


class Section(NamedTuple):
    """A part of the page, and what it found, as items of a list."""

    text: str
    found: str


def heads(model: HookedTransformer, held_out: str) -> Section:
    """Every head's scores, on text and on random repeated blocks."""
    on_text = interp.head_scores_over(model, held_out)
    blocks, copying = interp.induction_scores(model), interp.copying_scores(model)
    columns = ["previous_token", "first_token", "duplicate_token", "entropy", "distance"]
    rows: list[list[object]] = []
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            here = {"layer": layer, "head": head}
            rows.append(
                [
                    f"L{layer}H{head}",
                    *(_three(on_text["value"].sel({**here, "score": name})) for name in columns),
                    _three(blocks["value"].sel({**here, "score": "induction"})),
                    _three(blocks["control"].sel({**here, "score": "induction"})),
                    _three(copying["copying"].sel(here)),
                    _three(copying["own_token_first"].sel(here)),
                ]
            )
    chance = [_three(on_text["chance"].sel(score=name)) for name in columns]
    level = float(blocks["chance"].sel(score="induction"))
    rows.append(["chance", *chance, *map(_three, (level, level, 0, 1 / model.cfg.d_vocab))])
    header = ["head", "previous token", "first token", "duplicate", "entropy, nats"]
    header += ["distance", "induction", "shuffled control", "copying", "own character first"]
    best = float(blocks["value"].sel(score="induction").max())
    excess = blocks["value"] - 3 * blocks["stderr"] - blocks["control"]
    found = int((excess.sel(score="induction") > level).sum())
    back = on_text["value"].sel(score="previous_token").stack(cell=("layer", "head"))
    strong = back[back > 0.5].sortby(back[back > 0.5], ascending=False)
    names = [
        f"L{layer}H{head} ({float(score):.2f})"
        for (layer, head), score in zip(strong["cell"].to_numpy(), strong, strict=True)
    ]
    verdict = _verdict(best, level, found)
    text = f"""## Heads

Attention scores are means over all {on_text.attrs["settings"]["windows"]} windows of held-out
text. Induction is measured on random blocks of 32 characters read twice, where nothing but
matching can help, beside the same cells after the second copy is shuffled. Copying is the
eigenvalue score of the OV circuit (1: raises what it attends to; -1: takes it down).

{table(header, rows)}

{verdict}
"""
    return Section(text, f"- Previous-token heads: {', '.join(names) or 'none'}.\n- {verdict}")


def _verdict(best: float, chance: float, found: int) -> str:
    if found == 0:
        return (
            f"**No induction head.** The strongest induction score is {best:.3f} (chance "
            f"{chance:.3f}), and no head exceeds its own shuffled control by more than chance."
        )
    return f"{found} heads exceed their shuffled control by more than chance (best {best:.3f})."


def _three(value: xr.DataArray | float) -> str:
    return f"{float(value):.3f}"


def statistics(model: HookedTransformer, ngrams: interp.NGrams, held_out: str) -> Section:
    """The model beside 1- to 5-gram models of the training text."""
    beside = interp.ngram_comparison(model, ngrams, held_out)
    rows = [
        [
            f"{order}-gram",
            float(beside["cross_entropy"].sel(order=order)),
            _interval(beside.sel(order=order), "gap"),
            _interval(beside.sel(order=order), "kl_model_ngram"),
            _interval(beside.sel(order=order), "kl_ngram_model"),
            100 * float(beside["top1_agreement"].sel(order=order)),
        ]
        for order in beside["order"].to_numpy()
    ]
    header = ["Witten-Bell", "loss, nats", "above the model's", "KL(model, n-gram)"]
    header += ["KL(n-gram, model)", "same top character, %"]
    nearest = {
        name: int(beside["order"][int(beside[name].argmin("order"))])
        for name in ("kl_model_ngram", "kl_ngram_model")
    }
    direct = interp.direct_path_against_bigram(model, ngrams)
    path, frequency = (float(direct[name]) for name in ("mean_kl", "mean_kl_unigram"))
    holds = "holds part of" if path < frequency else "does not hold"
    text = f"""## Beside n-grams

Interpolated n-gram models of the training text, compared on all of the held-out text. The model's
own loss is {float(beside["model_cross_entropy"]):.4f} nats. In brackets: 95 % bootstrap intervals
over windows.

{table(header, rows)}

Nearest by KL(model, n-gram): the {nearest["kl_model_ngram"]}-gram; by KL(n-gram, model): the
{nearest["kl_ngram_model"]}-gram. The direct path (embedding straight to unembedding)
{holds} the bigrams: it is {path:.3f} nats from them, a guess by frequency alone {frequency:.3f}.
"""
    last = beside.isel(order=-1)
    found = (
        f"- Of the 1- to {ngrams.order}-gram models it is nearest to the "
        f"{nearest['kl_model_ngram']}-gram, and still {float(last['gap']):.2f} nats better.\n"
        f"- The direct path from embedding to unembedding {holds} the bigrams."
    )
    return Section(text, found)


def _interval(result: xr.Dataset, name: str) -> str:
    low, value, high = (float(result[name + end]) for end in ("_low", "", "_high"))
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def context(model: HookedTransformer, held_out: str) -> Section:
    """What the context is worth, and how far back it is used."""
    losses = interp.loss_by_position(model, held_out)
    near = interp.effective_context(model, held_out)
    blocks = interp.repeated_block_loss(model)
    at = [pos for pos in (0, 1, 2, 4, 8, 16, 32, model.cfg.n_ctx - 2) if pos < model.cfg.n_ctx - 1]
    kept = near["kept"].to_numpy().tolist()
    loss_rows: list[list[object]] = [
        [pos, f"{float(losses['loss'][pos]):.3f} ({float(losses['low'][pos]):.3f} to "
         f"{float(losses['high'][pos]):.3f})"]
        for pos in at
    ]  # fmt: skip
    near_rows: list[list[object]] = [
        [n, _interval(near.sel(kept=n), "kl"), _interval(near.sel(kept=n), "top1_agreement")]
        for n in kept
    ]
    text = f"""## Context

{table(["position", "loss there, nats"], loss_rows)}

The last 8 positions cost {_interval(losses, "in_context")} nats more than positions 8 to 15
(below 0: later is easier). On random characters read twice the second copy costs
{_interval(blocks, "second_minus_first")} nats more than the first (below 0: it is copied).

Keeping the last n characters of a window and replacing all older ones
({near.attrs["settings"]["windows"]} windows, last position):

{table(["n", "KL(whole, resampled), nats", "same top character"], near_rows)}
"""
    enough = next(n for n in kept if float(near["kl"].sel(kept=n)) < 0.1)
    found = f"- The last {enough} characters carry all but 0.1 nats of the context."
    return Section(text, found)


def depth(model: HookedTransformer, translators: interp.Translators, held_out: Tensor) -> Section:
    """What each state says, through both lenses, and what it is made of."""
    plain = interp.logit_lens(model, held_out)
    tuned = interp.tuned_lens(model, held_out, translators)
    split = interp.position_token_split(model, held_out)
    rows = []
    for i, state in enumerate(plain["state"].to_numpy()):
        parts = split.sel(state=state)
        rows.append(
            [
                state,
                *(float(lens["kl_to_final"][i].mean()) for lens in (plain, tuned)),
                *(float(lens["cross_entropy"][i].mean()) for lens in (plain, tuned)),
                100 * float((plain["depth"] == i).mean()),
                100 * float((tuned["depth"] == i).mean()),
                *(100 * float(parts[name]) for name in ("position", "context", "residual")),
                100 * float(parts["token_after_position"]),
                int(parts["position_dims"]),
            ]
        )
    header = ["state", "KL to the end, logit lens", "tuned", "loss, logit lens", "tuned"]
    header += ["settles here, %", "tuned, %", "position, %", "context, %", "neither, %"]
    header += ["token, after position, %", "position dims"]
    means = ", ".join(
        f"{float(lens['depth'].mean()):.2f} ({name})"
        for name, lens in (("logit lens", plain), ("tuned lens", tuned))
    )
    text = f"""## Depth

{len(held_out)} windows of held-out text. A prediction settles at the first state from which on the
top character stays what it is at the end; on average that is state {means} of
{plain.sizes["state"] - 1}. Position, context and neither are shares of the stream's variance and
sum to 100; the token's share cuts across context and neither.

{table(header, rows)}
"""
    first, last = (100 * float(split["position"][i]) for i in (0, -1))
    found = (
        f"- The top character settles on average at state {means} of {plain.sizes['state'] - 1}.\n"
        f"- Position's share of the stream's variance goes from {first:.0f} % to {last:.0f} %."
    )
    return Section(text, found)


def neurons(model: HookedTransformer, held_out: str) -> str:
    """The neurons that fire hardest, with where they do."""
    seen = interp.neuron_statistics(model, held_out, top=3)
    strongest = (seen["activation"][..., 0] / seen["std"]).stack(cell=("layer", "neuron"))
    rows: list[list[object]] = []
    for cell in strongest.sortby(strongest, ascending=False)["cell"].to_numpy()[:8]:
        layer, neuron = (int(i) for i in cell)
        written = interp.neuron_vocabulary(model, layer, neuron, top=5)
        found = interp.neuron_examples(model, held_out, seen, layer, neuron)
        texts = []
        for tokens, peak in zip(found["tokens"].to_numpy(), found["peak"].to_numpy(), strict=True):
            texts.append(_code("".join(tokens[max(0, peak - 11) : peak + 1])))
        rows.append(
            [
                f"L{layer}N{neuron}",
                float(seen["mean"].sel(layer=layer, neuron=neuron)),
                float(seen["activation"].sel(layer=layer, neuron=neuron)[0]),
                " ".join(texts),
                _code("".join(written["promoted_tokens"].to_numpy()[0])),
                _code("".join(written["suppressed_tokens"].to_numpy()[0])),
            ]
        )
    header = ["neuron", "mean", "largest", "fires at the last character of", "raises", "lowers"]
    return f"""## Neurons

The eight whose largest activation lies most of their own standard deviations up:

{table(header, rows)}
"""


def _code(text: str) -> str:
    """Text in a table cell, literally: newlines drawn, no bar that would end the cell."""
    return "`" + text.replace("\n", "⏎").replace("`", "'").replace("|", "¦") + "`"


def page(run: Path, text: Path | None, n_windows: int, steps: int) -> str:
    """The whole page; writes the run's small tables on the way."""
    model = load(run)
    whole = (text or tiny_shakespeare()).read_text(encoding="utf-8")
    train, held_out = whole[: int(0.9 * len(whole))], whole[int(0.9 * len(whole)) :]
    ngrams = interp.count_ngrams(text_ids(model, train), model.cfg.d_vocab)
    short = interp.NGrams(
        ngrams.d_vocab, ngrams.keys[:SHIPPED_ORDER], ngrams.counts[:SHIPPED_ORDER]
    )
    short.save(run / "ngrams.safetensors")
    with interp.progress_bar("tuned lens") as progress:
        translators = interp.fit_tuned_lens(model, train, steps=steps, progress=progress)
    translators.save(run / "tuned_lens.safetensors")
    rows = windows(model, held_out, at_most=n_windows).at(slice(None))
    sections = [
        heads(model, held_out),
        statistics(model, ngrams, held_out),
        context(model, held_out),
        depth(model, translators, rows),
    ]
    found = "\n".join(section.found for section in sections)
    texts = "\n".join(section.text for section in sections)
    return f"""# Heads, stream and text in `{run.name}`

Written by `python docs/findings/residual.py`. Held-out text is the last tenth of tiny Shakespeare,
which training left out.

{found}

{texts}
{neurons(model, held_out)}"""


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=150, help="of fitting the tuned lens")
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("residual.md"))
    args = parser.parse_args()
    written = page(args.run, args.text, args.windows, args.steps)
    args.page.write_text(written, encoding="utf-8")
