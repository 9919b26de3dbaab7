"""Environments of verifiers 0.4 with tools and with turns: the real library, where it is installed."""

from pathlib import Path

import pytest

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.registry import make


@pytest.fixture(autouse=True)
def vf(monkeypatch):
    """The library. Its import takes seconds, which a worker without these tests need not spend."""
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("verifiers_tasks")))
    return pytest.importorskip("verifiers.v1")


def called(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_a_task_s_tools_are_called_and_its_rewards_read_the_trace_and_the_state():
    environment = make("verifiers", taskset="word-tools", held_out=0.25)
    (tool,) = environment.tool_schemas
    assert tool["function"]["name"] == "letters_count" and environment.size == 3
    assert tool["function"]["parameters"]["properties"]["word"]["type"] == "string"
    for _ in range(2):  # an episode begins anew, also one that was left in the middle
        system, user = environment.reset(0)
        assert (system["role"], user["role"]) == ("system", "user")
        word = user["content"].split()[-1].rstrip("?")
        step = environment.step(
            called("letters_count", f'{{"word": "{word}"}}') + called("letters_spell", "{}")
        )
    assert [turn["role"] for turn in step.observation] == ["tool", "tool"] and not step.done
    assert step.observation[0]["content"] == str(len(word))
    assert (
        step.observation[1]["content"]
        == "error: there is no function letters_spell; the functions are letters_count"
    )
    step = environment.step(str(len(word)))
    assert step.done and step.reward == 2.0
    assert step.metrics == {
        "calls": 2,
        "failed_calls": 1,
        "looked_up": 1.0,
        "task_calls": 7.0,
        "right": 1.0,
    }


def test_a_condition_of_the_task_and_the_last_turn_end_an_episode():
    environment = make("verifiers", taskset="word-tools", turns=2)
    environment.reset(0)
    step = environment.step(called("letters_count", '{"word": "a"}') * 3)
    assert step.done and (step.reward, step.metrics["looked_up"]) == (0.0, 3.0)
    environment.reset(0)
    assert not environment.step(called("letters_count", "{}")).done  # without its argument
    environment.reset(0)
    (result,) = environment.step(called(r"\ud83d", "{}")).observation
    assert result["name"] == r"\ud83d" and r"no function \ud83d;" in result["content"]
    step = environment.step(called("letters_count", '{"word": "a"}'))
    assert step.done and step.metrics["failed_calls"] == 1 and step.metrics["looked_up"] == 0.0


def test_tasks_with_equal_prompts_stay_in_the_same_split(monkeypatch):
    import word_tools

    load = word_tools.WordTasks.load
    monkeypatch.setattr(word_tools.WordTasks, "load", lambda self: [*load(self), *load(self)])
    train, held_out = (make("verifiers", split, taskset="word-tools") for split in ("train", "validation"))
    assert (train.size, held_out.size) == (6, 2)
    assert not {task.data.prompt for task in train.tasks} & {task.data.prompt for task in held_out.tasks}


def test_an_environment_answers_each_turn_of_its_agent():
    environment = make("verifiers", taskset="word-game", turns=3)
    names = [task.data.name for task in environment.tasks]
    assert environment.reset(1) == [{"role": "user", "content": "Guess a word."}]
    step = environment.step("sun")
    assert (
        step.observation == [{"role": "user", "content": f"It begins with {names[1][0]}."}] and not step.done
    )
    step = environment.step(names[1])
    assert step.done and step.reward == 0.5 and step.metrics == {"found": 0.5}
    environment.reset(1)
    assert [environment.step("sun").done for _ in range(3)] == [False, False, True]


def test_several_agents_and_sandboxes_are_refused_by_name(monkeypatch, vf):
    import word_game
    import word_tools

    class Two(word_game.GameConfig):
        judge: vf.AgentConfig = vf.AgentConfig()

    class Duel(vf.Env[Two]):
        async def run(self, task, agents): ...

    monkeypatch.setattr(word_game, "GameEnv", Duel)
    with pytest.raises(UserError, match="Duel has the agents player, judge: here the policy is the only one"):
        make("verifiers", taskset="word-game")
    monkeypatch.setattr(word_tools.WordTask, "setup", lambda self, trace, runtime: None)
    with pytest.raises(UserError, match="WordTask runs setup in a sandbox"):
        make("verifiers", taskset="word-tools")
