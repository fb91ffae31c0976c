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
    return [asked["figure"] for asked in asked_charts(app)]


def asked_charts(app: AppTest) -> list[dict[str, Any]]:
    """What the browser is asked to draw: each figure, and what is said about it."""
    components = [each.proto for each in app.get("bidi_component")]
    asked = [json.loads(it.bytes) for it in components if it.component_name == "orrery_chart"]
    return [it for it in asked if it["figure"] is not None]


def sentences(app: AppTest) -> list[str]:
    """What the page finds wrong, without the marks that keep markdown out."""
    assert not app.exception, [each.value for each in app.exception]
    told = [*app.error, *app.warning]
    return [each.value.replace("\\", "") for each in told]
