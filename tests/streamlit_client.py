"""A session of the explorer without a browser: the same messages over the same websocket."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import numpy as np
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.sync.client import connect


class Client:
    """One tab. `charts` are the figures of the last run, `sentences` what it found wrong."""

    def __init__(self, address: str) -> None:
        self.connection = connect(
            address.replace("http", "ws", 1) + "/_stcore/stream",
            origin=address,  # type: ignore[arg-type]
            max_size=None,
            subprotocols=["streamlit"],  # type: ignore[list-item]
        )
        self.socket = self.connection.__enter__()
        self.known: dict[str, ForwardMsg] = {}
        self.query = ""
        self.states: dict[str, WidgetState] = {}
        self.charts: dict[str, str] = {}
        self.sentences: list[str] = []
        self.widgets: dict[str, Any] = {}
        """the widgets of the last run, as the server described them, by their key"""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.__exit__(None, None, None)

    def open(self, page: str, **query: Any) -> None:
        """Follow a link to a page, or click on it in the navigation."""
        self.query = urlencode(query) if query else self.query
        self._run(page)

    def move(self, page: str, key: str, value: int) -> None:
        """Move a slider."""
        state = self._state(self.widgets[key].id)
        state.double_array_value.data[:] = [value]
        self._run(page)

    def write(self, page: str, key: str, text: str) -> None:
        """Type into a box."""
        self._state(self.widgets[key].id).string_value = text
        self._run(page)

    def press(self, page: str, key: str) -> None:
        """Press a button."""
        id = self.widgets[key].id
        self._state(id).trigger_value = True
        self._run(page)
        del self.states[id]

    def _state(self, id: str) -> WidgetState:
        return self.states.setdefault(id, WidgetState(id=id))

    def _run(self, page: str) -> None:
        back = BackMsg()
        # As a browser does: what every widget holds, each time.
        back.rerun_script.widget_states.widgets.extend(self.states.values())
        back.rerun_script.query_string = self.query
        back.rerun_script.page_name = page
        back.rerun_script.context_info.timezone = "UTC"
        self.charts, self.sentences, self.widgets = {}, [], {}
        self.socket.send(back.SerializeToString())
        finished = False
        while not finished:
            message = ForwardMsg()
            message.ParseFromString(self.socket.recv(timeout=120))  # type: ignore[arg-type]
            finished = self._take(message)

    def _take(self, message: ForwardMsg) -> bool:
        kind = message.WhichOneof("type")
        if kind == "ref_hash":
            # The server leaves out what it has sent before.
            metadata = message.metadata
            message = self.known[message.ref_hash]
            message.metadata.CopyFrom(metadata)
            kind = message.WhichOneof("type")
        elif message.metadata.cacheable:
            self.known[message.hash] = message
        if kind == "script_finished":
            return message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY
        if kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        if kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            self._element(message.delta.new_element)
        return False

    def _element(self, element: Any) -> None:
        kind = element.WhichOneof("type")
        if kind == "bidi_component" and element.bidi_component.component_name == "orrery_chart":
            figure = json.loads(element.bidi_component.bytes)["figure"]
            if figure is not None:
                self.charts[element.bidi_component.id] = json.dumps(figure)
        elif kind == "exception":
            self.sentences.append(f"{element.exception.type}: {element.exception.message}")
        elif kind == "alert":
            self.sentences.append(element.alert.body)
        elif hasattr(widget := getattr(element, str(kind)), "id"):
            self.widgets[widget.id.rsplit("-", 1)[-1]] = widget
            if getattr(widget, "set_value", False):
                self._hold(kind, widget)

    def _hold(self, kind: str | None, widget: Any) -> None:
        """Take over what the server has set, as a browser does."""
        state = self._state(widget.id)
        if kind == "slider":
            state.double_array_value.data[:] = widget.value
        elif kind in ("text_area", "text_input"):
            state.string_value = widget.value
        elif kind == "selectbox":
            state.string_value = widget.raw_value
        else:
            del self.states[widget.id]


def numbers(spec: str) -> list[np.ndarray]:
    """Every number that a figure draws, in order."""
    return [np.asarray(each, dtype=float).ravel() for each in _numbers(json.loads(spec))]


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if {"dtype", "bdata"} <= value.keys():
            yield np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        else:
            for name in sorted(value):
                yield from _numbers(value[name])
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield [value]
