// Where a step's time goes: one stacked bar a run.

function drawTimers(element, store) {
  const rows = store.head.timers.map((parts, r) => [parts, r]).filter(([parts]) => parts.length);
  const text = JSON.stringify(rows);
  if (element.dataset.drawn === text) return;
  element.dataset.drawn = text;
  set(element, { hidden: !rows.length });
  if (!rows.length) return element.replaceChildren();
  const longest = Math.max(...rows.map(([parts]) => sum(parts)));
  element.replaceChildren(
    make("h4", { class: "lab-title", title: "Mean of the last ten steps." }, "Time", make("small", {}, " seconds a step")),
    ...rows.map(([parts, r]) => timerRow(parts, store.head.runs.length > 1 ? store.head.runs[r].name : "", longest)),
  );
}

function timerRow(parts, name, longest) {
  const total = sum(parts);
  const bar = make("div", { class: "lab-stack", "aria-hidden": "true", style: `width: ${(100 * total) / longest}%` });
  const legend = make("ul", { class: "lab-legend", "aria-label": `Time of a step ${name}` });
  let colours = 0; // the rest is grey: there are six colours, and most steps have at most six other stages
  for (const [stage, seconds] of parts) {
    const fill = stage.startsWith("other") ? "lab-fill-rest" : `lab-fill-${colours++ % 6}`;
    bar.append(make("span", { class: `lab-part ${fill}`, style: `flex-grow: ${seconds}`, title: `${stage} ${number(seconds)} s` }));
    legend.append(make("li", {}, make("i", { class: `lab-key ${fill}`, "aria-hidden": "true" }), `${stage} `, make("b", {}, seconds < 0.01 ? "0" : number(Number(seconds.toPrecision(3))))));
  }
  return make("div", { class: "lab-timer" }, name ? make("div", { class: "lab-name" }, name) : null, bar, legend);
}

function sum(parts) {
  return parts.reduce((total, [, seconds]) => total + seconds, 0);
}
