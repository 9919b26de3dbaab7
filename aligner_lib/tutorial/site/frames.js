// A frame is as high as what it shows. Its page tells its height (widgets/share/share.js).
addEventListener("message", ({ source, data }) => {
  if (typeof data?.labHeight !== "number") return;
  for (const frame of document.querySelectorAll("iframe.lab-frame")) {
    if (frame.contentWindow === source) frame.style.height = `${Math.ceil(data.labHeight)}px`;
  }
});
