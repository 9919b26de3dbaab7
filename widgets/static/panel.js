// The job panel: facts, the end of the log, and controls. What a run does not obey is not offered.

const CONTROL_NAMES = { kl_coef: "KL coefficient", lr: "learning rate" };

class PanelView {
  constructor(model, element) {
    this.model = model;
    this.title = make("strong", { class: "lab-run-name" });
    this.state = make("span", { class: "lab-state" });
    this.facts = make("span", { class: "lab-facts" });
    this.said = make("p", { class: "lab-said", role: "status" });
    this.log = make("pre", { class: "lab-log", tabindex: 0, role: "region", "aria-label": "end of the log" });
    this.stop = this.button("Stop after this step", "stop");
    this.checkpoint = this.button("Checkpoint now", "checkpoint");
    this.cancel = make("button", { type: "button", class: "lab-stop", onclick: () => this.reallyCancel(), onblur: () => this.calm() }, "Cancel");
    this.controls = Object.fromEntries(Object.keys(CONTROL_NAMES).map((name) => [name, this.control(name)]));
    this.element = make("section", { class: "lab-widget lab-panel", "aria-label": "job" },
      make("div", { class: "lab-run" }, this.title, this.state, this.facts),
      make("div", { class: "lab-tools" }, this.stop, this.checkpoint, this.cancel, ...Object.values(this.controls).map((control) => control.form)),
      this.said, this.log);
    element.append(this.element);
    this.follow = () => this.draw(model.get("view"));
    model.on("change:view", this.follow);
    this.follow();
  }

  remove() {
    this.model.off("change:view", this.follow);
  }

  button(text, kind) {
    return make("button", { type: "button", onclick: () => this.model.send({ kind }) }, text);
  }

  control(name) {
    const input = make("input", { type: "number", min: 0, step: "any" });
    const form = make("form", { class: "lab-control", onsubmit: (event) => {
      event.preventDefault();
      if (input.value !== "") this.model.send({ kind: "set", name, value: input.value });
      input.value = "";
    } }, make("label", {}, `${CONTROL_NAMES[name]} `, input), make("button", { type: "submit", "aria-label": `set ${CONTROL_NAMES[name]}` }, "Set"));
    return { form, input };
  }

  // The first press asks, the second one does it: nothing is saved.
  reallyCancel() {
    if (this.sure) { this.model.send({ kind: "cancel" }); this.calm(); }
    else { this.sure = true; say(this.cancel, "Cancel without a checkpoint?"); }
  }

  calm() {
    this.sure = false;
    say(this.cancel, "Cancel");
  }

  draw(view) {
    const job = view.job, { pending, obeys } = view;
    say(this.title, view.name);
    say(this.state, job ? job.state.toLowerCase() : view.status);
    set(this.state, { "data-state": job ? job.state.toLowerCase() : view.status });
    const facts = [job && view.status !== job.state.toLowerCase() && `run ${view.status}`, view.step !== null && `step ${view.step}`, job?.nodes || view.host, job?.reason,
      job?.start && `starts about ${job.start}`, view.checkpoint && `last checkpoint ${view.checkpoint}`];
    say(this.facts, facts.filter(Boolean).join(" · "));
    say(this.said, [view.said, view.message && `The run says: ${view.message}.`].filter(Boolean).join(" "));
    this.stop.disabled = view.over || pending.stop;
    say(this.stop, pending.stop && !view.over ? "Stopping after this step …" : "Stop after this step");
    set(this.checkpoint, { hidden: !obeys.includes("checkpoint") });
    this.checkpoint.disabled = view.over || pending.checkpoint;
    set(this.cancel, { hidden: !job });
    this.cancel.disabled = Boolean(job) && ["finished", "failed", "cancelled"].includes(job.state.toLowerCase());
    for (const [name, control] of Object.entries(this.controls)) {
      set(control.form, { hidden: !obeys.includes(name) || view.over });
      const waiting = pending.set[name];
      control.input.placeholder = waiting !== undefined ? `${number(waiting)}, asked` : number(view.controls[name]);
    }
    set(this.log, { hidden: !job?.log });
    say(this.log, job?.log ?? "");
  }
}

export default {
  render({ model, el }) {
    const view = new PanelView(model, el);
    return () => view.remove();
  },
};
