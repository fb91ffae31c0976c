"""Go on with a run that was stopped.

The result is, on the same machine, bit for bit that of a run that was never stopped.
"""

from __future__ import annotations

import argparse

from .train import progress_arguments, progress_bar, report


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="RUN", help="a run directory")
    moved = parser.add_mutually_exclusive_group()
    moved.add_argument("--text", nargs="+", metavar="FILE", help="where the text is now")
    moved.add_argument("--data", metavar="FOLDER", help="where the token files are now")
    progress_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ..checkpoint import Run
    from ..recipe import Recipe
    from ..sources import open_source
    from ..training import resume

    opened = Run.open(args.out)
    info = opened.info
    data = None
    if args.text:
        data = open_source(info["source"] | {"text": args.text}, opened.tokenizer())
    if args.data:
        data = open_source({"folder": args.data})
    recipe = Recipe.from_dict(info["recipe"])
    with progress_bar(recipe.steps, recipe.batch_size * opened.config.n_ctx) as on_step:
        info = resume(
            args.out,
            data=data,
            on_step=on_step,
            save_seconds=args.save_every,
            tracker=args.tracker,
        )
    return report(info, args.out)
