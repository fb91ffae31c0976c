from .errors import InputError as InputError

__all__ = [
    "InputError",
]
