"""The outcome of a function call (outputs, gradients or an error), and the first difference between two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aligner_lib.tutorial.exercises.exercise import ImportedLate
from aligner_lib.tutorial.exercises.time_limit import LoopWithoutEnd, time_limit

if TYPE_CHECKING:
    from torch import Tensor

torch = ImportedLate("torch")

# tolerance: in float32, the last digits depend on the order of the operations
RELATIVE, ABSOLUTE = 1e-4, 1e-5
PLAIN = str | int | float | None
SECONDS = 20.0  # time limit of a call; a right function takes milliseconds


@dataclass(frozen=True)
class AnswerOutcome:
    """The outcome of a function call."""

    outputs: tuple[Any, ...] = ()
    """The elements of the returned tuple, or the single returned value."""
    is_tuple: bool = False
    """Whether the function returned a tuple."""
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    """By input: the gradient of a random weighted sum of the outputs, or of an output that is a single number."""
    attached: tuple[bool, ...] = ()
    """Whether each output requires a gradient."""
    error: Exception | LoopWithoutEnd | None = None
    changed: str = ""
    """The first input that the function changed in place, or ""."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """By model and parameter: the weights of the models among the inputs, after the call."""


@dataclass(frozen=True)
class Difference:
    """The first difference between an outcome and the expected outcome."""

    what: str
    """What differs: the name of an output, "the gradient to NAME", "an error" or "the time", for example."""
    sentence: str
    yours: Any = None
    """The learner's value, which the verdict shows beside `expected`."""
    expected: Any = None


def outcome(function: Callable, inputs: dict[str, Any], gradients: tuple[str, ...]) -> AnswerOutcome:
    """Call the function on copies of the inputs. An error that the function raises is part of the outcome."""
    copied: dict[int, Any] = {}  # shared by all copies, so that a copied optimizer updates the copied models
    arguments = {name: _copy(value, name in gradients, copied) for name, value in inputs.items()}
    # the label of a list's tensor contains its index: name[0], name[1]
    leaves = {label: leaf for name in gradients for label, leaf in _leaves(name, arguments[name])}
    try:
        # the learner's function may switch the gradients off and fail before it switches them on again
        with torch.enable_grad(), time_limit(SECONDS):
            returned = function(*arguments.values())
        outputs = tuple(returned) if isinstance(returned, tuple) else (returned,)
        with torch.enable_grad():
            by_name = _gradients(outputs, leaves)
        attached = tuple(isinstance(output, torch.Tensor) and output.requires_grad for output in outputs)
    except (Exception, LoopWithoutEnd) as error:  # the verdict reports every error of the learner's function
        return AnswerOutcome(error=error)
    outputs = tuple(_without_gradient(output) for output in outputs)
    return AnswerOutcome(
        outputs,
        isinstance(returned, tuple),
        by_name,
        attached,
        changed=_changed(inputs, arguments),
        weights=_weights_of_models(arguments),
    )


def first_difference(
    expected: AnswerOutcome, got: AnswerOutcome, names: tuple[str, ...]
) -> Difference | None:
    """The first difference between two outcomes without errors; None if the outcomes are equal. names: of the outputs."""
    if len(got.outputs) != len(expected.outputs):
        return Difference("what is returned", _count(names, got.outputs))
    if got.is_tuple and not expected.is_tuple:
        return Difference(
            "what is returned",
            "Your function returns a tuple of one value. Is there a comma after the returned value?",
        )
    for name, right, yours in zip(names, expected.outputs, got.outputs):
        if difference := _of_values(name, right, yours):
            return difference
    if expected.gradients and any(got.attached):
        for name, right, yours in zip(names, expected.attached, got.attached):
            if right and not yours:
                return Difference(
                    name, f"The values are right, but {name} has no gradient. Did you detach a tensor?"
                )
    for name, right in expected.gradients.items():
        if difference := _of_gradients(
            f"the gradient to {name}", right, got.gradients[name], expected.outputs
        ):
            return difference
    for name, right in expected.weights.items():
        if difference := _of_weights(name, right, got.weights[name]):
            return difference
    if got.changed:
        return Difference(
            got.changed,
            f"The result is right, but your function changed the input {got.changed}. Write to a copy.",
        )
    return None


def alike(first: AnswerOutcome, second: AnswerOutcome) -> bool:
    """Whether two outcomes have equal numbers, of any type, and leave equal weights, or have equal errors."""
    if first.error or second.error:
        return repr(first.error) == repr(second.error)
    if len(first.outputs) != len(second.outputs):
        return False
    return (
        all(map(close, first.outputs, second.outputs))
        and all(map(close, first.weights.values(), second.weights.values()))
        and all(close(*_zeros_for_none(first.gradients[n], second.gradients[n])) for n in first.gradients)
    )


# ---- values ---------------------------------------------------------------------------------------------------------


def _of_values(name: str, right: Any, yours: Any) -> Difference | None:
    def difference(sentence: str) -> Difference:
        return Difference(name, sentence, yours, right)

    numbers, expected = numbers_of(yours), numbers_of(right)
    if expected is None:
        return None if yours == right else difference(f"{name} is {yours!r}; it should be {right!r}.")
    if yours is None:
        return difference(f"{name} is None. Is the return missing?")
    if numbers is None or (
        isinstance(right, torch.Tensor) and not isinstance(yours, torch.Tensor) and right.ndim
    ):
        return difference(f"{name} is of type {type(yours).__name__}; it should be a {_described(right)}.")
    if numbers.shape != expected.shape:
        return difference(
            f"{name} has the shape {list(numbers.shape)}; it should have {list(expected.shape)}."
        )
    if not close(yours, right):
        return difference(_first_place(name, numbers, expected))
    if isinstance(right, torch.Tensor) and isinstance(yours, torch.Tensor) and yours.dtype != right.dtype:
        return difference(
            f"The numbers of {name} are right, but they are {_dtype(yours)}; it should be {_dtype(right)}."
        )
    return None


def _of_gradients(
    name: str, right: Tensor | None, yours: Tensor | None, outputs: tuple[Tensor, ...]
) -> Difference | None:
    right, given = _zeros_for_none(right, yours)
    if close(given, right):
        return None
    sentence = f"The values are right, but {_first_place(name, given, right)}"
    if [output.numel() for output in outputs] != [1]:
        sentence += " Both are gradients of a sum of the outputs with random weights."
    if yours is None or not given.any():
        sentence = f"The values are right, but {name} is 0 everywhere. Did you detach a tensor?"
    elif not right.any():
        sentence = f"The values are right, but {name} should be 0 everywhere. Detach the input."
    return Difference(name, sentence, given, right)


def _of_weights(name: str, right: Tensor, yours: Tensor) -> Difference | None:
    if close(yours, right):
        return None
    place = _first_place(f"the weight {name}", yours, right)
    return Difference(name, f"The values are right, but after your function, {place}", yours, right)


def _first_place(name: str, numbers: Tensor, expected: Tensor) -> str:
    wrong = ~_equal(numbers, expected)
    if not wrong.ndim:
        return f"{name} is {_beside(numbers, expected)}."
    place = tuple(wrong.nonzero()[0].tolist())
    more = f" ({int(wrong.sum())} of {wrong.numel()} differ)"
    return f"{name}{list(place)} is {_beside(numbers[place], expected[place])}{more}."


def differs(yours: Any, expected: Any) -> Tensor | None:
    """A bool tensor that marks the elements in which two values differ; None for other than numbers and for unequal shapes."""
    numbers, right = numbers_of(yours), numbers_of(expected)
    return (
        None if numbers is None or right is None or numbers.shape != right.shape else ~_equal(numbers, right)
    )


def close(first: Any, second: Any) -> bool:
    numbers, others = numbers_of(first), numbers_of(second)
    if numbers is None or others is None:
        return numbers is others and first == second
    return numbers.shape == others.shape and bool(_equal(numbers, others).all())


def _equal(first: Tensor, second: Tensor) -> Tensor:
    return torch.isclose(first.double(), second.double(), RELATIVE, ABSOLUTE, equal_nan=True)


def numbers_of(value: Any) -> Tensor | None:
    """Convert a number, a list of numbers or a tensor to a tensor. Returns None for any other value."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        return None if value is None or isinstance(value, str) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _described(value: Any) -> str:
    return f"tensor ({_dtype(value)}, {list(value.shape)})" if isinstance(value, torch.Tensor) else "number"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _beside(yours: Tensor, right: Tensor) -> str:
    """A text with both numbers, with enough digits to show the difference."""
    for digits in (4, 6, 9, 17):
        shown = number_text(yours, digits), number_text(right, digits)
        if len(set(shown)) == 2:
            break
    return "{}; it should be {}".format(*shown)


def number_text(number: Tensor, digits: int = 4) -> str:
    """A number with this many digits; True or False for a bool."""
    value = number.item()
    return f"{value + 0.0:.{digits}g}" if isinstance(value, float) else str(value)  # no -0


def _count(names: tuple[str, ...], outputs: tuple[Any, ...]) -> str:
    if len(outputs) == 1 and outputs[0] is None:
        return "Your function returns nothing. Is the return missing?"
    what = "one value" if len(outputs) == 1 else f"{len(outputs)} values"
    together = len(outputs) == 1 and not isinstance(outputs[0], str) and hasattr(outputs[0], "__len__")
    if together and getattr(outputs[0], "ndim", 1):  # a tensor without dimensions has no length
        size = (
            f"shape {list(outputs[0].shape)}" if hasattr(outputs[0], "shape") else f"{len(outputs[0])} values"
        )
        what = f"one {type(outputs[0]).__name__} of {size}"
    should = f"one value, {names[0]}" if len(names) == 1 else f"{len(names)}: {', '.join(names)}"
    return f"Your function returns {what}; it should return {should}."


# ---- gradients ------------------------------------------------------------------------------------------------------


def _gradients(outputs: tuple[Any, ...], leaves: dict[str, Tensor]) -> dict[str, Tensor | None]:
    if not leaves:
        return {}
    weighted = [
        (output * _weights(output)).sum()
        for output in outputs
        if isinstance(output, torch.Tensor) and output.requires_grad
    ]
    if not weighted:
        return dict.fromkeys(leaves)
    computed = torch.autograd.grad(sum(weighted), list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, computed))


def _weights(output: Tensor) -> Tensor:
    """A random weight for each element of an output, and 1 for a single element. The weights depend on the shape alone.

    In an unweighted sum, the wrong gradients of two elements could cancel.
    """
    if output.numel() == 1:
        return torch.ones_like(output)
    return 1.0 + torch.rand(output.shape, generator=torch.Generator().manual_seed(output.numel()))


def _zeros_for_none(first: Tensor | None, second: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both gradients, with zeros in place of None."""
    if first is None and second is None:
        return torch.zeros(()), torch.zeros(())
    return (
        torch.zeros_like(second) if first is None else first,
        torch.zeros_like(first) if second is None else second,
    )


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _copy(value: Any, learns: bool, copied: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone().requires_grad_(learns)
    if isinstance(value, list | tuple):
        return type(value)(_copy(part, learns, copied) for part in value)
    return deepcopy(value, copied)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _leaves(f"{name}[{index}]", part)


def _weights_of_models(arguments: dict[str, Any]) -> dict[str, Tensor]:
    return {
        f"{name}.{label}": weight.detach()
        for name, model in arguments.items()
        if isinstance(model, torch.nn.Module)
        for label, weight in model.named_parameters()
    }


def _without_gradient(output: Any) -> Any:
    if type(output) is list:  # torch warns when it reads the number of a tensor that requires a gradient
        return [_without_gradient(part) for part in output]
    return output.detach() if isinstance(output, torch.Tensor) else output


def _changed(inputs: dict[str, Any], arguments: dict[str, Any]) -> str:
    changes = (_first_change(name, value, arguments[name]) for name, value in inputs.items())
    return next(filter(None, changes), "")


def _first_change(name: str, before: Any, after: Any) -> str:
    """The first changed place: a tensor, a plain value, or the length or keys of a list, tuple, dict or namespace; "" without a change."""
    if isinstance(before, list | tuple | dict | SimpleNamespace):
        parts, parts_after = _parts(before), _parts(after)
        if type(after) is not type(before) or parts_after.keys() != parts.keys():
            return name
        changes = (_first_change(name + label, part, parts_after[label]) for label, part in parts.items())
        return next(filter(None, changes), "")
    if isinstance(before, torch.Tensor):
        same = isinstance(after, torch.Tensor) and torch.equal(before, after.detach())
    else:  # models and optimizers may change
        same = not isinstance(before, PLAIN) or (type(after), after) == (type(before), before)
    return "" if same else name


def _parts(value: Any) -> dict[str, Any]:
    """The parts of a dict, list, tuple or namespace; {} for any other value. A key is the end of the part's name: [0], .epochs."""
    if isinstance(value, SimpleNamespace):
        return {f".{name}": part for name, part in vars(value).items()}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    return {f"[{key!r}]": part for key, part in value.items()} if isinstance(value, dict) else {}
