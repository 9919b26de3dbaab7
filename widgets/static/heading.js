// What the runs are doing: a line for each, with state, progress, speed, and the last sign of life.

const STATES = { running: "running", finished: "finished", stopped: "stopped", failed: "failed", lost: "lost", waiting: "not started yet" };

class RunHeading {
  constructor() {
    this.swatch = make("span", { hidden: true });
    this.name = make("strong", { class: "lab-run-name" });
    this.state = make("span", { class: "lab-state" });
    this.bar = make("span", { class: "lab-done" });
    this.progress = make("span", { class: "lab-progress", role: "progressbar", "aria-label": "progress", "aria-valuemin": 0 }, this.bar);
    this.facts = make("span", { class: "lab-facts" });
    this.message = make("p", { class: "lab-message" });
    this.element = make("li", { class: "lab-run" }, this.swatch, this.name, this.state, this.progress, this.facts, this.message);
  }

  draw(run, index, store) {
    if (store.head.runs.length > 1 && !this.swatch.firstChild) this.swatch.append(swatch(penOf(index, 0, true)));
    this.swatch.hidden = store.head.runs.length < 2;
    say(this.name, run.name);
    say(this.state, STATES[run.status] ?? run.status);
    set(this.state, { "data-state": run.status });
    set(this.progress, { hidden: !run.max_steps, "aria-valuemax": run.max_steps, "aria-valuenow": Math.min(run.step, run.max_steps) });
    if (run.max_steps) this.bar.style.width = `${Math.min(100, (100 * run.step) / run.max_steps)}%`;
    const age = run.heartbeat ? Math.max(0, Date.now() / 1000 + store.clock - run.heartbeat) : null;
    const facts = [run.max_steps ? `step ${run.step} of ${run.max_steps}` : `step ${run.step}`];
    if (run.eta_seconds !== null) facts.push(`about ${duration(run.eta_seconds)} left`);
    if (run.tokens_a_second !== null) facts.push(`${number(Math.round(run.tokens_a_second))} tokens/s`);
    if (run.status === "running" && age !== null) facts.push(age < 5 ? "alive" : `last sign of life ${duration(age)} ago`);
    say(this.facts, facts.join(" · "));
    set(this.facts, { "data-stale": run.status === "running" && age > store.head.stale_seconds });
    const lost = run.status === "lost" ? "Its process is gone and left no message: it was killed, or ran out of memory." : "";
    say(this.message, run.status === "finished" ? "" : run.message || lost);
  }
}
