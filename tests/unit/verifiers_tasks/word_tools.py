"""A taskset of verifiers whose task has tools with a state: count letters, then answer."""

import verifiers.v1 as vf
from pydantic import Field


class Seen(vf.State):
    words: list[str] = Field(default_factory=list)


class Letters(vf.Toolset[vf.ToolsetConfig, Seen]):
    @vf.tool
    def count(self, word: str) -> int:
        """Counts the letters of a word."""
        self.state.words.append(word)
        return len(word)


class Data(vf.TaskData):
    answer: str


class WordTask(vf.Task[Data, Seen, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Letters(vf.ToolsetConfig())]

    @vf.reward(weight=2.0)
    async def right(self, task: Data, trace: vf.Trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(len(trace.state.words))

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return 7.0

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return len(trace.state.words) > 2


class WordTasks(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        for word in ("bread", "sea", "river", "cloud"):
            data = Data(prompt=f"How long is {word}?", system_prompt="Be brief.", answer=str(len(word)))
            yield WordTask(data, self.config.task)


__all__ = ["WordTasks"]
