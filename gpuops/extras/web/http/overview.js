"use strict";
// Keeps the table of sites current: an event says that there is a new edition, which takes the place of the old one.
{
  const RETRY_MS = 5000;
  let told = null, busy = false, again = 0;

  const banner = () => {
    const place = document.getElementById("live"), what = place.querySelector("span");
    const say = told === null ? ["lost", "gpuops serve does not answer; this page is as it was read."]
      : told.trouble !== null ? ["away", told.trouble] : ["current", "This page is kept current."];
    if (place.dataset.state !== say[0] || what.textContent !== say[1]) {
      place.dataset.state = say[0];
      what.textContent = say[1];
    }
  };
  const bring = async () => {
    const reply = await fetch("./", { cache: "no-store" });
    if (!reply.ok) return;
    const made = new DOMParser().parseFromString(await reply.text(), "text/html");
    const focused = document.activeElement === null ? null : document.activeElement.getAttribute("href");
    document.getElementById("all").replaceWith(document.adoptNode(made.getElementById("all")));
    document.body.dataset.edition = made.body.dataset.edition;
    const link = focused === null ? null : document.querySelector(`#all a[href="${CSS.escape(focused)}"]`);
    if (link !== null) link.focus({ preventScroll: true });
  };
  const follow = async () => {
    banner();
    if (busy || told === null || told.edition === document.body.dataset.edition) return;
    busy = true;
    try {
      await bring();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // no network: later
    } finally {
      busy = false;
      clearTimeout(again);
      if (told !== null && told.edition !== document.body.dataset.edition) again = setTimeout(follow, 1000);
    }
  };
  const watch = () => {
    const events = new EventSource("events");
    events.onmessage = (event) => {
      told = JSON.parse(event.data);
      follow();
    };
    events.onerror = () => {
      told = null;
      banner();
      if (events.readyState === EventSource.CLOSED) setTimeout(watch, RETRY_MS);
    };
  };
  watch();
}
