"""Environments of the package `verifiers`: their prompts, tools, turns and rewards."""

from __future__ import annotations

import asyncio
from itertools import islice
from types import SimpleNamespace
from typing import Any

from aligner_lib.datasets.tool_calls import Tool
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import (
    FIGURES,
    Environment,
    Message,
    Step,
    hold_out,
    hold_out_prompts,
    require,
)


class Verifiers(Environment):
    """The tasks of an installed taskset by its id, with `config` for the taskset. The reward is the sum of the task's weighted
    rewards.

    The policy may call the tools of the taskset's and the task's toolsets, and answers each turn of an environment with one
    agent; an episode ends after `turns` responses. Environments with several agents, and what runs in a sandbox or on a server,
    can't be used here. The first `size` tasks are read; the share `held_out` of them is for validation. Metrics: the task's
    rewards and metrics, and with tools `calls` and `failed_calls`. A name that is taken gets the prefix `task_`.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        taskset: str,
        config: dict[str, Any] | None = None,
        turns: int = 4,
        size: int = 1000,
        held_out: float = 0.2,
    ):
        super().__init__(split)
        try:
            import verifiers.v1 as v1

            from aligner_lib.rollouts.environments import verifiers_episode
        except ImportError:
            raise UserError(
                "the package is not installed, or older than 0.4: uv pip install --no-deps --require-hashes -r "
                "requirements-environments.lock (pip install verifiers would change numpy)"
            ) from None
        require(turns >= 1, f"turns={turns}: the value must be at least 1")
        self.v1, self.episodes, self.max_turns = v1, verifiers_episode, turns
        self.exchange: Any = None
        try:
            self.env = self._environment({"id": taskset, **(config or {})})
            tasks = list(islice(self.env.taskset, size))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UserError(f"taskset={taskset!r}, config={config}: {error}") from None
        for task in tasks:
            verifiers_episode.require_usable(task)
        if type(self.env) is v1.SingleAgentEnv:
            opened = all(task.data.prompt for task in tasks)
            require(opened, f"taskset={taskset!r}: it has tasks without a prompt")
            self.tasks = hold_out_prompts(tasks, held_out, _prompt_of)[split]
        else:  # the first turn of a game may be the same in all tasks
            self.tasks = hold_out(tasks, held_out)[split]
        self.size = len(self.tasks)
        self._schemas: tuple[Tool, ...] | None = None

    def _environment(self, taskset: dict[str, Any]) -> Any:
        """The taskset's environment. Raises UserError for one with several agents or with resources of its own."""
        v1 = self.v1
        kind = v1.environment_class(taskset["id"])
        roles = [
            name
            for name, field in v1.env_config_type(taskset["id"]).model_fields.items()
            if isinstance(field.get_default(call_default_factory=True), v1.AgentConfig)
        ]
        require(
            len(roles) == 1,
            f"{kind.__name__} has the agents {', '.join(roles)}: here the policy is the only one",
        )
        require(
            kind.start is v1.Env.start,
            f"{kind.__name__} starts resources of its own, which can't be used here",
        )
        (self.role,) = roles
        # verifiers' own agent is never run; the harness `null` executes no code
        return v1.load_environment(
            v1.resolve_env_config({"taskset": taskset, self.role: {"harness": {"id": "null"}}})
        )

    @property
    def tool_schemas(self) -> tuple[Tool, ...]:
        if self._schemas is None:
            self._schemas = asyncio.run(self._described())
        return self._schemas

    async def _described(self) -> tuple[Tool, ...]:
        task = self.tasks[0]
        async with self.episodes.tools_of(self.env.taskset, task, self.v1.State()) as tools:
            return tuple(tool.schema for tool in tools.values())

    def reset(self, seed: int) -> list[Message]:
        if self.exchange is not None:
            self.exchange.close()
        task, self.exchange = self.tasks[seed % self.size], self.episodes.Exchange()
        self.player = self.episodes.Player(self.env.taskset, self.exchange, self.role, self.max_turns)
        prompt = self.exchange.begin(self._play(task))
        if prompt is None:
            raise RuntimeError("the environment ended without a response of its agent")
        return prompt

    async def _play(self, task: Any) -> None:
        """An episode of the environment, whose agent is the policy."""
        agents = SimpleNamespace(**{self.role: self.player})
        await self.env.setup(agents)
        await self.env.run(task, agents)
        episode = self.v1.Episode(
            env=self.v1.EnvInfo(id=self.env.config.env_id),
            task=self.player.trace.task,
            traces=[self.player.trace],
        )
        await self.env.finalize(task, episode)

    def step(self, response: str) -> Step:
        observation = self.exchange.answer(response)
        if observation is not None:
            return Step(done=False, observation=observation)
        trace = self.player.trace
        scored = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        if not scored:
            raise RuntimeError(
                "none of the taskset's rewards could be computed: they need a sandbox, or the taskset has no rewards"
            )
        measured = {name: value for name, value in trace.metrics.items() if value is not None}
        counts = (
            {"calls": self.player.calls, "failed_calls": self.player.failed_calls}
            if self.tool_schemas
            else {}
        )
        # a taskset's author does not know these names, and its user cannot change the taskset
        taken = {*FIGURES, *counts}
        own = {
            f"task_{name}" if name in taken else name: value for name, value in {**measured, **scored}.items()
        }
        return Step(trace.reward, metrics={**counts, **own})


def _prompt_of(task: Any) -> str:
    """The texts that a task shows the policy first."""
    return repr((task.data.system_prompt, task.data.prompt))
