"""Tasksets of the package `verifiers`: their prompts, and their rewards for a single response."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require


class Verifiers(Environment):
    """The tasks of an installed taskset by its id, with `config` for the taskset. The reward is the sum of the task's weighted
    rewards.

    An episode is a single response. Tasksets whose environment answers (tools, games), or whose rewards run in a sandbox, can't
    be used here. The first `size` tasks are read; the share `held_out` of them is for validation.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        taskset: str,
        config: dict[str, Any] | None = None,
        size: int = 1000,
        held_out: float = 0.2,
    ):
        super().__init__(split)
        try:
            import verifiers.v1 as v1
        except ImportError:
            raise UserError(
                "the package is not installed, or older than 0.4: uv pip install --no-deps --require-hashes -r "
                "requirements-environments.lock (pip install verifiers would change numpy)"
            ) from None
        self.v1 = v1
        try:
            chosen = v1.taskset_config_type(taskset).model_validate({"id": taskset, **(config or {})})
            tasks = list(islice(v1.load_taskset(chosen), size))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UserError(f"taskset={taskset!r}, config={config}: {error}") from None
        require(
            all(task.data.prompt for task in tasks), f"taskset={taskset!r}: it has tasks without a prompt"
        )
        self.tasks = hold_out(tasks, held_out)[split]
        self.size = len(self.tasks)

    def reset(self, seed: int) -> list[Message]:
        self.task = self.tasks[seed % self.size]
        data = self.task.data
        system = [self.v1.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
        user = [self.v1.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
        self.messages = [*system, *user]
        return [{"role": message.role, "content": self._text(message)} for message in self.messages]

    def step(self, response: str) -> Step:
        v1, task = self.v1, self.task
        messages = [*self.messages, v1.AssistantMessage(content=response)]
        trace = v1.Trace(
            task=v1.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=v1.AgentInfo(config=v1.AgentConfig()),
            nodes=[
                v1.MessageNode(message=message, parent=i - 1 if i else None, sampled=message is messages[-1])
                for i, message in enumerate(messages)
            ],
        )
        asyncio.run(task.score(trace))
        scored = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        if not scored:
            raise RuntimeError(
                "none of the taskset's rewards could be computed: they need a sandbox, or the taskset has no rewards"
            )
        measured = {name: value for name, value in trace.metrics.items() if value is not None}
        return Step(trace.reward, metrics={**measured, **scored})

    def _text(self, message: Any) -> str:
        require(isinstance(message.content, str), f"a message of {message.role} has parts that are not text")
        return message.content
