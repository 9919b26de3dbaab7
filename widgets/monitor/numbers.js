// The records as a table, a page at a time: the kernel has them all.

const PAGE = 50;

class NumbersView {
  constructor(model, store) {
    this.model = model;
    this.store = store;
    this.run = 0;
    this.start = null; // null: the latest page
    this.runs = make("select", { "aria-label": "run", onchange: () => { this.run = Number(this.runs.value); this.go(null); } });
    this.place = make("span", { class: "lab-facts" });
    this.head = make("thead");
    this.body = make("tbody");
    const button = (text, to) => make("button", { type: "button", onclick: () => this.go(to()) }, text);
    this.element = make(
      "div", { class: "lab-numbers", hidden: true },
      make("div", { class: "lab-tools" }, this.runs,
        button("Earlier", () => Math.max(0, this.first() - PAGE)),
        button("Later", () => (this.first() + PAGE < this.records() ? this.first() + PAGE : null)),
        button("Latest", () => null), this.place),
      make("div", { class: "lab-scroll", tabindex: 0, role: "region", "aria-label": "table of numbers" }, make("table", {}, this.head, this.body)),
    );
  }

  records() {
    return this.store.head.records[this.run];
  }

  first() {
    return this.start ?? Math.max(0, this.records() - PAGE);
  }

  toggle() {
    this.element.hidden = !this.element.hidden;
    this.refresh(true);
    return !this.element.hidden;
  }

  go(start) {
    this.start = start;
    this.refresh(true);
  }

  // The latest page follows the run; an earlier one stays as it is.
  refresh(force) {
    if (this.element.hidden || (!force && (this.start !== null || this.shown === this.records()))) return;
    const names = this.store.head.runs.map((run) => run.name);
    if (this.runs.options.length !== names.length) {
      this.runs.replaceChildren(...names.map((name, i) => make("option", { value: i }, name)));
      this.runs.value = this.run;
    }
    this.runs.hidden = names.length < 2;
    if (this.start >= this.records()) this.start = null; // a resumed run has fewer
    this.shown = this.records();
    this.asked = this.first();
    this.model.send({ kind: "rows", run: this.run, start: this.asked, stop: this.asked + PAGE });
  }

  receive({ run, start, metrics, rows }) {
    if (run !== this.run || start !== this.asked) return; // another view's page
    const skipped = this.store.head.skipped[run];
    say(this.place, (rows.length ? `records ${start + 1} to ${start + rows.length} of ${this.records()}` : "no records yet")
      + (skipped ? `; ${skipped} unreadable lines left out` : ""));
    this.head.replaceChildren(make("tr", {}, ...["step", ...metrics].map((name) => make("th", { scope: "col" }, name))));
    this.body.replaceChildren(...rows.reverse().map((row) => make(
      "tr", {}, make("th", { scope: "row" }, String(row.step)), ...metrics.map((name) => make("td", {}, row[name] === undefined ? "" : number(row[name]))),
    )));
  }
}
