"""Convert, prove, write a run; and the certificate that says what was proven of which weights."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from .checkpoint import RUN_INFO, WEIGHTS, Run, save_weights, write_description
from .conversion import Conversion
from .equivalence import Proof, failures, proof_ids, prove
from .errors import ModelError
from .files import read_json, write_json
from .folding import LOG_PROBS, fold, prove_folding
from .gpt import GPT
from .reference import Logits, prove_reference

CERTIFICATE = "certificate.json"
_VERSIONED = ("orrery", "torch", "transformer-lens", "safetensors", "tokenizers")


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What was proven of a conversion, and of which weights.

    Attributes:
        gpt: what was proven: the converted GPT, folded when that was asked for.
        proof: GPT against HookedTransformer.
        folding: before against after the folding; none without one.
        reference: the user's own model against the converted GPT; none without one.
    """

    conversion: Conversion
    gpt: GPT
    proof: Proof
    options: tuple[str, ...] = ()
    folding: pd.DataFrame | None = None
    reference: pd.DataFrame | None = None

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The largest differences site by site, by what was compared, in the order of the proof."""
        found = {
            "the reference - GPT": self.reference,
            "GPT - folded GPT": self.folding,
            "GPT - HookedTransformer": self.proof.differences,
        }
        return {name: table for name, table in found.items() if table is not None}

    @property
    def failures(self) -> list[str]:
        """The sites that are off, with what they are off between, the first one first."""
        return [
            f"{site} ({name})" for name, table in self.tables.items() for site in failures(table)
        ]

    @property
    def holds(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        conversion = self.conversion
        raw = LOG_PROBS not in (self.folding.index if self.folding is not None else [])
        return {
            "source": {"name": conversion.source.name, "sha256": conversion.source.sha256()},
            "dialect": conversion.dialect.name,
            "settings": [dataclasses.asdict(setting) for setting in conversion.settings],
            "notes": list(conversion.notes),
            "folded": list(self.options),
            "compared": {
                "ids": dict(self.proof.compared),
                "values": "every site, raw logits"
                if raw
                else "every site, raw logits; log-probs where the unembedding was centred",
            },
            "largest_difference": {
                name: table.to_dict(orient="index") for name, table in self.tables.items()
            },
            "versions": {name: importlib.metadata.version(name) for name in _VERSIONED}
            | {"python": platform.python_version()},
        }


def certify(
    conversion: Conversion,
    *,
    text: str | None = None,
    reference: nn.Module | Logits | None = None,
    options: Iterable[str] = (),
) -> Certificate:
    """Prove a conversion at every site, in float32 and float64.

    Args:
        text: what to prove on besides random ids; sampled from the model when not given.
        reference: the user's own model, to prove the converted one against.
        options: of `folding.MAY_CHANGE`; what is applied to the GPT, and proven too.

    Raises:
        ModelError: when the text cannot be read, an option is unknown, or the reference answers
            no logits or two different ones.
    """
    gpt, options = conversion.gpt, tuple(options)
    ids = proof_ids(gpt, conversion.tokenizer, text)
    against = None if reference is None else prove_reference(conversion, reference, ids)
    folding = None
    if options:
        folded = fold(gpt, options)
        folding = prove_folding(gpt, folded, options, ids)
        gpt = folded.to(gpt.embed.weight.dtype)
    return Certificate(conversion, gpt, prove(gpt, ids), options, folding, against)


def write_run(certificate: Certificate, path: str | Path) -> Run:
    """Write a certified conversion as a run directory.

    Raises:
        ModelError: when the certificate does not hold, or the folder is not empty.
    """
    path = Path(path)
    if not certificate.holds:
        raise ModelError(
            f"{certificate.failures[0]} is off, so no run is written: see the table for how much."
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ModelError(f"{path} is there already: give a new folder to write to.")
    conversion = certificate.conversion
    step = conversion.source.step
    write_description(path, certificate.gpt.config, conversion.tokenizer)
    sha256 = save_weights(path / WEIGHTS, certificate.gpt, step=step)
    said = certificate.to_dict()
    write_json(path / CERTIFICATE, said | {"weights_sha256": sha256})
    write_json(
        path / RUN_INFO,
        {
            "converted_from": said["source"],
            "dialect": said["dialect"],
            "versions": said["versions"],
        },
    )
    return Run.open(path)


def check_certificate(run: Run) -> str | None:
    """What speaks against a run's certificate; None when nothing does, or it has none.

    Raises:
        ModelError: when the certificate cannot be read.
    """
    path = run.path / CERTIFICATE
    if not path.exists():
        return None
    certified, found = read_json(path).get("weights_sha256"), run.weights().sha256
    if certified != found:
        return f"the weights are not those that {CERTIFICATE} is of: they were changed after it"
    return None
