"use strict";
// Shows one site alone, or all of them; without this script each opens at a click.
const chosen = document.getElementById("site");
chosen.closest("p").hidden = false;
chosen.addEventListener("change", () => {
  for (const each of document.querySelectorAll("[data-site]")) {
    const shown = chosen.value === "" || each.dataset.site === chosen.value;
    each.hidden = !shown;
    if (each.tagName === "DETAILS") each.open = shown && chosen.value !== "";
  }
});
