// The job panel: facts, the end of the log, and controls. What a run does not obey is not offered; when it is over, nothing is.

class PanelView {
  constructor(model, element) {
    this.model = model;
    this.mailbox = new Mailbox(model);
    this.title = make("strong", { class: "lab-run-name" });
    this.state = make("span", { class: "lab-state" });
    this.facts = make("span", { class: "lab-facts" });
    this.message = make("p", { class: "lab-said", role: "status" });
    this.log = make("pre", { class: "lab-log", tabindex: 0, role: "region", "aria-label": "end of the log" });
    this.stop = make("button", { type: "button", onclick: () => this.mailbox.send({ kind: "stop" }) }, "Stop after this step");
    this.cancel = make("button", { type: "button", class: "lab-stop", onclick: (event) => this.reallyCancel(event), onblur: () => this.calm() }, "Cancel");
    this.knobs = new Knobs(this.mailbox);
    this.buttons = make("div", { class: "lab-tools" }, this.stop, this.cancel);
    this.body = make("div", { class: "lab-body" }, make("div", { class: "lab-run" }, this.title, this.state, this.facts),
      this.buttons, this.knobs.element, this.message, this.log);
    this.element = widgetSection("lab-panel", "job", this.mailbox.element, this.body);
    element.append(this.element);
    this.follow = () => this.draw(model.get("view"));
    model.on("change:view", this.follow);
    this.unnotice = noticeLoss(model, this.element, this.body, () => !model.get("view").steering.over);
    this.follow();
  }

  remove() {
    this.unnotice();
    this.mailbox.remove();
    this.model.off("change:view", this.follow);
  }

  // The first press asks, the second one does it: nothing is saved. A double click is one press.
  reallyCancel({ detail: clicks }) {
    if (clicks > 1) return;
    if (this.sure) { this.mailbox.send({ kind: "cancel" }); this.calm(); }
    else { this.sure = true; say(this.cancel, "Cancel without a checkpoint?"); }
  }

  calm() {
    this.sure = false;
    say(this.cancel, "Cancel");
  }

  draw(view) {
    const { job, steering } = view, jobState = job?.state.toLowerCase();
    say(this.title, view.name);
    say(this.state, job ? jobState : view.status);
    set(this.state, { "data-state": job ? jobState : view.status });
    const facts = [job && view.status !== jobState && `run ${view.status}`, view.step !== null && `step ${view.step}`, job?.nodes || view.host, job?.reason,
      job?.start && `starts about ${job.start}`, view.checkpoint && `last checkpoint ${view.checkpoint}`];
    say(this.facts, facts.filter(Boolean).join(" · "));
    const { stop } = steering.pending, ended = ["finished", "failed", "cancelled"].includes(jobState);
    set(this.stop, { hidden: steering.over });
    this.stop.disabled = stop;
    say(this.stop, stop ? "Stopping after this step …" : "Stop after this step");
    set(this.cancel, { hidden: !job || ended });
    if (ended) this.calm();
    set(this.buttons, { hidden: steering.over && (!job || ended) });
    set(this.knobs.element, { hidden: !this.knobs.draw({ ...steering, said: "" }) });
    say(this.message, [view.said, steering.said, view.message && `The run says: ${view.message}.`, view.way_back].filter(Boolean).join(" "));
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
