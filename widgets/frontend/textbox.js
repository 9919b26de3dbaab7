// A text with its heading and figures: the first figure is large, the others are quiet. What a model wrote is put in as text,
// whatever it holds.
function textBox(heading, text, [first, ...others], content, verdicts = []) {
  const figure = ([name, value], large) => make("span", { class: `lab-figure${large ? " lab-reward" : ""}` }, `${name} `, make("b", {}, value));
  return make("div", { class: "lab-box" },
    make("div", { class: "lab-box-head" },
      first ? figure(first, true) : null,
      ...verdicts.map(([name, passed]) => make("span", { class: "lab-verdict", "data-passed": String(passed) }, passed ? "✓ " : "✗ ", name)),
      make("span", { class: "lab-name" }, heading)),
    make("div", { class: "lab-text", dir: "auto" }, ...(content ?? [text || "(empty)"])),
    others.length ? make("div", { class: "lab-figures" }, ...others.map((one) => figure(one, false))) : null);
}
