"""How long exact activation patching takes, against the other ways to do it.

    python tests/benchmarks/patching.py             course shape and GPT-2 small shape
    python tests/benchmarks/patching.py --only course
    python tests/benchmarks/patching.py --only gpt2
    python tests/benchmarks/patching.py --quick     course shape only, one round

Every contender computes the same numbers (the largest difference is printed). They take turns in
random order, a fifth of a second or two calls each, and the medians are compared. Weights are
random: time does not depend on them. On the GPT-2 small shape, where they would take minutes,
TransformerLens computes one cell, Hugging Face one layer and restart two, and their times are
multiplied.

  TransformerLens   transformer_lens.patching, one full forward for each cell
  restart           its forward on all cells of a layer in one batch, with start_at_layer
  Hugging Face      GPT2LMHeadModel with the same weights and plain forward pre-hooks, all cells of
                    a layer in one batch, logits_to_keep=1
  by hand           the sweep over heads alone, as a script that can do nothing else: what is left
                    when no site is kept and nothing is labelled (`head_sweep_by_hand`)
  orrery            interp.activation_patching
  products          no contender: the matrix products that every exact answer needs, and nothing
                    else (`bare_products`). No exact sweep can be faster
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformer_lens.patching as tl_patching
from transformer_lens import HookedTransformer
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from bare_products import bare_products
from head_sweep_by_hand import head_sweep
from memory import peak_of
from random_models import random_hooked

from interp.inputs import Contrast
from interp.metrics import logit_difference
from interp.patching import activation_patching
from interp.weights import lay_out

TARGET, OTHER = 3, 5
OTHERS = ("TransformerLens", "restart", "Hugging Face", "by hand", "products")
COURSE = {
    "n_layers": 4, "n_heads": 4, "d_head": 32, "d_model": 128, "d_mlp": 512,
    "d_vocab": 65, "n_ctx": 64,
}  # fmt: skip
GPT2_SMALL = {
    "n_layers": 12, "n_heads": 12, "d_head": 64, "d_model": 768, "d_mlp": 3072,
    "d_vocab": 50257, "n_ctx": 128, "act_fn": "gelu_new",
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """One question asked of all contenders: which TransformerLens function it is, and our call."""

    name: str
    theirs: str
    kinds: tuple[str, ...]
    over: tuple[str, ...]


SWEEPS = [
    Sweep("resid_pre, layer x pos", "get_act_patch_resid_pre", ("resid_pre",), ("layer", "pos")),
    Sweep("z, layer x head", "get_act_patch_attn_head_out_all_pos", ("z",), ("layer", "head")),
    Sweep(
        "z, layer x pos x head",
        "get_act_patch_attn_head_out_by_pos",
        ("z",),
        ("layer", "pos", "head"),
    ),
    Sweep(
        "z q k v pattern, layer x head",
        "get_act_patch_attn_head_all_pos_every",
        ("z", "q", "k", "v", "pattern"),
        ("layer", "head"),
    ),
]


def main() -> None:
    warnings.filterwarnings("ignore")
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="course shape only, one round")
    arguments.add_argument("--only", choices=("course", "gpt2"), help="one of the two shapes")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    tl_patching.tqdm = lambda iterable, *args, **kwargs: iterable
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    if options.only != "gpt2":
        rounds = 1 if options.quick else 3
        compare("course shape, 64 tokens", COURSE, n_pos=64, rounds=rounds, sampled=False)
        growth()
    if options.only != "course" and not options.quick:
        compare("GPT-2 small shape, 20 tokens", GPT2_SMALL, n_pos=20, rounds=2, sampled=True)
        memory()


@dataclass(frozen=True)
class Contender:
    """Somebody's answer. Where it would take minutes, it is that of some layers only, or none at
    all, and the whole is `times` as long."""

    run: Callable[[], torch.Tensor | None]
    layers: range | None = None
    times: float = 1.0


def compare(title: str, shape: dict, n_pos: int, rounds: int, sampled: bool) -> None:
    """All sweeps, with the changed token at a third of the prompt and at position 0."""
    model = random_hooked(0, dtype=torch.float32, **shape)
    hf = hugging_face(model)
    for changed in (n_pos // 3, 0):
        pair = one_token_contrast(model, n_pos, changed)
        _, cache = model.run_with_cache(pair.source)
        print(f"\n{title}, token changed at position {changed} (seconds, medians)")
        print(f"{'':32}" + "".join(f"{name:>16}" for name in OTHERS) + f"{'orrery':>9}")
        for sweep in SWEEPS:
            report(sweep, contenders(model, hf, pair, cache, sweep, sampled), rounds)


def contenders(
    model: HookedTransformer,
    hf: GPT2LMHeadModel,
    pair: Contrast,
    cache,
    sweep: Sweep,
    sampled: bool,
) -> dict[str, Contender]:
    """All who can answer; `sampled` those who would take minutes."""
    n_layers, n_pos = model.cfg.n_layers, pair.base.shape[1]
    reached = n_pos - int(pair.first_difference)
    products = partial(bare_products, lay_out(model), sweep.kinds, sweep.over, n_pos, reached)
    found = {
        "orrery": Contender(partial(orrery, model, pair, sweep)),
        "products": Contender(products),
    }
    if sampled:
        n_cells = len(sweep.kinds) * n_layers * len(cells_of(sweep, n_pos, model.cfg.n_heads))
        found["TransformerLens"] = Contender(partial(one_cell, model, pair), times=n_cells)
    else:
        found["TransformerLens"] = Contender(partial(lens, model, pair, cache, sweep))
    if len(sweep.kinds) > 1:
        return found
    # Every layer takes Hugging Face the same; restart takes on average what the middle takes.
    one, two = range(1), range(n_layers // 2 - 1, n_layers // 2 + 1)
    for name, run, some in (
        ("restart", partial(restart, model, pair, cache, sweep), two),
        ("Hugging Face", partial(by_hugging_face, hf, pair, sweep), one),
    ):
        asked = some if sampled else range(n_layers)
        found[name] = Contender(partial(run, asked), asked, n_layers / len(asked))
    if sweep.over == ("layer", "head"):
        found["by hand"] = Contender(partial(by_hand, model, pair))
    return found


def one_turn(run: Callable[[], object]) -> list[float]:
    """Seconds of each call, of as many as a fifth of a second holds, but two at least. The first
    finds the caches full of what others left there, and counts only where it takes a second, and
    is the only one."""
    began, taken = time.perf_counter(), []
    while not taken or time.perf_counter() - began < (0.2 if len(taken) > 1 else 1.0):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken[1:] or taken


def report(sweep: Sweep, contenders: dict[str, Contender], rounds: int) -> None:
    """One line: medians, and by how much each is slower than ours."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    results = {name: contender.run() for name, contender in contenders.items()}
    names = list(contenders)
    for i in range(rounds):
        for name in random.Random(i).sample(names, len(names)):
            times[name] += one_turn(contenders[name].run)
    median = {
        name: statistics.median(taken) * contenders[name].times for name, taken in times.items()
    }
    ours, answer = median["orrery"], results["orrery"]
    largest = 0.0
    for name, result in results.items():
        if result is not None:
            layers = contenders[name].layers
            asked = answer if layers is None else answer[list(layers)]
            largest = max(largest, float((result - asked).abs().max()))
    line = f"{sweep.name:32}"
    for name in OTHERS:
        line += f"{median[name]:8.4f} ({median[name] / ours:4.1f}x)" if name in median else " " * 16
    print(f"{line}{ours:9.4f}   largest difference {largest:.1e}", flush=True)


def one_token_contrast(model: HookedTransformer, n_pos: int, changed: int) -> Contrast:
    """Random prompts that differ at one position."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randint(0, model.cfg.d_vocab, (1, n_pos), generator=generator)
    source = base.clone()
    source[0, changed] = (base[0, changed] + 1) % model.cfg.d_vocab
    return Contrast(source, base)


def difference(logits: torch.Tensor) -> torch.Tensor:
    return logits[..., -1, TARGET] - logits[..., -1, OTHER]


def orrery(model: HookedTransformer, pair: Contrast, sweep: Sweep) -> torch.Tensor:
    metric = logit_difference(model, TARGET, OTHER)
    over = sweep.over if len(sweep.kinds) == 1 else ("kind", *sweep.over)
    result = activation_patching(model, pair, metric, sweep.kinds, over=over)
    return torch.from_numpy(result.raw[0].to_numpy())


def lens(model: HookedTransformer, pair: Contrast, cache, sweep: Sweep) -> torch.Tensor:
    with torch.no_grad():
        return getattr(tl_patching, sweep.theirs)(
            model, pair.base, cache, lambda logits: difference(logits)[0]
        )


def by_hand(model: HookedTransformer, pair: Contrast) -> torch.Tensor:
    return difference(head_sweep(model, pair)[..., None, :])


def one_cell(model: HookedTransformer, pair: Contrast) -> None:
    """One cell of TransformerLens' loop."""
    hook = ("blocks.3.hook_resid_pre", lambda value, hook: value)
    with torch.no_grad():
        model.run_with_hooks(pair.base, fwd_hooks=[hook])


def cells_of(sweep: Sweep, n_pos: int, n_heads: int) -> list[tuple[int | slice, int | slice]]:
    """(pos, head) of each cell of one layer."""
    every = slice(None)
    return [
        (pos, head)
        for pos in (range(n_pos) if "pos" in sweep.over else [every])
        for head in (range(n_heads) if "head" in sweep.over else [every])
    ]


def restart(
    model: HookedTransformer, pair: Contrast, cache, sweep: Sweep, asked: Sequence[int]
) -> torch.Tensor:
    """All cells of a layer in one batch, from that layer on, through TransformerLens."""
    n_pos, kind = pair.base.shape[1], sweep.kinds[0]
    cells = cells_of(sweep, n_pos, model.cfg.n_heads)
    layers = []
    with torch.no_grad():
        _, base = model.run_with_cache(pair.base)
        for layer in asked:
            rows = base["resid_pre", layer].repeat(len(cells), 1, 1)

            def write(value, hook, layer=layer):
                source = cache[kind, layer][0]
                for row, (pos, head) in enumerate(cells):
                    at = pos if kind == "resid_pre" else (pos, head)
                    value[row][at] = source[at]
                return value

            name = f"blocks.{layer}." + ("hook_resid_pre" if kind == "resid_pre" else "attn.hook_z")
            with model.hooks(fwd_hooks=[(name, write)]):
                out = model(rows, start_at_layer=layer, return_type="logits")
            layers.append(difference(out))
    shape = [n_pos] * ("pos" in sweep.over) + [model.cfg.n_heads] * ("head" in sweep.over)
    return torch.stack(layers).view(-1, *shape)


def hugging_face(model: HookedTransformer) -> GPT2LMHeadModel:
    """The same weights as a GPT2LMHeadModel."""
    cfg = model.cfg
    config = GPT2Config(
        vocab_size=cfg.d_vocab, n_positions=cfg.n_ctx, n_embd=cfg.d_model, n_layer=cfg.n_layers,
        n_head=cfg.n_heads, n_inner=cfg.d_mlp, tie_word_embeddings=False,
        activation_function="gelu_new" if cfg.act_fn == "gelu_new" else "gelu",
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).eval()
    state = {
        "transformer.wte.weight": model.W_E, "transformer.wpe.weight": model.W_pos,
        "transformer.ln_f.weight": model.ln_final.w, "transformer.ln_f.bias": model.ln_final.b,
        "lm_head.weight": model.W_U.T,
    }  # fmt: skip
    for i, block in enumerate(model.blocks):
        attn, mlp = block.attn, block.mlp
        qkv = [W.transpose(0, 1).flatten(1) for W in (attn.W_Q, attn.W_K, attn.W_V)]
        biases = [b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]
        here = {
            "ln_1.weight": block.ln1.w, "ln_1.bias": block.ln1.b,
            "attn.c_attn.weight": torch.cat(qkv, 1), "attn.c_attn.bias": torch.cat(biases),
            "attn.c_proj.weight": attn.W_O.flatten(0, 1), "attn.c_proj.bias": attn.b_O,
            "ln_2.weight": block.ln2.w, "ln_2.bias": block.ln2.b,
            "mlp.c_fc.weight": mlp.W_in, "mlp.c_fc.bias": mlp.b_in,
            "mlp.c_proj.weight": mlp.W_out, "mlp.c_proj.bias": mlp.b_out,
        }  # fmt: skip
        state |= {f"transformer.h.{i}.{name}": value for name, value in here.items()}
    missing = hf.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    # A head without bias: the unembedding's bias moves no difference that it does not hold.
    with torch.no_grad():
        model.unembed.b_U.zero_()
    return hf.requires_grad_(False)


def by_hugging_face(
    hf: GPT2LMHeadModel, pair: Contrast, sweep: Sweep, asked: Sequence[int]
) -> torch.Tensor:
    """All cells of a layer in one batch, with plain forward pre-hooks."""
    n_pos, n_heads = pair.base.shape[1], hf.config.n_head
    cells = cells_of(sweep, n_pos, n_heads)
    d_head = hf.config.n_embd // n_heads
    layers = []
    with torch.no_grad():
        for layer in asked:
            block = hf.transformer.h[layer]
            module = block if sweep.kinds[0] == "resid_pre" else block.attn.c_proj
            held = {}
            handle = module.register_forward_pre_hook(
                lambda module, args, held=held: held.update(source=args[0][0].clone())
            )
            hf(pair.source, logits_to_keep=1, use_cache=False)
            handle.remove()

            def write(module, args, source=held["source"]):
                value = args[0].clone()
                for row, (pos, head) in enumerate(cells):
                    part = (
                        head
                        if isinstance(head, slice)
                        else slice(head * d_head, (head + 1) * d_head)
                    )
                    value[row, pos, part] = source[pos, part]
                return (value, *args[1:])

            handle = module.register_forward_pre_hook(write)
            out = hf(pair.base.repeat(len(cells), 1), logits_to_keep=1, use_cache=False).logits
            handle.remove()
            layers.append(difference(out))
    shape = [n_pos] * ("pos" in sweep.over) + [n_heads] * ("head" in sweep.over)
    return torch.stack(layers).view(-1, *shape)


def memory() -> None:
    """Peak memory above the model, GPT-2 small shape at 128 tokens."""
    model = random_hooked(0, dtype=torch.float32, **GPT2_SMALL)
    pair = one_token_contrast(model, 128, 42)
    print("\nGPT-2 small shape, 128 tokens, token changed at position 42")
    for sweep in SWEEPS[:2]:
        start = time.perf_counter()
        peak = peak_of(partial(orrery, model, pair, sweep))
        taken = time.perf_counter() - start
        print(f"  {sweep.name}: {taken:.1f} s, peak memory {peak / 1024:.2f} GiB above the model")


def growth() -> None:
    """How the time grows with the prompt and with depth."""
    print("\nresid_pre, layer x pos, course width, token changed at position 0 (seconds)")
    for name, values in (("tokens", (16, 32, 64, 128)), ("layers", (2, 4, 8))):
        for value in values:
            shape = COURSE | ({"n_ctx": value} if name == "tokens" else {"n_layers": value})
            model = random_hooked(0, dtype=torch.float32, **shape)
            pair = one_token_contrast(model, shape["n_ctx"], 0)
            taken = one_turn(partial(orrery, model, pair, SWEEPS[0]))
            print(f"  {value:4} {name}: {statistics.median(taken):.4f}")
    print(
        "  A cell costs the tokens after it times the layers above it, so a map of L layers and T\n"
        "  tokens costs about L(L-1)/2 x T(T+1)/2 token-layers: four times as much for twice the\n"
        "  tokens, and four times for twice the layers, once fixed costs are paid."
    )


if __name__ == "__main__":
    main()
