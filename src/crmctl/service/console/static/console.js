// Comfort for browsers with scripts. Every page works without this file.
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
// References are searched as you type; without this, the service looks the text up when the form is sent.
const lookUp = field => {
  const pick = document.getElementById(field.dataset.pick), list = document.createElement("ul"), note = document.createElement("p");
  let asked = 0, timer = 0, active = -1;
  list.className = "choices"; list.id = `${field.id}-choices`; list.hidden = true; list.setAttribute("role", "listbox"); list.setAttribute("aria-label", "Matches");
  note.className = "hidden"; note.setAttribute("role", "status");
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) field.setAttribute(name, value);
  field.after(list, note);
  const close = () => { list.hidden = true; active = -1; field.setAttribute("aria-expanded", "false"); field.removeAttribute("aria-activedescendant"); };
  const choose = item => {
    if (item.dataset.path) return location.assign(field.form.action.replace(/\/search$/, item.dataset.path));
    field.value = item.dataset.label; if (pick) pick.value = item.dataset.id; close();
  };
  const mark = index => {
    active = (index + list.children.length) % list.children.length;
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", place === active));
    field.setAttribute("aria-activedescendant", list.children[active].id);
  };
  const ask = async () => {
    const turn = ++asked, text = field.value.trim();
    if (text.length < 2 || !field.dataset.lookup) return close();
    const answer = await fetch(`${field.dataset.lookup}?q=${encodeURIComponent(text)}`, { credentials: "same-origin" });
    if (turn !== asked || !answer.ok) return;
    const found = await answer.json();
    list.replaceChildren(...found.map((each, place) => {
      const item = document.createElement("li"), about = document.createElement("small");
      item.id = `${list.id}-${place}`; item.dataset.id = each.id; if (each.path) item.dataset.path = each.path; item.dataset.label = each.label; item.setAttribute("role", "option"); item.setAttribute("aria-selected", "false");
      about.textContent = each.about; item.append(each.label, about);
      item.addEventListener("mousedown", event => { event.preventDefault(); choose(item); });
      return item;
    }));
    active = -1; list.hidden = !found.length; field.setAttribute("aria-expanded", String(!list.hidden));
    note.textContent = found.length ? `${found.length} found` : "Nothing found";
  };
  field.addEventListener("input", () => { if (pick) pick.value = ""; clearTimeout(timer); timer = setTimeout(ask, 150); });
  // The list stays open during a click: if it closed at once, the button below would move away from the pointer.
  field.addEventListener("blur", () => {
    clearTimeout(timer); asked++;
    if (document.body.matches(":active")) addEventListener("click", close, { once: true }); else close();
  });
  field.addEventListener("keydown", event => {
    if (list.hidden) return;
    if (event.key === "ArrowDown") { event.preventDefault(); mark(active + 1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); mark(active - 1); }
    else if (event.key === "Enter" && active >= 0) { event.preventDefault(); choose(list.children[active]); }
    else if (event.key === "Escape") { event.preventDefault(); close(); }
  });
};
document.querySelectorAll("input[data-lookup]").forEach(lookUp);
// One box ticks every row of the page.
for (const head of document.querySelectorAll("[data-ticks]")) {
  const label = document.createElement("label"), all = document.createElement("input"), name = document.createElement("span");
  all.type = "checkbox"; name.className = "hidden"; name.textContent = "Select this page";
  label.append(name, all); head.append(label);
  all.addEventListener("change", () => {
    for (const box of head.closest("form").querySelectorAll(`[name="${head.dataset.ticks}"]`)) box.checked = all.checked;
  });
}
// Times are UTC on the wire; show them in the browser's time zone. Dates without a time have none. The cookie tells the service the zone.
const brand = document.querySelector("a.brand"), zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (brand && zone) document.cookie = `crm_zone=${zone}; path=${brand.pathname}; max-age=31536000; samesite=lax`;
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
for (const time of document.querySelectorAll("time[datetime*=T]")) {
  const at = new Date(time.dateTime);
  if (isNaN(at)) continue;
  const day = `${at.getDate()} ${months[at.getMonth()]} ${at.getFullYear()}`, clock = at.toTimeString().slice(0, 5);
  const isToday = "short" in time.dataset && at.toDateString() === new Date().toDateString();
  time.textContent = isToday ? clock : "short" in time.dataset ? day : `${day}, ${clock}`;
}
// The links of breadcrumbs lead back to the list as it was last seen in this tab.
const lists = /\/records\/[^/]+$/;
try {
  if (lists.test(location.pathname)) sessionStorage.setItem(location.pathname, location.search.replace(/[?&]notice=[^&]*/, ""));
  for (const link of document.querySelectorAll(".trail a")) {
    const search = lists.test(link.pathname) && !link.search && sessionStorage.getItem(link.pathname);
    if (search) link.search = search;
  }
} catch { /* A browser that stores nothing keeps the plain links. */ }
// A form that is being carried out says so; Back shows it as it was.
for (const form of document.querySelectorAll("form[method=post]")) form.addEventListener("submit", event => {
  event.submitter?.classList.add("busy");
  event.submitter?.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => { for (const button of document.querySelectorAll(".busy")) { button.classList.remove("busy"); button.removeAttribute("aria-busy"); } });
// Leaving a changed form asks first.
for (const form of document.querySelectorAll("form[method=post]:is(.form, .choosing)")) {
  let isChanged = false;
  form.addEventListener("input", () => { isChanged = true; });
  form.addEventListener("submit", () => { isChanged = false; });
  addEventListener("beforeunload", event => { if (isChanged) event.preventDefault(); });
}
// A condition offers the operators, options and calendar that make sense for its attribute. The last row has and describes all attributes and operators.
const conditions = [...document.querySelectorAll("select[data-row]")], operatorsOf = where => document.getElementById(`op-${where.dataset.row}`);
const everyOperator = conditions.length ? [...operatorsOf(conditions.at(-1)).options] : [], everyAttribute = [...conditions.at(-1)?.options ?? []];
const aboutOf = where => everyAttribute.find(option => option.value === where.value).dataset;
for (const where of conditions) {
  const operators = operatorsOf(where), value = document.getElementById(`value-${where.dataset.row}`), own = where.value;
  where.replaceChildren(...everyAttribute.map(option => option.cloneNode(true))); where.value = own;
  let isSearched = false;
  const offerRecords = () => {
    const { target } = aboutOf(where);
    if (!target) return delete value.dataset.lookup;
    value.dataset.lookup = `${brand.pathname}/records/${target}/lookup`;
    if (!isSearched) lookUp(value);
    isSearched = true;
  };
  offerRecords();
  where.addEventListener("change", () => {
    const chosen = operators.value, { type } = aboutOf(where);
    const offered = everyOperator.filter(option => !type || !option.dataset.types || option.dataset.types.split(" ").includes(type));
    operators.replaceChildren(...offered.map(option => {
      const fitting = option.cloneNode(true), [number, date] = option.text.split(", ");
      if (type && date) fitting.text = type === "date" ? `is ${date}` : number;
      return fitting;
    }));
    if (offered.some(option => option.value === chosen)) operators.value = chosen; else operators.selectedIndex = 0;
    value.type = type === "date" ? "date" : "text";
    value.setAttribute("list", `options-${where.value}`);
    offerRecords();
  });
}
// A double click or Enter edits a cell in a dialog, arrow keys move between cells; without this, the form of the record does.
for (const table of document.querySelectorAll("table.records:has([data-edit])")) {
  const slugs = [...table.tHead.rows[0].cells].map(cell => cell.dataset.edit), slugOf = cell => cell && slugs[cell.cellIndex];
  const hint = document.createElement("p");
  hint.className = "hint"; hint.textContent = "Double click a cell to edit it, or reach it with the arrow keys and press Enter.";
  table.closest(".wide").after(hint);
  for (const row of table.tBodies[0].rows) for (const cell of row.cells) if (slugOf(cell)) cell.tabIndex = -1;
  const edit = async cell => {
    const link = cell.parentElement.querySelector("th a").href, list = encodeURIComponent(location.search.slice(1));
    const answer = await fetch(`${link}/edit?only=${slugOf(cell)}&list=${list}`, { credentials: "same-origin" });
    const form = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".record-form");
    if (!form) return location.assign(`${link}/edit`);
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-label", `${cell.dataset.label}, ${cell.parentElement.querySelector("th").textContent.trim()}`);
    dialog.append(form); document.getElementById("main").append(dialog);
    form.querySelectorAll("input[data-lookup]").forEach(lookUp);
    form.querySelector(".actions a").addEventListener("click", event => { event.preventDefault(); dialog.close(); });
    dialog.addEventListener("close", () => { dialog.remove(); cell.focus(); });
    dialog.showModal(); const field = form.querySelector("input:not([type=hidden]), select, textarea");
    field.focus(); field.select?.();
  };
  table.addEventListener("dblclick", event => {
    const cell = event.target.closest("td");
    if (slugOf(cell)) edit(cell);
  });
  table.addEventListener("keydown", event => {
    const cell = event.target.closest("tbody td, tbody th"), [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [];
    if (event.key === "Enter" && event.target === cell) edit(cell);
    else if (cell && down !== undefined && event.target.type !== "checkbox") {
      const next = table.rows[cell.parentElement.rowIndex + down]?.cells[cell.cellIndex + right];
      const target = slugOf(next) ? next : next?.querySelector("tbody th a");
      if (target) { event.preventDefault(); target.focus(); }
    }
  });
}
