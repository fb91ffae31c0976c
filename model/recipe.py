"""How a GPT is trained: the settings, the learning rate and the snapshots at each step."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from .errors import ModelError
from .precision import PRECISIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training run; with the corpus and the seed they fix its result.

    The defaults were searched for on the course GPT and tiny Shakespeare, at 1.5 million tokens.

    Raises:
        ModelError: when a setting is outside its range.
    """

    steps: int
    batch_size: int = 12
    """windows of n_ctx tokens a step, over all processes"""
    learning_rate: float = 0.01
    """the peak rate, of Muon on the blocks' matrices and of AdamW on the rest"""
    embedding_rate: float = 2.0
    """the embeddings' rate, as a multiple of `learning_rate` (an unembedding tied to them: 1)"""
    warmup_steps: int = 100
    """steps over which the rate rises linearly from 0"""
    decay_power: float = 0.5
    """the rate falls to 0 as 1 - progress ** decay_power; 1 is a straight line"""
    momentum: float = 0.9
    """Muon's"""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's"""
    weight_decay: float = 0.1
    """on matrices and embeddings; biases and LayerNorms have none"""
    clip_norm: float = 1.0
    """gradients longer than this are shortened to it; 0 clips none"""
    seed: int = 1337
    """of the weights, the order of the data and dropout"""
    accumulate: int = 1
    """each process's share of the batch is fed in this many parts"""
    precision: str = "auto"
    """of matrix products: 'no' is float32, 'bf16' bfloat16 with weights and residual stream in
    float32, 'auto' the faster of the two (`model.precision`)"""
    compile: bool = False
    """run the model through torch.compile: slower to start, faster on GPUs"""
    snapshot_at: tuple[int, ...] = ()
    """steps to keep in addition to the grid"""
    snapshot_from: int = 1
    """the grid's first step after 0"""
    half_snapshots: bool = False
    """store all but the final weights in half precision"""
    evaluate_every: int = 0
    """steps between evaluations on the whole validation split; 0 only at the end"""

    def __post_init__(self) -> None:
        for name, low in (
            ("steps", 1),
            ("batch_size", 1),
            ("warmup_steps", 0),
            ("accumulate", 1),
            ("snapshot_from", 1),
            ("evaluate_every", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ModelError(f"{name}={value!r} is not a whole number from {low} up.")
        for name, low, high in (
            ("learning_rate", 0.0, math.inf),
            ("embedding_rate", 0.0, math.inf),
            ("decay_power", 0.0, math.inf),
            ("momentum", 0.0, 1.0),
            ("weight_decay", 0.0, math.inf),
            ("clip_norm", 0.0, math.inf),
        ):
            value = getattr(self, name)
            if not low <= value < high or (name == "decay_power" and value == 0):
                raise ModelError(f"{name}={value!r} is outside its range, {low:g} to {high:g}.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ModelError(f"betas={self.betas} are not two numbers from 0 up to 1.")
        if self.batch_size % self.accumulate:
            raise ModelError(
                f"batch_size={self.batch_size} is not a multiple of accumulate={self.accumulate}: "
                "choose sizes that divide."
            )
        if self.precision not in PRECISIONS:
            raise ModelError(
                f"precision={self.precision!r} is not known: use one of {', '.join(PRECISIONS)}."
            )
        beyond = [step for step in self.snapshot_at if not 0 <= step <= self.steps]
        if beyond:
            raise ModelError(
                f"snapshot_at={beyond[0]} is not a step of the run, which has 0 to {self.steps}."
            )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        try:
            return cls(**given)
        except TypeError as error:
            raise ModelError(
                f"the recipe is not one of this version ({error}): train again."
            ) from None

    def rate_factor(self, step: int) -> float:
        """What the peak rate is multiplied by in the update from `step` to `step + 1`."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return warmup * (1 - (step / self.steps) ** self.decay_power)

    @property
    def snapshot_steps(self) -> set[int]:
        """0, 1, 2, 4, ... 512, then times sqrt(2), and `snapshot_at`; never the final step."""
        grid = itertools.chain(
            (2**i for i in range(10)), (round(512 * 2 ** (i / 2)) for i in itertools.count(1))
        )
        kept = itertools.takewhile(lambda step: step < self.steps, grid)
        steps = {step for step in kept if step >= self.snapshot_from}
        return (steps | {0} | set(self.snapshot_at)) - {self.steps}

    @property
    def row_steps(self) -> set[int]:
        """The steps with a row in the history: about a hundred, each snapshot and evaluation."""
        steps = set(range(0, self.steps, max(1, self.steps // 100))) | self.snapshot_steps
        if self.evaluate_every:
            steps |= set(range(0, self.steps, self.evaluate_every))
        return steps | {self.steps}
