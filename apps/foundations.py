"""What every page stands on, imported once and left out of every later garbage collection.

Streamlit collects garbage after each run of the script. Half a million of the objects in it would
be those of PyTorch, transformers and TransformerLens, which never go: a fifth of a second for each
click, and a quarter of the time that importing them takes.
"""

import gc
import os

# Threads that wait for their next sum by turning in circles take the browser's core from it, on a
# small machine for most of a second each click.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
gc.disable()
try:
    from interp import figures
    from model import load
finally:
    gc.enable()
gc.freeze()

__all__ = ["figures", "load"]
