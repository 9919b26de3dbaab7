// One question, several models. The question stays in its box until the kernel has taken it, which a running cell delays.

export default {
  render({ model, el }) {
    const text = make("textarea", { rows: 2, "aria-label": "your message", placeholder: "Ask all models", onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
      event.stopPropagation(); // not the notebook's keys
    } });
    const ask = make("button", { type: "button", onclick: () => send() }, "Send");
    const clear = make("button", { type: "button", onclick: () => mail({ kind: "clear" }) }, "Clear");
    const turns = make("ol", { class: "lab-cards", "aria-live": "polite" });
    const body = make("div", { class: "lab-body" }, turns, make("div", { class: "lab-tools" }, text, ask, clear));
    const mailbox = new Mailbox(model);
    const element = widgetSection("lab-chat", "chat", mailbox.element, body);
    el.append(element);
    const unnotice = noticeLoss(model, element, body);

    let sent = null; // the question that the kernel has not taken yet

    function mail(content) {
      mailbox.send(content);
      drawButtons();
    }

    function send() {
      if (!text.value.trim() || ask.disabled) return;
      sent = text.value;
      mail({ kind: "ask", prompt: sent });
    }

    function hear({ kind }) {
      if (kind !== "answer") return;
      if (text.value === sent) text.value = "";
      sent = null;
      drawButtons();
    }

    function answerBox(name, answer) {
      if (!answer) return textBox(name, "…", []);
      const figures = answer.reward === null ? [] : [["reward", number(answer.reward)]];
      return textBox(name, [answer.text, answer.error].filter(Boolean).join("\n\n"), figures);
    }

    function card({ prompt_turns, answers }) {
      const sides = model.get("names").map((name, i) => answerBox(name, answers[i]));
      return make("li", { class: "lab-card" }, promptTurns(prompt_turns), make("div", { class: "lab-sides" }, ...sides));
    }

    // A card without news stays: a screen reader reads a new one out.
    function draw() {
      const all = model.get("turns");
      all.forEach((turn, i) => {
        const drawn = JSON.stringify([turn.prompt_turns, turn.answers]), before = turns.children[i];
        if (before?.dataset.drawn === drawn) return;
        const now = set(card(turn), { "data-drawn": drawn });
        if (before) before.replaceWith(now);
        else turns.append(now);
      });
      while (turns.children.length > all.length) turns.lastChild.remove();
    }

    function drawButtons() {
      ask.disabled = clear.disabled = model.get("busy") || mailbox.asked !== null;
    }

    model.on("change:turns", draw);
    model.on("change:busy", drawButtons);
    model.on("msg:custom", hear);
    draw();
    drawButtons();
    return () => {
      unnotice();
      mailbox.remove();
      model.off("change:turns", draw);
      model.off("change:busy", drawButtons);
      model.off("msg:custom", hear);
    };
  },
};
