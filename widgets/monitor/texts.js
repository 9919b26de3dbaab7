// The completions of a step, below the charts: opened by a click on a point. As the widget Completions, in the monitor.

class TextsView {
  constructor(model) {
    this.model = model;
    this.title = make("h4", { class: "lab-title" });
    const close = make("button", { type: "button", class: "lab-remove", "aria-label": "close the completions", onclick: () => this.close() }, "×");
    this.place = make("div");
    this.element = make("div", { class: "lab-texts", hidden: true, tabindex: -1, role: "region", "aria-label": "completions of a step" }, make("div", { class: "lab-head" }, this.title, close), this.place);
    this.follow = () => this.draw();
    model.on("change:texts change:texts_query", this.follow);
    this.draw();
  }

  remove() {
    this.model.off("change:texts change:texts_query", this.follow);
    this.view?.remove();
  }

  // They come below the charts, where they may be off the screen: they are scrolled to and focused when they are there.
  open(run, step, split) {
    this.arriving = true;
    const before = this.model.get("texts_query");
    const kept = before.run === run ? { colour: before.colour, sort: before.sort, beside: before.beside } : {};
    this.ask({ ...kept, run, step, split, open: true });
  }

  close() {
    this.ask({ ...this.model.get("texts_query"), open: false });
  }

  ask(query) {
    const defined = Object.entries(query).filter(([, value]) => value !== undefined);
    this.model.set("texts_query", Object.fromEntries(defined));
    this.model.save_changes();
  }

  draw() {
    const page = this.model.get("texts"), open = Boolean(this.model.get("texts_query").open && page.rows);
    this.element.hidden = !open;
    if (open && this.arriving) {
      this.arriving = false;
      requestAnimationFrame(() => { this.element.focus({ preventScroll: true }); this.element.scrollIntoView({ block: "nearest" }); });
    }
    if (!open || this.view) return open && say(this.title, `Completions of ${page.run}`);
    say(this.title, `Completions of ${page.run}`);
    this.view = new CompletionsView(facet(this.model, { page: "texts", query: "texts_query" }), this.place);
    this.view.draw(page);
  }
}

// Some of a model's traits under other names.
function facet(model, names) {
  const renamed = (event) => event.replace(/^change:(\w+)$/, (_, name) => `change:${names[name]}`);
  return {
    get: (name) => model.get(names[name] ?? name),
    set: (name, value) => model.set(names[name] ?? name, value),
    save_changes: () => model.save_changes(),
    on: (event, heard) => model.on(renamed(event), heard),
    off: (event, heard) => model.off(renamed(event), heard),
  };
}
