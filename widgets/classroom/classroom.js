// The classroom: a row a participant; who may need help comes first.

const COLUMNS = [["seat", "seat"], ["run", "run"], ["step", "step"], ["state", "state"], ["alarms", "alarms"], ["exercises", "exercises"],
  ["quiz", "quiz"], ["last", "last news"]];

class ClassroomView {
  constructor(model, element) {
    this.model = model;
    this.summary = make("p", { class: "lab-said", role: "status" });
    this.order = make("select", { onchange: () => this.draw() }, ...["who may need help", "seat"].map((name) => make("option", {}, name)));
    this.note = make("small", {});
    this.rows = make("tbody");
    this.table = make("table", { class: "lab-seats" }, make("caption", { class: "lab-hidden" }, "participants"),
      make("thead", {}, make("tr", {}, ...COLUMNS.map(([, name]) => make("th", { scope: "col" }, name)))), this.rows);
    this.body = make("div", { class: "lab-body" }, this.summary,
      make("div", { class: "lab-tools" }, make("label", {}, "first", this.order), this.note),
      make("div", { class: "lab-scroll", tabindex: 0, role: "region", "aria-label": "participants" }, this.table));
    this.element = widgetSection("lab-classroom", "classroom", this.body);
    element.append(this.element);
    this.lines = new Map();
    this.follow = () => this.draw();
    model.on("change:view", this.follow);
    this.unnotice = noticeLoss(model, this.element, this.body, () => false);
    this.clock = setInterval(this.follow, 5000); // ages grow without news
    this.draw();
  }

  remove() {
    clearInterval(this.clock);
    this.unnotice();
    this.model.off("change:view", this.follow);
  }

  draw() {
    const { rows, missing, quiet_seconds: quiet, poll_ms: poll, now: heard } = this.model.get("view");
    this.ahead = Math.min(this.ahead ?? Infinity, Date.now() / 1000 - heard); // the teacher's clock, of the kernel's
    const now = Date.now() / 1000 - this.ahead;
    const seats = rows.map((row, index) => ({ ...row, index, age: row.last ? now - row.last : null, need: need(row, now, quiet) }));
    const first = this.order.selectedIndex === 0 ? (a, b) => b.need.weight - a.need.weight || a.index - b.index : (a, b) => a.index - b.index;
    seats.sort(first);
    const asking = seats.filter((seat) => seat.need.weight);
    say(this.summary, missing ? `The folder ${missing} does not exist on this machine.` : rows.length === 0 ? "Nobody has begun here yet." : `${rows.length} seats. ${asking.length === 0 ? "All is well."
      : `${asking.length} may need a look: ${asking.slice(0, 5).map((seat) => `${label(seat, rows)} (${seat.need.why})`).join(", ")}${asking.length > 5 ? " and more" : ""}.`}`);
    say(this.note, `looking at all seats takes at most ${poll} ms`);
    const kept = new Set();
    seats.forEach((seat, place) => {
      const line = this.line(seat.number);
      kept.add(seat.number);
      fill(line, seat);
      if (this.rows.children[place] !== line.row) this.rows.insertBefore(line.row, this.rows.children[place] ?? null);
    });
    for (const [number, line] of this.lines) if (!kept.has(number)) { line.row.remove(); this.lines.delete(number); }
  }

  line(number) { // folders of two seats may have the same name
    if (!this.lines.has(number)) {
      const cells = Object.fromEntries(COLUMNS.map(([of]) => [of, of === "seat" ? make("th", { scope: "row" }) : make("td", { "data-of": of })]));
      const bar = make("span", { class: "lab-bar" }), count = make("span");
      cells.step.append(bar, count);
      this.lines.set(number, { cells, bar, count, row: make("tr", {}, ...Object.values(cells)) });
    }
    return this.lines.get(number);
  }
}

// Two participants may have the same name.
const label = ({ name, seat }, rows) => !name ? seat : rows.filter((row) => row.name === name).length > 1 ? `${name} · ${seat}` : name;

// How much somebody may need help, and why.
function need(row, now, quiet) {
  if (row.unread) return { weight: 5, why: "can't be read" };
  if (row.status === "failed" || row.status === "lost") return { weight: 4, why: row.status };
  if (row.preflight && row.preflight !== "ok" && !row.run) return { weight: 3, why: "preflight" };
  if (row.status === "running" && row.alarms?.length) return { weight: 2, why: "alarm" };
  if (row.last && row.status !== "running" && now - row.last > quiet) return { weight: 1, why: "quiet" };
  return { weight: 0, why: "" };
}

function fill({ cells, bar, count, row }, seat) {
  set(row, { "data-need": seat.need.weight || null });
  say(cells.seat, seat.name ? `${seat.name} · ${seat.seat}` : seat.seat);
  say(cells.run, seat.run || "–");
  const share = seat.max_steps && seat.step !== null ? Math.min(1, seat.step / seat.max_steps) : 0;
  bar.style.setProperty("--share", `${Math.round(100 * share)}%`);
  say(count, seat.step === null || seat.step === undefined ? "–" : seat.max_steps ? `${seat.step}/${seat.max_steps}` : String(seat.step));
  say(cells.state, [seat.unread, seat.status || (seat.preflight === "ok" ? "ready" : ""), seat.preflight && seat.preflight !== "ok" && !seat.run ? `preflight: ${seat.preflight}` : "",
    seat.message].filter(Boolean).join(" · ") || "–");
  set(cells.state, { "data-state": seat.status || null });
  say(cells.alarms, (seat.alarms ?? []).join("; ") || "–");
  say(cells.exercises, [seat.exercises ?? 0, seat.tried?.length ? `at ${seat.tried[0]}` : "", seat.attack ? `judge: ${seat.attack}` : ""].filter((part) => part !== "").join(" · "));
  say(cells.quiz, seat.answered ? `${seat.right}/${seat.answered}` : "–");
  say(cells.last, seat.age === null ? "–" : seat.age < 10 ? "now" : `${duration(seat.age)} ago`);
  Object.values(cells).forEach((cell) => set(cell, { "data-empty": cell.textContent === "–" }));
}

export default {
  render({ model, el }) {
    const view = new ClassroomView(model, el);
    return () => view.remove();
  },
};
