// The widgets' style sheet: one in a page, however many widgets it has. A newer one, after the kernel was restarted, replaces it.

{
  const id = "lab-style-sheet";
  const sheet = document.getElementById(id) ?? document.head.appendChild(Object.assign(document.createElement("style"), { id }));
  if (sheet.textContent !== STYLE_SHEET) sheet.textContent = STYLE_SHEET;
}
