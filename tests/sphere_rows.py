"""Rows to try the laws of the sphere on: every magnitude, every degenerate shape."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

EPS = 1e-5
SHAPES = ("gaussian", "heavy tails", "one coordinate", "shifted far along 1")


@st.composite
def rows(draw, *, min_d: int = 2, dtype: torch.dtype = torch.float64, n: int = 3) -> torch.Tensor:
    """[n, d] with d from min_d to 33 and magnitudes from 1e-8 to 1e8; no row is constant."""
    d = draw(st.integers(min_d, 33))
    exponent = draw(st.floats(-8, 8))
    shape = draw(st.sampled_from(SHAPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if shape == "heavy tails":
        x = x**5
    if shape == "one coordinate":
        x = torch.eye(d, dtype=torch.float64)[torch.randint(0, d, (n,), generator=generator)]
    if shape == "shifted far along 1":
        x = x + 300.0
    return (x * 10.0**exponent).to(dtype)


@st.composite
def constant_rows(draw, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """[3, d] of rows along 1, of any magnitude, zero included."""
    d = draw(st.integers(2, 33))
    scale = draw(st.one_of(st.just(0.0), st.floats(-8, 8).map(lambda e: 10.0**e)))
    values = torch.tensor([[1.0], [-0.1], [1 / 3]], dtype=torch.float64) * scale
    return values.expand(3, d).clone().to(dtype)


class Exact:
    """LayerNorm in extended precision, written without looking at the code under test."""

    def __init__(self, x: torch.Tensor, plus: torch.Tensor | None = None, eps: float = EPS) -> None:
        self.centred = self._centred(x)
        if plus is not None:  # centred first: next to a large mean a small update would vanish
            self.centred = self.centred + self._centred(plus)
        self.variance = (self.centred**2).mean(-1)
        self.s = np.sqrt(self.variance + np.longdouble(eps))
        self.y = self.centred / self.s[..., None]
        self.radius = np.sqrt((self.y**2).sum(-1))

    @staticmethod
    def _centred(x: torch.Tensor) -> np.ndarray:
        wide = x.numpy().astype(np.longdouble)
        once = wide - wide.mean(-1, keepdims=True)
        # Far along 1, even 64 bits of mean leave a rest.
        return once - once.mean(-1, keepdims=True)

    def like(self, name: str) -> torch.Tensor:
        """One of the attributes as float64."""
        return torch.from_numpy(np.asarray(getattr(self, name), dtype=np.float64))
