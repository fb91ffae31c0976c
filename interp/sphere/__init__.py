"""The LayerNorm sphere: where the residual stream points, and what each update does to that.

Every sublayer of a pre-norm transformer, and the unembedding, reads the stream x through
LayerNorm. Before gain and bias, LayerNorm puts x on a sphere, or rather strictly inside it:

    x~      x - mean(x): P x, with P = I - 1 1^T / d. The mean is lost.
    sigma   |x~| / sqrt(d), the standard deviation of x's coordinates
    s       sqrt(sigma^2 + eps), what LayerNorm divides by
    y       x~ / s, LayerNorm's output before gain and bias (`hook_normalized`)
    x^      x~ / |x~|, the direction: all that the length of x cannot change
    kappa   eps / sigma^2, how much epsilon matters
    rho     |y| / sqrt(d) = (1 + kappa)^(-1/2), below 1: how far out y lies

The 2L+1 stream states (the embedding, then one after each sublayer) and the 2L+1 LayerNorms that
read them are the same list: state i is read by norm i. A *hop* is the move from one state to the
next, made by one sublayer; there are 2L. Attention-only models have L+1 states and L hops.

RMSNorm is the same with x~ = x: a sphere in all of R^d, nothing lost to a mean. Functions about
the mean refuse such a model; models without normalisation are refused by all that need y.

Where a function takes an input, a `Trace` of it that kept every site does as well, and saves the
forward pass when several questions are asked of one prompt.

Angles are radians and come from atan2, never arccos, so that they keep their digits near 0 and pi.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
