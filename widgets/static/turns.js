// A prompt as turns: its chat template is read, not shown. What no template was found in stays one text.

const ROLE = "system|user|assistant|tool|human|gpt";
const TURN_MARKS = [ // where a turn begins, with its role
  new RegExp(`<\\|im_start\\|>(${ROLE})\\n`, "gi"), // ChatML
  new RegExp(`<\\|start_header_id\\|>(${ROLE})<\\|end_header_id\\|>\\n*`, "gi"), // Llama 3
  /<start_of_turn>(user|model)\n/gi, // Gemma
  /<extra_id_[01]>(System|User|Assistant)\n/g, // NeMo
  /(?:^|\n\n)(System|User|Assistant|Human): ?/g, // the plain template
  /(?:^|\n)(system|user|assistant)\n/g, // ChatML whose marks were left out as special tokens
];
const TURN_ENDS = /<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<\|begin_of_text\|>|<bos>|<s>|<\/s>/g;

// [{role, text}] of a prompt; the assistant's turn that it opens at its end is left out. One turn without a role: no template.
function turnsOf(prompt) {
  for (const mark of TURN_MARKS) {
    const marks = [...prompt.matchAll(mark)];
    if (!marks.length || prompt.slice(0, marks[0].index).replace(TURN_ENDS, "").trim()) continue;
    const turns = marks.map((match, i) => ({
      role: { human: "user", gpt: "assistant", model: "assistant" }[match[1].toLowerCase()] ?? match[1].toLowerCase(),
      text: prompt.slice(match.index + match[0].length, marks[i + 1]?.index).replace(TURN_ENDS, "").trim(),
    }));
    if (turns.at(-1).role === "assistant" && !turns.at(-1).text) turns.pop();
    if (turns.length) return turns;
  }
  return [{ role: "", text: prompt.trim() }];
}

// The turns as bubbles, the system's folded.
function promptTurns(prompt) {
  const text = (turn) => make("div", { class: "lab-text", dir: "auto" }, turn.text);
  return make("div", { class: "lab-prompt" }, ...turnsOf(prompt).map((turn) => (turn.role === "system"
    ? make("details", { class: "lab-turn", "data-role": "system" }, make("summary", {}, "system"), text(turn))
    : make("div", { class: "lab-turn", "data-role": turn.role || null }, turn.role ? make("span", { class: "lab-role" }, turn.role) : null, text(turn)))));
}
