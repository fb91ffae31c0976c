"""Pictures of results: each function takes what an analysis returned and gives a plotly Figure.

    figure: (result, ...) -> plotly.graph_objects.Figure

Nothing is computed here but colours and labels. Every figure sets its own template, so it looks
the same in a notebook, in an exported file and in the explorer; `dark=True` draws it for a dark
page. Conventions:

    probabilities   sequential, from 0 (the page's own colour) to 1
    differences     diverging, 0 in the middle: blue towards the target, red away from it
    positions       an axis of numbers, labelled with tokens (which repeat); cells that a causal
                    model cannot fill stay empty
    tokens          always shown literally: ␣ space, ↵ newline, ⇥ tab, U+XXXX for what cannot be
                    seen; hovers give the string as Python would write it

Results of several prompts hold a `batch` axis of that length: choose one with `.isel(batch=[i])`.
This package is the only place that imports plotly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
