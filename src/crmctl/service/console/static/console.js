// Comfort where the browser has it: copy buttons, and boxes and buttons that exclude each other. Every page works without this file.
"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
for (const boxes of document.querySelectorAll("[data-selects]")) {
  boxes.addEventListener("change", event => {
    if (event.target.checked) document.getElementById(boxes.dataset.selects).checked = true;
  });
}
for (const everything of document.querySelectorAll("input[data-clears]")) {
  everything.addEventListener("change", () => {
    for (const box of document.getElementById(everything.dataset.clears).querySelectorAll("input")) box.checked = false;
  });
}
