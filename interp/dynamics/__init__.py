"""Through training: any analysis at every snapshot of a run, and when things change.

    series      a run's models one after the other (`model.Snapshots`)
    measures    what an analysis says at each step: its own result with a `step` axis in front
    curve       one number a step, read off the measures: "loss", "induction" ...
    material    what the default measures are taken on, the same at every step

`step` is the number of updates made. Along it lie the coordinates `tokens_seen`, how much text the
model had been trained on by then, and `checkpoint`, the hash of its weights. Steps that could not
be read are left out and named in attrs["skipped"].

Two changes at the same step coincide; none of this shows that one causes the other.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
