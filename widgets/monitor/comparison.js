// Several runs in numbers: their last values with the differences to the first run, and the settings that differ.

function drawComparison(element, store) {
  const { comparison, runs } = store.head;
  const text = JSON.stringify([comparison, runs.map((run) => run.name)]);
  if (element.dataset.drawn === text) return;
  element.dataset.drawn = text;
  set(element, { hidden: !comparison });
  if (!comparison) return element.replaceChildren();
  const names = runs.map((run) => run.name);
  const values = comparison.values.map(({ label, unit, values, differences }) => [
    [label, unit && make("small", {}, ` ${unit}`)],
    ...values.map((value, r) => [number(value), r && differences[r - 1] !== null ? make("small", { class: "lab-difference" }, signed(Number(differences[r - 1].toPrecision(3)))) : null]),
  ]);
  const settings = comparison.settings.map(({ name, values }) => [[make("code", {}, name)], ...values.map((value) => [value])]);
  const same = make("p", { class: "lab-facts" }, "Their settings are the same.");
  if (!element.children.length) element.append(foldable("Last values"), foldable("Settings that differ")); // once: a reader may fold them
  fill(element.firstChild, `differences to ${names[0]}`, comparedTable(["", ...names.map((name, r) => `${name}, step ${comparison.steps[r]}`)], values));
  fill(element.lastChild, "", settings.length ? comparedTable(["", ...names], settings) : same);
}

function foldable(title) {
  return make("details", { open: true }, make("summary", { class: "lab-title" }, title, make("small", {})), make("div"));
}

function fill(details, note, content) {
  say(details.querySelector("small"), note && ` ${note}`);
  details.lastChild.replaceChildren(content);
}

function comparedTable(head, rows) {
  return make("div", { class: "lab-scroll", tabindex: 0, role: "region", "aria-label": "comparison" }, make("table", { class: "lab-compared" },
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(([first, ...rest]) => make("tr", {}, make("th", { scope: "row" }, ...kept(first)), ...rest.map((cell) => make("td", {}, ...kept(cell))))))));
}

function kept(children) {
  return children.filter((child) => child !== null && child !== undefined && child !== "");
}
