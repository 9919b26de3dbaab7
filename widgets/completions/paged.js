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
    const { start, size, total } = this.model.get("page"), last = Math.floor((total - 1) / size) * size;
    this.ask({ start: Math.max(0, Math.min((this.asked("start") ?? start) + step * size, last)) }); // the page may be an earlier one
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
    this.text = make("input", { type: "search", placeholder: "find text", "aria-label": "find text", oninput: () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => { this.typing = null; this.ask({ text: this.text.value }); }, 250);
    } });
    this.bar.append(this.text);
  }

  // A click on another point of a chart ends the search. A text that is being typed stays.
  drawSearch() {
    if (!this.typing && document.activeElement !== this.text) this.text.value = this.asked("text") ?? "";
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
    this.drawSearch();
    const drawn = JSON.stringify([page.rows, page.asked, page.scale, page.verdicts]);
    if (drawn === this.drawn) return; // cards that stay keep their selection, their scrolling and their open turns
    this.cards.replaceChildren(...page.rows.map((row) => make("li", { class: "lab-card" }, ...this.card(row, page))));
    this.drawn = drawn;
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
