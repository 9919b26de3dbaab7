// A page of many records: tools above, cards below, a pager. The kernel finds; see widgets/completions/paged.py.

class PagedView {
  constructor(model, element, label) {
    this.model = model;
    this.bar = make("div", { class: "lab-tools" });
    this.place = make("span", { class: "lab-facts", role: "status" });
    const button = (text, step) => make("button", { type: "button", onclick: () => this.turn(step) }, text);
    this.earlier = button("Previous", -1);
    this.later = button("Next", 1);
    this.cards = make("ol", { class: "lab-cards" });
    this.body = make("div", { class: "lab-body" },
      this.bar, this.cards, make("div", { class: "lab-tools" }, this.earlier, this.later, this.place));
    this.element = widgetSection("lab-paged", label, this.body);
    element.append(this.element);
    this.unnotice = noticeLoss(model, this.element, this.body);
    this.follow = () => this.draw(model.get("page"));
    model.on("change:page", this.follow);
  }

  remove() {
    this.unnotice();
    this.model.off("change:page", this.follow);
  }

  ask(changes) {
    this.model.set("query", { ...this.model.get("query"), start: 0, ...changes });
    this.model.save_changes();
  }

  turn(step) {
    const { start, size } = this.model.get("page");
    this.ask({ start: start + step * size });
  }

  asked(name) {
    return this.model.get("query")[name];
  }

  // A labelled choice; its options come with the page.
  choice(label, name) {
    const select = make("select", { onchange: () => this.ask({ [name]: select.value }) });
    this.bar.append(make("label", {}, `${label} `, select));
    return select;
  }

  check(label, name) {
    const box = make("input", { type: "checkbox", onchange: () => this.ask({ [name]: box.checked }) });
    box.checked = Boolean(this.asked(name));
    const whole = make("label", {}, box, ` ${label}`);
    this.bar.append(whole);
    return whole;
  }

  search() {
    let waiting;
    const input = make("input", { type: "search", placeholder: "find text", "aria-label": "find text", oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.ask({ text: input.value }), 250);
    } });
    input.value = this.asked("text") ?? "";
    this.bar.append(input);
  }

  options(select, names, value) {
    if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
      select.replaceChildren(...names.map((name) => make("option", { value: name }, name || "all")));
    }
    select.value = value ?? names[0];
  }

  draw(page) {
    if (!page.rows) return;
    const last = page.start + page.rows.length;
    say(this.place, page.total ? `${page.counted ?? ""}${page.start + 1} to ${last} of ${page.total}` : "nothing found");
    this.earlier.disabled = page.start === 0;
    this.later.disabled = last >= page.total;
    this.drawTools(page);
    this.cards.replaceChildren(...page.rows.map((row) => make("li", { class: "lab-card" }, ...this.card(row, page))));
  }
}

function widgetOf(View) {
  return {
    render({ model, el }) {
      const view = new View(model, el);
      view.draw(model.get("page"));
      return () => view.remove();
    },
  };
}
