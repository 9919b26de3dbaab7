// Elements with attributes and children. Text is always text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "g", "path", "line", "rect", "text", "circle", "clipPath", "title"]);

function make(name, attributes = {}, ...children) {
  const element = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

// A widget's section. Its keys stay inside, because the notebook would take them as commands: x in a list cuts the cell.
function widgetSection(name, label, ...children) {
  const keep = (event) => { if (!isNotebookKey(event)) event.stopPropagation(); };
  return make("section", { class: `lab-widget ${name}`, "aria-label": label, onkeydown: keep }, ...children);
}

// Whether a key is the notebook's: a key with Ctrl, Meta or Alt, and Shift+Enter, which runs the cell.
function isNotebookKey(event) {
  return event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key === "Enter");
}

// Replaces the text only if it is another: a screen reader repeats what is set.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
