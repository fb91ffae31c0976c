"""A progress bar for any analysis that takes `progress`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from interp.replay import Progress


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show on the terminal how far an analysis is and how long it still takes.

        with progress_bar("neurons") as progress:
            neuron_statistics(model, corpus, progress=progress)

    Of several processes only the first one draws.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from interp.corpus import process

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True), disable=process()[0] > 0) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
