from .certificate import Certificate as Certificate
from .certificate import certify as certify
from .certificate import write_run as write_run
from .checkpoint import Run as Run
from .checkpoint import load_gpt as load_gpt
from .checkpoint import save_weights as save_weights
from .config import PRESETS as PRESETS
from .config import GPTConfig as GPTConfig
from .config import preset as preset
from .conversion import Conversion as Conversion
from .conversion import convert as convert
from .corpus import Corpus as Corpus
from .corpus import tokenise as tokenise
from .equivalence import Proof as Proof
from .equivalence import proof_ids as proof_ids
from .equivalence import prove as prove
from .errors import ModelError as ModelError
from .exporting import export as export
from .folding import fold as fold
from .generation import generate as generate
from .generation import generate_text as generate_text
from .gpt import GPT as GPT
from .gpt import next_token_loss as next_token_loss
from .hooked import load as load
from .hooked import to_hooked as to_hooked
from .recipe import Recipe as Recipe
from .snapshots import Snapshots as Snapshots
from .tokenizer import character_tokenizer as character_tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
from .training import resume as resume
from .training import train as train

__all__ = [
    "GPT",
    "PRESETS",
    "Certificate",
    "Conversion",
    "Corpus",
    "GPTConfig",
    "ModelError",
    "Proof",
    "Recipe",
    "Run",
    "Snapshots",
    "certify",
    "character_tokenizer",
    "convert",
    "export",
    "fold",
    "generate",
    "generate_text",
    "load",
    "load_gpt",
    "load_tokenizer",
    "next_token_loss",
    "preset",
    "proof_ids",
    "prove",
    "resume",
    "save_weights",
    "to_hooked",
    "tokenise",
    "train",
    "write_run",
]
