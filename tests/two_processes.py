"""Run one corpus analysis in a process of a group and write what it returned.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=... python two_processes.py OUT

`accelerate launch` sets these variables for each process it starts.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch
from random_models import random_hooked

from interp import (
    count_ngrams,
    effective_context,
    head_scores_over,
    loss_by_position,
    neuron_statistics,
    ngram_comparison,
    position_token_split,
)
from interp.corpus import process

TEXT = torch.randint(0, 11, (170,), generator=torch.Generator().manual_seed(6))


def everything() -> dict[str, object]:
    """Each kind of gathered result, over 24 windows in batches of 5: an odd number of them."""
    model = random_hooked(17)
    ngrams = count_ngrams(TEXT, 11, order=2)
    return {
        "neurons": neuron_statistics(model, TEXT, top=4, batch_size=5),
        "loss": loss_by_position(model, TEXT, batch_size=5),
        "heads": head_scores_over(model, TEXT, batch_size=5),
        "split": position_token_split(model, TEXT, batch_size=5),
        "context": effective_context(model, TEXT, batch_size=5),
        "ngrams": ngram_comparison(model, ngrams, TEXT, batch_size=5),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = everything()
    Path(sys.argv[1]).write_bytes(pickle.dumps((process(), results)))
