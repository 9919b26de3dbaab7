// A prompt's turns as bubbles, the system's folded. turns: [{role, text}] (aligner_lib/run_folder/turns.py)
function promptTurns(turns) {
  const text = (turn) => make("div", { class: "lab-text", dir: "auto" }, turn.text);
  return make("div", { class: "lab-prompt" }, ...turns.map((turn) => (turn.role === "system"
    ? make("details", { class: "lab-turn", "data-role": "system" }, make("summary", {}, "system"), text(turn))
    : make("div", { class: "lab-turn", "data-role": turn.role || null }, turn.role ? make("span", { class: "lab-role" }, turn.role) : null, text(turn)))));
}
