// One chart: lines over a shared axis, with a cursor and a range that all charts of a monitor share.

const HEIGHT = 156;
const EDGE = { left: 46, right: 10, top: 8, bottom: 20 };

class ChartView {
  // shared: {store, state: {cursor, view, smoothing}, redraw(), zoom(view)}
  constructor(spec, index, shared) {
    this.index = index;
    this.shared = shared;
    this.title = make("h4", { class: "lab-title", title: spec.hint });
    this.values = make("div", { class: "lab-values" });
    this.grid = make("g", { class: "lab-grid" });
    this.plot = make("g");
    this.overlay = make("g");
    this.clip = make("rect");
    const clipName = `lab-clip-${Math.random().toString(36).slice(2)}`;
    this.plot.setAttribute("clip-path", `url(#${clipName})`);
    this.svg = make(
      "svg",
      {
        class: "lab-plot", height: HEIGHT, tabindex: 0, role: "slider",
        onpointermove: (event) => this.point(event),
        onpointerdown: (event) => this.press(event),
        onpointerup: (event) => this.release(event),
        onpointerleave: () => this.leave(),
        ondblclick: () => shared.zoom(null),
        onkeydown: (event) => this.key(event),
        onblur: () => this.leave(),
      },
      make("clipPath", { id: clipName }, this.clip), this.grid, this.plot, this.overlay,
    );
    this.element = make("figure", { class: "lab-chart" }, make("div", { class: "lab-head" }, this.title, this.values), this.svg);
    this.describe(spec);
  }

  describe(spec) {
    this.spec = spec;
    say(this.title, spec.title);
    if (spec.unit) this.title.append(make("small", {}, ` ${spec.unit}`));
  }

  // [{key, pen, label, line, spread}] of what there is to draw.
  lines() {
    const { store, state } = this.shared;
    const runs = store.head.runs, found = [];
    runs.forEach((run, r) => this.spec.lines.forEach((label, k) => {
      const key = `${r}/${this.index}/${k}`, line = store.line(key, state.view);
      if (!line || !line.x.length) return;
      const name = runs.length > 1 ? (k ? `${run.name} ${label}` : run.name) : label;
      const pen = penOf(r, k, runs.length > 1);
      const spread = pen.faint ? undefined : store.line(`${key}/spread`, state.view); // a band for each would be a fog
      found.push({ key, pen, name, line, spread });
    }));
    return found;
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    const { view } = this.shared.state;
    const smoothing = this.spec.exact ? 0 : this.shared.state.smoothing;
    this.drawn = this.lines().map((one) => ({ ...one, calm: smooth(one.line, one.line.mean, smoothing) }));
    this.scale(width, view ?? this.shared.extent());
    set(this.clip, { x: EDGE.left, y: 0, width: Math.max(0, width - EDGE.left - EDGE.right), height: HEIGHT });
    this.drawGrid(width);
    this.plot.replaceChildren(...this.drawn.flatMap((one) => this.strokes(one)));
    this.drawCursor();
  }

  scale(width, [x0, x1]) {
    if (x1 <= x0) x1 = x0 + 1;
    let low = Infinity, high = -Infinity;
    const see = (value) => { if (value < low) low = value; if (value > high) high = value; };
    for (const { line, calm, spread } of this.drawn) {
      const band = this.band(line, spread);
      line.x.forEach((x, i) => {
        if (x < x0 || x > x1) return;
        see(line.y[i]);
        if (band) { see(calm[i] - band[i]); see(calm[i] + band[i]); }
      });
    }
    if (low > high) [low, high] = [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= 1e-4 * size) { // constant but for rounding: no mountain range
      const pad = 0.05 * size || 0.5;
      low -= pad;
      high += pad;
    }
    const pad = 0.07 * (high - low), top = EDGE.top, bottom = HEIGHT - EDGE.bottom;
    const left = EDGE.left, right = width - EDGE.right;
    this.domain = [x0, x1];
    this.range = [low - pad, high + pad];
    this.px = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    this.py = (y) => bottom - ((y - this.range[0]) / (this.range[1] - this.range[0])) * (bottom - top);
    this.xAt = (px) => x0 + ((px - left) / (right - left)) * (x1 - x0);
  }

  // How far the band reaches on each side at each point of the line; null without one.
  band(line, spread) {
    if (!spread || spread.x.length !== line.x.length) return null;
    return smooth(spread, spread.mean, this.shared.state.smoothing);
  }

  drawGrid(width) {
    const parts = [], bottom = HEIGHT - EDGE.bottom;
    const y = ticks(...this.range, 4), x = ticks(...this.domain, Math.max(2, Math.floor(width / 90)));
    for (const place of y.places) {
      const at = this.py(place).toFixed(1);
      parts.push(make("line", { x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }));
      parts.push(make("text", { x: EDGE.left - 6, y: at, dy: "0.32em", "text-anchor": "end" }, tick(place, y.step)));
    }
    for (const place of x.places) {
      const at = this.px(place);
      if (at < EDGE.left - 1 || at > width - EDGE.right + 1) continue;
      parts.push(make("text", { x: at.toFixed(1), y: bottom + 14, "text-anchor": "middle" }, this.shared.axisTick(place, x.step)));
    }
    this.grid.replaceChildren(...parts);
  }

  strokes({ line, calm, spread, pen }) {
    const classes = `lab-pen-${pen.index}${pen.faint ? " lab-faint" : ""}`;
    const parts = [], band = this.band(line, spread);
    if (band) {
      const up = calm.map((y, i) => y + band[i]), down = calm.map((y, i) => y - band[i]);
      const back = this.path([...line.x].reverse(), down.reverse()).replace("M", "L");
      parts.push(make("path", { class: `lab-band ${classes}`, d: `${this.path(line.x, up)}${back}Z` }));
    }
    parts.push(make("path", { class: `lab-raw ${classes}`, d: this.path(line.x, line.y) }));
    parts.push(make("path", { class: `lab-line ${classes}`, d: this.path(line.x, calm), "stroke-dasharray": pen.dash }));
    return parts.concat(this.markers(line, calm, pen, classes));
  }

  path(x, y) {
    let text = "";
    for (let i = 0; i < x.length; i++) text += `${i ? "L" : "M"}${this.px(x[i]).toFixed(1)} ${this.py(y[i]).toFixed(1)}`;
    return text;
  }

  // A marker about every 70 pixels and one on the last point.
  markers(line, calm, pen, classes) {
    const parts = [], last = line.x.length - 1;
    let next = EDGE.left + 35 + 18 * pen.index;
    for (let i = 0; i <= last; i++) {
      const x = this.px(line.x[i]);
      if (x < next && i !== last) continue;
      while (next <= x) next += 70;
      parts.push(make("path", { class: `lab-marker ${classes}`, d: pen.marker, transform: `translate(${x.toFixed(1)} ${this.py(calm[i]).toFixed(1)})` }));
    }
    return parts;
  }

  // -- the cursor ---------------------------------------------------------------------------------------------------

  drawCursor() {
    const { cursor } = this.shared.state, parts = [];
    const places = this.drawn.map(({ line }) => nearest(line.x, cursor ?? Infinity));
    if (cursor !== null && this.drawn.length) {
      const at = this.px(cursor).toFixed(1);
      parts.push(make("line", { class: "lab-cursor", x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
      this.drawn.forEach(({ line, pen }, n) => parts.push(make("circle", {
        class: `lab-dot lab-pen-${pen.index}`, r: 3.5, cx: this.px(line.x[places[n]]), cy: this.py(line.y[places[n]]),
      })));
    }
    if (this.dragged) {
      const [a, b] = this.dragged.map((x) => this.px(x)).sort((p, q) => p - q);
      parts.push(make("rect", { class: "lab-drag", x: a, width: b - a, y: EDGE.top, height: HEIGHT - EDGE.top - EDGE.bottom }));
    }
    this.overlay.replaceChildren(...parts);
    this.drawValues(places);
  }

  drawValues(places) {
    const one = this.shared.store.head.runs.length === 1 && this.drawn.length === 1;
    const shown = this.drawn.map(({ line, pen, name }, n) => make(
      "span", { class: "lab-value", title: name },
      one ? null : swatch(pen),
      one || this.shared.store.head.runs.length > 1 ? null : make("span", { class: "lab-name" }, name),
      make("b", {}, number(line.y[places[n]])),
    ));
    this.values.replaceChildren(...shown);
    const at = this.shared.state.cursor ?? this.domain[1];
    const text = this.drawn.map(({ line, name }, n) => `${name} ${number(line.y[places[n]])}`).join(", ");
    set(this.svg, {
      "aria-label": this.spec.title, "aria-valuemin": this.domain[0], "aria-valuemax": this.domain[1], "aria-valuenow": at,
      "aria-valuetext": text ? `${this.shared.axisName()} ${number(at)}: ${text}` : "no points yet",
    });
  }

  inside(event) {
    return event.clientX - this.svg.getBoundingClientRect().left;
  }

  point(event) {
    if (!this.drawn?.length) return;
    const x = this.xAt(this.inside(event));
    if (this.dragged) this.dragged[1] = x;
    const all = this.drawn[0].line.x;
    this.shared.moveCursor(all[nearest(all, x)]);
  }

  press(event) {
    if (event.button || !this.drawn?.length) return;
    this.svg.setPointerCapture(event.pointerId);
    const x = this.xAt(this.inside(event));
    this.dragged = [x, x];
  }

  release() {
    const [a, b] = (this.dragged ?? [0, 0]).slice().sort((p, q) => p - q);
    this.dragged = null;
    if (Math.abs(this.px(b) - this.px(a)) > 5) this.shared.zoom([a, b]);
    else this.shared.moveCursor(this.shared.state.cursor);
  }

  leave() {
    if (!this.dragged) this.shared.moveCursor(null);
  }

  key(event) {
    if (!this.drawn?.length) return;
    const all = this.drawn[0].line.x, { cursor, view } = this.shared.state;
    const here = nearest(all, cursor ?? Infinity), stride = event.shiftKey ? 10 : 1;
    const go = { ArrowLeft: here - stride, ArrowRight: here + stride, Home: 0, End: all.length - 1 }[event.key];
    if (go !== undefined) this.shared.moveCursor(all[Math.max(0, Math.min(all.length - 1, go))]);
    else if (event.key === "+" || event.key === "-") this.zoomBy(event.key === "+" ? 0.5 : 2, all[here]);
    else if (event.key === "Escape") { this.shared.moveCursor(null); if (view) this.shared.zoom(null); }
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has uses of its own for these keys
  }

  zoomBy(factor, centre) {
    const [x0, x1] = this.domain, [all0, all1] = this.shared.extent();
    const half = ((x1 - x0) * factor) / 2;
    if (2 * half >= all1 - all0) this.shared.zoom(null);
    else this.shared.zoom([Math.max(all0, centre - half), Math.min(all1, centre + half)]);
  }
}

// Where in ascending x the nearest place to a value is.
function nearest(x, value) {
  let low = 0, high = x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - x[low - 1] < x[low] - value ? low - 1 : low;
}
