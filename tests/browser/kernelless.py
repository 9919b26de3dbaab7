"""Widgets in a page of their own, without JupyterLab: this process is their kernel. A page is there in a fraction of a second.

What depends on JupyterLab (comms, restarts, outputs, MathJax) is tested in JupyterLab itself (lab.py).
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from anywidget import AnyWidget
from lab import BOUND_S, Points, wait_for

from widgets.frontend.wire import finite

SHARE = Path(sys.prefix) / "share" / "jupyter"
THEMES = SHARE / "lab" / "themes" / "@jupyterlab"
JUPYTERLAB = (
    SHARE / "nbconvert" / "templates" / "lab" / "static" / "index.css"
)  # JupyterLab's own style sheet
ADDRESS = "http://widgets.test/"
BASE = set(AnyWidget.class_trait_names(sync=True)) | {"_esm", "_css", "_anywidget_id"}

MOUNT = """async ({id, name, esm, css, state}) => {
    const values = {}, heard = {};
    const binary = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    const read = (value) => (value && value.base64 !== undefined ? binary(value.base64) : value);
    const emit = (event, ...rest) => [...(heard[event] ?? [])].forEach((listener) => listener(...rest));
    const take = ({state, messages}) => {
        const changed = Object.keys(state);
        changed.forEach((key) => { values[key] = read(state[key]); });
        changed.forEach((key) => emit(`change:${key}`));
        if (changed.length) emit("change");
        messages.forEach(({content, buffers}) => emit("msg:custom", content, buffers.map(binary)));
    };
    const ask = (kind, content) => window.kernel(JSON.stringify([id, kind, content])).then((answer) => take(JSON.parse(answer)));
    let dirty = {};
    const model = {
        get: (key) => values[key],
        set: (key, value) => { values[key] = value; dirty[key] = value; emit(`change:${key}`); },
        save_changes: () => { const changes = dirty; dirty = {}; return ask("state", changes); },
        send: (content) => ask("message", content),
        on: (events, listener) => events.split(" ").forEach((event) => (heard[event] ??= []).push(listener)),
        off: (events, listener) => events.split(" ").forEach((event) => { heard[event] = (heard[event] ?? []).filter((l) => l !== listener); }),
    };
    if (css) { // as anywidget does: a style element for each class of widgets, replaced when it comes again
        const style = document.getElementById(name) ?? document.head.appendChild(Object.assign(document.createElement("style"), {id: name}));
        style.textContent = css;
    }
    (window.takers ??= {})[id] = take;
    take({state, messages: []});
    const url = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}));
    const exported = (await import(url)).default, widget = typeof exported === "function" ? await exported() : exported;
    const el = document.body.appendChild(document.createElement("div"));
    await widget.initialize?.({model});
    await widget.render({model, el});
}"""


class Desk(Points):
    """A browser page that holds widgets of this process; `page` is Playwright's."""

    def __init__(self, browser, width: int = 838, height: int = 900, theme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.context.set_default_timeout(1000 * BOUND_S)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.widgets: list = []
        self._states: list[dict] = []
        self._wanted: list[tuple] = []  # the binary traits that a widget has asked to be sent
        self._messages: list[list] = []
        self.page.route(
            f"{ADDRESS}**", lambda route: route.fulfill(body=_document(theme), content_type="text/html")
        )
        self.page.goto(ADDRESS)
        self.page.expose_function("kernel", self._answer)

    def close(self) -> None:
        for widget in self.widgets:
            widget.close()
        self.context.close()

    def show(self, widget):
        """Mount a widget below the others; returns it."""
        index = len(self.widgets)
        messages: list = []
        widget.send = lambda content, buffers=(): messages.append((content, buffers))
        widget.send_state = lambda key=None: self._wanted.__setitem__(index, ("data",))
        self.widgets.append(widget)
        self._messages.append(messages)
        self._wanted.append(())
        state = _state(widget)
        self._states.append(state)
        name = f"{type(widget).__module__}.{type(widget).__name__}"
        css = getattr(widget, "_css", "")
        self.page.evaluate(MOUNT, {"id": index, "name": name, "esm": widget._esm, "css": css, "state": state})
        return widget

    def sync(self) -> None:
        """Hand the page what the widgets have sent or changed by themselves."""
        for index in range(len(self.widgets)):
            news = self._news(index)
            if news["state"] or news["messages"]:
                self.page.evaluate("([id, news]) => window.takers[id](news)", [index, news])

    def wait(self, condition, message: str = "it did not happen") -> None:
        """Until the condition holds; what the widgets send by themselves meanwhile reaches the page."""
        wait_for(lambda: self.sync() or condition(), message)

    def overflow(self) -> list[str]:
        """What is wider than the page, but for what can be scrolled: the names of these elements' classes."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll(".lab-widget, .lab-widget *")].filter((e) =>
                e.checkVisibility() && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
                && !e.closest("svg, .lab-hidden, .lab-scroll > *")).map((e) => `${e.tagName}.${e.className}`)"""
        )

    def _answer(self, text: str) -> str:
        index, kind, content = json.loads(text)
        widget = self.widgets[index]
        if kind == "state":
            for name, value in content.items():
                self._states[index][name] = value
                setattr(widget, name, value)
        else:
            widget._handle_custom_msg(content, [])
        return json.dumps(self._news(index))

    def _news(self, index: int) -> dict:
        state, before = _state(self.widgets[index], self._wanted[index]), self._states[index]
        self._wanted[index] = ()
        changed = {key: value for key, value in state.items() if before.get(key) != value}
        self._states[index] = before | state
        messages = [
            {"content": finite(content), "buffers": [base64.b64encode(b).decode() for b in buffers]}
            for content, buffers in self._messages[index]
        ]
        self._messages[index].clear()
        return {"state": changed, "messages": messages}


def _state(widget, binary=("data",)) -> dict:
    """The state that a page has of a widget. A monitor's data are a snapshot, which is made anew at each look."""
    keys = [key for key in widget.keys if key in binary or (key not in BASE and key != "data")]
    return {key: _plain(widget.get_state(key)[key]) for key in keys}


def _plain(value):
    return (
        {"base64": base64.b64encode(value).decode()}
        if isinstance(value, bytes)
        else json.loads(json.dumps(value))
    )


def _document(theme: str) -> str:
    sheets = [THEMES / f"theme-{theme}-extension" / "index.css", JUPYTERLAB]
    styles = "".join(f"<style>{path.read_text()}</style>" for path in sheets)
    light = str(theme == "light").lower()
    body = '<body class="jp-Notebook" style="overflow: auto; height: auto; padding: 0 8px; background: var(--jp-layout-color0)"'
    return f'<!doctype html><html><head>{styles}</head>{body} data-jp-theme-light="{light}"></body></html>'
