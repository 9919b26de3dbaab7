// A run that is over goes on from one of its steps with one setting changed, as a run of its own beside the first.

class BranchForm {
  constructor(model) {
    const send = () => {
      if (!this.step.reportValidity()) return;
      const [step, setting, value] = [this.step, this.setting, this.value].map((field) => field.value.trim());
      if (step && setting && value) model.send({ kind: "branch", step: Number(step), setting, value });
    };
    const field = (attributes) => make("input", { autocomplete: "off", ...attributes, onkeydown: (event) => {
      if (event.key === "Enter") { event.preventDefault(); send(); } // the notebook takes Enter before the form does
      event.stopPropagation(); // and other keys are shortcuts of its
    } });
    const list = `lab-settings-${Math.random().toString(36).slice(2)}`;
    this.names = make("datalist", { id: list });
    this.step = field({ type: "number", min: 0, step: 1 });
    this.setting = field({ type: "text", list, spellcheck: "false", oninput: () => this.showValue() });
    this.value = field({ type: "text" });
    this.said = make("p", { class: "lab-said", role: "status" });
    this.element = make("div", { class: "lab-branch", hidden: true },
      make("form", { class: "lab-tools", onsubmit: (event) => { event.preventDefault(); send(); } },
        make("label", {}, "Go on from step ", this.step), make("label", {}, "with ", this.setting), make("label", {}, "= ", this.value),
        make("button", { type: "submit", title: "A new run shares the steps up to this one; only the setting differs from there on" }, "Branch"),
        this.names),
      this.said);
  }

  // The value that the run had.
  showValue() {
    set(this.value, { placeholder: this.settings[this.setting.value] ?? "" });
  }

  // branching: {steps, settings, said}, or null where no branch can be started.
  draw(branching) {
    this.element.hidden = !branching;
    if (!branching) return;
    if (!this.settings) {
      this.settings = branching.settings;
      this.names.replaceChildren(...Object.keys(this.settings).map((name) => make("option", { value: name })));
      this.step.value = Math.floor(branching.steps / 2);
      this.setting.value = Object.keys(this.settings)[0] ?? "";
      this.showValue();
    }
    set(this.step, { max: branching.steps });
    say(this.said, branching.said);
  }
}
