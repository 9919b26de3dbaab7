// The monitor: heading, alarms, tools, charts, time, numbers, texts. One store a model; any number of views of it.

const DETAIL_MS = 30000; // after which a detail without an answer is asked for again

class MonitorView {
  constructor(model, store, element) {
    Object.assign(this, { model, store, charts: [], headings: [] });
    this.state = { cursor: null, view: null, smoothing: 0.02, hidden: new Set() };
    this.lost = new LostNotice();
    this.mailbox = new Mailbox(model);
    this.said = make("p", { class: "lab-said", role: "status" });
    this.runs = make("ul", { class: "lab-runs" });
    this.alarms = make("div", { class: "lab-alarms", role: "status", "aria-label": "alarms" });
    this.grid = make("div", { class: "lab-charts" });
    this.comparison = make("div", { class: "lab-comparison", hidden: true });
    this.timers = make("div", { class: "lab-timers", hidden: true });
    this.numbers = new NumbersView(model, store);
    this.knobs = new Knobs(this.mailbox);
    this.branch = new BranchForm(this.mailbox);
    this.texts = new TextsView(model);
    this.body = make("div", { class: "lab-body" }, this.runs, this.alarms, this.tools(), this.said, this.knobs.element,
      this.grid, this.branch.element, this.texts.element, this.comparison, this.timers, this.numbers.element);
    this.element = widgetSection("lab-monitor", "run monitor", this.lost.element, this.mailbox.element, this.body);
    this.element.lab = this; // for tests and for the browser's console
    element.append(this.element);
    this.watch = new ResizeObserver(() => this.redraw());
    this.watch.observe(this.element);
    this.clock = setInterval(() => { this.notice(); this.drawHeadings(); if (this.store.head) this.drawTools(); }, 1000);
    this.redraw();
  }

  remove() {
    clearInterval(this.clock);
    this.watch.disconnect();
    this.mailbox.remove();
    this.texts.remove();
  }

  tools() {
    this.axis = make("select", { onchange: () => { this.model.set("axis", this.axis.value); this.model.save_changes(); } },
      ...["step", "time", "tokens"].map((name) => make("option", { value: name }, name)));
    this.smoothing = make("input", { type: "range", min: 0, max: 15, step: 1, value: 2, oninput: () => { this.state.smoothing = this.smoothing.value / 100; this.redraw(); } });
    this.add = make("select", { "aria-label": "add a chart" });
    const adder = make("span", { class: "lab-add" }, this.add, make("button", { type: "button", onclick: () => this.addChart() }, "Add"));
    this.whole = make("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Show all");
    this.table = make("button", { type: "button", "aria-expanded": "false", onclick: () => set(this.table, { "aria-expanded": String(this.numbers.toggle()) }) }, "Numbers");
    this.change = make("button", { type: "button", "aria-expanded": "false", title: "Values that the run changes while it runs", onclick: () => set(this.change, { "aria-expanded": String(this.knobs.toggle()) }) }, "Change settings");
    this.stop = make("button", { type: "button", class: "lab-stop", onclick: () => this.requestStop() }, "Stop after this step");
    this.speed = make("select", { onchange: () => this.play(false) }, ...[1, 10, 100, 1000].map((n) => make("option", { value: n }, `${n}×`)));
    this.again = make("button", { type: "button", onclick: () => this.play(true) }, "Play again");
    this.player = make("span", { class: "lab-player", hidden: true }, make("label", {}, "recorded, at ", this.speed), this.again);
    return make("div", { class: "lab-tools" },
      make("label", {}, "over ", this.axis), make("label", {}, "smoothing ", this.smoothing),
      adder, this.table, this.whole, make("span", { class: "lab-actions" }, this.player, this.change, this.stop));
  }

  play(restart) {
    if (restart) this.stopping = false;
    this.mailbox.send({ kind: "play", speed: this.speed.value, restart });
  }

  requestStop() {
    this.mailbox.send({ kind: "stop" });
    this.stopping = true;
    say(this.said, "");
    this.redraw();
  }

  // The kernel's answer to Stop: a sentence where a run could not be asked, else nothing.
  hearStop({ said }) {
    if (said) this.stopping = false;
    say(this.said, said);
    this.redraw();
  }

  // -- what charts share --------------------------------------------------------------------------------------------

  extent() {
    let low = Infinity, high = -Infinity;
    for (const [key, gaps] of Object.entries(this.store.head.gaps)) {
      if (this.state.hidden.has(Number.parseInt(key, 10))) continue;
      low = Math.min(low, gaps[0][0]);
      high = Math.max(high, gaps.at(-1)[1]);
    }
    for (const [key, line] of this.store.lines) {
      if (!line.x.length || this.state.hidden.has(Number.parseInt(key, 10))) continue;
      low = Math.min(low, line.x[0]);
      high = Math.max(high, line.x[line.x.length - 1]);
    }
    return low > high ? [0, 1] : [low, high];
  }

  moveCursor(cursor) {
    this.state.cursor = cursor;
    this.charts.forEach((chart) => chart.drawn && chart.drawCursor());
  }

  zoom(view) {
    const [low, high] = this.extent();
    if (view && view[1] - view[0] < 1e-6 * (high - low || 1)) return; // nearer ticks would soon be one number
    this.state.view = view;
    this.whole.hidden = !view;
    if (view) this.askDetail();
    this.redraw();
  }

  askDetail() {
    this.detailAsked = Date.now();
    this.model.send({ kind: "detail", view: this.state.view });
  }

  // After a message: asks for the detail again where a run has gone on into what is looked at.
  follow({ kind }) {
    const { view } = this.state, { detail, lines } = this.store;
    if (kind === "snapshot") this.numbers.refresh(true); // a resumed run's records, or another chart's column
    if (kind === "detail") this.detailAsked = 0;
    else if (view && Date.now() - (this.detailAsked ?? 0) > DETAIL_MS) { // a cell may keep the kernel from answering for long
      const isBehind = ([key, { x }]) => { const end = detail.ends.get(key) ?? -Infinity; return end < view[1] && end < x.at(-1); };
      if (!detail || [...lines].some(isBehind)) this.askDetail();
    }
  }

  axisTicks(low, high, count) {
    return (this.store.head.axis === "time" ? clockTicks : wholeTicks)(low, high, count);
  }

  // Where on the axis a run's record nearest to x is; null before its first one and beyond its last one. A line of buckets lacks
  // the places of most records, and its charts have others than it: then x itself, which is a chart's point.
  recordAt(run, x) {
    if (this.store.head.axis === "step") return x;
    const steps = this.store.line(`${run}/step`, this.state.view), places = steps?.x ?? [];
    if (!places.length) return null;
    const last = places.length - 1, half = (i, j) => Math.abs((places[j] ?? places[i]) - places[i]) / 2;
    if (x < places[0] - half(0, 1) || x > places[last] + half(last, last - 1)) return null;
    return steps.size > 2 ? x : places[nearest(places, x)];
  }

  // The step of a run's record at x; of a record that a line of buckets lacks, a step between its neighbours' steps.
  stepOf(run, x) {
    if (this.store.head.axis === "step") return Math.round(x);
    const steps = this.store.line(`${run}/step`, this.state.view), at = nearest(steps.x, x);
    const other = Math.max(0, Math.min(steps.x.length - 1, x < steps.x[at] ? at - 1 : at + 1));
    if (steps.size === 2 || steps.x[at] === steps.x[other]) return Math.round(steps.y[at]);
    const share = (x - steps.x[at]) / (steps.x[other] - steps.x[at]);
    return Math.round(steps.y[at] + share * (steps.y[other] - steps.y[at]));
  }

  // A stretch of the axis in words.
  stretch(first, last) {
    const place = { step: (x) => String(Math.round(x)), time: (x) => clock(Math.round(x)), tokens: number }[this.store.head.axis];
    const axis = this.store.head.axis === "step" ? "step " : "";
    return last > first ? `from ${axis}${place(first)} to ${place(last)}` : `at ${axis}${place(first)}`;
  }

  // The place of the cursor in words, with the step, which on other axes is not its x.
  cursorName() {
    const { cursor } = this.state, { axis, runs } = this.store.head;
    if (cursor === null) return "latest";
    if (axis === "step") return `step ${Math.round(cursor)}`;
    const place = axis === "time" ? clock(Math.round(cursor)) : `${number(cursor)} tokens`;
    const about = this.store.line("0/step", this.state.view)?.size > 2 ? "about " : "";
    return runs.length > 1 ? place : `${about}step ${this.stepOf(0, cursor)} · ${place}`;
  }

  pick(run, step, split) {
    this.texts.open(run, step, split);
  }

  // At the button: arrows on the closed list choose every metric that they pass.
  addChart() {
    if (this.add.value) this.mailbox.send({ kind: "add", metric: this.add.value });
    this.add.value = "";
  }

  removeChart(metric) {
    this.mailbox.send({ kind: "remove", metric });
  }

  toggleRun(index) {
    const { hidden } = this.state;
    if (!hidden.delete(index)) hidden.add(index);
    this.redraw();
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  // Whether the kernel still follows the runs: if not, nothing here is new, and no button reaches anybody.
  notice() {
    const head = this.store.head;
    if (!head) return;
    const running = head.runs.some((run) => run.status === "running" || run.status === "waiting");
    const { cut, heard } = this.store;
    this.frozen = cut || (running && Date.now() - heard > 1000 * SILENCE_SECONDS);
    this.lost.draw(this.frozen && { cut, running, since: heard, cell: this.model.get("cell") });
    set(this.element, { "data-lost": this.frozen });
    set(this.body, { inert: this.frozen });
  }

  redraw() {
    if (this.pending || !this.store.head) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      if (this.drawnAxis !== this.store.head.axis) { // view and cursor are places on the axis before
        this.drawnAxis = this.store.head.axis;
        Object.assign(this.state, { view: null, cursor: null });
        this.whole.hidden = true;
      }
      this.notice();
      this.drawHeadings();
      this.drawAlarms();
      this.drawTools();
      this.drawCharts();
      drawComparison(this.comparison, this.store);
      drawTimers(this.timers, this.store);
      this.numbers.refresh(false);
    });
  }

  drawHeadings() {
    const runs = this.store.head?.runs ?? [];
    if (this.headings.length === 1 && runs.length > 1) { // a branch came: the headings become the legend
      this.headings.pop().element.remove();
    }
    while (this.headings.length < runs.length) {
      const index = this.headings.length;
      this.headings.push(new RunHeading(runs.length > 1 && (() => this.toggleRun(index))));
      this.runs.append(this.headings.at(-1).element);
    }
    runs.forEach((run, i) => this.headings[i].draw(run, i, this.store, { hidden: this.state.hidden.has(i), frozen: this.frozen }));
  }

  drawAlarms() {
    const { alarms } = this.store.head, text = JSON.stringify(alarms);
    if (this.alarms.dataset.drawn === text) return;
    this.alarms.dataset.drawn = text;
    this.alarms.replaceChildren(...alarms.map((alarm) => make("p", { class: "lab-alarm" },
      make("strong", {}, alarm.title), make("span", { class: "lab-since" }, ` · ${alarm.where} · `), `${alarm.meaning} `, make("em", {}, alarm.control))));
  }

  drawTools() {
    const { head } = this.store;
    this.axis.value = this.model.get("axis"); // the head's is an earlier choice while the kernel is busy
    const player = head.players.find((one) => one);
    this.player.hidden = !player;
    if (player) {
      const speed = player.speed ?? Infinity;
      if (![...this.speed.options].some((option) => Number(option.value) === speed)) {
        this.speed.append(make("option", { value: speed }, speed === Infinity ? "once" : `${number(speed)}×`));
      }
      this.speed.value = speed;
    }
    this.element.dataset.version = head.version;
    const running = head.runs.some((run) => run.status === "running" || run.status === "waiting");
    this.stop.hidden = !running || !head.can_stop;
    this.stopping &&= running;
    const stopping = (this.stopping && !this.mailbox.unanswered) || Boolean(head.steering?.pending.stop);
    this.stop.disabled = stopping;
    say(this.stop, stopping ? "Stopping after this step …" : "Stop after this step");
    set(this.stop, { title: player ? "Ends the playing here" : "Saves a checkpoint and ends the run after its step" });
    this.branch.draw(head.branching);
    this.change.hidden = !this.knobs.draw(head.steering) || head.steering.over;
    if (this.add.options.length !== head.metrics.length + 1) {
      const groups = new Map(); // by what stands before the slash; of an environment's with its name
      for (const metric of head.metrics) {
        const group = metric.split("/").slice(0, metric.includes("_environments/") ? 2 : 1).join("/");
        groups.set(group, [...(groups.get(group) ?? []), make("option", { value: metric }, metric)]);
      }
      const chosen = this.add.value;
      this.add.replaceChildren(make("option", { value: "" }, "add a chart …"),
        ...[...groups].map(([label, options]) => make("optgroup", { label }, ...options)));
      this.add.value = chosen;
    }
  }

  drawCharts() {
    const specs = this.store.head.charts, name = (spec) => `${spec.title}/${spec.added}`;
    if (specs.map(name).join() !== this.charts.map((chart) => name(chart.spec)).join()) {
      this.charts = specs.map((spec, i) => new ChartView(spec, i, this));
      const nothing = make("p", { class: "lab-empty" }, "No metrics yet: charts come with the first step.");
      this.grid.replaceChildren(...(specs.length ? this.charts.map((chart) => chart.element) : [nothing]));
    }
    this.charts.forEach((chart, i) => { // a line may have come: an environment's, whose first prompt was drawn
      if (chart.spec.lines.join() !== specs[i].lines.join()) chart.describe(specs[i]);
      chart.draw();
    });
  }
}

// anywidget calls this once for each model.
export default () => {
  const store = new Store(), views = new Set();

  function take(model, view) {
    if (!view?.byteLength) return;
    const head = unpack(view);
    if (!store.apply(head)) {
      model.send({ kind: "resync" });
      views.forEach((one) => { one.mailbox.asked ??= Date.now(); });
    } else views.forEach((one) => one.follow(head));
    views.forEach((one) => one.redraw());
  }

  return {
    initialize({ model }) {
      model.on("comm_live_update", () => { store.cut = true; views.forEach((view) => view.redraw()); }); // a restart
      model.on("change:data", () => { store.hear(); take(model, model.get("data")); });
      model.on("msg:custom", (content, buffers) => {
        store.hear();
        if (content.kind === "rows") views.forEach((view) => view.numbers.receive({ ...content, rows: [...content.rows] }));
        else if (content.kind === "stop") views.forEach((view) => view.hearStop(content));
        else if (buffers.length) take(model, buffers[0]);
      });
      take(model, model.get("data"));
    },
    render({ model, el }) {
      const view = new MonitorView(model, store, el);
      views.add(view);
      return () => { views.delete(view); view.remove(); };
    },
  };
};
