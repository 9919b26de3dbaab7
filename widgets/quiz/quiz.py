"""A notebook's questions, with a sentence for each choice that says why it is right or wrong."""

from __future__ import annotations

import re
from html import escape

import traitlets

from aligner_lib.tutorial.quiz.quiz_file import FINAL, QuizFile, load_quiz, quiz_names
from aligner_lib.tutorial.workspace.learning_progress import read_progress, record_answer, workspace
from widgets.frontend.widget import Widget, script

# A page without a kernel shows the first output alone: a living widget hides it, and it hides JupyterLab's complaint about
# a widget that is gone (which has a class that the output of a living one has not).
STATIC_STYLE = """<style>
.jp-OutputArea-child:has(.lab-quiz-static):has(+ .jp-OutputArea-child .lab-quiz) { display: none; }
.jp-OutputArea-child:has(.lab-quiz-static) + .jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets) { display: none; }
.lab-quiz-static { font: 14px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); max-width: 52em; }
.lab-quiz-static li { margin: .5em 0; }
.lab-quiz-static details { margin: .15em 0; }
.lab-quiz-static details p { margin: .1em 0 .4em 1.2em; opacity: .85; }
.lab-quiz-static summary { cursor: pointer; }
</style>"""


class Quiz(Widget):
    """The questions of a notebook: `Quiz("03")`, or `Quiz("final")`; or those of a QuizFile.

    Answers are judged in the browser, kept in the workspace's progress.jsonl where this process has made a Workspace,
    and shown again when the notebook is opened anew. seed: of the choices' order. Raises ValueError for a quiz that
    there isn't.
    """

    _esm = script("dom", "quiz")
    title = traitlets.Unicode().tag(sync=True)
    questions = traitlets.List().tag(sync=True)  # [{id, ask, choices: [{place, text, why}]}]
    answers = traitlets.Dict().tag(sync=True)
    """Each question's id, and the places of the choices that were tried, in order. Place 0 is right."""

    def __init__(self, name: str | QuizFile, seed: int = 0):
        self.file = load_quiz(name) if isinstance(name, str) else name
        self._seed = seed
        questions = [
            {
                "id": question.id,
                "ask": question.ask,
                "choices": [vars(choice) for choice in question.shuffled(seed)],
            }
            for question in self.file.questions
        ]
        title = self.file.title if self.file.name == FINAL else f"{self.file.name} · {self.file.title}"
        super().__init__(title=title, questions=questions, answers=_answered_before(self.file))
        self.observe(self._note, "answers")

    def _note(self, change) -> None:
        """Keep what was just tried; the browser sends all answers of this widget."""
        known = {question.id: len(question.choices) for question in self.file.questions}
        for question, tried in change["new"].items():
            before = change["old"].get(question, [])
            for place in tried[len(before) :]:
                if isinstance(place, int) and 0 <= place < known.get(question, 0):
                    record_answer(self.file.name, question, place, right=place == 0)

    def __repr__(self) -> str:
        right = sum(0 in tried for tried in self.answers.values())
        return f"Quiz {self.title}: {right} of {len(self.questions)} answered right"

    # -- shown ----------------------------------------------------------------------------------------------------

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self.static_html(), "text/plain": ""}, raw=True)
        data, metadata = self._repr_mimebundle_()
        display(data | {"text/plain": ""}, metadata=metadata, raw=True)

    def static_html(self) -> str:
        """The quiz for a page without a kernel: how to open it, and the choices, each of which unfolds its sentence."""
        name = self.file.name
        notebook = "notebook 08" if name == FINAL else f"notebook {name}"
        cell = f"the cell <code>Quiz(&quot;{name}&quot;)</code>" if name in quiz_names() else "this cell"
        questions = "".join(self._static_question(question) for question in self.file.questions)
        return (
            f'{STATIC_STYLE}<section class="lab-quiz-static"><p><b>Quiz: {escape(self.title)}.</b> To answer it and have '
            f"your answers kept, open {notebook} with <code>./lab jupyter</code> and run {cell}. Here each choice unfolds "
            f"what is to be said of it.</p><ol>{questions}</ol></section>"
        )

    def _static_question(self, question) -> str:
        choices = "".join(
            f"<details><summary>{_code(choice.text)}</summary>"
            f"<p>{'Right' if choice.place == 0 else 'No'}: {_code(choice.why)}</p></details>"
            for choice in question.shuffled(self._seed)
        )
        return f"<li>{_code(question.ask)}{choices}</li>"


def _answered_before(file: QuizFile) -> dict[str, list[int]]:
    """The answers that the workspace has of this quiz, of questions and choices that there still are."""
    folder = workspace()
    if folder is None:
        return {}
    known = {question.id: len(question.choices) for question in file.questions}
    result = read_progress(folder, look_at_runs=False).quizzes.get(file.name)
    answers = result.answers if result else {}
    return {
        question: [place for place in tried if 0 <= place < known[question]]
        for question, tried in answers.items()
        if question in known
    }


def _code(text: str) -> str:
    """Words between backticks as code; everything else as text."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
