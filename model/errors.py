"""The one error that bad input to `model` raises; the command line prints it and exits with 2."""


class ModelError(ValueError):
    """Input that cannot be used: what came, what was allowed, what to do, in one sentence."""
