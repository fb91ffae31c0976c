"""A page's work, done and written down at once.

A view asks an analysis, draws a figure, checks an identity, each through its `Worksheet`. What
was called is what the page shows as code, so the code cannot say anything else, and the same
words are the key under which answers are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

import interp
from chart import chart
from interp import figures
from literal import literal
from long_work import long_work
from pictures import offer_pictures
from runs import shown_path
from selection import Selection, current
from tables import offer_tables

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Answer = TypeVar("Answer")
TEXTS = ("prompt", "corrupt")


@dataclass(frozen=True)
class Check:
    """An identity that must hold, and how far the page's numbers are from it."""

    sentence: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance


@dataclass
class Worksheet:
    """The calls, figures and checks of one page, in the order in which the view makes them."""

    selection: Selection = field(default_factory=current)
    lines: list[str] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    drawn: dict[str, Figure] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    """the name of each result in the code, and the expression that makes it, by object id"""
    texts: set[str] = field(default_factory=set)
    """which prompts the code needs"""
    others: list[str] = field(default_factory=list)
    """what is asked besides the selected model, for the cache"""

    def __post_init__(self) -> None:
        self.names[id(self.selection.model)] = ("model", "model")
        for name in TEXTS:
            text = getattr(self.selection, name)
            # Python keeps one object for each single letter, so that could as well be a target.
            if len(text) > 1:
                self.names[id(text)] = (name, repr(text))

    def ask(
        self, name: str, analysis: Callable[..., Answer], *arguments: Any, **settings: Any
    ) -> Answer:
        """`name = analysis(model, ...)`, from the cache if anybody has asked it before.

        The answer is shared between sessions: read it, never change it.
        """
        return self.combine(name, analysis, self.selection.model, *arguments, **settings)

    def combine(
        self, name: str, function: Callable[..., Answer], *arguments: Any, **settings: Any
    ) -> Answer:
        """`name = function(...)` of earlier answers, or of another model; cached like `ask`."""
        words, source = self._call(function, arguments, settings)
        answer = _answer(self.asked_of, source, lambda: function(*arguments, **settings))
        return self._noted(name, answer, words, source)

    def sweep(
        self,
        name: str,
        analysis: Callable[..., Answer],
        *arguments: Any,
        meanwhile: Callable[[Worksheet], None],
        how: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Answer | None:
        """Like `ask`, for work that may take long: it shows its progress and can be stopped.

        Args:
            analysis: takes `progress`.
            meanwhile: draws what can be had at once, on the worksheet it is given.
            how: settings that change how fast the answer comes and not the answer.

        Returns:
            None when it was stopped; what `meanwhile` draws is then the page's.
        """
        given = (self.selection.model, *arguments)
        begin = "Run the exact sweep"
        return self._long(
            name, analysis, given, settings, meanwhile, begin=begin, of="runs", how=how or {}
        )

    def sweep_steps(
        self, name: str, analysis: Callable[..., Answer], series: Any, *, at_once: bool,
        **settings: Any,
    ) -> Answer | None:  # fmt: skip
        """Like `sweep`, over the snapshots of a run, and only when it is asked for.

        Args:
            at_once: do not wait until somebody asks.
        """
        return self._long(
            name, analysis, (series,), settings, begin="Measure every snapshot", of="snapshots",
            unasked=at_once,
        )  # fmt: skip

    def _long(
        self,
        name: str,
        function: Callable[..., Answer],
        given: tuple,
        settings: Mapping[str, Any],
        meanwhile: Callable[[Worksheet], None] = lambda sheet: None,
        *,
        begin: str,
        of: str,
        unasked: bool = True,
        how: Mapping[str, Any] = MappingProxyType({}),
    ) -> Answer | None:
        words, source = self._call(function, given, settings)
        answer = long_work(
            f"{self.asked_of} {source}",
            _kept(self.asked_of, source),
            lambda progress: function(*given, progress=progress, **settings, **how),
            lambda: meanwhile(self._aside()),
            begin=begin,
            of=of,
            unasked=unasked,
        )
        if answer is None:
            meanwhile(self)
            return None
        return self._noted(name, answer, words, source)

    def _call(
        self, function: Callable, arguments: tuple, settings: Mapping[str, Any]
    ) -> tuple[str, str]:
        """A call as the page's code has it, and in full."""
        called = self._import(function)
        short, full = (self._written(arguments, settings, inline=full) for full in (False, True))
        return f"{called}({short})", f"{called}({full})"

    def _noted(self, name: str, answer: Answer, words: str, source: str) -> Answer:
        self.lines.append(f"{name} = {words}")
        self.results[name] = answer
        self.names[id(answer)] = (name, source)
        return answer

    def _aside(self) -> Worksheet:
        """A sheet that knows what this one knows and keeps its own notes, for a passing view."""
        return Worksheet(self.selection, names=dict(self.names), others=list(self.others))

    def given(self, name: str, value: Answer, source: str, identity: str, *needs: str) -> Answer:
        """`name = source`: something that was had elsewhere, such as another model.

        Args:
            identity: what tells this value from all others that the same words could make.
            needs: names that `source` takes from `model`.
        """
        self.lines.append(f"{name} = {source}")
        self.imports.setdefault("model", set()).update(needs)
        self.others.append(identity)
        self.results[name] = value
        self.names[id(value)] = (name, name)
        return value

    def draw(
        self,
        name: str,
        figure: Callable[..., Figure],
        *arguments: Any,
        alt: str,
        on_click: Callable[[list[Any]], None] | None = None,
        **settings: Any,
    ) -> None:
        """`name = figure(...)`, shown as a chart.

        Args:
            alt: the chart in words.
            on_click: called with the customdata of a point that was clicked.
        """
        if self.selection.dark:
            settings["dark"] = True
        called = f"figures.{figure.__name__}"
        words = f"{called}({self._written(arguments, settings)})"
        source = f"{called}({self._written(arguments, settings, inline=True)})"
        drawn, as_json = _figure(self.asked_of, source, lambda: figure(*arguments, **settings))
        self.lines.append(f"{name} = {words}")
        self.drawn[name] = drawn
        chart(
            as_json,
            key=name,
            alt=alt,
            subject=f"{called} {self.selection.run.path} {self.selection.prompt}",
            on_click=on_click,
        )

    def check(self, sentence: str, error: float, tolerance: float) -> None:
        """Note an identity; `close` shows it."""
        self.checks.append(Check(sentence, float(error), tolerance))

    @property
    def asked_of(self) -> str:
        """Which run, at which weights, and what besides it: what an answer is kept under."""
        own = f"{self.selection.run.path.resolve()} {self.selection.model.checkpoint_hash}"
        return " ".join([own, *self.others])

    @property
    def code(self) -> str:
        """The page as a script: paste it into Python where the explorer was started."""
        run, step = self.selection.run, self.selection.step
        at = "" if step == run.steps[-1] else f", step={step}"
        imports = [
            f"from {module} import {', '.join(sorted(names))}"
            for module, names in sorted(
                (self.imports | {"model": self.imports.get("model", set()) | {"load"}}).items()
            )
        ]
        return "\n".join(
            [
                *imports,
                "",
                f"model = load({shown_path(run.path)!r}{at})",
                *(
                    f"{name} = {getattr(self.selection, name)!r}"
                    for name in sorted(self.texts)[::-1]
                ),
                *self.lines,
            ]
        )

    def close(self) -> None:
        """The foot of the page: checks in one line, then data, figures, code, checks in full."""
        if self.checks and all(check.holds for check in self.checks):
            st.caption(":green[**✓**] " + " · ".join(map(_in_words, self.checks)))
        for check in self.checks:
            if not check.holds:
                st.error(f"This check fails: {_in_words(check)}. Do not trust the numbers above.")
        _foot(self)

    def _import(self, function: Callable) -> str:
        name = function.__name__
        public = getattr(interp, name, None) is function
        self.imports.setdefault("interp" if public else function.__module__, set()).add(name)
        self.imports.setdefault("interp", set()).add("figures")
        return name

    def _written(
        self, arguments: tuple, settings: Mapping[str, Any], *, inline: bool = False
    ) -> str:
        def word(value: Any) -> str:
            if id(value) not in self.names:
                return repr(value)
            name, source = self.names[id(value)]
            if name in TEXTS:
                self.texts.add(name)
            return source if inline else name

        words = [word(value) for value in arguments]
        words += [f"{name}={word(value)}" for name, value in settings.items()]
        return ", ".join(words)


@st.cache_resource(max_entries=128, show_spinner=False)
def _answer(asked_of: str, question: str, _ask: Callable[[], Any]) -> Any:
    """An answer by its own words. Models and tensors are not hashed."""
    return _ask()


@st.cache_resource(max_entries=32, show_spinner=False)
def _kept(asked_of: str, question: str) -> list[Any]:
    """Where the answer of long work goes once it is whole."""
    return []


@st.cache_resource(max_entries=64, show_spinner=False)
def _figure(asked_of: str, question: str, _draw: Callable[[], Figure]) -> tuple[Figure, str]:
    """A figure, and its JSON for the browser."""
    figure = _draw()
    return figure, str(figure.to_json())


# On its own, so that looking into a tab does not run the page; and only what is looked at is made,
# which spares each move of the position half of what the browser would have to lay out.
@st.fragment
def _foot(page: Worksheet) -> None:
    data, pictures, code, checks = st.tabs(
        ["Data", "Figure", "Code", "Checks"], key="foot", on_change="rerun"
    )
    if data.open:
        with data:
            offer_tables(page.results)
    if pictures.open:
        with pictures:
            offer_pictures(page.drawn)
    if code.open:
        with code:
            st.caption("Gives the numbers and figures of this page, pasted into Python here.")
            st.code(page.code, language="python")
    if checks.open:
        with checks:
            st.table(list(map(_as_row, page.checks)))


def _as_row(check: Check) -> dict[str, str]:
    return {
        "what must hold": literal(check.sentence),
        "off by": f"{check.error:.2e}",
        "allowed": f"{check.tolerance:.0e}",
        "": "holds" if check.holds else "FAILS",
    }


def _in_words(check: Check) -> str:
    return f"{literal(check.sentence)} (off by {check.error:.1e})"


__all__ = ["Worksheet", "figures"]
