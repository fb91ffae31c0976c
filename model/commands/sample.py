"""Continue a prompt with a trained run."""

from __future__ import annotations

import argparse
import sys


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="a run directory")
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--step", type=int, help="a snapshot's step (default: the final weights)")
    parser.add_argument("--n-tokens", type=int, default=300, help="how many to add (default: 300)")
    parser.add_argument("--n-samples", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: 0.8)")
    parser.add_argument("--top-k", type=int, help="keep the k most likely tokens")
    parser.add_argument("--top-p", type=float, help="keep the most likely tokens up to this sum")
    parser.add_argument("--seed", type=int, help="makes the sample repeatable")


def run(args: argparse.Namespace) -> None:
    from ..checkpoint import Run
    from ..errors import ModelError
    from ..generation import generate_text

    opened = Run.open(args.model)
    tokenizer = opened.tokenizer()
    if tokenizer is None:
        raise ModelError(f"{args.model} has no tokenizer.json, so it cannot read a prompt.")
    texts = generate_text(
        opened.weights(args.step).to_gpt(),
        tokenizer,
        args.prompt,
        args.n_tokens,
        n_samples=args.n_samples,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
    )
    sys.stdout.write("\n---\n".join(texts) + "\n")
