"""An environment of verifiers with turns: guess a word; the environment answers with its first letter."""

import verifiers.v1 as vf


class Game(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        for word in ("bread", "sea", "river", "cloud"):
            yield vf.Task(vf.TaskData(name=word, prompt="Guess a word."), self.config.task)


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GameEnv(vf.Env[GameConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, guesses = await interaction.turn(), 1
            while not segment.terminated and segment.last_reply != task.data.name:
                segment = await interaction.turn(f"It begins with {task.data.name[0]}.")
                guesses += not segment.terminated
        interaction.trace.record_reward("found", 0.0 if segment.terminated else 1 / guesses)


__all__ = ["Game", "GameEnv"]
