// Line styles: colours in base.css (Okabe and Ito, for each theme), dashes and markers here. As widgets/figures/palette.py.

const DASHES = ["", "6 3", "2 2", "7 2.5 2 2.5", "10 4", "4 2 1.5 2 1.5 2"];
const MARKERS = [
  "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
  "M-2.6 -2.6H2.6V2.6H-2.6Z",
  "M0 -3.4L3.2 2.4H-3.2Z",
  "M0 -3.6L3.6 0L0 3.6L-3.6 0Z",
  "M0 3.4L3.2 -2.4H-3.2Z",
  "M-1 -3H1V-1H3V1H1V3H-1V1H-3V-1H-1Z",
];

// The colours come again after six, each time with another dash and marker: 18 differ (widgets/figures/palette.py).
// A run has a pen of its own when there are several; else each line of a chart has. Later lines of a run are faint.
function penOf(run, line, severalRuns) {
  const number = severalRuns ? run : line, index = number % 6, turn = Math.floor(number / 6);
  return { index, dash: DASHES[(index + turn) % 6], marker: MARKERS[(index + 2 * turn) % 6], faint: severalRuns && line > 0 };
}

function swatch(pen) {
  return make(
    "svg",
    { class: `lab-swatch lab-pen-${pen.index}${pen.faint ? " lab-faint" : ""}`, width: 26, height: 10, "aria-hidden": "true" },
    make("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: "lab-line", "stroke-dasharray": pen.dash }),
    make("path", { d: pen.marker, transform: "translate(13 5)", class: "lab-marker" }),
  );
}
