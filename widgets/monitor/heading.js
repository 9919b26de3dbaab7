// What the runs are doing: a line for each, with state, progress, speed, and the last sign of life.

// From this share of a step's time on, waiting for a core is worth a sentence.
const BUSY = 0.2;
const STATES = { running: "running", finished: "finished", stopped: "stopped", failed: "failed", lost: "lost", deleted: "deleted", waiting: "not started yet" };

class RunHeading {
  // toggle: what a click on the name does, where several runs share the charts: the headings are then the legend.
  constructor(toggle) {
    this.swatch = make("span", {});
    this.text = make("strong", { class: "lab-run-name" });
    this.name = toggle
      ? make("button", { type: "button", class: "lab-legend-run", title: "Hide or show this run", onclick: toggle }, this.swatch, this.text)
      : this.text;
    this.toggle = toggle;
    this.state = make("span", { class: "lab-state" });
    this.bar = make("span", { class: "lab-done" });
    this.progress = make("span", { class: "lab-progress", role: "progressbar", "aria-label": "progress", "aria-valuemin": 0 }, this.bar);
    this.facts = make("span", { class: "lab-facts" });
    this.message = make("p", { class: "lab-message" });
    this.wayBack = make("p", { class: "lab-way-back" });
    this.element = make("li", { class: "lab-run" }, this.name, this.state, this.progress, this.facts, this.message, this.wayBack);
  }

  // frozen: nobody follows the run any more, so nothing is said of now.
  draw(run, index, store, { hidden, frozen }) {
    if (this.toggle && !this.swatch.firstChild) this.swatch.append(swatch(penOf(index, 0, true)));
    if (this.toggle) set(this.name, { "aria-pressed": String(!hidden) });
    say(this.text, run.name);
    const running = run.status === "running";
    say(this.state, frozen && running ? "was running" : (STATES[run.status] ?? run.status));
    set(this.state, { "data-state": frozen ? "unknown" : run.status });
    set(this.progress, { hidden: !run.max_steps, "aria-valuemax": run.max_steps, "aria-valuenow": Math.min(run.step, run.max_steps) });
    if (run.max_steps) this.bar.style.width = `${Math.min(100, (100 * run.step) / run.max_steps)}%`;
    const age = run.heartbeat ? Math.max(0, Date.now() / 1000 + store.clock - run.heartbeat) : null;
    const facts = [run.max_steps ? `step ${run.step} of ${run.max_steps}` : `step ${run.step}`];
    if (run.eta_seconds !== null && !frozen) facts.push(`about ${duration(run.eta_seconds)} left`);
    if (run.tokens_a_second !== null && !frozen) facts.push(`${number(Math.round(run.tokens_a_second))} tokens/s`);
    if (running && run.waits_for_cores > BUSY && !frozen) {
      facts.push(`waits for a processor ${Math.round(100 * run.waits_for_cores)} % of the time: other programs use this machine, too`);
    }
    if (running && age !== null && !frozen) facts.push(age < 5 ? "alive" : `last sign of life ${duration(age)} ago`);
    say(this.facts, facts.join(" · "));
    set(this.facts, { "data-stale": running && !frozen && age > store.head.stale_seconds });
    const lost = run.status === "lost" ? "Its process is gone and left no message: it was killed, or ran out of memory." : "";
    say(this.message, run.status === "finished" ? "" : run.message || lost);
    say(this.wayBack, run.way_back ?? "");
  }
}
