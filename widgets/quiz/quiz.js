// Questions, one at a time. Answers are judged here, so they are also when no kernel listens any more.

const AGAIN = "Choose an answer first: arrows move, the space bar chooses, Enter answers.";

// Words between backticks are code; everything else is text.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
}

class QuestionView {
  constructor(quiz, question, number, of) {
    this.quiz = quiz;
    this.question = question;
    const name = `quiz-${Math.random().toString(36).slice(2)}`;
    this.choices = question.choices.map((choice) => this.choice(choice, name));
    this.said = make("div", { class: "lab-quiz-said", role: "status" });
    this.others = make("details", { class: "lab-quiz-others", hidden: true }, make("summary", {}, "The other choices"),
      make("dl", {}, ...question.choices.filter(({ place }) => place !== 0).flatMap(({ text, why }) =>
        [make("dt", {}, ...prose(text)), make("dd", {}, ...prose(why))])));
    this.check = make("button", { type: "submit" }, "Answer");
    this.next = make("button", { type: "button", hidden: of === 1, onclick: () => quiz.show(number) }, number < of ? "Next question" : "Back to the first");
    this.element = make("form", { hidden: true, onsubmit: (event) => { event.preventDefault(); this.answer(); } },
      make("fieldset", {}, make("legend", {}, make("small", {}, of > 1 ? `Question ${number} of ${of} ` : ""), make("span", {}, ...prose(question.ask))),
        ...this.choices.map(({ label }) => label)),
      this.said, this.others, make("div", { class: "lab-tools" }, this.check, this.next));
  }

  choice({ place, text, why }, name) {
    const input = make("input", { type: "radio", name, value: place });
    const mark = make("span", { class: "lab-quiz-mark" });
    const label = make("label", { class: "lab-quiz-choice" }, input, make("span", {}, ...prose(text)), mark);
    return { place, why, input, mark, label };
  }

  // Enter: answers, and goes on once the question is answered right.
  enter() {
    if (this.isRight()) this.quiz.show(this.quiz.current + 1);
    else this.answer();
  }

  answer() {
    const chosen = this.choices.find(({ input }) => input.checked);
    if (!chosen) this.tell("", AGAIN);
    else {
      this.last = chosen.place;
      this.quiz.answered(this.question.id, chosen.place);
    }
  }

  isRight() {
    return this.quiz.tried(this.question.id).includes(0);
  }

  tell(verdict, why) {
    this.said.dataset.verdict = verdict;
    const words = [make("b", {}, { right: "Right. ", wrong: "No. ", "": "" }[verdict]), ...prose(why)];
    const text = words.map((part) => part.textContent ?? part).join("");
    if (this.said.textContent !== text) this.said.replaceChildren(...words); // what is set is read out again
  }

  draw() {
    const tried = this.quiz.tried(this.question.id), right = this.isRight();
    for (const { place, mark, label } of this.choices) {
      const verdict = !tried.includes(place) ? "" : place === 0 ? "right" : "wrong";
      label.dataset.verdict = verdict;
      say(mark, { right: "✓ right", wrong: "✗ no", "": "" }[verdict]);
    }
    if (!tried.includes(this.last)) this.last = tried.at(-1); // as when it was answered in another view
    const last = this.choices.find(({ place }) => place === (right ? 0 : this.last));
    if (last) {
      last.input.checked = true;
      this.tell(right ? "right" : "wrong", last.why);
    } else {
      this.tell("", "");
      for (const { input } of this.choices) input.checked = false;
    }
    set(this.others, { hidden: !right });
    set(this.check, { hidden: right });
  }

  focus() {
    (this.choices.find(({ input }) => input.checked) ?? this.choices[0]).input.focus();
  }
}

class QuizView {
  constructor(model, el) {
    this.model = model;
    const questions = model.get("questions");
    this.views = questions.map((question, i) => new QuestionView(this, question, i + 1, questions.length));
    this.steps = questions.map((_, i) => make("button", { type: "button", onclick: () => this.show(i) }));
    this.score = make("p", { class: "lab-facts", role: "status" });
    this.again = make("button", { type: "button", onclick: () => this.begin() }, "Start again");
    this.lost = make("p", { class: "lab-lost", role: "alert", hidden: true });
    const title = `Quiz ${model.get("title")}`;
    this.element = widgetSection("lab-quiz", title,
      this.lost, make("div", { class: "lab-tools" }, make("b", {}, title), this.score, make("span", { class: "lab-actions" }, this.again)),
      make("ol", { class: "lab-quiz-steps", "aria-label": "questions", hidden: questions.length === 1 }, ...this.steps.map((step) => make("li", {}, step))),
      ...this.views.map((view) => view.element));
    set(this.element, { onkeydown: (event) => this.key(event) });
    el.append(this.element);
    this.current = Math.max(0, this.views.findIndex((view) => !view.isRight()));
    this.follow = () => this.draw();
    this.lose = () => {
      const cell = model.get("cell");
      say(this.lost, `The kernel was restarted: what you answer now is not kept until you run ${cell ? `cell [${cell}]` : "this cell"} again.`);
      set(this.lost, { hidden: false });
    };
    model.on("change:answers", this.follow);
    model.on("comm_live_update", this.lose);
    this.draw();
  }

  remove() {
    this.model.off("change:answers", this.follow);
    this.model.off("comm_live_update", this.lose);
  }

  key(event) {
    if (event.key === "Enter" && event.target.type === "radio" && !isNotebookKey(event)) {
      event.preventDefault();
      this.views[this.current].enter();
    }
  }

  tried(id) {
    return this.model.get("answers")[id] ?? [];
  }

  answered(id, place) {
    if (!this.tried(id).includes(place)) {
      this.model.set("answers", { ...this.model.get("answers"), [id]: [...this.tried(id), place] });
      this.model.save_changes();
    }
    this.draw();
  }

  begin() {
    this.model.set("answers", {});
    this.model.save_changes();
    this.show(0);
  }

  show(question) {
    this.current = question % this.views.length;
    this.draw();
    this.views[this.current].focus();
  }

  draw() {
    this.views.forEach((view, i) => {
      set(view.element, { hidden: i !== this.current });
      view.draw();
      const tried = this.tried(view.question.id);
      const state = view.isRight() ? "right" : tried.length ? "tried" : "open";
      say(this.steps[i], `${i + 1}${{ right: " ✓", tried: " ✗", open: "" }[state]}`);
      set(this.steps[i], { "data-state": state, "aria-current": i === this.current ? "step" : false,
        "aria-label": `question ${i + 1}, ${{ right: "answered right", tried: "not right yet", open: "not answered" }[state]}` });
    });
    const right = this.views.filter((view) => view.isRight()).length;
    const first = this.views.filter((view) => this.tried(view.question.id)[0] === 0).length;
    say(this.score, `${right} of ${this.views.length} right, ${first} at the first try`);
    set(this.again, { hidden: Object.keys(this.model.get("answers")).length === 0 });
  }
}

export default {
  render({ model, el }) {
    const view = new QuizView(model, el);
    return () => view.remove();
  },
};
