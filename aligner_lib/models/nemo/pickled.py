"""Read and write pickles as data: names in a pickle are not looked up, and no function is called.

Python's own unpickler imports and calls whatever a file contains. Here, a name becomes a `Global`, and a call or a new object
becomes a `Call`. The reader of each format takes the necessary parts from these objects. The opcodes come from Python's
`pickletools`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ORDERED_DICT = "collections.OrderedDict"


class Global(NamedTuple):
    """A class or function named in a pickle."""

    name: str
    """Module and name, joined by a dot."""


@dataclass(eq=False)  # hashed by identity, because it may be a key of a dictionary
class Call:
    """A function's result or a new object: the function, its arguments, and the state set on the result."""

    function: str
    args: Any
    state: Any = None


@dataclass(eq=False)
class External:
    """An object outside the pickle, such as a tensor's storage. The pickle contains only the object's id."""

    id: Any


class Refused(ValueError):
    """A damaged pickle, or a pickle with a name outside its format."""


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = set(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING SHORT_BINBYTES BINBYTES BINBYTES8".split()
)


def read_pickle(data: bytes, allowed: Callable[[str], bool]) -> Any:
    """The content of a pickle: dictionaries, lists, tuples, texts and numbers, `Global`, `Call` and `External`.

    An OrderedDict becomes a dict; the OrderedDict's state is left out.

    allowed: whether the format needs a name. Raises Refused for any other name and for a damaged pickle.
    """
    machine = _Machine(allowed)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.do(opcode.name, argument)
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise Refused(f"its pickle is damaged ({ascii(str(error))[:80]})") from None
    raise Refused("its pickle is damaged (the end is missing)")


def write_pickle(value: Any) -> bytes:
    """The pickle (protocol 2) of dictionaries, lists, tuples, texts, numbers, `Global`, `Call` and `External`.

    A `Call` with a state is a new object of a class, a `Call` without a state is a function's result. `Call(ORDERED_DICT, ())`
    makes an OrderedDict.
    """
    out = bytearray(b"\x80\x02")
    _write(value, out)
    return bytes(out + b".")


def _write(value: Any, out: bytearray) -> None:
    if isinstance(value, Global):  # before the check for a tuple, because a Global is a tuple
        module, _, name = value.name.rpartition(".")
        out += f"c{module}\n{name}\n".encode()
    elif isinstance(value, Call):
        _write(Global(value.function), out)
        _write(value.args, out)
        out += b"R" if value.state is None else b"\x81"
        if value.state is not None:
            _write(value.state, out)
            out += b"b"
    elif isinstance(value, External):
        _write(value.id, out)
        out += b"Q"
    elif value is None or isinstance(value, bool):
        out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        number = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        out += b"\x8a" + bytes([len(number)]) + number
    elif isinstance(value, str):
        text = value.encode()
        out += b"X" + len(text).to_bytes(4, "little") + text
    elif isinstance(value, tuple):
        _write_all(b"(", value, b"t", out)
    elif isinstance(value, list):
        _write_all(b"](", value, b"e", out)
    else:
        _write_all(b"}(", [part for item in value.items() for part in item], b"u", out)


def _write_all(begin: bytes, values: Iterable, end: bytes, out: bytearray) -> None:
    out += begin
    for value in values:
        _write(value, out)
    out += end


@dataclass
class _Machine:
    allowed: Callable[[str], bool]
    stack: list = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("its pickle is damaged (a mark where a value should be)")
        return value

    def pop_to_mark(self) -> list:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def do(self, name: str, argument: Any) -> None:
        if name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif (operation := getattr(self, f"_{name.lower()}", None)) is not None:
            operation(argument)
        else:
            raise Refused(f"its pickle has the opcode {name}, which weights do not need")

    # -- containers -----------------------------------------------------------------------------------------------

    def _mark(self, _) -> None:
        self.stack.append(_MARK)

    def _empty_dict(self, _) -> None:
        self.stack.append({})

    def _empty_list(self, _) -> None:
        self.stack.append([])

    def _empty_set(self, _) -> None:
        self.stack.append(set())

    def _empty_tuple(self, _) -> None:
        self.stack.append(())

    def _dict(self, _) -> None:
        values = self.pop_to_mark()
        self.stack.append(dict(zip(values[::2], values[1::2], strict=True)))

    def _list(self, _) -> None:
        self.stack.append(self.pop_to_mark())

    def _tuple(self, _) -> None:
        self.stack.append(tuple(self.pop_to_mark()))

    def _tuple1(self, _) -> None:
        self._tuple_of(1)

    def _tuple2(self, _) -> None:
        self._tuple_of(2)

    def _tuple3(self, _) -> None:
        self._tuple_of(3)

    def _tuple_of(self, count: int) -> None:
        self.stack.append(tuple(self.pop() for _ in range(count))[::-1])

    def _append(self, _) -> None:
        value = self.pop()
        self._extend([value])

    def _appends(self, _) -> None:
        self._extend(self.pop_to_mark())

    def _additems(self, _) -> None:
        self.stack[-1].update(self.pop_to_mark())

    def _extend(self, values: list) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)  # the items of a Call are not needed

    def _setitem(self, _) -> None:
        value, key = self.pop(), self.pop()
        self._update({key: value})

    def _setitems(self, _) -> None:
        values = self.pop_to_mark()
        self._update(dict(zip(values[::2], values[1::2], strict=True)))

    def _update(self, items: dict) -> None:
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(items)

    # -- names and calls ------------------------------------------------------------------------------------------

    def _global(self, argument: str) -> None:
        self._push_name(*argument.split(" ", 1))

    def _stack_global(self, _) -> None:
        name, module = self.pop(), self.pop()
        self._push_name(module, name)

    def _push_name(self, module: str, name: str) -> None:
        whole = f"{module}.{name}"
        if not self.allowed(whole):
            raise Refused(
                f"its pickle contains {ascii(whole)[:80]}, which weights do not need: nothing of the pickle was run"
            )
        self.stack.append(Global(whole))

    def _reduce(self, _) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(function, Global):
            raise Refused("its pickle calls an object other than a function")
        empty = function.name == ORDERED_DICT and args == ()
        self.stack.append({} if empty else Call(function.name, args))

    def _newobj(self, _) -> None:
        self._reduce(None)

    def _newobj_ex(self, _) -> None:
        self.pop()  # keyword arguments
        self._reduce(None)

    def _build(self, _) -> None:
        state = self.pop()
        if isinstance(self.stack[-1], Call):
            self.stack[-1].state = state

    def _binpersid(self, _) -> None:
        self.stack.append(External(self.pop()))

    def _persid(self, argument: str) -> None:
        self.stack.append(External(argument))

    # -- memory ---------------------------------------------------------------------------------------------------

    def _put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    _binget = _long_binget = _get

    def _pop(self, _) -> None:
        self.stack.pop()

    def _pop_mark(self, _) -> None:
        self.pop_to_mark()

    def _dup(self, _) -> None:
        self.stack.append(self.stack[-1])

    def _proto(self, _) -> None:
        pass

    _frame = _proto
