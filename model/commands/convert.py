"""Bring a checkpoint that other code wrote: recognise, convert, prove, write a run.

SOURCE is a weights file, a folder or a run: nanoGPT, build-nanogpt, minGPT, the "Let's build GPT"
lecture, the course GPT, Hugging Face GPT-2, LLMs-from-scratch, TransformerLens, or this project.
With --to it is written for another library instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..folding import MAY_CHANGE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a weights file, a folder or a run")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder to write to")
    parser.add_argument(
        "--to", metavar="FORMAT", help="write for nanogpt, hf or transformer-lens instead"
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="meta.pkl, tokenizer.json ... or gpt2")
    parser.add_argument("--text", metavar="FILE", type=Path, help="a text to prove it on")
    parser.add_argument(
        "--reference", metavar="FILE.py:NAME", help="your own model, to prove the logits against"
    )
    said = parser.add_argument_group("what the source does not say")
    said.add_argument("--dialect", metavar="NAME", help="whose weights they are")
    said.add_argument("--n-heads", type=int, metavar="N")
    said.add_argument("--act-fn", metavar="NAME", help="gelu, gelu_new (its tanh form) or relu")
    said.add_argument("--eps", type=float, metavar="X", help="of every LayerNorm")
    said.add_argument(
        "--attn-scale",
        metavar="X",
        type=_scale,
        help="what scores are divided by: a number, or the root of d_head or d_model",
    )
    folding = parser.add_argument_group("weight processing, in float64 and proven too")
    for option in MAY_CHANGE:
        folding.add_argument(
            f"--{option.replace('_', '-')}", dest="options", action="append_const", const=option
        )


def run(args: argparse.Namespace) -> int:
    from ..certificate import certify, write_run
    from ..conversion import convert
    from ..equivalence import by_kind
    from ..exporting import export
    from ..files import read_text
    from ..memory import give_memory_back_at_once
    from ..reference import load_reference
    from ..tables import console, key_value_table, table

    give_memory_back_at_once()
    conversion = convert(
        args.source,
        tokenizer=args.tokenizer,
        dialect=args.dialect,
        n_heads=args.n_heads,
        act_fn=args.act_fn,
        eps=args.eps,
        attn_scale=args.attn_scale,
    )
    out = console()
    out.print(f"recognised: {conversion.dialect.name} ({conversion.dialect.about})")
    rows = {
        setting.field: f"{setting.value}  {'ASSUMED: ' if setting.assumed else ''}{setting.origin}"
        for setting in conversion.settings
    }
    out.print(key_value_table("settings", rows))
    for note in conversion.notes:
        out.print(f"note: {note}.", highlight=False, markup=False)
    certificate = certify(
        conversion,
        text=None if args.text is None else read_text(args.text),
        reference=args.reference and load_reference(args.reference, conversion),
        options=args.options or (),
    )
    for name, differences in certificate.tables.items():
        kinds = by_kind(differences).rename_axis("site").reset_index()
        formats = dict.fromkeys(kinds.columns[1:], "{:.1e}".format)
        out.print(table(f"largest |{name}|", kinds, formats=formats))
    if not certificate.holds:
        out.print(f"NOT equal: the first site that is off is {certificate.failures[0]}.")
        out.print("Nothing was written.")
        return 1
    if args.to:
        export(
            certificate.gpt, args.to, args.out, conversion.tokenizer, step=conversion.source.step
        )
    else:
        write_run(certificate, args.out)
    n_sites = sum(map(len, certificate.tables.values()))
    out.print(f"equal: all {n_sites} sites are within what is allowed; written to {args.out}.")
    return 0


def _scale(text: str) -> float | str:
    return text if text in ("d_head", "d_model") else float(text)
