// When nobody in a kernel listens any more: what is shown is old, and a button would do nothing.

const SILENCE_SECONDS = 20; // the kernel sends something every five while a run goes on (widgets/monitor.py)

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
