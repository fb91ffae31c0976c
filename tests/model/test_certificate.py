"""The certificate: what was proven of which weights, and that it can be lost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dialect_references as ref
import pytest
import torch
from checkpoint_files import LETTERS, NANO_ARGS, float32, write_nanogpt
from safetensors.torch import save_file
from torch import Tensor, nn

from model import ModelError, Run, certify, convert, load, save_weights, write_run
from model.certificate import CERTIFICATE
from model.cli import main
from model.folding import MAY_CHANGE
from model.reference import load_reference

REFERENCE = '''
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 1
    vocab_size: int = 1
    n_layer: int = 1
    n_head: int = 1
    n_embd: int = 1
    dropout: float = 0.0
    bias: bool = True


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
        self.n_head = c.n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x):
        return self.c_proj(ACT(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(c.n_embd), Attention(c)
        self.ln_2, self.mlp = nn.LayerNorm(c.n_embd), MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Answers the last position only, and a pair, as nanoGPT does."""

    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx):
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.size(1)))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x)[:, [-1], :]), None


def make():
    return GPT(GPTConfig(17, 61, 3, 3, 48))


def moody():
    model = make()
    model.forward_before = model.forward
    model.forward = lambda idx: (model.forward_before(idx)[0] + torch.rand(1), None)
    return model


def smaller():
    return GPT(GPTConfig(17, 61, 2, 3, 48))


def needs_two(a, b):
    return make()


def broken():
    raise RuntimeError("no luck")


nothing = 3
'''


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The writer's own code, called model.py like our package."""
    path = tmp_path / "theirs" / "model.py"
    path.parent.mkdir()
    path.write_text(REFERENCE.replace("ACT(", "F.gelu("))
    return path


def test_a_conversion_is_certified_and_written_as_a_run(tmp_path: Path) -> None:
    conversion = convert(write_nanogpt(tmp_path))
    certificate = certify(conversion, text="".join(LETTERS) * 3)
    assert certificate.holds
    run = write_run(certificate, tmp_path / "run")
    said = json.loads((tmp_path / "run" / CERTIFICATE).read_text())
    assert said["dialect"] == "nanogpt"
    assert said["source"]["sha256"].keys() == {"ckpt.pt"}
    assert len(said["source"]["sha256"]["ckpt.pt"]) == 64
    assert said["weights_sha256"] == run.weights().sha256
    assert said["compared"]["values"] == "every site, raw logits"
    assert said["compared"]["ids"] == {"the text given": "3 x 17", "random ids": "3 x 17"}
    by_field = {setting["field"]: setting for setting in said["settings"]}
    assert by_field["act_fn"]["assumed"]
    assert by_field["n_heads"]["origin"].startswith("n_head of model_args")
    sites = said["largest_difference"]["GPT - HookedTransformer"]
    assert len(sites) == 2 + 3 * 17 + 6
    assert all(row["float64"] <= 1e-10 * 30 for row in sites.values())
    assert {"torch", "transformer-lens", "orrery"} <= said["versions"].keys()
    for name, tensor in conversion.gpt.state_dict().items():
        assert torch.equal(tensor, run.weights().to_gpt().state_dict()[name])
    assert load(tmp_path / "run").to_str_tokens("A  B\n") == ["A", " ", " ", "B", "\n"]


def test_a_later_change_of_one_weight_is_noticed(tmp_path: Path, capsys) -> None:
    run = write_run(certify(convert(write_nanogpt(tmp_path))), tmp_path / "run")
    assert main(["verify", str(run.path)]) == 0
    capsys.readouterr()
    gpt = run.weights().to_gpt()
    with torch.no_grad():
        gpt.layers[1].attn.out_proj.weight[3, 4] += 1e-6
    # rewritten with a hash of its own, so that only the certificate can tell
    save_weights(run.path / "model.safetensors", gpt, step=250)
    assert main(["verify", str(run.path)]) == 1
    assert "NOT as certified: the weights are not those" in capsys.readouterr().out


def test_a_proof_that_fails_writes_nothing(tmp_path: Path, monkeypatch) -> None:
    from model import hooked

    to_hooked = hooked.to_hooked

    def altered(gpt: Any, *args: Any, **kwargs: Any) -> Any:
        model = to_hooked(gpt, *args, **kwargs)
        model.ln_final.eps = 1e-3
        return model

    monkeypatch.setattr(hooked, "to_hooked", altered)
    certificate = certify(convert(write_nanogpt(tmp_path)))
    assert not certificate.holds
    with pytest.raises(ModelError, match=r"ln_final\.hook_scale .* is off, so no run is written"):
        write_run(certificate, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    certificate = certify(convert(write_nanogpt(tmp_path)))
    with pytest.raises(ModelError, match="is there already"):
        write_run(certificate, tmp_path / "data")


@pytest.mark.parametrize("options", [["fold_ln"], list(MAY_CHANGE)], ids="+".join)
def test_folding_is_proven_and_certified(tmp_path: Path, options: list[str]) -> None:
    conversion = convert(write_nanogpt(tmp_path))
    certificate = certify(conversion, options=options)
    assert certificate.holds
    run = write_run(certificate, tmp_path / "run")
    said = json.loads((run.path / CERTIFICATE).read_text())
    assert said["folded"] == options
    assert ("log-probs" in said["compared"]["values"]) == ("center_unembed" in options)
    assert not run.weights().to_gpt().layers[0].ln1.bias.any()
    model = load(run.path)
    ids = torch.randint(61, (1, 17), generator=torch.Generator().manual_seed(1))
    before, after = (m(ids).log_softmax(-1) for m in (conversion.gpt, model))
    assert (before - after).abs().max() < 1e-4


def test_the_writers_own_model_is_the_last_word(tmp_path: Path, theirs: Path) -> None:
    conversion = convert(write_nanogpt(tmp_path))
    for name in ("GPT", "make"):
        reference = load_reference(f"{theirs}:{name}", conversion)
        certificate = certify(conversion, reference=reference, text="".join(LETTERS))
        assert certificate.holds
        table = certificate.reference
        assert table is not None
        assert {"hook_embed", "blocks.2.attn.hook_q", "blocks.1.mlp.hook_post", "logits"} <= set(
            table.index
        )
        assert (table["float64"] < 1e-12).all()


def test_the_first_site_that_disagrees_with_the_reference_is_named(
    tmp_path: Path, theirs: Path, capsys
) -> None:
    theirs.write_text(REFERENCE.replace("ACT(", "F.relu("))
    path = write_nanogpt(tmp_path)
    argv = ["convert", str(path), "--out", str(tmp_path / "run"), "--reference", f"{theirs}:GPT"]
    assert main(argv) == 1
    out = capsys.readouterr().out
    assert "NOT equal: the first site that is off is blocks.0.mlp.hook_post" in out
    assert not (tmp_path / "run").exists()
    assert main([*argv, "--act-fn", "relu"]) == 0
    assert Run.open(tmp_path / "run").config.act_fn == "relu"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("moody", "disagrees with itself by"),
        ("smaller", r"has no place for \S*transformer\.h\.2"),
        ("needs_two", "asks for a, b: give a function without arguments"),
        ("broken", "cannot be called .*no luck"),
        ("nothing", "has no class or function 'nothing'"),
        ("absent", "has no class or function 'absent'"),
    ],
)
def test_a_reference_that_cannot_serve_is_refused(
    tmp_path: Path, theirs: Path, name: str, said: str
) -> None:
    conversion = convert(write_nanogpt(tmp_path))
    with pytest.raises(ModelError, match=said):
        certify(conversion, reference=load_reference(f"{theirs}:{name}", conversion))


def test_a_reference_is_loaded_under_a_private_name(tmp_path: Path, theirs: Path) -> None:
    import sys

    import model

    conversion = convert(write_nanogpt(tmp_path))
    before = list(sys.path)
    load_reference(f"{theirs}:make", conversion)
    assert sys.modules["model"] is model
    assert sys.path == before
    with pytest.raises(ModelError, match=r"is not FILE\.py:NAME"):
        load_reference(str(theirs), conversion)


class PartByPart(nn.Module):
    """The lecture's names: a Linear a head, so that only pieces together are a site of ours."""

    def __init__(self, reference: ref.Reference, shift: float = 0.0) -> None:
        super().__init__()
        self.reference, self.shift = reference, shift
        state = reference.state
        self.blocks = nn.ModuleList()
        for i in range(3):
            block, sa = nn.Module(), nn.Module()
            sa.heads = nn.ModuleList()
            for h in range(3):
                head = nn.Module()
                for part in ("key", "query", "value"):
                    linear = nn.Linear(48, 16, bias=False, dtype=torch.float64)
                    linear.weight.data = state[f"blocks.{i}.sa.heads.{h}.{part}.weight"].clone()
                    setattr(head, part, linear)
                sa.heads.append(head)
            block.sa = sa
            self.blocks.append(block)

    def forward(self, ids: Tensor) -> Tensor:
        sites = self.reference.sites(ids)
        for i, block in enumerate(self.blocks):
            norm = self.reference.blocks[i].ln1
            x = sites[f"blocks.{i}.ln1.hook_normalized"] * norm.weight + norm.bias
            for head in block.sa.heads:
                for linear in (head.key, head.query, head.value):
                    linear(x.to(linear.weight.dtype) + self.shift * (i == 1))
        return sites["logits"].flatten(0, 1)


def test_heads_that_are_modules_are_put_together_to_be_compared() -> None:
    reference = ref.lecture()
    conversion = convert(reference.state)
    certificate = certify(conversion, reference=PartByPart(reference))
    assert certificate.reference is not None
    assert {f"blocks.{i}.attn.hook_{x}" for i in range(3) for x in "qkv"} < set(
        certificate.reference.index
    )
    assert certificate.holds, certificate.failures
    shifted = certify(conversion, reference=PartByPart(reference, 1e-4))
    assert shifted.failures[0] == "blocks.1.attn.hook_q (the reference - GPT)"


def test_any_callable_can_be_the_reference() -> None:
    reference = ref.lecture(scale=math.sqrt(48))
    conversion = convert(reference.state, attn_scale="d_model")
    assert certify(conversion, reference=lambda ids: reference.sites(ids)["logits"]).holds
    wrong = certify(convert(reference.state), reference=lambda ids: reference.sites(ids)["logits"])
    assert wrong.failures[0] == "logits (the reference - GPT)"
    with pytest.raises(ModelError, match=r"answers \[3, 17, 60\] to ids \[3, 17\]"):
        certify(conversion, reference=lambda ids: reference.sites(ids)["logits"][..., 1:])
    with pytest.raises(ModelError, match="answers a str, not logits"):
        certify(conversion, reference=lambda ids: "hello")


def test_the_command_line_converts_and_says_what_it_took_for_granted(
    tmp_path: Path, capsys
) -> None:
    path = write_nanogpt(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(LETTERS), newline="")
    argv = ["convert", str(path), "--out", str(tmp_path / "run"), "--text", str(text)]
    assert main([*argv, "--eps", "1e-4", "--fold-ln", "--fold-value-biases"]) == 0
    out = capsys.readouterr().out
    for said in (
        "recognised: nanogpt", "ASSUMED: what nanogpt does by default", "0.0001  --eps",
        "the tokenizer is that of", "|GPT - folded GPT|", "equal: all",
    ):  # fmt: skip
        assert said in out
    assert main(["verify", str(tmp_path / "run")]) == 0


def test_the_command_line_refuses_in_one_sentence(tmp_path: Path, capsys) -> None:
    torch.save(float32(ref.hf_shaped().state), tmp_path / "bare.pt")
    save_file({"a": torch.zeros(2)}, tmp_path / "odd.safetensors")
    out = str(tmp_path / "run")
    cases = {
        ("convert", str(tmp_path / "bare.pt"), "--out", out): "say it with --n-heads",
        ("convert", str(tmp_path / "odd.safetensors"), "--out", out): "no known GPT has tensors",
        ("convert", str(tmp_path / "none"), "--out", out): "there is no checkpoint at",
        ("convert", str(tmp_path / "bare.pt")): "required: --out",
        ("convert", "x", "--out", out, "--attn-scale", "wide"): "--attn-scale",
    }
    for argv, said in cases.items():
        try:
            code = main(list(argv))
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, ""), argv
        assert said in printed.err
        assert printed.err.count("\n") == 1


def test_a_reference_takes_the_sources_configuration(tmp_path: Path, theirs: Path) -> None:
    theirs.write_text(REFERENCE.replace("ACT(", "F.gelu(").replace("class GPTConfig", "class Args"))
    theirs.write_text(theirs.read_text().replace("GPT(GPTConfig(", "GPT(Args("))
    conversion = convert(write_nanogpt(tmp_path))
    assert certify(conversion, reference=load_reference(f"{theirs}:GPT", conversion)).holds
    bare = convert(float32(ref.hf_shaped().state), n_heads=3)
    with pytest.raises(ModelError, match="GPT asks for config: give a function"):
        load_reference(f"{theirs}:GPT", bare)
    named = convert(float32(ref.hf_shaped().state), config=NANO_ARGS)
    assert certify(named, reference=load_reference(f"{theirs}:GPT", named)).holds
