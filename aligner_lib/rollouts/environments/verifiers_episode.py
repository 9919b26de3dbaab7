"""Episodes of `verifiers` 0.4 in which the policy stands in for the agent: its turns, and the tools of its tasks.

`verifiers` runs an agent's program, its model and its tool servers as processes with endpoints. Here the policy's responses come
from the trainer, one `Environment.step` each, so an environment's `run` waits for them in an event loop of its own, and the tools
of a toolset are called in the same process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import verifiers.v1 as v1
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls

from aligner_lib.datasets.tool_calls import Tool, ToolCall, UnreadableCall, read_calls
from aligner_lib.rollouts.environments.base import Message, require, with_escapes


class Exchange:
    """Runs a coroutine up to its next question to the policy."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._work: asyncio.Task | None = None
        self._response: asyncio.Future[str] = self._loop.create_future()
        self._question: asyncio.Future[list[Message]] = self._loop.create_future()

    def begin(self, work: Awaitable[None]) -> list[Message] | None:
        """Start the coroutine. Returns the first messages for the policy; None if it ends without a question."""
        self._work = self._loop.create_task(work)
        return self._advance()

    def answer(self, response: str) -> list[Message] | None:
        """Give the policy's response. Returns the next messages for the policy, or None at the end."""
        self._response.set_result(response)
        return self._advance()

    async def ask(self, messages: list[Message]) -> str:
        """Called within the coroutine: the policy's response to new messages."""
        self._response = self._loop.create_future()
        self._question.set_result(messages)
        return await self._response

    def close(self) -> None:
        """End a coroutine whose episode was left."""
        if self._work is not None and not self._work.done():
            self._work.cancel()
            self._loop.run_until_complete(asyncio.wait({self._work}))
        self._loop.close()

    def _advance(self) -> list[Message] | None:
        self._question = self._loop.create_future()
        waiting = asyncio.wait({self._work, self._question}, return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(waiting)
        if self._question.done():
            return self._question.result()
        self._work.result()  # raises the coroutine's error
        return None


class ServedTool(NamedTuple):
    """A tool of a toolset."""

    server: Any
    name: str
    """The name on the server."""
    schema: Tool


@asynccontextmanager
async def tools_of(
    taskset: v1.Taskset, task: v1.Task, state: v1.State
) -> AsyncIterator[dict[str, ServedTool]]:
    """The tools of a task by the policy's names for them. state: of the rollout, shared by tools and rewards."""
    from mcp.server.mcpserver import MCPServer

    tools: dict[str, ServedTool] = {}
    async with AsyncExitStack() as stack:
        for toolset in (*taskset.toolsets(taskset.config), *task.toolsets(task.config)):
            _require_local(toolset)
            # without a channel to a rollout in another process, the toolset's own state is the rollout's
            toolset._with_state = lambda function: function
            if isinstance(state, toolset._state_cls):
                toolset._inert_state = state
            await stack.enter_async_context(toolset._exit_stack)
            await toolset.setup()
            await toolset.setup_task(task.data)
            server, prefix = MCPServer(toolset.server_name or type(toolset).__name__), toolset.server_name
            toolset.register(server)
            for tool in await server.list_tools():
                name = f"{prefix}_{tool.name}" if prefix else tool.name
                require(name not in tools, f"two tools are named {name!r}: use one toolset of the two")
                function = {
                    "name": name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                }
                tools[name] = ServedTool(server, tool.name, {"type": "function", "function": function})
        yield tools


def _require_local(toolset: v1.Toolset) -> None:
    config = toolset.config
    local = isinstance(getattr(config, "runtime", v1.SubprocessConfig()), v1.SubprocessConfig)
    require(
        local and not getattr(config, "url", None),
        f"the toolset {type(toolset).__name__} runs on a server or in a sandbox, which can't be used here: use a taskset "
        "whose tools are Python functions",
    )


class Player:
    """The policy in place of an environment's agent. An episode has one conversation, whose trace is `trace`."""

    def __init__(self, taskset: v1.Taskset, exchange: Exchange, name: str, turns: int):
        self.taskset, self.exchange, self.name, self.turns = taskset, exchange, name, turns
        self.trainable = True
        self.trace: v1.Trace | None = None
        self.calls = self.failed_calls = 0

    async def run(self, task: v1.Task) -> v1.Trace:
        """A response to the task's prompt, after its calls of tools."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @asynccontextmanager
    async def interaction(self, task: v1.Task) -> AsyncIterator[Interaction]:
        """A conversation turn by turn. At its end, the task's rewards and metrics are computed."""
        if self.trace is not None:
            raise RuntimeError("the environment runs its agent twice; here an episode is one conversation")
        self.trace = v1.Trace(
            task=v1.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=v1.AgentInfo(config=v1.AgentConfig(), name=self.name),
            state=state_cls(type(task))(),
        )
        async with tools_of(self.taskset, task, self.trace.state) as tools:
            yield Interaction(self, task, tools)
        await task.score(self.trace)


class Interaction:
    """A conversation with the policy, in the form that an environment of verifiers uses."""

    def __init__(self, player: Player, task: v1.Task, tools: dict[str, ServedTool]):
        self.trace, self._player, self._task, self._tools = player.trace, player, task, tools
        self._unread: list[Message] = []  # by the policy
        self._turns = 0
        data = task.data
        if data.system_prompt:
            self._add(v1.SystemMessage(content=data.system_prompt))
        prompt = [v1.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
        for message in prompt or []:
            self._add(message)

    async def turn(self, message: str | None = None) -> v1.Segment:
        """The policy's response to a message, with the calls and results before it. Terminated after the last turn."""
        if message is not None:
            self._add(v1.UserMessage(content=message))
        begin = len(self.trace.nodes)
        while not await self._is_over():
            self._turns += 1
            messages, self._unread = self._unread, []
            text, calls = read_calls(await self._player.exchange.ask(messages))
            self._respond(text, calls)
            if not calls or self._turns == self._player.turns:
                return v1.Segment([node.message for node in self.trace.nodes[begin:]])
            for number, call in enumerate(calls):
                await self._run(call, self._id(number))
        return v1.Segment([], terminated=True)

    async def _is_over(self) -> bool:
        """Whether the limit of turns or a condition of the task ends the conversation."""
        if self._turns == self._player.turns:
            self.trace.stop("max_turns")
        for condition in self._task.hooks("stop"):
            if self.trace.stop_condition is None and await call_hook(condition, {v1.Trace: self.trace}):
                self.trace.stop(condition.__name__)
        return self.trace.stop_condition is not None

    def _respond(self, text: str, calls: list[ToolCall | UnreadableCall]) -> None:
        written = [
            v1.ToolCall(id=self._id(number), name=call.name, arguments=json.dumps(call.arguments))
            for number, call in enumerate(calls)
            if isinstance(call, ToolCall)
        ]
        self._player.calls += len(calls)
        self._add(v1.AssistantMessage(content=text, tool_calls=written or None), sampled=True)

    async def _run(self, call: ToolCall | UnreadableCall, call_id: str) -> None:
        """Run a call, and add its result, or the reason why there is none."""
        try:
            if isinstance(call, UnreadableCall):
                raise ValueError(call.problem)
            if call.name not in self._tools:
                raise ValueError(
                    f"there is no function {call.name}; the functions are {', '.join(self._tools)}"
                )
            tool = self._tools[call.name]
            blocks = (await tool.server.call_tool(tool.name, call.arguments)).content
            content = "\n".join(block.text for block in blocks)  # AttributeError for a picture
        except Exception as error:  # an error of a tool is a result, from which the policy learns
            self._player.failed_calls += 1
            content = f"error: {error}"
        name = call.name if isinstance(call, ToolCall) else None
        self._add(v1.ToolMessage(tool_call_id=call_id, content=content, name=name))

    def _id(self, number: int) -> str:
        return f"call_{self._turns}_{number}"

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        nodes.append(
            v1.MessageNode(message=message, parent=len(nodes) - 1 if nodes else None, sampled=sampled)
        )
        if not sampled:
            require(
                isinstance(message.content, str), f"a message of {message.role} has parts that are not text"
            )
            name = {"name": with_escapes(message.name)} if message.role == "tool" and message.name else {}
            self._unread.append({"role": message.role, **name, "content": with_escapes(message.content)})


def require_usable(task: v1.Task) -> None:
    """Raises UserError for a task with hooks that need a sandbox or change the policy's requests and responses."""
    cls = type(task)
    needs = [name for name in ("setup", "finalize") if getattr(cls, name) is not getattr(v1.Task, name)]
    require(
        not needs and not task.NEEDS_CONTAINER,
        f"{cls.__name__} runs {' and '.join(needs) or 'its agent'} in a sandbox, which can't be used here",
    )
    changes = [name for name in dir(cls) if getattr(getattr(cls, name), "intercept", False)]
    changes += [
        hook.__name__ for hook in task.hooks("stop") if hook_boundary(hook, allow_trace=True) is not v1.Trace
    ]
    require(
        not changes,
        f"{cls.__name__}.{changes[0] if changes else ''} reads requests to a model's server, which can't be used here: only "
        "conditions on the trace are",
    )
