// One chart: lines over a shared axis, with a cursor and a range that all charts of a monitor share.

const HEIGHT = 156;
const EDGE = { left: 52, right: 10, top: 8, bottom: 20 };
const MARKER = 5; // half of a marker with its outline: the plot's edges cut none
const DOUBLE_CLICK_MS = 250; // a click waits so long, because it may be the first of two

class ChartView {
  // shared: {store, state: {cursor, view, smoothing, hidden}, redraw(), zoom(view), pick(run, step, split), removeChart(metric)}
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
        onpointercancel: () => { this.dragged = null; this.leave(); },
        onpointerleave: () => this.leave(),
        ondblclick: () => { clearTimeout(this.picking); shared.zoom(null); },
        onkeydown: (event) => this.key(event),
        onblur: () => this.leave(),
      },
      make("clipPath", { id: clipName }, this.clip), this.grid, this.plot, this.overlay,
    );
    const remove = spec.added
      ? make("button", { type: "button", class: "lab-remove", "aria-label": `remove ${spec.title}`, title: "Remove this chart", onclick: () => shared.removeChart(spec.added) }, "×")
      : null;
    this.element = make("figure", { class: "lab-chart" }, make("div", { class: "lab-head" }, this.title, remove, this.values), this.svg);
    this.describe(spec);
  }

  describe(spec) {
    this.spec = spec;
    say(this.title, spec.title);
    if (spec.unit) this.title.append(make("small", {}, ` ${spec.unit}`));
  }

  get several() {
    return this.shared.store.head.runs.length > 1;
  }

  // [{key, run, pen, label, name, split, line, whole, spread, gaps}] of what there is to draw. line: the finest for what is
  // looked at; whole: all of the run.
  lines() {
    const { store, state } = this.shared;
    const found = [];
    store.head.runs.forEach((run, r) => this.spec.lines.forEach((label, k) => {
      const key = `${r}/${this.index}/${k}`, line = store.line(key, state.view);
      // as 32-bit floats, which the points' x are
      const gaps = (store.head.gaps[key] ?? []).map(([first, last, value]) => [Math.fround(first), Math.fround(last), value]);
      if (state.hidden.has(r) || !line || (!line.x.length && !gaps.length)) return;
      const name = this.several ? (k ? `${run.name} ${label}` : run.name) : label;
      const pen = penOf(r, k, this.several);
      const spread = pen.faint ? undefined : store.line(`${key}/spread`, state.view); // a band for each would be a fog
      found.push({ key, run: r, pen, label, name, split: this.spec.splits[k], line, whole: store.lines.get(key) ?? line, spread, gaps });
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
    set(this.clip, { x: this.left - MARKER, y: 0, width: Math.max(0, width - this.left - EDGE.right + 2 * MARKER), height: HEIGHT });
    this.drawGrid(width);
    this.plot.replaceChildren(...this.marks(), ...this.drawn.flatMap((one) => this.strokes(one)));
    this.drawCursor();
  }

  scale(width, [x0, x1]) {
    if (x1 <= x0) x1 = x0 + 1;
    let low = Infinity, high = -Infinity;
    const see = (value) => { if (value < low) low = value; if (value > high) high = value; };
    for (const { line, calm, spread } of this.drawn) {
      const band = this.band(line, spread);
      [x0, x1].forEach((edge) => see(heightAt(line, edge)));
      line.x.forEach((x, i) => {
        if (x < x0 || x > x1) return;
        see(line.y[i]);
        if (band) { see(calm[i] - band[i]); see(calm[i] + band[i]); } // a NaN is neither below nor above
      });
    }
    if (low > high) [low, high] = [0, 1];
    if (high - low < this.spec.least) { // what varies by less is rounding or noise
      const middle = (low + high) / 2;
      [low, high] = [middle - this.spec.least / 2, middle + this.spec.least / 2];
    }
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= 2e-4 * size) { // constant but for rounding: no mountain range, and no label of over five digits
      const pad = 0.05 * size || 0.5;
      low -= pad;
      high += pad;
    }
    const pad = 0.07 * (high - low), top = EDGE.top, bottom = HEIGHT - EDGE.bottom;
    this.width = width;
    this.domain = [x0, x1];
    this.range = [low - pad, high + pad];
    this.ticks = ticks(...this.range, 4);
    const longest = Math.max(...this.ticks.places.map((place) => this.ticks.label(place).length));
    const left = this.left = Math.max(EDGE.left, 6 + 6.5 * longest), right = width - EDGE.right; // a digit is about 6.5 wide
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
    const y = this.ticks, x = this.shared.axisTicks(...this.domain, Math.max(2, Math.floor(width / 90)));
    for (const place of y.places) {
      const at = this.py(place).toFixed(1);
      parts.push(make("line", { x1: this.left, x2: width - EDGE.right, y1: at, y2: at }));
      parts.push(make("text", { x: this.left - 6, y: at, dy: "0.32em", "text-anchor": "end" }, y.label(place)));
    }
    for (const place of x.places) {
      const at = this.px(place);
      if (at < this.left - 1 || at > width - EDGE.right + 1) continue;
      const label = x.label(place), half = 3.5 * label.length; // about half its width: one that the edge would cut is moved
      parts.push(make("text", { x: Math.min(at, width - half).toFixed(1), y: bottom + 14, "text-anchor": "middle" }, label));
    }
    this.grid.replaceChildren(...parts);
  }

  // What happened to the runs: a hair with a small sign at the top, and its words as a title.
  marks() {
    const { head } = this.shared.store, shapes = { setting: "M0 0l4 4l-4 4l-4 -4Z", alarm: "M0 0l4.5 8h-9Z", checkpoint: "M-1.5 2h3v3h-3Z", resume: "M2 0l4.5 4l-4.5 4Z" };
    return head.marks.flatMap((ofRun, r) => (this.shared.state.hidden.has(r) ? [] : ofRun.map(([x, kind, text]) => make(
      "g", { class: "lab-mark", "data-kind": kind, transform: `translate(${this.px(x).toFixed(1)} 0)` },
      make("title", {}, this.several ? `${head.runs[r].name}: ${text}` : text),
      kind === "checkpoint" ? null : make("line", { y1: 8, y2: HEIGHT - EDGE.bottom }), make("path", { d: shapes[kind] })))));
  }

  strokes({ line, calm, spread, pen, gaps, name }) {
    const classes = `lab-pen-${pen.index}${pen.faint ? " lab-faint" : ""}`;
    const parts = this.band(line, spread) ? [make("path", { class: `lab-band ${classes}`, d: this.bandPath(line, calm, this.band(line, spread)) })] : [];
    parts.push(make("path", { class: `lab-raw ${classes}`, d: this.path(line.x, line.y, gaps) }));
    parts.push(make("path", { class: `lab-line ${classes}`, d: this.path(line.x, calm, gaps), "stroke-dasharray": pen.dash }));
    return parts.concat(this.markers(line, calm, pen, classes), gaps.map((gap) => this.gap(gap, classes, name)));
  }

  // A line, which ends where it has no drawable value and begins again after it. A point alone is a short dash.
  path(x, y, gaps = []) {
    let text = "", next = 0;
    for (let i = 0; i < x.length; i++) {
      const broken = next < gaps.length && gaps[next][0] < x[i];
      while (next < gaps.length && gaps[next][0] < x[i]) next++;
      text += `${i && !broken ? "L" : "M"}${this.px(x[i]).toFixed(1)} ${this.py(y[i]).toFixed(1)}`;
    }
    return text.replace(/M[^ML]+(?=M|$)/g, "$&m-1.5 0h3");
  }

  // The band around a line: a piece for each stretch of points that have a spread.
  bandPath({ x }, calm, band) {
    let text = "";
    for (let first = 0, i = 0; i <= x.length; i++) {
      if (i < x.length && !Number.isNaN(band[i])) continue;
      const places = Array.from({ length: i - first }, (_, n) => first + n);
      if (places.length > 1) {
        text += this.path(places.map((p) => x[p]), places.map((p) => calm[p] + band[p]));
        places.reverse();
        text += `${this.path(places.map((p) => x[p]), places.map((p) => calm[p] - band[p])).replace("M", "L")}Z`;
      }
      first = i + 1;
    }
    return text;
  }

  // Where there is nothing to draw: a cross on the axis, with a bar as far as it lasts.
  gap([first, last, value], classes, name) {
    const from = this.px(first), y = HEIGHT - EDGE.bottom - 5, steps = this.shared.stretch(first, last);
    return make("g", { class: `lab-gap ${classes}` }, make("title", {}, `${name}: ${value} ${steps}`),
      make("line", { class: "lab-gap-guide", x1: from, x2: from, y1: EDGE.top, y2: y }),
      make("line", { class: "lab-gap-bar", x1: from, x2: this.px(last), y1: y, y2: y }),
      make("path", { class: "lab-cross", d: `M${from - 4} ${y - 4}l8 8m0 -8l-8 8` }));
  }

  // A marker about every 70 pixels of the view and one on the last point.
  markers(line, calm, pen, classes) {
    const parts = [], last = line.x.length - 1;
    let next = this.left + 35 + 18 * pen.index;
    for (let i = 0; i <= last; i++) {
      const x = this.px(line.x[i]);
      if (x > this.width || (x < next && i !== last)) continue;
      while (next <= x) next += 70;
      parts.push(make("path", { class: `lab-marker ${classes}`, d: pen.marker, transform: `translate(${x.toFixed(1)} ${this.py(calm[i]).toFixed(1)})` }));
    }
    return parts;
  }

  // -- the cursor ---------------------------------------------------------------------------------------------------

  // Where a line has a point of the record at the cursor; -1 where it has none.
  place({ run, line }, cursor = this.shared.state.cursor) {
    if (cursor === null) return -1;
    const record = this.shared.recordAt(run, cursor);
    if (record === null) return -1;
    const at = nearest(line.x, record);
    const exact = Math.abs(line.x[at] - record) <= 1e-6 * Math.max(1, Math.abs(record));
    const within = line.size > 2 && record >= line.x[0] && record <= line.x[line.x.length - 1]; // one bucket stands for many records
    return exact || within ? at : -1;
  }

  // What a line has at the cursor, or without a cursor at the run's end: a value, or in place of a drawable one its name.
  valueAt({ run, line, whole, gaps }, place) {
    const { cursor } = this.shared.state, end = whole.x.at(-1) ?? -Infinity;
    if (cursor === null) return gaps.find(([, last]) => last > end)?.[2] ?? whole.y.at(-1) ?? null;
    const record = this.shared.recordAt(run, cursor);
    const gap = gaps.find(([first, last]) => record !== null && first <= record && record <= last);
    return gap?.[2] ?? (place < 0 ? null : line.y[place]);
  }

  drawCursor() {
    const { cursor } = this.shared.state, parts = [];
    const places = this.drawn.map((one) => this.place(one));
    if (cursor !== null && this.drawn.length) {
      const at = this.px(cursor), bottom = HEIGHT - EDGE.bottom;
      parts.push(make("line", { class: "lab-cursor", x1: at.toFixed(1), x2: at.toFixed(1), y1: EDGE.top, y2: bottom }));
      this.drawn.forEach(({ line, pen }, n) => places[n] >= 0 && parts.push(make("circle", {
        class: `lab-dot lab-pen-${pen.index}`, r: 3.5, cx: this.px(line.x[places[n]]), cy: this.py(line.y[places[n]]),
      })));
      const anchor = at < this.width / 3 ? "start" : at > (2 * this.width) / 3 ? "end" : "middle";
      parts.push(make("text", { class: "lab-at", x: at.toFixed(1), y: bottom + 14, "text-anchor": anchor }, this.shared.cursorName()));
    }
    if (this.dragged) {
      const [a, b] = this.dragged.map((x) => this.px(x)).sort((p, q) => p - q);
      parts.push(make("rect", { class: "lab-drag", x: a, width: b - a, y: EDGE.top, height: HEIGHT - EDGE.top - EDGE.bottom }));
    }
    this.overlay.replaceChildren(...parts);
    this.drawValues(places);
  }

  drawValues(places) {
    const shown = this.drawn.map((one, n) => ({ ...one, value: this.valueAt(one, places[n]) }));
    this.values.replaceChildren(...(this.several ? this.rows(shown) : this.chips(shown)));
    const at = this.shared.state.cursor ?? this.domain[1];
    const text = shown.filter(({ value }) => value !== null).map(({ name, value }) => `${name} ${number(value)}`).join(", ");
    set(this.svg, {
      "aria-label": this.spec.title, "aria-valuemin": this.domain[0], "aria-valuemax": this.domain[1], "aria-valuenow": at,
      "aria-valuetext": text ? `${this.shared.cursorName()}: ${text}` : "no points",
    });
  }

  chips(shown) {
    if (shown.length === 1) return [make("span", { class: "lab-value" }, make("b", {}, number(shown[0].value)))];
    return shown.map(({ pen, name, value }) => make(
      "span", { class: "lab-value" }, swatch(pen), make("span", { class: "lab-name" }, name), make("b", {}, number(value))));
  }

  // Several runs: a value each, beside its swatch. The names above the charts are the legend; a second line's markers are hollow.
  rows(shown) {
    const { lines } = this.spec;
    const note = lines.length > 1 ? [make("small", {}, `filled: ${lines[0]}; hollow: ${lines.slice(1).join(", ")}`)] : [];
    return [...shown.map(({ run, pen, name, value }) => make("span", { class: "lab-value", title: name }, swatch(pen),
      make("span", { class: "lab-hidden lab-run-of" }, this.shared.store.head.runs[run].name), make("b", {}, number(value)))), ...note];
  }

  inside(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  // The record nearest to a place on the axis, of any line here.
  snap(x) {
    let best = null;
    for (const { line, gaps } of this.drawn) {
      const places = gaps.flatMap(([first, last]) => [first, last]);
      if (line.x.length) places.push(line.x[nearest(line.x, x)]);
      for (const found of places) if (best === null || Math.abs(found - x) < Math.abs(best - x)) best = found;
    }
    return best;
  }

  point(event) {
    if (!this.drawn?.length) return;
    const x = this.xAt(this.inside(event)[0]);
    if (this.dragged) this.dragged[1] = x;
    this.shared.moveCursor(this.snap(x));
  }

  press(event) {
    if (event.button || !this.drawn?.length) return;
    this.svg.setPointerCapture(event.pointerId);
    const x = this.xAt(this.inside(event)[0]);
    this.dragged = [x, x];
  }

  release(event) {
    if (!this.dragged) return;
    const [a, b] = this.dragged.slice().sort((p, q) => p - q);
    this.dragged = null;
    if (Math.abs(this.px(b) - this.px(a)) > 5) return this.shared.zoom([a, b]);
    this.shared.moveCursor(this.snap(a));
    const height = this.inside(event)[1], { cursor } = this.shared.state;
    clearTimeout(this.picking);
    this.picking = setTimeout(() => this.pick(height, cursor), DOUBLE_CLICK_MS);
  }

  // The completions of the record at the cursor: of the line that is nearest to this height.
  pick(height, cursor = this.shared.state.cursor) {
    let best = null, away = Infinity;
    for (const one of this.drawn) {
      const at = this.place(one, cursor);
      if (at >= 0 && Math.abs(this.py(one.line.y[at]) - height) < away) {
        best = one;
        away = Math.abs(this.py(one.line.y[at]) - height);
      }
    }
    if (best) this.shared.pick(best.run, this.shared.stepOf(best.run, cursor), best.split);
  }

  leave() {
    if (!this.dragged) this.shared.moveCursor(null);
  }

  key(event) {
    if (!this.drawn?.length) return;
    const all = this.places(), { cursor, view } = this.shared.state;
    const here = nearest(all, cursor ?? Infinity), stride = event.shiftKey ? 10 : 1;
    const go = { ArrowLeft: here - stride, ArrowRight: here + stride, Home: 0, End: all.length - 1 }[event.key];
    if (go !== undefined) this.shared.moveCursor(all[Math.max(0, Math.min(all.length - 1, go))]);
    else if (event.key === "+" || event.key === "-") this.zoomBy(event.key === "+" ? 0.5 : 2, all[here]);
    else if (event.key === "Enter") { this.shared.moveCursor(all[here]); this.pick(0); }
    else if (event.key === "Escape") { this.shared.moveCursor(null); if (view) this.shared.zoom(null); }
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has uses of its own for these keys
  }

  // Where the lines have records, drawable or not.
  places() {
    const all = this.drawn.flatMap(({ line, gaps }) => [...line.x, ...gaps.flatMap(([first, last]) => [first, last])]);
    return [...new Set(all)].sort((a, b) => a - b);
  }

  zoomBy(factor, centre) {
    const [x0, x1] = this.domain, [all0, all1] = this.shared.extent();
    const half = ((x1 - x0) * factor) / 2;
    if (2 * half >= all1 - all0) this.shared.zoom(null);
    else this.shared.zoom([Math.max(all0, centre - half), Math.min(all1, centre + half)]);
  }
}

// Where a line crosses a place between two of its points; NaN beside the line.
function heightAt({ x, y }, place) {
  const next = x.findIndex((point) => point >= place), share = (place - x[next - 1]) / (x[next] - x[next - 1]);
  return y[next - 1] + share * (y[next] - y[next - 1]);
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
