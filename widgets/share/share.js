// Mounts the widget in the page, with the content that lies beside it. A page in a frame tells its height.

{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => { document.body.dataset.jpThemeLight = !dark.matches; };
  dark.addEventListener("change", follow);
  follow();
  const packed = Uint8Array.from(atob(document.getElementById("content").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const content = await new Response(unpacked).json();
  const model = content.axes ? new StillMonitor(content) : new StillModel(content);
  const widget = typeof WIDGET === "function" ? WIDGET() : WIDGET;
  widget.initialize?.({ model });
  widget.render({ model, el: document.getElementById("widget") });
  if (parent !== window) {
    document.body.classList.add("framed");
    const height = () => Math.ceil(document.body.getBoundingClientRect().height); // the document is never lower than its frame
    new ResizeObserver(() => parent.postMessage({ labHeight: height() }, "*")).observe(document.body);
  }
}
