"""Pickles of plain values, read by a machine that has no instruction to call anything.

The opcodes are pickletools' (PEP 307, PEP 3154). Of these, only the ones that build dictionaries,
lists, tuples, strings and numbers are known here; any other one is refused before it is reached.
"""

from __future__ import annotations

import pickletools
from typing import Any

from .errors import ModelError

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_INTEGERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"})
_FLOATS = frozenset({"FLOAT", "BINFLOAT"})
_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_STORE = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_FETCH = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def read_plain_pickle(data: bytes, name: str) -> Any:
    """The value of a pickle that holds nothing but plain values.

    Raises:
        ModelError: when it would run code, holds an object of a class, or is damaged.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return stack.pop()
            _step(opcode.name, argument, stack, memo, name)
    except ModelError:
        raise
    except Exception as error:  # whatever a damaged pickle makes of the stack
        raise ModelError(f"{name} is a damaged pickle ({error}): write it again.") from None
    raise ModelError(f"{name} is a truncated pickle: write it again.")


def _step(opcode: str, argument: Any, stack: list[Any], memo: dict[int, Any], name: str) -> None:
    if opcode in _INTEGERS | _FLOATS | _STRINGS:
        stack.append(argument)
    elif opcode in _CONSTANTS:
        stack.append(_CONSTANTS[opcode])
    elif opcode in _EMPTY:
        stack.append(_EMPTY[opcode]())
    elif opcode == "MARK":
        stack.append(_MARK)
    elif opcode == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif opcode in _STORE:
        memo[int(argument)] = stack[-1]
    elif opcode in _FETCH:
        stack.append(memo[int(argument)])
    elif opcode in _TUPLES:
        items = [stack.pop() for _ in range(_TUPLES[opcode])]
        stack.append(tuple(reversed(items)))
    elif opcode == "TUPLE":
        stack.append(tuple(_to_mark(stack)))
    elif opcode == "LIST":
        stack.append(_to_mark(stack))
    elif opcode == "DICT":
        stack.append(_pairs(_to_mark(stack)))
    elif opcode in ("APPEND", "APPENDS"):
        items = _to_mark(stack) if opcode == "APPENDS" else [stack.pop()]
        list.extend(stack[-1], items)
    elif opcode in ("SETITEM", "SETITEMS"):
        items = _to_mark(stack) if opcode == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
        dict.update(stack[-1], _pairs(items))
    elif opcode not in ("PROTO", "FRAME"):
        raise ModelError(
            f"{name} is a pickle that does more than hold plain values ({opcode}), and nothing of "
            "a file is ever run: save the vocabulary as JSON."
        )


def _to_mark(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
