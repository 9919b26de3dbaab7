"""The code in an environment's own process: build the environment, replay an episode, and judge the new response."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from aligner_lib.datasets.tool_calls import Tool
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import tracebacks
from aligner_lib.rollouts.environments.base import FIGURES, Environment, NoVerdict, Prompt, Step
from aligner_lib.rollouts.environments.registry import build
from aligner_lib.rollouts.environments.user_file import UserFile
from cluster.environment import RANK_NAMES
from cluster.launch import STORE_VARIABLE

BUILD_SECONDS = 120  # to import and build an environment; the time limit of a request starts afterwards
FLOAT32_MAX = 3.4028235e38  # the trainers keep rewards in float32


@dataclass(frozen=True)
class Blueprint:
    """The data from which a process builds an environment."""

    source: str | UserFile
    split: str
    args: dict[str, Any]
    timeout: float
    """Seconds that a response may take, also a response that a request replays."""
    rewards: tuple[str, ...]
    """The metrics whose weighted sum is the reward; empty: the environment gives the reward itself."""
    folder: str
    """The folder for the traceback of a process that hangs. The file's name is the process id."""


@dataclass(frozen=True)
class Description:
    """The properties of an environment after its construction."""

    size: int | None
    max_turns: int
    judges_together: bool = False
    tools: tuple[Tool, ...] = ()
    waiting_seconds: float = 0.0
    compared_at_once: int = 0


@dataclass(frozen=True)
class Problem:
    """The reason why an environment did not answer; see EnvironmentFailure."""

    reason: str
    text: str


@dataclass
class _Process:
    """The state of the process: its environment, without the state of an episode."""

    environment: Environment | None = None
    tracebacks: IO | None = field(default=None, repr=False)


_process = _Process()


def leave_ranks() -> None:
    """Ignore the scheduler's signals. The signals go to all processes of a job and ask for a checkpoint, which only the trainer
    saves. Also remove the variables of the trainer's rank, because a reward that forms groups of processes would join the trainer.

    When the parent ends, the channel to the parent closes, and this process ends too.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # programs and forks of a reward would inherit SIG_IGN, and terminate() would not end them
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    for name in (*RANK_NAMES, STORE_VARIABLE):
        os.environ.pop(name, None)


def describe(blueprint: Blueprint) -> Description | Problem:
    """Build the environment. The text of a Problem is a message for the user, or the traceback of an exception."""
    try:
        environment = _built(blueprint)
        return Description(
            environment.size,
            environment.max_turns,
            environment.judges_together,
            environment.tool_schemas,
            environment.waiting_seconds,
            environment.compared_at_once,
        )
    except UserError as error:
        return Problem("refused", str(error))
    except BaseException as error:
        return Problem("raised", tracebacks.of_error(error))


def reset(blueprint: Blueprint, seed: int, responses: tuple[str, ...]) -> Prompt | Problem:
    """The prompt of an episode."""
    assert not responses, "an episode begins without responses"
    return _bounded_call(blueprint, lambda environment: _begin(environment, blueprint.split, seed))


def step(blueprint: Blueprint, seed: int, responses: tuple[str, ...]) -> Step | Problem:
    """The answer to the last of the responses. The earlier responses are replayed, each within the time of one request."""
    assert responses, "there is no response to judge"
    return _bounded_call(
        blueprint,
        lambda environment: play(environment, blueprint.split, seed, responses, blueprint.rewards),
        groups_of(seed, responses),
    )


def step_all(
    blueprint: Blueprint, seeds: tuple[int, ...], responses: tuple[str, ...], groups: tuple[int, ...]
) -> list[Step | Problem] | Problem:
    """The answers to many responses from one call of the environment. The call may take the time of one request for each
    response."""
    return _bounded_call(
        blueprint,
        lambda environment: judge(environment, blueprint.split, seeds, responses, blueprint.rewards, groups),
        groups,
    )


def groups_of(seed: int, responses: Sequence[str]) -> tuple[int, ...]:
    """The group of each response of an episode, for `time_limit`. A request for the prompt counts as one response."""
    return (seed,) * max(len(responses), 1)


def time_limit(
    blueprint: Blueprint, environment: Environment | Description, groups: Sequence[int] = (0,)
) -> float:
    """The seconds of one call for responses of these groups."""
    of_group, at_once = Counter(groups), environment.compared_at_once
    waits = [max(1, math.ceil((of_group[group] - 1) / at_once)) if at_once else 1 for group in groups]
    return len(groups) * blueprint.timeout + sum(waits) * environment.waiting_seconds


def play(
    environment: Environment,
    split: str,
    seed: int,
    responses: Sequence[str],
    rewards: tuple[str, ...] = (),
) -> Step | Problem:
    """The environment's answer to the last of an episode's responses, with seeded generators. rewards: see Blueprint."""
    prompt = _begin(environment, split, seed)
    for turn, response in enumerate(responses, 1):
        last = turn >= environment.max_turns
        answer = _checked(environment.step(response), type(prompt), rewards, last)
        if isinstance(answer, Problem):
            return answer
        if last and not answer.done and not _sets_max_turns(environment):
            raise TypeError(
                f"the episode goes on, but {type(environment).__name__}.max_turns is {environment.max_turns}: set max_turns, "
                "the most responses of an episode"
            )
        last = last or answer.done
        if last and turn < len(responses):
            raise RuntimeError(f"the episode was done after {turn} of its {len(responses)} responses")
    return Step(answer.reward, last, answer.observation, answer.metrics)


def judge(
    environment: Environment,
    split: str,
    seeds: Sequence[int],
    responses: Sequence[str],
    rewards: tuple[str, ...] = (),
    groups: Sequence[int] | None = None,
) -> list[Step | Problem]:
    """The answers of an environment with `judges_together`, with seeded generators. rewards: see Blueprint; groups: see
    Environment.step_all."""
    _seed_generators(split, seeds)
    answers = environment.step_all(seeds, responses, groups)
    if len(answers) != len(responses):
        raise ValueError(f"{len(answers)} rewards were returned for {len(responses)} responses")
    if any(isinstance(answer, Step) and not answer.done for answer in answers):
        raise TypeError(
            f"an episode goes on, but {type(environment).__name__}.judges_together is set, with which an episode has a single "
            "response: return steps that are done, or judge in step()"
        )
    return [_checked(answer, str, rewards, last=True) for answer in answers]


def _sets_max_turns(environment: Environment) -> bool:
    """Whether the environment or its class gives `max_turns` in place of the default."""
    owners = (environment, *type(environment).__mro__)
    return any("max_turns" in vars(owner) for owner in owners if owner is not Environment)


def _built(blueprint: Blueprint) -> Environment:
    if _process.environment is None:
        _process.tracebacks = open(os.path.join(blueprint.folder, str(os.getpid())), "w")  # noqa: SIM115
        with _bounded(BUILD_SECONDS):
            environment = build(blueprint.source, blueprint.split, blueprint.args)
            _ = environment.tool_schemas  # described before the time limit of the first request starts
            _process.environment = environment
    return _process.environment


def _bounded_call(blueprint: Blueprint, call, groups: Sequence[int] = (0,)) -> Any:
    """Call `call` with the environment. Returns its answer or a Problem. A call that hangs ends the process."""
    try:
        environment = _built(blueprint)
        with _bounded(time_limit(blueprint, environment, groups)):
            return call(environment)
    except BaseException as error:  # also sys.exit() in a reward function costs only one sample
        return Problem("raised", tracebacks.of_error(error))


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """End the process when the block takes longer than `seconds`, and write the traceback to a file.

    A C thread of the interpreter enforces the limit without Python's lock. So the limit also ends code that hangs in C, and
    leaves no process behind when the job was killed meanwhile.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_process.tracebacks)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _seed_generators(split: str, seeds: Sequence[int]) -> None:
    """Seed the global generators, so that an environment that draws from them is deterministic."""
    random.seed(f"{split} {' '.join(map(str, seeds))}")
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))


def _begin(environment: Environment, split: str, seed: int) -> Prompt:
    _seed_generators(split, [seed])
    prompt = environment.reset(seed)
    if not _is_prompt(prompt):
        raise TypeError(
            f"reset({seed}) returned {prompt!r}, which is neither a text nor a list of messages with role and content"
        )
    return _plain(prompt)


def _is_prompt(prompt: Any) -> bool:
    """Whether a prompt is a text or messages, and not empty."""
    if isinstance(prompt, str):
        return bool(prompt)
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(message, dict)
            and {"role", "content"} <= set(message) <= {"role", "content", "name", "tool_calls"}
            and all(isinstance(value, str) for name, value in message.items() if name != "tool_calls")
            for message in prompt
        )
    )


def _plain(prompt: Prompt) -> Prompt:
    """A copy of a prompt in Python's own types. Raises ValueError for half a surrogate pair, which no tokenizer reads."""
    try:
        return json.loads(json.dumps(prompt, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise ValueError(
            f"{prompt!r} contains half a surrogate pair: give text.encode(errors='backslashreplace').decode()"
        ) from None


def _checked(answer: Any, kind: type, rewards: tuple[str, ...], last: bool) -> Step | Problem:
    """The step with Python's own numbers and texts. Another process can then read the step without the environment's libraries.

    rewards: see Blueprint. An episode's last answer needs all of them. They replace the environment's own reward, which becomes 0.
    """
    if isinstance(answer, NoVerdict):
        return Problem(str.__str__(answer.reason), str.__str__(answer.text))
    if not isinstance(answer, Step):
        raise TypeError(f"step() returned {answer!r}, which is not a Step")
    if wrong := [name for name in answer.metrics if not isinstance(name, str)]:
        raise TypeError(f"a metric is named {wrong[0]!r}: give the metric a text as its name")
    metrics = {str.__str__(name): value for name, value in answer.metrics.items()}
    if taken := [name for name in metrics if name in FIGURES]:
        raise ValueError(f"a metric is named {taken[0]}, as a figure of every environment: rename the metric")
    has = f"it has {', '.join(metrics) or 'no metrics'}"
    if missing := [name for name in rewards if name not in metrics and (last or answer.done)]:
        return Problem("reward_missing", f"an answer lacks {missing[0]}, which `rewards` names; {has}")
    if not rewards and answer.reward is None and metrics:
        return Problem("reward_missing", f"an answer lacks `reward`; {has}, which `rewards` may name instead")
    numbers = {}
    own = {} if rewards else {"the reward": answer.reward}
    for name, value in {**own, **metrics}.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            return Problem("not_finite", f"{name} is {value!r}, which is not a number")
        if not math.isfinite(numbers[name]):
            return Problem("not_finite", f"{name} is {numbers[name]}")
        if name in (*own, *rewards) and abs(numbers[name]) > FLOAT32_MAX:
            return Problem("not_finite", f"{name} is {numbers[name]}, beyond float32's {FLOAT32_MAX}")
    reward = numbers.pop("the reward", 0.0)
    if answer.done:
        return Step(reward, True, "", numbers)
    if not _is_prompt(answer.observation):
        raise TypeError(f"the episode goes on, but the observation is {answer.observation!r}")
    if isinstance(answer.observation, list) and kind is str:
        raise TypeError("the prompt was a text, but the observation has messages: give a text")
    return Step(reward, False, _plain(answer.observation), numbers)
