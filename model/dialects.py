"""Who else writes GPTs, and how: one table for each, and nothing but tables.

`dialect.py` says what the entries mean. Everything that another code base names its own way
(n_embd, block_size, c_attn ...) stands here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .config import GPTConfig
from .dialect import (
    BIASES,
    EMBED,
    LAYER_NORMS,
    LAYOUTS,
    MLP,
    QKV_BIAS,
    UNEMBED,
    UNEMBED_BIAS,
    Dialect,
    Key,
    Stored,
)


def _modules(
    names: Mapping[str, str],
    *,
    block: str,
    layouts: Mapping[str, str] | None = None,
    weight: str = ".weight",
    bias: str = ".bias",
    without: frozenset[str] = UNEMBED_BIAS,
) -> dict[str, Stored]:
    """The table of a code base that names its modules, from ours to theirs.

    Modules whose name starts with a dot are in the block. Those of `names` that are in `layouts`
    by their last part have that layout instead of ours.
    """
    tensors = {}
    for parameter, layout in LAYOUTS.items():
        module, kind = parameter.rsplit(".", 1)
        short = module.removeprefix("blocks.{layer}.")
        if parameter in without or short not in names:
            continue
        name = (block if module != short else "") + names[short]
        if not name.endswith("!"):  # a parameter by itself, of no module
            name += weight if kind == "weight" else bias
        there = (layouts or {}).get(f"{short}.{kind}", layout)
        tensors[parameter] = Stored(name.removesuffix("!"), there)
    return tensors


_HF_NAMES = {
    "embed": "transformer.wte",
    "pos_embed": "transformer.wpe",
    "ln1": "ln_1",
    "attn.qkv_proj": "attn.c_attn",
    "attn.out_proj": "attn.c_proj",
    "ln2": "ln_2",
    "mlp.in_proj": "mlp.c_fc",
    "mlp.out_proj": "mlp.c_proj",
    "ln_final": "transformer.ln_f",
    "unembed": "lm_head",
}
_HF_BLOCK = "transformer.h.{layer}."
_NANO_KEYS = {
    "n_layer": Key("n_layers"),
    "n_head": Key("n_heads"),
    "n_embd": Key("d_model"),
    "block_size": Key("n_ctx"),
    "vocab_size": Key("d_vocab"),
}
_GPT2_CODE = {"eps": 1e-5, "attn_scale": None, "dropout": 0.0, "d_head": 64, "d_mlp": None}
_ACT_FNS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}

COURSE = Dialect(
    name="course",
    about="the course GPT: one Linear a head, exact GELU",
    tensors=_modules(
        {
            "embed": "tok",
            "pos_embed": "pos",
            "ln1": "(ln1|ln_1|norm1)",
            "attn.qkv_proj": "attn.heads.{head}.{part}",
            "attn.out_proj": "attn.(proj|out_proj|out|c_proj|o_proj)",
            "ln2": "(ln2|ln_2|norm2)",
            "mlp.in_proj": "(mlp|ffwd|ff|ffn).(net.0|0|fc1|fc|fc_in|c_fc|up|in_proj)",
            "mlp.out_proj": "(mlp|ffwd|ff|ffn).(net.2|2|fc2|proj|fc_out|c_proj|down|out_proj)",
            "ln_final": "(ln_f|ln_final|lnf|ln|norm|norm_f)",
            "unembed": "(head|lm_head|unembed|out|out_head)",
        },
        block="blocks.{layer}.",
        layouts={"attn.qkv_proj.weight": "d_head d_model", "attn.qkv_proj.bias": "d_head"},
    ),
    ignored=("blocks.{layer}.attn.heads.{head}.tril",),
    optional=(QKV_BIAS,),
    settings={
        "n_layers": Key("n_layers"),
        "n_heads": Key("n_heads"),
        "d_model": Key("d_model"),
        "n_ctx": Key("n_ctx"),
        "d_vocab": Key("d_vocab"),
        "act_fn": Key("act_fn"),
        "dropout": Key("dropout"),
    },
    assumed={"act_fn": "gelu", "eps": 1e-5, "attn_scale": None, "dropout": 0.0},
)

NANOGPT = Dialect(
    name="nanogpt",
    about="karpathy/nanoGPT: tied, exact GELU since its switch from the tanh form (gelu_new)",
    tensors=_modules(_HF_NAMES, block=_HF_BLOCK),
    ignored=("transformer.h.{layer}.attn.bias",),
    optional=(BIASES | QKV_BIAS, UNEMBED, EMBED),
    tied=True,
    settings=_NANO_KEYS | {"bias": Key("bias"), "dropout": Key("dropout")},
    marks=frozenset({"bias"}),
    assumed=_GPT2_CODE | {"act_fn": "gelu"},
)

BUILD_NANOGPT = dataclasses.replace(
    NANOGPT,
    name="build-nanogpt",
    about="karpathy/build-nanogpt and other GPT-2s of nn.Linear: tied, tanh GELU",
    optional=(UNEMBED, EMBED),
    settings=_NANO_KEYS
    | {"activation_function": Key("act_fn", _ACT_FNS, open=False), "dropout": Key("dropout")},
    marks=frozenset(),
    assumed=_GPT2_CODE | {"act_fn": "gelu_new"},
)

MINGPT = dataclasses.replace(
    BUILD_NANOGPT,
    name="mingpt",
    about="karpathy/minGPT: untied, tanh GELU",
    optional=(),
    tied=False,
    settings=_NANO_KEYS | {"resid_pdrop": Key("dropout")},
    assumed=_GPT2_CODE | {"act_fn": "gelu_new", "dropout": 0.1},
)

OLD_MINGPT = Dialect(
    name="old-mingpt",
    about="karpathy/minGPT before 2022: separate query, key and value, untied, exact GELU",
    tensors=_modules(
        {
            "embed": "tok_emb",
            "pos_embed": "pos_emb!",
            "ln1": "ln1",
            "attn.qkv_proj": "attn.{part}",
            "attn.out_proj": "attn.proj",
            "ln2": "ln2",
            "mlp.in_proj": "mlp.0",
            "mlp.out_proj": "mlp.2",
            "ln_final": "ln_f",
            "unembed": "head",
        },
        block="blocks.{layer}.",
        layouts={
            "pos_embed.weight": "1 n_ctx d_model",
            "attn.qkv_proj.weight": "(head d_head) d_model",
            "attn.qkv_proj.bias": "(head d_head)",
        },
    ),
    ignored=("blocks.{layer}.attn.mask",),
    settings=_NANO_KEYS | {"resid_pdrop": Key("dropout")},
    assumed=_GPT2_CODE | {"act_fn": "gelu", "dropout": 0.1},
)

LECTURE = Dialect(
    name="lecture",
    about='the "Let\'s build GPT" lecture: one Linear a head, ReLU, scores by the head size '
    "(by the width in its first version)",
    tensors=_modules(
        {
            "embed": "token_embedding_table",
            "pos_embed": "position_embedding_table",
            "ln1": "ln1",
            "attn.qkv_proj": "sa.heads.{head}.{part}",
            "attn.out_proj": "sa.proj",
            "ln2": "ln2",
            "mlp.in_proj": "ffwd.net.0",
            "mlp.out_proj": "ffwd.net.2",
            "ln_final": "ln_f",
            "unembed": "lm_head",
        },
        block="blocks.{layer}.",
        layouts={"attn.qkv_proj.weight": "d_head d_model"},
        without=QKV_BIAS,
    ),
    ignored=("blocks.{layer}.sa.heads.{head}.tril",),
    settings=_NANO_KEYS | {"dropout": Key("dropout")},
    assumed={"act_fn": "relu", "eps": 1e-5, "attn_scale": None, "dropout": 0.2},
)

_CONV1D = {
    "attn.qkv_proj.weight": "d_model (part head d_head)",
    "attn.out_proj.weight": "(head d_head) d_model",
    "mlp.in_proj.weight": "d_model d_mlp",
    "mlp.out_proj.weight": "d_mlp d_model",
}

HUGGING_FACE = Dialect(
    name="hf",
    about="Hugging Face GPT-2: Conv1D layout, tanh GELU unless its configuration says otherwise",
    tensors=_modules(_HF_NAMES, block=_HF_BLOCK, layouts=_CONV1D),
    ignored=("transformer.h.{layer}.attn.bias", "transformer.h.{layer}.attn.masked_bias"),
    optional=(UNEMBED, EMBED),
    settings={
        "n_layer": Key("n_layers"),
        "n_head": Key("n_heads"),
        "n_embd": Key("d_model"),
        "n_positions": Key("n_ctx"),
        "vocab_size": Key("d_vocab"),
        "n_inner": Key("d_mlp"),
        "activation_function": Key("act_fn", _ACT_FNS, open=False),
        "layer_norm_epsilon": Key("eps"),
        "scale_attn_weights": Key("attn_scale", {True: None, False: 1.0}, open=False),
        "scale_attn_by_inverse_layer_idx": Key("scale_attn_by_inverse_layer_idx"),
        "tie_word_embeddings": Key("tied_embeddings"),
        "resid_pdrop": Key("dropout"),
    },
    requires={
        "model_type": ("gpt2",),
        "architectures": (["GPT2LMHeadModel"], ["GPT2Model"]),
        "add_cross_attention": (False,),
    },
    assumed=_GPT2_CODE | {"act_fn": "gelu_new", "dropout": 0.1},
)

FROM_SCRATCH = Dialect(
    name="llms-from-scratch",
    about="rasbt/LLMs-from-scratch: separate W_query, W_key, W_value, tanh GELU, own LayerNorm",
    tensors=_modules(
        {
            "embed": "tok_emb",
            "pos_embed": "pos_emb",
            "attn.qkv_proj": "att.W_{part}",
            "attn.out_proj": "att.out_proj",
            "mlp.in_proj": "ff.layers.0",
            "mlp.out_proj": "ff.layers.2",
            "unembed": "out_head",
        },
        block="trf_blocks.{layer}.",
        layouts={
            "attn.qkv_proj.weight": "(head d_head) d_model",
            "attn.qkv_proj.bias": "(head d_head)",
        },
    )
    | _modules(
        {"ln1": "norm1", "ln2": "norm2", "ln_final": "final_norm"},
        block="trf_blocks.{layer}.",
        weight=".scale",
        bias=".shift",
    ),
    ignored=("trf_blocks.{layer}.att.mask",),
    optional=(QKV_BIAS,),
    settings={
        "n_layers": Key("n_layers"),
        "n_heads": Key("n_heads"),
        "emb_dim": Key("d_model"),
        "context_length": Key("n_ctx"),
        "vocab_size": Key("d_vocab"),
        "qkv_bias": Key("qkv_bias"),
        "drop_rate": Key("dropout"),
    },
    assumed=_GPT2_CODE | {"act_fn": "gelu_new", "dropout": 0.1},
)

TRANSFORMER_LENS = Dialect(
    name="transformer-lens",
    about="TransformerLens' HookedTransformer, raw or with its LayerNorms folded",
    tensors={
        "embed.weight": Stored("embed.W_E", "d_vocab d_model"),
        "pos_embed.weight": Stored("pos_embed.W_pos", "n_ctx d_model"),
        "blocks.{layer}.attn.qkv_proj.weight": Stored(
            "blocks.{layer}.attn.W_{part}", "head d_model d_head"
        ),
        "blocks.{layer}.attn.qkv_proj.bias": Stored("blocks.{layer}.attn.b_{part}", "head d_head"),
        "blocks.{layer}.attn.out_proj.weight": Stored(
            "blocks.{layer}.attn.W_O", "head d_head d_model"
        ),
        "blocks.{layer}.attn.out_proj.bias": Stored("blocks.{layer}.attn.b_O", "d_model"),
        "blocks.{layer}.mlp.in_proj.weight": Stored("blocks.{layer}.mlp.W_in", "d_model d_mlp"),
        "blocks.{layer}.mlp.in_proj.bias": Stored("blocks.{layer}.mlp.b_in", "d_mlp"),
        "blocks.{layer}.mlp.out_proj.weight": Stored("blocks.{layer}.mlp.W_out", "d_mlp d_model"),
        "blocks.{layer}.mlp.out_proj.bias": Stored("blocks.{layer}.mlp.b_out", "d_model"),
        "unembed.weight": Stored("unembed.W_U", "d_model d_vocab"),
        "unembed.bias": Stored("unembed.b_U", "d_vocab"),
    }
    | _modules(
        {"ln1": "ln1", "ln2": "ln2", "ln_final": "ln_final"},
        block="blocks.{layer}.",
        weight=".w",
        bias=".b",
    ),
    parts=("Q", "K", "V"),
    ignored=("blocks.{layer}.attn.mask", "blocks.{layer}.attn.IGNORE"),
    optional=(LAYER_NORMS, MLP),
    tied=False,
    settings={
        "n_layers": Key("n_layers"),
        "n_heads": Key("n_heads"),
        "d_model": Key("d_model"),
        "d_head": Key("d_head"),
        "n_ctx": Key("n_ctx"),
        "d_vocab": Key("d_vocab"),
        "d_mlp": Key("d_mlp"),
        "attn_only": Key("attn_only"),
        "act_fn": Key("act_fn", _ACT_FNS, open=False),
        "eps": Key("eps"),
        "attn_scale": Key("attn_scale", {-1.0: None}),
        "scale_attn_by_inverse_layer_idx": Key("scale_attn_by_inverse_layer_idx"),
    },
    requires={
        "positional_embedding_type": ("standard",),
        "normalization_type": ("LN", "LNPre"),
        "attention_dir": ("causal",),
        "use_attn_scale": (True,),
        "gated_mlp": (False,),
        "parallel_attn_mlp": (False,),
        "use_local_attn": (False,),
    },
    assumed={"act_fn": "relu", "eps": 1e-5, "attn_scale": None, "dropout": 0.0},
)

ORRERY = Dialect(
    name="orrery",
    about="this project",
    tensors={name: Stored(name, layout) for name, layout in LAYOUTS.items()},
    optional=(QKV_BIAS, BIASES, UNEMBED_BIAS, UNEMBED, MLP),
    settings={field.name: Key(field.name) for field in dataclasses.fields(GPTConfig)},
    assumed=_GPT2_CODE | {"act_fn": "gelu"},
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        COURSE,
        NANOGPT,
        BUILD_NANOGPT,
        MINGPT,
        OLD_MINGPT,
        LECTURE,
        HUGGING_FACE,
        FROM_SCRATCH,
        TRANSFORMER_LENS,
        ORRERY,
    )
}
"""In the order in which they are tried."""

WRAPPERS = frozenset(
    {"_orig_mod", "module", "_forward_module", "_fsdp_wrapped_module", "model", "transformer"}
)
"""Parts of a name that say how a model was wrapped (torch.compile, DistributedDataParallel,
Lightning ...) and nothing of what it is."""

OUTSIDE: Mapping[str, str] = {
    r"lora_[AB]|lora_(up|down)": "LoRA adapters; merge them into the weights first",
    r"qweight|qzeros|absmax|\.SCB$|quant_state": "quantised weights; save them in full precision",
    r"rotary|inv_freq|freqs_cis|\brope\b|cos_cached": "rotary position embeddings",
    r"experts?\.|\.router\.": "a mixture of experts",
    r"cross_?att|ln_cross|encoder_attn": "attention across to an encoder",
    r"token_type_embeddings|(^|\.)encoder\.|(^|\.)bert\.|cls_token": "an encoder",
    r"relative_attention_bias|alibi|rel_pos": "relative positions",
    r"gate_proj|up_proj|W_gate|\.w3\.|\.gate\.": "a gated MLP",
    r"_W_[KV]$|k_proj|kv_proj": "separate or shared key and value projections of another family",
    r"input_layernorm|rms_?norm": "RMSNorm or another block order",
    r"patch_embed|conv\d": "an image model",
    r"A_log|ssm|time_mix|weight_ih_l\d": "a recurrent model",
    r"attn\.attention\.": "local attention (GPT-Neo)",
    r"embed_positions|decoder\.layers": "positions that start at 2 (OPT, BART)",
    r"in_proj_weight": "nn.MultiheadAttention or nn.TransformerEncoder modules",
}
"""What a tensor's name gives away of an architecture outside the family."""
