// The values that a run changes while it runs, and a checkpoint: for the monitor and the job panel.

const CONTROL_NAMES = { lr: "learning rate", kl_coef: "KL coefficient" };

class Knobs {
  constructor(model) {
    this.model = model;
    this.checkpoint = make("button", { type: "button", onclick: () => model.send({ kind: "checkpoint" }) }, "Checkpoint now");
    this.undo = make("button", { type: "button", hidden: true, onclick: () => model.send({ kind: "undo", step: this.undoStep }, this.undo) }, "Undo the change");
    this.controls = Object.fromEntries(Object.keys(CONTROL_NAMES).map((name) => [name, this.control(name)]));
    this.said = make("p", { class: "lab-said", role: "status" });
    this.element = make("div", { class: "lab-knobs", hidden: true },
      make("div", { class: "lab-tools" }, ...Object.values(this.controls).map((control) => control.form), this.checkpoint, this.undo), this.said);
  }

  control(name) {
    const send = () => {
      if (!input.reportValidity()) return; // a text that is no number stays
      if (input.value !== "") this.model.send({ kind: "set", name, value: input.value });
      input.value = "";
    };
    const input = make("input", { type: "number", min: 0, step: "any", onkeydown: (event) => {
      if (event.key === "Enter") { event.preventDefault(); send(); } // the notebook takes Enter before the form does
      event.stopPropagation(); // and other keys are shortcuts of its
    } });
    const form = make("form", { class: "lab-control", onsubmit: (event) => { event.preventDefault(); send(); } },
      make("label", {}, `${CONTROL_NAMES[name]} `, input), make("button", { type: "submit", "aria-label": `set ${CONTROL_NAMES[name]}` }, "Set"));
    return { form, input };
  }

  toggle() {
    this.element.hidden = !this.element.hidden;
    return !this.element.hidden;
  }

  // steering: {obeys, pending, values, said, over, undo, undo_step}, or null; false when there is nothing to change.
  draw(steering) {
    const obeys = steering && !steering.over ? steering.obeys : [];
    const any = Object.keys(CONTROL_NAMES).some((name) => obeys.includes(name)) || obeys.includes("checkpoint");
    const undoes = Boolean(steering?.over && (steering.undo || steering.said)); // shown without a click: it is the way back
    if (undoes) this.element.hidden = false;
    else if (!any) this.element.hidden = true;
    this.undoStep = steering?.undo_step;
    set(this.undo, { hidden: !steering?.undo, title: steering?.undo ?? "" });
    for (const [name, { form, input }] of Object.entries(this.controls)) {
      set(form, { hidden: !obeys.includes(name) });
      const waiting = steering?.pending.set[name];
      input.placeholder = waiting !== undefined ? `${number(waiting)}, asked` : number(steering?.values[name]);
    }
    set(this.checkpoint, { hidden: !obeys.includes("checkpoint") });
    this.checkpoint.disabled = Boolean(steering?.pending.checkpoint);
    say(this.said, steering?.said ?? "");
    return any || undoes;
  }
}
