// Numbers for people.

const NO_NUMBERS = { nan: "NaN", inf: "∞", "-inf": "−∞" };

function number(value) {
  if (typeof value === "string") return NO_NUMBERS[value] ?? value; // NaN and infinities travel as text
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

// With a sign, for a difference.
function signed(value) {
  return typeof value === "number" && value > 0 ? `+${number(value)}` : number(value).replace("-", "−");
}

const UNITS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];

// With as many digits as tell it from the next tick, a step away.
function tick(value, step) {
  const size = Math.abs(value), power = (x) => Math.floor(Math.log10(x) + 1e-9);
  if (value === 0) return "0";
  if (size < 1e-4 || size >= 1e15) return value.toExponential(Math.max(0, power(size) - power(step))).replace("+", "");
  const [unit, letter] = size < 1e4 ? [1, ""] : UNITS.find(([from]) => size >= from);
  const text = (value / unit).toFixed(Math.max(0, -power(step / unit)));
  return letter ? Number(text) + letter : text;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")}`;
}

// Round places for about `count` ticks between two values.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((m) => m * power >= rough) ?? 10);
  return { step, places: multiples(low, high, step), label: (place) => tick(place, step) };
}

// The same for what comes in whole numbers.
function wholeTicks(low, high, count) {
  const found = ticks(low, high, count);
  return found.step >= 1 ? found : { step: 1, places: multiples(low, high, 1), label: String };
}

// The same for seconds, in steps that a clock has. A label is never rounded: equal steps read as equal.
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];

function clockTicks(low, high, count) {
  const rough = (high - low) / count;
  if (rough < 1) {
    const { step, places } = ticks(low, high, count);
    return { step, places, label: (place) => (place ? `${tick(place, step)} s` : "0") };
  }
  const step = CLOCK_STEPS.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400);
  return { step, places: multiples(low, high, step), label: clock };
}

// 5400 is "1 h 30 min".
function clock(seconds) {
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(seconds / size);
    if (count) parts.push(`${count} ${unit}`);
    seconds -= count * size;
  }
  return parts.join(" ") || "0";
}

function multiples(low, high, step) {
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}
