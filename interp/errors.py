"""The one error that bad input to `interp` raises."""


class InputError(ValueError):
    """Input that cannot be analysed: what came, what was allowed, what to do, in one sentence."""
