"""What a page of the explorer says and draws, read without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

APPS = Path(__file__).parents[1] / "apps"
VIEWS = [path.stem for path in sorted((APPS / "views").glob("*.py"))]


def charts(app: AppTest) -> list[dict[str, Any]]:
    """The figures on a page, as plotly's JSON."""
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def sentences(app: AppTest) -> list[str]:
    """What the page finds wrong, without the marks that keep markdown out."""
    assert not app.exception, [each.value for each in app.exception]
    told = [*app.error, *app.warning]
    return [each.value.replace("\\", "") for each in told]
