// The monitor: heading, alarms, tools, charts, time, numbers. One store a model; any number of views of it.

class MonitorView {
  constructor(model, store, element) {
    Object.assign(this, { model, store, charts: [], headings: [] });
    this.state = { cursor: null, view: null, smoothing: 0.02 };
    this.runs = make("ul", { class: "lab-runs" });
    this.alarms = make("div", { class: "lab-alarms", role: "status", "aria-label": "alarms" });
    this.grid = make("div", { class: "lab-charts" });
    this.timers = make("div", { class: "lab-timers", hidden: true });
    this.numbers = new NumbersView(model, store);
    this.element = make("section", { class: "lab-widget lab-monitor", "aria-label": "run monitor" },
      this.runs, this.alarms, this.tools(), this.grid, this.timers, this.numbers.element);
    this.element.lab = this; // for tests and for the browser's console
    element.append(this.element);
    this.watch = new ResizeObserver(() => this.redraw());
    this.watch.observe(this.element);
    this.clock = setInterval(() => this.drawHeadings(), 1000);
    this.redraw();
  }

  remove() {
    clearInterval(this.clock);
    this.watch.disconnect();
  }

  tools() {
    this.axis = make("select", { onchange: () => { this.state.view = this.state.cursor = null; this.model.set("axis", this.axis.value); this.model.save_changes(); } },
      ...["step", "time", "tokens"].map((name) => make("option", { value: name }, name)));
    this.smoothing = make("input", { type: "range", min: 0, max: 15, step: 1, value: 2, oninput: () => { this.state.smoothing = this.smoothing.value / 100; this.redraw(); } });
    this.add = make("select", { "aria-label": "add a chart", onchange: () => { this.model.send({ kind: "add", metric: this.add.value }); this.add.value = ""; } });
    this.whole = make("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Show all");
    this.table = make("button", { type: "button", "aria-expanded": "false", onclick: () => set(this.table, { "aria-expanded": this.numbers.toggle() }) }, "Numbers");
    this.stop = make("button", { type: "button", class: "lab-stop", onclick: () => this.requestStop() }, "Stop after this step");
    this.speed = make("select", { onchange: () => this.play(false) }, ...[1, 10, 100, 1000].map((n) => make("option", { value: n }, `${n}×`)));
    this.again = make("button", { type: "button", onclick: () => this.play(true) }, "Play again");
    this.player = make("span", { class: "lab-player", hidden: true }, make("label", {}, "recorded, at ", this.speed), this.again);
    return make("div", { class: "lab-tools" },
      make("label", {}, "over ", this.axis), make("label", {}, "smoothing ", this.smoothing),
      this.add, this.table, this.whole, make("span", { class: "lab-gap" }), this.player, this.stop);
  }

  play(restart) {
    if (restart) this.stopping = false;
    this.model.send({ kind: "play", speed: this.speed.value, restart });
  }

  requestStop() {
    this.model.send({ kind: "stop" });
    this.stopping = true;
    this.redraw();
  }

  // -- what charts share --------------------------------------------------------------------------------------------

  extent() {
    let low = Infinity, high = -Infinity;
    for (const line of this.store.lines.values()) {
      if (!line.x.length) continue;
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
    this.state.view = view;
    this.whole.hidden = !view;
    if (view) this.model.send({ kind: "detail", view });
    this.redraw();
  }

  axisName() {
    return this.store.head.axis;
  }

  axisTick(place, step) {
    return this.store.head.axis === "time" && place ? duration(place) : tick(place, step);
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  redraw() {
    if (this.pending || !this.store.head) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.drawHeadings();
      this.drawAlarms();
      this.drawTools();
      this.drawCharts();
      drawTimers(this.timers, this.store);
      this.numbers.refresh(false);
    });
  }

  drawHeadings() {
    const runs = this.store.head?.runs ?? [];
    while (this.headings.length < runs.length) {
      this.headings.push(new RunHeading());
      this.runs.append(this.headings.at(-1).element);
    }
    runs.forEach((run, i) => this.headings[i].draw(run, i, this.store));
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
    this.axis.value = head.axis;
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
    this.stop.disabled = Boolean(this.stopping);
    say(this.stop, this.stopping ? "Stopping after this step …" : "Stop after this step");
    set(this.stop, { title: player ? "Ends the playing here" : "Saves a checkpoint and ends the run after its step" });
    const names = ["", ...head.metrics];
    if (this.add.options.length !== names.length) {
      this.add.replaceChildren(...names.map((name) => make("option", { value: name }, name || "add a chart …")));
    }
  }

  drawCharts() {
    const specs = this.store.head.charts;
    if (specs.map((spec) => spec.title).join() !== this.charts.map((chart) => chart.spec.title).join()) {
      this.charts = specs.map((spec, i) => new ChartView(spec, i, this));
      const nothing = make("p", { class: "lab-empty" }, "No metrics yet: charts come with the first step.");
      this.grid.replaceChildren(...(specs.length ? this.charts.map((chart) => chart.element) : [nothing]));
    }
    this.charts.forEach((chart) => chart.draw());
  }
}

// anywidget calls this once for each model.
export default () => {
  const store = new Store(), views = new Set();

  function take(model, view) {
    if (!view?.byteLength) return;
    if (!store.apply(unpack(view))) model.send({ kind: "resync" });
    views.forEach((one) => one.redraw());
  }

  return {
    initialize({ model }) {
      model.on("change:data", () => take(model, model.get("data")));
      model.on("msg:custom", (content, buffers) => {
        if (content.kind === "rows") views.forEach((view) => view.numbers.receive({ ...content, rows: [...content.rows] }));
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
