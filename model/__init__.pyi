from .config import PRESETS as PRESETS
from .config import GPTConfig as GPTConfig
from .config import preset as preset
from .errors import ModelError as ModelError
from .generation import generate as generate
from .gpt import GPT as GPT
from .gpt import next_token_loss as next_token_loss

__all__ = [
    "GPT",
    "PRESETS",
    "GPTConfig",
    "ModelError",
    "generate",
    "next_token_loss",
    "preset",
]
