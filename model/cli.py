"""The `orrery` command: it parses, calls the library once, and prints."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .errors import ModelError

COMMANDS = ("train", "resume", "sample", "convert", "verify", "inspect", "dynamics", "explore")
DEBUG = "ORRERY_DEBUG"


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    0 on success, 1 when a check fails, 2 when the input cannot be used, 130 when interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser().parse_args(argv)
    arguments.argv = argv
    try:
        return arguments.run(arguments) or 0
    except ModelError as error:
        return _fail(2, str(error))
    except KeyboardInterrupt:
        return _fail(130, "interrupted.")
    except BrokenPipeError:
        # the reader went away; the interpreter would complain once more while it closes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return _fail(1, f"unexpected {type(error).__name__}: {error} (set {DEBUG}=1 to see where).")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="orrery",
        description="Train a GPT, prove it equal to its HookedTransformer, look inside.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        assert module.__doc__ is not None
        summary = module.__doc__.split("\n")[0]
        sub = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.arguments(sub)
        sub.set_defaults(run=module.run)
    return top


def _fail(code: int, sentence: str) -> int:
    print(f"orrery: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
