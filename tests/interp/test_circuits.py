"""Circuits in small factors equal the large matrices they stand for."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, VARIANTS, values, variant
from folding import folded
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    circuit_spectra,
    circuit_table,
    composition_scores,
    copying_scores,
    direct_path,
    ov_circuit,
    qk_circuit,
    score_split,
)
from interp.circuits import head_weights, token_vectors


@pytest.fixture(params=VARIANTS, scope="module")
def model(request):
    return variant(request.param, 11, n_layers=3)


def by_hand(model, layer, head):
    """OV and QK multiplied out, with the mean-removing matrix and the gain written as matrices."""
    attn, d = model.blocks[layer].attn, model.cfg.d_model
    eye = torch.eye(d, dtype=torch.float64)
    P = eye if model.cfg.normalization_type is None else eye - 1 / d
    gain = getattr(model.blocks[layer].ln1, "w", torch.ones(d, dtype=torch.float64))
    read = P @ gain.diag()
    QK = read @ attn.W_Q[head] @ attn.W_K[head].T @ read.T
    return QK, read @ attn.W_V[head] @ attn.W_O[head] @ P


def test_spectra_are_those_of_the_full_matrices(model):
    spectra = circuit_spectra(model)
    for layer in range(3):
        for head in range(3):
            for name, full in zip(("QK", "OV"), by_hand(model, layer, head), strict=True):
                got = values(spectra[name].sel(layer=layer, head=head))
                want = torch.linalg.svdvals(full)
                torch.testing.assert_close(got, want[:5], **CLOSE)
                assert float(want[5:].max()) < 1e-10


def test_composition_is_the_norm_of_the_full_product(model):
    scores = composition_scores(model)
    full = {(a, h): by_hand(model, a, h) for a in range(3) for h in range(3)}
    for source, (_, OV) in full.items():
        for reader, (QK, OV2) in full.items():
            for kind, M in {"Q": QK, "K": QK.T, "V": OV2}.items():
                cell = {"source_layer": source[0], "source_head": source[1]}
                cell |= {"layer": reader[0], "head": reader[1], "kind": kind}
                want = float((OV @ M).norm() / OV.norm() / M.norm()) if source < (reader[0],) else 0
                assert float(scores["value"].sel(cell)) == pytest.approx(want, abs=1e-10)
    assert 0 <= float(scores["value"].min()) <= float(scores["value"].max()) <= 1
    later = scores["layer"] > scores["source_layer"]
    want = (scores["value"] - scores["baseline"]).where(later, 0)
    assert float(abs(scores["excess"] - want).max()) < 1e-12


def test_the_composition_baseline_is_the_mean_square_over_random_turns():
    generator = torch.Generator().manual_seed(0)
    d, n = 7, 20_000
    a = torch.tensor([3.0, 1.0, 0.5, 0, 0, 0, 0], dtype=torch.float64)
    m = torch.tensor([2.0, 2.0, 0.1, 0, 0, 0, 0], dtype=torch.float64)
    turns = torch.linalg.qr(torch.randn(n, d, d, generator=generator, dtype=torch.float64)).Q
    product = a[:, None] * turns * m
    square = product.flatten(1).square().sum(1) / a.square().sum() / m.square().sum()
    stderr = float(square.std()) / n**0.5
    assert float(square.mean()) == pytest.approx(1 / d, abs=4 * stderr)
    assert float(composition_scores(random_hooked())["baseline"]) == pytest.approx(15**-0.5)
    plain = random_hooked(normalization_type=None)
    assert float(composition_scores(plain)["baseline"]) == pytest.approx(16**-0.5)


def test_transformer_lens_agrees_on_a_folded_model():
    model = folded(random_hooked(11, n_layers=3))
    scores = composition_scores(model)["value"]
    for kind in "QKV":
        want = model.all_composition_scores(kind)
        torch.testing.assert_close(values(scores.sel(kind=kind)), want, **CLOSE)
    torch.testing.assert_close(values(circuit_spectra(model)["OV"]), model.OV.S, **CLOSE)
    torch.testing.assert_close(values(circuit_spectra(model)["QK"]), model.QK.S, **CLOSE)


def test_nothing_depends_on_folding():
    model = random_hooked(11)
    twin = folded(model)
    for analysis in (circuit_spectra, composition_scores, copying_scores):
        one, other = analysis(model), analysis(twin)
        for name in one.data_vars:
            torch.testing.assert_close(values(one[name]), values(other[name]), **CLOSE)
    for circuit in ("QK", "OV"):
        one, other = (circuit_table(m, 1, 2, circuit) for m in (model, twin))
        torch.testing.assert_close(values(one), values(other), **CLOSE)


def test_a_change_of_basis_inside_a_head_changes_nothing():
    model, other = random_hooked(11), random_hooked(11)
    R = torch.randn(5, 5, dtype=torch.float64)
    attn = other.blocks[1].attn
    attn.W_V.data[0], attn.W_O.data[0] = attn.W_V[0] @ R, torch.linalg.solve(R, attn.W_O[0])
    attn.W_Q.data[0], attn.W_K.data[0] = attn.W_Q[0] @ R, attn.W_K[0] @ torch.linalg.inv(R).T
    loose = {"rtol": 1e-8, "atol": 1e-8}
    for analysis in (circuit_spectra, composition_scores, copying_scores):
        one, two = analysis(model), analysis(other)
        for name in one.data_vars:
            torch.testing.assert_close(values(one[name]), values(two[name]), **loose)


@pytest.mark.parametrize("embedding", ["embed", "after_mlp0"])
def test_copying_is_read_from_all_eigenvalues_of_the_token_circuit(model, embedding):
    if model.cfg.attn_only and embedding == "after_mlp0":
        with pytest.raises(InputError):
            copying_scores(model, embedding=embedding)
        return
    scores = copying_scores(model, embedding=embedding)
    for layer in range(3):
        for head in range(3):
            circuit = ov_circuit(model, layer, head, embedding=embedding)
            full = values(circuit_table(model, layer, head, "OV", embedding=embedding))
            eigenvalues = torch.linalg.eigvals(full)
            assert float(eigenvalues.sum().real) == pytest.approx(float(full.trace()), abs=1e-10)
            small = torch.linalg.eigvals(circuit.B @ circuit.A)
            assert abs(complex(small.sum()) - complex(eigenvalues.sum())) < 1e-10
            # Six of the eleven are 0 up to the root of rounding: a rank of 5.
            largest = eigenvalues[eigenvalues.abs().argsort(descending=True)[:5]]
            want = float(largest.real.sum() / largest.abs().sum())
            got = scores.sel(layer=layer, head=head)
            assert float(got["copying"]) == pytest.approx(want, abs=1e-8)
            first = (full.argmax(1) == torch.arange(11)).double().mean()
            assert float(got["own_token_first"]) == pytest.approx(float(first))


def test_a_planted_copying_head_scores_one_and_its_negative_minus_one():
    model = random_hooked(11, d_head=15, attn_only=True, normalization_type=None)
    attn = model.blocks[1].attn
    # W_V W_O undoes the embedding and the unembedding, so the token circuit is the identity.
    inverse = torch.linalg.pinv(model.embed.W_E.detach()) @ torch.linalg.pinv(model.W_U.detach())
    U, S, Vh = torch.linalg.svd(inverse)
    attn.W_V.data[0], attn.W_O.data[0] = U[:, :15] * S[:15], Vh[:15]
    attn.W_V.data[1], attn.W_O.data[1] = -U[:, :15] * S[:15], Vh[:15]
    scores = copying_scores(model).sel(layer=1)
    assert scores["copying"].to_numpy()[:2] == pytest.approx([1, -1], abs=1e-6)
    assert scores["own_token_first"].to_numpy()[:2] == pytest.approx([1, 0])


def test_token_circuits_are_the_models_own_scores_and_writes():
    """One token at a time, scales put back: what the weights say is what the model does."""
    model = random_hooked(11)
    layer, head = 0, 2
    model.pos_embed.W_pos.data.zero_()
    for bias in (model.blocks[0].attn.b_Q, model.blocks[0].attn.b_K, model.blocks[0].ln1.b):
        bias.data.zero_()
    ids = torch.tensor([[4, 7]])
    _, cache = model.run_with_cache(ids)
    scale = cache["blocks.0.ln1.hook_scale"][0, :, 0]
    table = values(circuit_table(model, layer, head, "QK"))
    want = cache["blocks.0.attn.hook_attn_scores"][0, head, 1, 0] * scale[1] * scale[0]
    torch.testing.assert_close(table[7, 4], want, **CLOSE)
    by_position = qk_circuit(model, layer, head, query="positions", key="tokens").AB
    assert by_position.shape == (7, 11)
    assert float(by_position.abs().max()) == 0


def test_effective_embedding_is_the_model_without_attention_and_positions():
    model = random_hooked(11)
    ids = random_ids(3)

    def zero(value, hook):
        return torch.zeros_like(value)

    hooks = [("hook_pos_embed", zero), ("blocks.0.hook_attn_out", zero)]
    with model.hooks(fwd_hooks=hooks):
        _, cache = model.run_with_cache(ids)
    want = cache["blocks.0.hook_resid_post"]
    torch.testing.assert_close(token_vectors(model, "after_mlp0")[ids], want, **CLOSE)


def test_the_direct_path_is_the_model_with_every_layer_silent(model):
    ids = random_ids(3)
    silent = ["hook_pos_embed"]
    silent += [f"blocks.{i}.hook_{out}" for i in range(3) for out in ("attn_out", "mlp_out")]
    hooks = [
        (name, lambda x, hook: torch.zeros_like(x)) for name in silent if name in model.hook_dict
    ]
    want = model.run_with_hooks(ids, fwd_hooks=hooks).log_softmax(-1)
    torch.testing.assert_close(values(direct_path(model))[ids], want, **CLOSE)


@pytest.mark.parametrize("batch", [1, 3])
def test_score_parts_sum_to_the_scores(model, batch):
    ids = random_ids(5, batch=batch)
    _, cache = model.run_with_cache(ids)
    visible = torch.ones(7, 7, dtype=torch.bool).tril()
    for layer in range(3):
        split = score_split(model, ids, layer, 1)
        total = values(split.sum(["query_component", "key_component"], skipna=False))
        want = cache[f"blocks.{layer}.attn.hook_attn_scores"][:, 1]
        torch.testing.assert_close(total[:, visible], want[:, visible], **CLOSE)
        assert total[:, ~visible].isnan().all()


def test_a_score_part_is_what_leaves_with_its_component():
    """The token's share of the query is taken out with a hook on q; the rest stays."""
    model, ids = random_hooked(11), random_ids(5, batch=2)
    split = score_split(model, ids, 1, 0)
    _, cache = model.run_with_cache(ids)
    block, embed = model.blocks[1], cache["hook_embed"]
    centred = (embed - embed.mean(-1, keepdim=True)) / cache["blocks.1.ln1.hook_scale"]
    lost = centred * block.ln1.w @ block.attn.W_Q[0]
    kept = []

    def without(q, hook):
        q = q.clone()
        q[:, :, 0] -= lost
        return q

    def keep(scores, hook):
        kept.append(scores[:, 0])

    hooks = [("blocks.1.attn.hook_q", without), ("blocks.1.attn.hook_attn_scores", keep)]
    model.run_with_hooks(ids, fwd_hooks=hooks)
    change = cache["blocks.1.attn.hook_attn_scores"][:, 0] - kept[0]
    got = values(split.sel(query_component="embed").sum("key_component", skipna=False))
    visible = torch.ones(7, 7, dtype=torch.bool).tril()
    torch.testing.assert_close(got[:, visible], change[:, visible], **CLOSE)


def test_chosen_tokens_are_a_part_of_the_table():
    model = random_hooked(11)
    whole = circuit_table(model, 1, 0, "OV")
    some = circuit_table(model, 1, 0, "OV", tokens=["c", 7])
    torch.testing.assert_close(values(some), values(whole)[[2, 7]][:, [2, 7]], **CLOSE)
    assert some["tokens"].to_numpy().tolist() == ["c", "h"]


@pytest.mark.parametrize("variant", ["LN", "no norm", "attention only"])
def test_unfolded_circuits_are_the_plain_products(variant):
    model = random_hooked(11, **VARIANTS[variant], n_layers=3)
    layer, head = 2, 1
    attn = model.blocks[layer].attn
    QK = attn.W_Q[head] @ attn.W_K[head].T
    OV = attn.W_V[head] @ attn.W_O[head]
    plain = {"fold_ln": False}
    got = values(circuit_table(model, layer, head, "QK", **plain))
    torch.testing.assert_close(got, model.W_E @ QK @ model.W_E.T / attn.attn_scale, **CLOSE)
    got = values(circuit_table(model, layer, head, "OV", **plain))
    torch.testing.assert_close(got, model.W_E @ OV @ model.W_U, **CLOSE)
    spectra = circuit_spectra(model, **plain)
    for name, full in (("QK", QK), ("OV", OV)):
        own = values(spectra[name].sel(layer=layer, head=head))
        torch.testing.assert_close(own, torch.linalg.svdvals(full)[:5], **CLOSE)
    scores = composition_scores(model, **plain)
    for kind in "QKV":
        want = model.all_composition_scores(kind)
        torch.testing.assert_close(values(scores["value"].sel(kind=kind)), want, **CLOSE)
    assert float(scores["baseline"]) == pytest.approx(16**-0.5)
    # Without normalisation there is nothing to fold, and only then are both the same.
    folded_in = values(circuit_table(model, layer, head, "OV"))
    want = values(circuit_table(model, layer, head, "OV", **plain))
    assert torch.allclose(folded_in, want) == (variant == "no norm")


def test_bad_requests_are_refused():
    model = random_hooked()
    for wrong in (
        lambda: qk_circuit(model, 2, 0),
        lambda: ov_circuit(model, 0, 3),
        lambda: circuit_table(model, 0, 0, "OV", tokens=["ab"]),
        lambda: circuit_table(model, 0, 0, "OV", tokens=[11]),
        lambda: score_split(model, "abc", 0, 3),
    ):
        with pytest.raises(InputError):
            wrong()


def test_head_weights_of_every_layer_are_there():
    weights = head_weights(random_hooked(n_layers=4))
    assert weights.QK.AB.shape == weights.OV.AB.shape == (4, 3, 16, 16)
