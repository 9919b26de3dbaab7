// When nobody in a kernel listens any more: what is shown is old, and a button would do nothing.

const SILENCE_SECONDS = 20; // the kernel sends something every five while a run goes on (widgets/monitor/monitor.py)

class LostNotice {
  constructor() {
    this.element = make("p", { class: "lab-lost", role: "alert", hidden: true });
  }

  // state: {cut: told of by the page, running, since (ms), cell (the number of the cell that made the widget)}; false: all is well.
  draw(state) {
    set(this.element, { hidden: !state });
    if (!state) return;
    const why = state.cut ? "The kernel was restarted: this is how things were at" : "The kernel has said nothing since";
    const when = new Date(state.since).toLocaleTimeString("en-GB");
    const run = state.running ? " The run does not notice; it goes on in a process of its own." : "";
    const cell = state.cell ? `cell [${state.cell}]` : "the cell that shows it";
    say(this.element, `${why} ${when}.${run} To watch it live, run ${cell} again, after the cells above that it needs.`);
  }
}

// A page may be drawn live and yet reach nobody: after a reload, or in a second tab, JupyterLab can send its messages to
// a part of the kernel that does not hand them on. So the kernel answers each message, and a missing answer is said.
const ANSWER_SECONDS = 8;

class Mailbox {
  constructor(model) {
    this.model = model;
    this.asked = null; // when the oldest message without an answer was sent (ms)
    this.element = make("p", { class: "lab-lost lab-unanswered", role: "alert", hidden: true });
    this.pressed = null; // the button that waits for the answer
    this.hear = (content) => {
      if (content.kind !== "answer") return;
      this.asked = null;
      if (this.pressed) this.pressed.disabled = false;
      this.draw();
    };
    model.on("msg:custom", this.hear);
    this.clock = setInterval(() => this.draw(), 1000);
  }

  get unanswered() {
    return this.asked !== null && Date.now() - this.asked > 1000 * ANSWER_SECONDS;
  }

  // button: disabled until the answer, so that a double click sends one message.
  send(content, button = null) {
    this.asked ??= Date.now();
    if (button) (this.pressed = button).disabled = true;
    this.model.send(content);
  }

  draw() {
    set(this.element, { hidden: !this.unanswered });
    if (!this.unanswered) return;
    const when = new Date(this.asked).toLocaleTimeString("en-GB");
    say(this.element, `The connection from this page to the kernel is lost, or a cell is running: the kernel has not answered since ${when}. `
      + "A running cell delays a button until the cell ends. If no cell is running, the button did nothing: reload the page. "
      + "`aligner stop RUN` in a terminal stops the run at once. To keep the connection, choose in JupyterLab's Settings, Kernels, "
      + "“Kernel Comms over subshells: Disabled”, and reload.");
  }

  remove() {
    clearInterval(this.clock);
    this.model.off("msg:custom", this.hear);
  }
}

// For widgets that only answer: they are lost when the page says so.
function noticeLoss(model, element, body, running = () => false) {
  const notice = new LostNotice();
  element.prepend(notice.element);
  const draw = (lost) => {
    notice.draw(lost && { cut: true, running: running(), since: Date.now(), cell: model.get("cell") });
    set(element, { "data-lost": lost });
    set(body, { inert: lost });
  };
  const lose = () => draw(true), find = () => draw(false);
  model.on("comm_live_update", lose);
  model.on("change", find);
  return () => { model.off("comm_live_update", lose); model.off("change", find); };
}
