"""Whose weights are these? Names first, then shapes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .dialect import EMBED, UNEMBED, Dialect, Stored
from .dialects import DIALECTS, OUTSIDE, WRAPPERS
from .errors import ModelError

Place = tuple[int, ...]
"""Where a tensor stands along the axes that a dialect spreads over names, such as (layer, head)."""

_AXIS = re.compile(r"\{(\w+)\}")
_N_PARTS = 3


@dataclasses.dataclass(frozen=True)
class Fit:
    """How the names of a file fit a dialect.

    Attributes:
        stored: where the dialect keeps each parameter, in the spelling that this file uses.
        names: the file's name of each tensor, by our parameter and its place.
        surplus: names of the file that are not the dialect's.
        missing: the first name of the dialect that is not in the file, if any.
    """

    dialect: Dialect
    stored: Mapping[str, Stored]
    names: Mapping[str, Mapping[Place, str]]
    surplus: Sequence[str]
    missing: Sequence[str]

    @property
    def holds(self) -> bool:
        return not (self.surplus or self.missing)

    def count(self, axis: str) -> int | None:
        """How many there are along an axis that is in names; None when it is in no name."""
        counts = [
            1 + max(place[axes.index(axis)] for place in self.names[parameter])
            for parameter, stored in self.stored.items()
            if axis in (axes := axes_of(stored.name)) and self.names[parameter]
        ]
        return max(counts, default=None)

    def named(self, parameter: str, layer: int | None = None) -> list[str]:
        """The file's names of one of our parameters, in the order of its other axes."""
        found = self.names[parameter]
        return [found[p] for p in sorted(found) if layer is None or p[0] == layer]


def axes_of(template: str) -> list[str]:
    """The axes that a name template spreads over names, in order: `layer` comes first."""
    return _AXIS.findall(template)


def spell(template: str, place: Place, dialect: Dialect) -> str:
    """The name at a place."""
    values = dict(zip(axes_of(template), place, strict=True))
    return _AXIS.sub(
        lambda match: (
            dialect.parts[values["part"]] if match[1] == "part" else str(values[match[1]])
        ),
        template,
    )


def bare(name: str) -> str:
    """A name without the parts that only say how the model was wrapped."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def bare_names(names: Iterable[str]) -> dict[str, str]:
    """The given name of each bare one.

    Raises:
        ModelError: when two names are the same without their wrapping.
    """
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(bare(name), name)
        if other != name:
            raise ModelError(
                f"the file holds both {other} and {name}, which are one tensor with different "
                "prefixes: keep one of the two."
            )
    return found


def recognise(names: Iterable[str], only: str | None = None) -> list[Fit]:
    """The dialects that have exactly these names, in the order of `DIALECTS`.

    Args:
        only: the one dialect to consider.

    Raises:
        ModelError: when none has; it says which comes nearest and what is missing or surplus, or
            what shows that the architecture is another one.
    """
    if only is not None and only not in DIALECTS:
        raise ModelError(f"there is no dialect {only!r}: use one of {', '.join(DIALECTS)}.")
    given = bare_names(names)
    fits = [fit(DIALECTS[name], given) for name in ([only] if only else DIALECTS)]
    if whole := [fit for fit in fits if fit.holds]:
        return whole
    raise ModelError(_why_none(fits, given))


def fit(dialect: Dialect, given: Mapping[str, str]) -> Fit:
    """How names fit one dialect; `given` is what `bare_names` answers."""
    left = dict(given)
    stored: dict[str, Stored] = {}
    names: dict[str, dict[Place, str]] = {}
    for parameter, entry in dialect.tensors.items():
        tried = [(s, _find(s, left, dialect)) for s in spellings(entry.name)]
        spelling, found = max(tried, key=lambda pair: len(pair[1]))
        stored[parameter] = Stored(spelling, entry.layout)
        names[parameter] = {place: left.pop(name) for place, name in found.items()}
    for template in dialect.ignored:
        for name in _find(template, left, dialect).values():
            del left[name]
    partial = Fit(dialect, stored, names, sorted(left.values()), ())
    # the first is enough to say, and a file may claim a layer 9999
    return dataclasses.replace(partial, missing=list(itertools.islice(_missing(partial), 1)))


def _missing(fit: Fit) -> Iterator[str]:
    absent = {parameter for parameter, found in fit.names.items() if not found}
    allowed: set[str] = set()
    for group in fit.dialect.optional:
        if group & fit.stored.keys() <= absent:
            allowed |= group
    if absent >= EMBED | UNEMBED:
        allowed -= EMBED
    ranges = {"layer": fit.count("layer") or 1, "head": fit.count("head") or 1, "part": _N_PARTS}
    for parameter, stored in fit.stored.items():
        if parameter in absent and parameter in allowed:
            continue
        for place in itertools.product(*(range(ranges[axis]) for axis in axes_of(stored.name))):
            if place not in fit.names[parameter]:
                yield spell(stored.name, place, fit.dialect)


def is_buffer(name: str, dialect: Dialect) -> bool:
    """Whether a name is one that the dialect keeps no weights under."""
    return any(_find(template, [bare(name)], dialect) for template in dialect.ignored)


def _find(template: str, given: Iterable[str], dialect: Dialect) -> dict[Place, str]:
    pattern = _pattern(template, dialect)
    axes = axes_of(template)
    found = {}
    for name in given:
        if match := pattern.fullmatch(name):
            place = tuple(
                dialect.parts.index(match[axis]) if axis == "part" else int(match[axis])
                for axis in axes
            )
            found[place] = name
    return found


def _pattern(template: str, dialect: Dialect) -> re.Pattern[str]:
    pieces = _AXIS.split(bare(template))
    for i in range(1, len(pieces), 2):
        values = "|".join(dialect.parts) if pieces[i] == "part" else r"0|[1-9]\d{0,3}"
        pieces[i] = f"(?P<{pieces[i]}>{values})"
    pieces[::2] = map(re.escape, pieces[::2])
    return re.compile("".join(pieces))


def spellings(template: str) -> Iterator[str]:
    """Every way to read the (a|b) of a template."""
    pieces = re.split(r"\(([^)]*)\)", template)
    pieces[::2] = [[piece] for piece in pieces[::2]]  # type: ignore[assignment]  (strings and lists)
    choices = [piece.split("|") if isinstance(piece, str) else piece for piece in pieces]
    for choice in itertools.product(*choices):
        yield "".join(choice)


def _why_none(fits: Sequence[Fit], given: Mapping[str, str]) -> str:
    nearest = max(fits, key=lambda fit: len(given) - len(fit.surplus))
    n_known = len(given) - len(nearest.surplus)
    strange = nearest.surplus
    for pattern, reason in OUTSIDE.items():
        for name in strange:
            if re.search(pattern, name):
                return (
                    f"{name} belongs to {reason}: only GPTs with learned positions, LayerNorm "
                    "before each sublayer and a plain MLP can be converted."
                )
    if n_known < len(given) / 3:
        return (
            f"no known GPT has tensors named {', '.join(sorted(given.values())[:3])} ...: "
            f"the dialects are {', '.join(DIALECTS)}; rename the tensors to one of them."
        )
    whose = f"the names fit {nearest.dialect.name} best"
    if strange:
        other = next(
            (f.dialect.name for f in fits if f is not nearest and strange[0] not in f.surplus), None
        )
        kind = f", which is of {other}: two dialects are mixed" if other else ", which it has not"
        return f"{whose}, but there is {strange[0]}{kind}; leave it out or save the model again."
    return f"{whose}, but {nearest.missing[0]} is missing: save the whole state dict."


def sizes(fit: Fit, shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], list[str]]:
    """The size of each axis, and in one sentence each the tensors that contradict it.

    A size is what most tensors say, so that one misshapen tensor is told from the others.
    """
    votes: dict[str, Counter[int]] = {}
    for parameter, stored in fit.stored.items():
        dims = dimensions(stored.layout)
        for name in fit.names[parameter].values():
            if len(shapes[name]) == len(dims):
                for axes, size in zip(dims, shapes[name], strict=True):
                    if len(axes) == 1:
                        votes.setdefault(axes[0], Counter())[size] += 1
    found = {axis: counter.most_common(1)[0][0] for axis, counter in votes.items()}
    found |= {"part": _N_PARTS, "1": 1}
    if (named := fit.count("head")) is not None:
        found["head"] = named
    if "head" in found and "d_model" in found:
        found.setdefault("d_head", found["d_model"] // found["head"])
    return found, list(_misfits(fit, shapes, found))


def dimensions(layout: str) -> list[list[str]]:
    """The axes of each dimension of a layout."""
    return [dim.strip("()").split() for dim in re.findall(r"\([^)]*\)|\S+", layout)]


def _misfits(
    fit: Fit, shapes: Mapping[str, Sequence[int]], found: Mapping[str, int]
) -> Iterator[str]:
    for parameter, stored in fit.stored.items():
        for name in fit.names[parameter].values():
            expected = [_extent(axes, found) for axes in dimensions(stored.layout)]
            if list(shapes[name]) != expected:
                yield (
                    f"{name} has shape {list(shapes[name])} where {fit.dialect.name} has "
                    f"{expected} ({stored.layout})"
                )


def _extent(axes: Sequence[str], found: Mapping[str, int]) -> int:
    extent = 1
    for axis in axes:
        if axis == "head" and "head" not in found:
            return extent * found.get("d_model", 0)  # head and d_head together, always
        extent *= found.get(axis, 0)
    return extent
