"""Our export to TransformerLens 4, which has no HookedTransformer: booted there, compared here.

    python tests/transformer_lens_4.py [--python PYTHON_OF_A_TRANSFORMER_LENS_4_ENVIRONMENT]

Without the option the script makes that environment. What the bridge holds at the hooks that both
have is compared with our own sites, in float64. Two differences of TransformerLens 4 are known:
its hook_attn_scores holds the pattern, and an edit at hook_resid_mid reaches the MLP only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import torch
from random_gpt import random_gpt, random_ids
from safetensors.torch import load_file, save_file

from model import export
from model.equivalence import gpt_sites, max_difference

VARIANTS = {
    "course": {"qkv_bias": False},
    "every bias, ReLU, by width": {"unembed_bias": True, "act_fn": "relu", "attn_scale": 15**0.5},
    "tied, tanh GELU": {"tied_embeddings": True, "act_fn": "gelu_new"},
}
KNOWN_TO_DIFFER = "attn.hook_attn_scores"
ALLOWED = 1e-10

BOOT = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

folder = Path(sys.argv[1])
said = json.loads((folder / "config.json").read_text())
cfg = TransformerBridgeConfig(**said, dtype=torch.float64)
bridge = TransformerBridge.boot_native(cfg, dtype=torch.float64)
state = convert_tl_checkpoint(load_file(folder / "model.safetensors"), cfg)
bridge.load_state_dict(state, strict=True)
logits, cache = bridge.run_with_cache(load_file(folder / "ids.safetensors")["ids"])
held = {name: value for name, value in cache.items() if isinstance(value, torch.Tensor)}
held = {name: value.detach().clone().contiguous() for name, value in held.items()}
save_file(held | {"logits": logits.detach().contiguous()}, folder / "held.safetensors")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path)
    python = parser.parse_args().python
    failed = False
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        python = python or environment(work / "venv")
        for i, (variant, settings) in enumerate(VARIANTS.items()):
            shared, off = compare(python, work / str(i), settings)
            worst = max(off.values())
            failed |= worst > ALLOWED or len(shared) < 20
            sys.stdout.write(f"{variant}: {len(shared)} sites, largest difference {worst:.1e}\n")
            for site in (s for s, difference in off.items() if difference > ALLOWED):
                sys.stdout.write(f"  {site} is off by {off[site]:.1e}\n")
    return int(failed)


def environment(path: Path) -> Path:
    venv.create(path, with_pip=True)
    python = path / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "transformer-lens>=4,<5", "safetensors"]
    subprocess.run(install, check=True)
    return python


def compare(
    python: Path, folder: Path, settings: dict[str, object]
) -> tuple[list[str], dict[str, float]]:
    """The sites that both hold, and how far apart they are there."""
    gpt, ids = random_gpt(**settings), random_ids()
    export(gpt, "transformer-lens", folder)
    save_file({"ids": ids}, folder / "ids.safetensors")
    subprocess.run([python, "-c", BOOT, folder], check=True)
    held = load_file(folder / "held.safetensors")
    ours = gpt_sites(gpt, ids)
    shared = [s for s in ours if s in held and not s.endswith(KNOWN_TO_DIFFER)]
    off = {s: max_difference(ours[s], held[s].expand_as(ours[s])) for s in shared}
    off |= {
        f"{site} as the pattern": max_difference(
            ours[site.replace("attn_scores", "pattern")], value
        )
        for site, value in held.items()
        if site.endswith(KNOWN_TO_DIFFER)
    }
    return shared, off


if __name__ == "__main__":
    torch.set_num_threads(2)
    sys.exit(main())
