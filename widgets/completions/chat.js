// One question, several models.

export default {
  render({ model, el }) {
    const text = make("textarea", { rows: 2, "aria-label": "your message", placeholder: "Ask all models", onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
      event.stopPropagation(); // not the notebook's keys
    } });
    const ask = make("button", { type: "button", onclick: () => send() }, "Send");
    const clear = make("button", { type: "button", onclick: () => model.send({ kind: "clear" }) }, "Clear");
    const turns = make("ol", { class: "lab-cards", "aria-live": "polite" });
    const body = make("div", { class: "lab-body" }, turns, make("div", { class: "lab-tools" }, text, ask, clear));
    const element = widgetSection("lab-chat", "chat", body);
    el.append(element);
    const unnotice = noticeLoss(model, element, body);

    function send() {
      if (!text.value.trim() || model.get("busy")) return;
      model.send({ kind: "ask", prompt: text.value });
      text.value = "";
    }

    function answerBox(name, answer) {
      if (!answer) return textBox(name, "…", []);
      const figures = answer.reward === null ? [] : [["reward", number(answer.reward)]];
      return textBox(name, answer.error || answer.text, figures);
    }

    function draw() {
      const names = model.get("names");
      turns.replaceChildren(...model.get("turns").map((turn) => make("li", { class: "lab-card" },
        promptTurns(turn.prompt_turns),
        make("div", { class: "lab-sides" }, ...names.map((name, i) => answerBox(name, turn.answers[i]))))));
      ask.disabled = clear.disabled = model.get("busy");
    }

    model.on("change:turns change:busy", draw);
    draw();
    return () => { unnotice(); model.off("change:turns change:busy", draw); };
  },
};
