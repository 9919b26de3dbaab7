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

// Replaces the text only if it is another: a screen reader repeats what is set.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
