"""Print a run's shapes, its parameters and a sample."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("model", metavar="RUN", nargs="?", help="a run directory")
    subject.add_argument("--preset", metavar="NAME", help="an untrained preset instead")
    parser.add_argument("--step", type=int, help="a snapshot's step (default: the final weights)")
    parser.add_argument("--batch-size", type=int, default=1, help="of the shapes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")


def run(args: argparse.Namespace) -> None:
    from ..inspection import inspect_preset, inspect_run
    from ..tables import console, key_value_table, table

    inspected = (
        inspect_preset(args.preset, batch_size=args.batch_size, seed=args.seed)
        if args.preset
        else inspect_run(args.model, args.step, batch_size=args.batch_size, seed=args.seed)
    )
    out = console()
    out.print(key_value_table(inspected.title, inspected.settings))
    out.print(table("the stream, stage by stage", inspected.shapes))
    out.print(
        table(
            "parameters",
            inspected.parameters,
            formats={"parameters": "{:,}".format, "share": "{:.2%}".format},
        )
    )
    out.print("sample:", style="bold")
    out.print(inspected.sample, markup=False, highlight=False)
