// What the map and the night share: the document, text made visible, elements, and the tip on hover and focus.
const report = JSON.parse(document.getElementById("report").textContent);
const vms = new Map(report.vms.map((vm) => [vm.ref, vm]));

// The same rule as gpuops/report/text.py: what would not be seen as itself is written as its code.
const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
  (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);

const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

const minute = (moment) => moment === null ? "unknown" : new Date(moment).toISOString().slice(0, 16).replace("T", " ");
const clock = (moment) => moment === null ? "unknown" : new Date(moment).toISOString().slice(11, 16);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// A tip belongs to each element that `explain` knows; what it says is made when somebody looks.
const explained = new WeakMap();
const explain = (target, lines) => explained.set(target, lines);
const tip = element("div");
tip.id = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
document.body.append(tip);

const showTip = (target) => {
  const [head, ...lines] = explained.get(target)();
  tip.replaceChildren(element("b", "", visible(head)), ...lines.map((line) => element("span", "", visible(line))));
  tip.hidden = false;
  target.setAttribute("aria-describedby", "tip");
  const box = target.getBoundingClientRect();
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(4, box.top - tip.offsetHeight - 6)}px`;
};
const hideTip = (target) => {
  tip.hidden = true;
  target.removeAttribute("aria-describedby");
};
const withTip = (event) => {
  const found = event.target instanceof Element ? event.target.closest("button") : null;
  return found !== null && explained.has(found) ? found : null;
};
for (const [begins, ends] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
  document.body.addEventListener(begins, (event) => { const found = withTip(event); if (found) showTip(found); });
  document.body.addEventListener(ends, (event) => { const found = withTip(event); if (found) hideTip(found); });
}
document.body.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

// One stop of the Tab key for a whole area; arrows go from one button to the next, Home and End to the first and last.
const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const walkable = (area) => {
  const buttons = () => [...area.querySelectorAll("button")].filter((button) => button.offsetParent !== null);
  const stopAt = (button) => {
    for (const other of area.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
    button.tabIndex = 0;
  };
  area.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES) && event.key !== "Home" && event.key !== "End") return;
    const all = buttons();
    const here = all.indexOf(document.activeElement);
    if (here < 0) return;
    const last = all.length - 1;
    const next = event.key === "Home" ? 0 : event.key === "End" ? last : Math.max(0, Math.min(last, here + MOVES[event.key]));
    event.preventDefault();
    stopAt(all[next]);
    all[next].focus();
  });
  area.addEventListener("focusin", (event) => { if (event.target instanceof HTMLButtonElement) stopAt(event.target); });
  return () => { const [first] = buttons(); if (first) stopAt(first); };
};
