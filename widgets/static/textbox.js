// A text with its heading and figures. What a model wrote is put in as text, whatever it holds.
function textBox(heading, text, figures, content) {
  return make("div", { class: "lab-box" },
    make("div", { class: "lab-box-head" }, make("span", { class: "lab-name" }, heading),
      ...figures.map(([name, value]) => make("span", { class: "lab-figure" }, `${name} `, make("b", {}, value)))),
    make("div", { class: "lab-text" }, ...(content ?? [text || "(empty)"])));
}
