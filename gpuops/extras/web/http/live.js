// Keeps the page current: an event says that there is a new edition, which is fetched and put in the place of the old.
{
  const RETRY_MS = 5000;
  let drawn = document.body.dataset.edition === "" ? "" : null; // the edition on the screen; null = its map is not drawn
  let told = null, heardMs = 0, busy = false, again = 0;

  const get = async (address) => {
    const reply = await fetch(address, { cache: "no-store" });
    if (!reply.ok) throw new Error(`${address}: ${reply.status}`);
    return reply;
  };
  const ago = (seconds) => seconds < 60 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min`
    : `${Math.round(seconds / 3600)} h`;

  const banner = () => {
    const place = document.getElementById("live");
    const [what, age] = place.querySelectorAll("span");
    const lost = told === null;
    const say = lost ? ["lost", "gpuops serve does not answer; this page is as it was read."]
      : told.trouble !== null ? ["away", `vCenter is not followed: ${visible(told.trouble)}`]
        : told.edition === null ? ["away", "vCenter has not been read yet."] : ["current", "This page is kept current."];
    if (place.dataset.state !== say[0] || what.textContent !== say[1]) {
      place.dataset.state = say[0];
      what.textContent = say[1];
    }
    const seconds = told === null || told.age_s === null ? null : told.age_s + (performance.now() - heardMs) / 1000;
    age.textContent = seconds === null ? "" : `vCenter was read ${ago(seconds)} ago.`;
  };
  const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);

  // What a reader has set stays: filters, what is unfolded, where it was scrolled to, which field has the focus.
  const kept = () => {
    const form = document.getElementById("filters");
    const fields = form === null ? [] : [...form.elements].filter((each) => each.name && each.tagName !== "OUTPUT");
    const scrolled = [...document.querySelectorAll(".scroll, .lanes")].map((each) => [each.getAttribute("aria-label"), each.scrollLeft, each.scrollTop]);
    const active = document.activeElement;
    return {
      values: fields.map((each) => [each.name, each.value]), scrolled, x: scrollX, y: scrollY,
      focus: active === null ? null : active.name ? `[name="${CSS.escape(active.name)}"]`
        : active.dataset.vm ? `button[data-vm="${CSS.escape(active.dataset.vm)}"]` : active.id ? `#${CSS.escape(active.id)}` : null,
    };
  };
  const restore = (state) => {
    const form = document.getElementById("filters");
    for (const [name, value] of form === null ? [] : state.values) form.elements[name].value = value;
    if (form !== null && state.values.some(([, value]) => value !== "")) form.dispatchEvent(new Event("input"));
    for (const [label, x, y] of state.scrolled) {
      const area = [...document.querySelectorAll(".scroll, .lanes")].find((each) => each.getAttribute("aria-label") === label);
      if (area) [area.scrollLeft, area.scrollTop] = [x, y];
    }
    const focused = state.focus === null ? null : document.querySelector(state.focus);
    if (focused !== null) focused.focus({ preventScroll: true });
    scrollTo(state.x, state.y);
  };

  // Page and document may be of two editions when one is made between both requests: then both are asked for again.
  const bring = async () => {
    const reply = await get("api/report");
    const edition = reply.headers.get("X-Gpuops-Edition");
    const data = await reply.text();
    if (drawn !== null || document.body.dataset.edition !== edition) {
      const made = new DOMParser().parseFromString(await (await get("./")).text(), "text/html");
      if (made.body.dataset.edition !== edition) return;
      const state = kept();
      document.title = made.title;
      document.body.replaceWith(document.adoptNode(made.body));
      document.getElementById("report").textContent = data;
      draw();
      restore(state);
    } else {
      document.getElementById("report").textContent = data;
      draw();
    }
    drawn = edition;
  };
  const follow = async () => {
    banner();
    if (busy || told === null || told.edition === null || told.edition === drawn) return;
    busy = true;
    try {
      await bring();
    } catch (error) {
      if (!(error instanceof TypeError) && !/: \d+$/.test(error.message)) throw error; // no network, or no 200: later
    } finally {
      busy = false;
      clearTimeout(again);
      if (told !== null && told.edition !== drawn) again = setTimeout(follow, 1000);
      banner();
    }
  };

  const watch = () => {
    const events = new EventSource("events");
    events.onmessage = (event) => {
      told = JSON.parse(event.data);
      heardMs = performance.now();
      follow();
    };
    events.onerror = () => {
      told = null;
      banner();
      if (events.readyState === EventSource.CLOSED) setTimeout(watch, RETRY_MS);
    };
  };
  setInterval(banner, 5000);
  watch();
}
