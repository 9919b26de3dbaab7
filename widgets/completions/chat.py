"""A chat with several checkpoints at the same time, with the reward model's score for each answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import traitlets

from aligner_lib.jobs.drawn_answer import answers_of
from aligner_lib.run_folder.turns import turns_of
from widgets.frontend.table import PromptCell, Table, Tabled
from widgets.frontend.widget import Widget, script
from widgets.frontend.wire import finite

Answer = Callable[[str], str]
Score = Callable[[str, str], float]


class Chat(Tabled, Widget):
    """Send a prompt to several models and read their answers side by side.

    models: name → function from a prompt to a response. score: a function of (prompt, response) that returns the reward; None:
    show no rewards. If a model raises an error, the chat shows the error message instead of an answer, and the other models
    still answer. If `score` does, the chat shows the message below the answer. Raises ValueError without models.
    """

    _esm = script("dom", "format", "lost", "textbox", "turns", "chat")
    names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    turns = traitlets.List().tag(sync=True)
    """[{prompt, prompt_turns, answers}]. An answer is {text, reward, error}, or None while its model generates."""
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(self, models: Mapping[str, Answer], score: Score | None = None):
        if not models:
            raise ValueError("Chat({}): give at least 1 model, {name: function of a prompt}")
        self._models, self._score = dict(models), score
        self._questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closed = False
        super().__init__(names=list(models))
        self.on_msg(self._on_message)
        # a model needs seconds, so an answer in the kernel's thread would block the kernel
        threading.Thread(target=self._answer_questions, name="Chat", daemon=True).start()

    def ask(self, prompt: str) -> list[dict]:
        """Ask all models, and show their answers. Returns {text, reward, error} for each model, in order."""
        return self.ask_all([prompt])[0]

    def ask_all(self, prompts: Sequence[str]) -> list[list[dict]]:
        """Ask all models several prompts, each of which is a conversation of its own. Returns `ask`'s answers to each prompt.

        A model of `jobs.inference.answering` answers the prompts at the same time.
        """
        turns = [
            {"prompt": prompt, "prompt_turns": turns_of(prompt), "answers": [None] * len(self._models)}
            for prompt in prompts
        ]
        self.busy = True
        try:
            for i, model in enumerate(self._models.values()):
                self._show(turns)
                for turn, answer in zip(turns, self._answers(model, prompts)):
                    turn["answers"][i] = answer
        finally:
            self._show(turns, done=True)
            self.busy = False
        return [turn["answers"] for turn in turns]

    def _answers(self, model: Answer, prompts: Sequence[str]) -> list[dict]:
        """A record of the answer to each prompt. If the model fails, each prompt is asked alone, so that the others are answered."""
        try:
            texts = answers_of(model, prompts)
            return [self._answered(prompt, text) for prompt, text in zip(prompts, texts)]
        except Exception as error:  # the chat shows the error in the model's column
            if len(prompts) > 1:
                return [answer for prompt in prompts for answer in self._answers(model, [prompt])]
            return [{"text": "", "reward": None, "error": f"{type(error).__name__}: {error}"}]

    def _answered(self, prompt: str, text: str) -> dict:
        try:
            reward, error = None if self._score is None else float(self._score(prompt, text)), ""
        except Exception as problem:  # the answer is shown nevertheless
            reward, error = None, f"no reward: {type(problem).__name__}: {problem}"
        return finite({"text": text, "reward": reward, "error": error})

    def _show(self, turns: Sequence[dict], done: bool = False) -> None:
        """Show the current turns with the available answers at the end of the conversation."""
        before = [turn for turn in self.turns if turn.get("done")]
        shown = [
            turn | {"answers": list(turn["answers"])} | ({"done": True} if done else {}) for turn in turns
        ]
        self.turns = [*before, *shown]

    def _on_message(self, _, content: dict, buffers) -> None:
        """Handle a message of the page, and send an answer. Without an answer, the page keeps the question in its box."""
        prompt = str(content.get("prompt", "")).strip()
        if content.get("kind") == "ask" and prompt:
            self.busy = True
            self._questions.put(prompt)
        elif content.get("kind") == "clear" and not self.busy:
            self.turns = []
        self.send({"kind": "answer"})

    def _answer_questions(self) -> None:
        for prompt in iter(self._questions.get, None):
            if self._closed:
                return
            self.ask(prompt)

    def close(self) -> None:
        """Answer no more questions of the page."""
        self._closed = True
        self._questions.put(None)
        super().close()

    def table(self) -> Table:
        """The conversation as a static table."""
        shown = 1 if self._score is None else 2  # columns per model: the text, and with a score the reward
        columns = ["prompt"] + [column for name in self.names for column in (name, "reward")[:shown]]
        rows = [
            [PromptCell(turn["prompt"])]
            + [cell for answer in turn["answers"] for cell in _cells(answer)[:shown]]
            for turn in self.turns
        ]
        return Table(repr(self), columns, rows)

    def __repr__(self) -> str:
        turns = f"{len(self.turns)} turn{'' if len(self.turns) == 1 else 's'}"
        return f"Chat with {', '.join(self.names)}: {turns}"


def _cells(answer: dict | None) -> list:
    """The text and the reward of an answer; both empty while the model generates."""
    if answer is None:
        return ["", None]
    return ["\n\n".join(filter(None, (answer["text"], answer["error"]))), answer["reward"]]
