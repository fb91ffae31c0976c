"""Prove a run equal to its HookedTransformer at every site; exit code 1 when a site is off."""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="a run directory")
    parser.add_argument("--step", type=int, help="a snapshot's step (default: the final weights)")
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="a text to prove it on (default: one sampled from the model)",
    )
    parser.add_argument("--every-layer", action="store_true", help="one row a site and layer")


def run(args: argparse.Namespace) -> int:
    from ..certificate import check_certificate
    from ..checkpoint import Run
    from ..equivalence import proof_ids, prove
    from ..files import read_text
    from ..tables import console, key_value_table, table

    opened = Run.open(args.model)
    gpt = opened.weights(args.step).to_gpt()
    text = None if args.text is None else read_text(args.text)
    proof = prove(gpt, proof_ids(gpt, opened.tokenizer(), text))

    rows = proof.differences if args.every_layer else proof.by_kind()
    out = console()
    out.print(key_value_table("assumed", proof.assumptions))
    out.print(key_value_table("compared on", proof.compared))
    out.print(
        table(
            f"largest |GPT - HookedTransformer| in {opened.name}",
            rows.rename_axis("site").reset_index(),
            formats=dict.fromkeys(rows.columns, "{:.1e}".format),
        )
    )
    if against := check_certificate(opened):
        out.print(f"NOT as certified: {against}.")
        return 1
    if proof.holds:
        out.print(f"equal: all {len(proof.differences)} sites are within what is allowed.")
        return 0
    out.print(f"NOT equal: {len(proof.failures)} sites are off, the first is {proof.failures[0]}.")
    return 1
