"""A notebook's questions. Each choice has an explanation of why the choice is right or wrong."""

from __future__ import annotations

from html import escape

import traitlets

from aligner_lib.tutorial.quiz.quiz_file import FINAL, QuizFile, load_quiz, quiz_names
from aligner_lib.tutorial.report.html_page import with_code
from aligner_lib.tutorial.workspace.learning_progress import read_progress, record_answer, workspace
from widgets.frontend.widget import Widget, script

# The quiz has two outputs: static HTML and the widget. A live widget hides the static output. Without a kernel, the static
# output hides JupyterLab's error message about the missing widget. Only the output with the error message has the class
# jupyter-widgets.
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
    """The questions of a notebook: `Quiz("03")`, `Quiz("final")`, or a QuizFile.

    The browser judges the answers. If the process has a Workspace, the answers are stored in the workspace's progress.jsonl,
    and shown again when the notebook is reopened. seed: of the random order of the choices. Raises ValueError for an unknown
    quiz.
    """

    _esm = script("dom", "quiz")
    title = traitlets.Unicode().tag(sync=True)
    questions = traitlets.List().tag(sync=True)
    """[{id, ask, choices: [{place, text, why}]}]."""
    answers = traitlets.Dict().tag(sync=True)
    """Id of a question → the places of the chosen answers, in order. Place 0 is right."""

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
        """Record the new answers. The browser always sends all answers of the widget."""
        known = {question.id: len(question.choices) for question in self.file.questions}
        for question, tried in change["new"].items():
            before = change["old"].get(question, [])
            for place in tried[len(before) :]:
                if isinstance(place, int) and 0 <= place < known.get(question, 0):
                    record_answer(self.file.name, question, place, right=place == 0)

    def __repr__(self) -> str:
        right = sum(0 in tried for tried in self.answers.values())
        return f"Quiz {self.title}: {right} of {len(self.questions)} answered right"

    # -- display --------------------------------------------------------------------------------------------------

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self.static_html(), "text/plain": ""}, raw=True)
        data, metadata = self._repr_mimebundle_()
        display(data | {"text/plain": ""}, metadata=metadata, raw=True)

    def static_html(self) -> str:
        """The quiz for a page without a kernel: how to open the notebook, and the choices with collapsed explanations."""
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
            f"<details><summary>{with_code(choice.text)}</summary>"
            f"<p>{'Right' if choice.place == 0 else 'No'}: {with_code(choice.why)}</p></details>"
            for choice in question.shuffled(self._seed)
        )
        return f"<li>{with_code(question.ask)}{choices}</li>"


def _answered_before(file: QuizFile) -> dict[str, list[int]]:
    """The workspace's stored answers to the quiz, without answers to questions or choices that no longer exist."""
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
