// The map: cluster > host > NUMA node > GPU > what holds it and what is free; and its filters.
{
  const POWER = { poweredOn: "on", poweredOff: "off", suspended: "suspended" };
  const USE = { free: "free", partly: "partly used", full: "full", unknown: "use not known" };
  const ROLE = { desktop: "desktop", ml: "ML VM", "whole-gpu": "VM with a whole GPU", other: "VM" };
  const STANDALONE = "standalone hosts";
  const power = (vm) => POWER[vm.power] ?? "power unknown";
  const percent = (part) => part === null ? "?" : `${Math.round(part * 100)} %`;
  const range = ({ at_least: least, at_most: most }) => most === null ? `at least ${least}` : least === most ? `${least}` : `${least} to ${most}`;
  const room = (gpu) => Object.entries(report.rooms[gpu.room]);

  const aboutVm = (vm, more) => [vm.name, `${ROLE[vm.role]}, ${power(vm)}`, vm.profiles.join(", ") || "no vGPU", ...more, vm.path || ""]
    .filter((line) => line !== "");

  const colour = (made, gpu, host, use) => {
    made.dataset.level = levelOf(use);
    made.dataset.health = healthOf(gpu, measuredGpu(`${host.ref} ${gpu.address}`));
  };

  const slotButton = (slot, gpu, host) => {
    const vm = vms.get(slot.vm);
    const made = element("button", `slot ${vm.role}${slot.certain ? "" : " unsure"}`, visible(vm.name));
    made.type = "button";
    made.tabIndex = -1;
    made.dataset.vm = slot.vm;
    made.style.flexGrow = slot.gpus ?? 0.1;
    colour(made, gpu, host, measuredVm(slot.vm) ?? measuredGpu(`${host.ref} ${gpu.address}`));
    const part = slot.gpus === null ? "a part that is not known" : percent(slot.gpus);
    explain(made, () => aboutVm(vm, [...wordsOfUse(measuredVm(slot.vm)), `${part} of ${gpu.name} ${gpu.address} on ${host.name}`,
      ...(slot.certain ? [] : ["or on another GPU of the host: vCenter does not tell"])]));
    return made;
  };

  const freeButton = (gpu, host, part, text) => {
    const made = element("button", `slot ${gpu.use === "unknown" ? "unknown" : "free"}`, text);
    made.type = "button";
    made.tabIndex = -1;
    made.style.flexGrow = part;
    colour(made, gpu, host, measuredGpu(`${host.ref} ${gpu.address}`));
    explain(made, () => [`${USE[gpu.use]}: ${gpu.name} ${gpu.address} on ${host.name}`, gpu.mode,
      ...(gpu.takes_vgpus === false ? [] : room(gpu).length === 0 ? ["no vGPU fits"] : ["room, each profile for itself:",
        ...room(gpu).map(([profile, slots]) => `${range(slots)} × ${profile}`)])]);
    return made;
  };

  // Free slots are drawn one by one where the GPU is held to one profile, else as what is left of it.
  const freeButtons = (gpu, host) => {
    if (gpu.use === "unknown" && gpu.slots.length === 0) return [freeButton(gpu, host, 1, "not known")];
    if (gpu.use === "full") return [];
    if (gpu.slots.length === 0) return [freeButton(gpu, host, 1, "free")];
    if (gpu.open_slots !== null) {
      return Array.from({ length: gpu.open_slots }, () => freeButton(gpu, host, gpu.slots[0].gpus ?? 0.1, "free"));
    }
    const left = 1 - gpu.slots.reduce((sum, slot) => sum + (slot.gpus ?? 0), 0);
    return left > 0.001 && gpu.use === "partly" ? [freeButton(gpu, host, left, "free")] : [];
  };

  const gpuElement = (gpu, host) => {
    const made = element("div", "gpu");
    made.dataset.gpu = `${host.ref} ${gpu.address}`;
    made.dataset.use = gpu.use;
    const line = element("p");
    line.append(element("b", "", gpu.address.replace(/^0000:/, "")), element("span", "", visible(gpu.name.replace(/^NVIDIA /, ""))),
      element("span", "mode", visible(gpu.mode)));
    if (gpu.reboot_pending) line.append(element("span", "tag warning", "reboot pending"));
    line.append(...(gpu.problems ?? []).map((problem) => element("span", "tag warning", visible(problem))));
    line.append(element("span", "used", percent(gpu.used)));
    const bar = element("div", "bar");
    const slots = [...gpu.slots].sort((one, other) => (one.start ?? 0) - (other.start ?? 0));
    bar.append(...slots.map((slot) => slotButton(slot, gpu, host)), ...freeButtons(gpu, host));
    made.append(line, bar);
    const use = measuredGpu(made.dataset.gpu), drawn = chart(historyOf("gpus", made.dataset.gpu)?.utilization_percent, 100, `use of ${gpu.address} in percent`);
    if (use !== null || drawn !== null) {
      const below = element("p", "measured", wordsOfUse(use).join(", "));
      below.append(...slowdowns(use).map((text) => element("span", "tag warning", text)));
      if (drawn !== null) below.append(drawn);
      made.append(below);
    }
    return made;
  };

  const chip = (ref) => {
    const vm = vms.get(ref);
    const item = element("li");
    const made = element("button", "chip", `${visible(vm.name)} `);
    made.type = "button";
    made.tabIndex = -1;
    made.dataset.vm = ref;
    made.append(element("span", "dim", power(vm)));
    explain(made, () => aboutVm(vm, ["holds no GPU now"]));
    item.append(made);
    return item;
  };

  const flags = (host) => [
    ...(host.connected === false ? [["error", "not connected"]] : []),
    ...(host.connected === null ? [["warning", "connection not known"]] : []),
    ...(host.in_maintenance ? [["warning", "in maintenance"]] : []),
  ].map(([kind, text]) => element("span", `tag ${kind}`, text));

  const hostElement = (host) => {
    const made = element("article", "host");
    made.dataset.host = host.ref;
    const head = element("h4");
    head.append(element("bdi", "", visible(host.name)), element("small", "", host.version ? `ESXi ${host.version}` : ""), ...flags(host));
    const drawn = chart(historyOf("hosts", host.ref)?.utilization_percent, 100, `use of the GPUs of ${host.name} in percent`);
    if (drawn !== null) head.append(drawn);
    made.append(head);
    for (const node of host.numa_nodes) {
      const part = element("div", "node");
      part.append(element("span", "dim", node.id === null ? "NUMA node unknown" : `NUMA node ${node.id}`));
      part.append(...node.gpus.map((gpu) => gpuElement(gpu, host)));
      made.append(part);
    }
    if (host.vms_not_on_a_gpu.length) {
      const list = element("ul", "waiting");
      list.append(element("li", "dim", "not on a GPU:"), ...host.vms_not_on_a_gpu.map(chip));
      made.append(list);
    }
    return made;
  };

  const place = document.getElementById("fleet");
  const clusters = new Map();
  for (const host of report.hosts) {
    const name = host.cluster ?? STANDALONE;
    if (!clusters.has(name)) clusters.set(name, []);
    clusters.get(name).push(host);
  }
  // Of many hosts each is a cell with a stripe for each GPU; its card is made when the cell is pressed, or when the
  // filters leave few hosts.
  const CARDS_AT_MOST = 60, FOUND_AT_MOST = 24;
  const byCells = report.hosts.length > CARDS_AT_MOST;
  document.getElementById("boxes").hidden = !byCells;
  const gpusOfHost = (host) => host.numa_nodes.flatMap((node) => node.gpus);
  const roleOf = (gpu) => {
    const [largest] = [...gpu.slots].sort((one, other) => (other.gpus ?? 0) - (one.gpus ?? 0));
    return largest ? vms.get(largest.vm).role : gpu.use === "unknown" ? "unknown" : "free";
  };
  const cellOf = (host) => {
    const made = element("button", "cell");
    made.type = "button";
    made.tabIndex = -1;
    made.setAttribute("aria-label", visible(host.name));
    made.setAttribute("aria-expanded", "false");
    made.append(...gpusOfHost(host).map((gpu) => {
      const stripe = element("span", `slot ${roleOf(gpu)}`);
      colour(stripe, gpu, host, measuredGpu(`${host.ref} ${gpu.address}`));
      return stripe;
    }));
    explain(made, () => [host.name, ...gpusOfHost(host).map((gpu) => [gpu.address.replace(/^0000:/, ""), `${percent(gpu.used)} held`,
      ...wordsOfUse(measuredGpu(`${host.ref} ${gpu.address}`)), ...(gpu.problems ?? [])].join(", ")), "press for its card"]);
    return made;
  };
  const drawn = [...clusters].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, hosts]) => {
    const section = element("section");
    const head = element("h3");
    const gpus = hosts.reduce((sum, host) => sum + gpusOfHost(host).length, 0);
    head.append(element("bdi", "", visible(name)), element("small", "", `  ${counted(hosts.length, "host")}, ${counted(gpus, "GPU")}`));
    const grid = element("div", "hosts");
    const entries = hosts.map((host) => ({ host, card: byCells ? null : hostElement(host), cell: byCells ? cellOf(host) : null, pressed: false }));
    if (byCells) {
      const cells = element("div", "cells");
      cells.append(...entries.map((entry) => entry.cell));
      section.append(head, cells, grid);
      cells.addEventListener("click", (event) => {
        const entry = entries.find(({ cell }) => cell.contains(event.target));
        if (!entry) return;
        entry.pressed = !entry.pressed;
        apply();
      });
    } else {
      grid.append(...entries.map(({ card }) => card));
      section.append(head, grid);
    }
    return { name, section, grid, entries };
  });
  place.replaceChildren(...drawn.map(({ section }) => section));
  const stopAtFirst = walkable(place);

  // Filters. A GPU is shown when its cluster, profile and state fit and, where VMs are asked for, one of its VMs does.
  const form = document.getElementById("filters");
  const fill = (select, values) => select.append(...values.map(([value, text]) => {
    const option = element("option", "", visible(text));
    option.value = value;
    return option;
  }));
  const same = (values) => [...new Set(values)].sort().map((value) => [value, value]);
  fill(form.cluster, same(clusters.keys()));
  fill(form.profile, same([...report.vms.flatMap((vm) => vm.profiles), ...report.rooms.flatMap(Object.keys)]));
  fill(form.role, Object.keys(ROLE).filter((role) => report.vms.some((vm) => vm.role === role)).map((role) => [role, ROLE[role]]));
  fill(form.state, [...Object.entries(USE).map(([use, text]) => [use, `GPU ${text}`]), ["reboot", "GPU with a reboot pending"],
    ["poweredOn", "VM on"], ["suspended", "VM suspended"], ["poweredOff", "VM off"]]);

  const gpusOf = new Map(report.hosts.flatMap((host) => host.numa_nodes.flatMap((node) => node.gpus.map((gpu) => [`${host.ref} ${gpu.address}`, gpu]))));
  const asked = () => Object.fromEntries(["cluster", "profile", "role", "state", "text"].map((name) => [name, form[name].value.trim()]));
  const ofVms = (wanted) => wanted.role !== "" || wanted.state in POWER || wanted.text !== "";
  const vmFits = (ref, wanted, host) => {
    const vm = vms.get(ref);
    const text = wanted.text.toLowerCase();
    return (wanted.role === "" || vm.role === wanted.role) && (wanted.profile === "" || vm.profiles.includes(wanted.profile))
      && (!(wanted.state in POWER) || vm.power === wanted.state)
      && (text === "" || vm.name.toLowerCase().includes(text) || host.name.toLowerCase().includes(text));
  };
  const gpuFits = (gpu, wanted, host) => {
    if (wanted.state in USE && gpu.use !== wanted.state) return false;
    if (wanted.state === "reboot" && !gpu.reboot_pending) return false;
    const fits = gpu.slots.some((slot) => vmFits(slot.vm, wanted, host));
    if (ofVms(wanted)) {
      const byHost = wanted.role === "" && !(wanted.state in POWER) && wanted.profile === "" && host.name.toLowerCase().includes(wanted.text.toLowerCase());
      return fits || byHost;
    }
    return wanted.profile === "" || fits || wanted.profile in report.rooms[gpu.room];
  };
  // What of a host fits is decided by its data; what is drawn of it then follows.
  const fitting = (host, wanted) => {
    const gpus = new Set(gpusOfHost(host).filter((gpu) => gpuFits(gpu, wanted, host)));
    const byGpu = wanted.state in USE || wanted.state === "reboot";
    const waiting = new Set(byGpu ? [] : host.vms_not_on_a_gpu.filter((ref) => vmFits(ref, wanted, host)));
    return { gpus, waiting, any: gpus.size > 0 || (waiting.size > 0 && (ofVms(wanted) || wanted.profile !== "")) };
  };
  const showInCard = (card, host, { gpus, waiting }, wanted) => {
    for (const made of card.querySelectorAll(".gpu")) made.hidden = !gpus.has(gpusOf.get(made.dataset.gpu));
    for (const node of card.querySelectorAll(".node")) node.hidden = !node.querySelector(".gpu:not([hidden])");
    for (const made of card.querySelectorAll(".chip")) made.parentElement.hidden = !waiting.has(made.dataset.vm);
    for (const list of card.querySelectorAll(".waiting")) list.hidden = waiting.size === 0;
    const asksVms = ofVms(wanted) || wanted.profile !== "";
    for (const made of card.querySelectorAll(".slot[data-vm]")) made.classList.toggle("faded", asksVms && !vmFits(made.dataset.vm, wanted, host));
  };
  const apply = () => {
    const wanted = asked();
    place.dataset.colour = form.colour.value;
    for (const legend of document.querySelectorAll("#colours > li[data-colour]")) legend.hidden = legend.dataset.colour !== form.colour.value;
    const shown = new Map();
    for (const { name, entries } of drawn) {
      if (wanted.cluster !== "" && wanted.cluster !== name) continue;
      for (const entry of entries) {
        const fits = fitting(entry.host, wanted);
        if (fits.any) shown.set(entry, fits);
      }
    }
    const few = shown.size <= FOUND_AT_MOST;
    for (const { section, grid, entries } of drawn) {
      for (const entry of entries) {
        const fits = shown.get(entry);
        const asCard = fits !== undefined && (!byCells || entry.pressed || few);
        if (asCard && entry.card === null) {
          entry.card = hostElement(entry.host);
          grid.append(entry.card);
        }
        if (entry.card !== null) entry.card.hidden = !asCard;
        if (asCard) showInCard(entry.card, entry.host, fits, wanted);
        if (entry.cell !== null) {
          entry.cell.hidden = fits === undefined;
          entry.cell.setAttribute("aria-expanded", `${asCard}`);
        }
      }
      section.hidden = !entries.some((entry) => shown.has(entry));
    }
    const gpusShown = [...shown.values()].reduce((sum, { gpus }) => sum + gpus.size, 0);
    form.shown.value = `${gpusShown} of ${counted(report.use.gpus, "GPU")} on ${shown.size} of ${counted(report.hosts.length, "host")}`;
    stopAtFirst();
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
}
