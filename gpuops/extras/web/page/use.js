// What GPUs and VMs do and did: numbers in words, small charts, levels for colours, and the table of clusters.
const measured = report.measured;
const measuredGpu = (key) => measured?.gpus?.[key] ?? null;
const measuredVm = (ref) => measured?.vms?.[ref] ?? null;
const gib = (mib) => (mib / 1024).toFixed(1);

// What is known of a GPU in a few words: use, frame buffer, temperature, power, clock.
const wordsOfUse = (use) => use === null ? [] : [
  ...(use.utilization_percent === null ? [] : [`use ${Math.round(use.utilization_percent)} %`]),
  ...(use.memory_used_mib === null ? [] : [`${gib(use.memory_used_mib)} GiB`]),
  ...((use.temperature_c ?? null) === null ? [] : [`${use.temperature_c} °C`]),
  ...((use.power_w ?? null) === null ? [] : [use.power_limit_w === null ? `${use.power_w} W` : `${use.power_w} of ${use.power_limit_w} W`]),
  ...((use.clock_mhz ?? null) === null ? [] : [`${use.clock_mhz} MHz`]),
];
const slowdowns = (use) => [...(use?.slowed_by_heat ? ["slowed by heat"] : []), ...(use?.slowed_by_power ? ["slowed for want of power"] : []),
  ...(use?.ecc_uncorrected > 0 ? [counted(use.ecc_uncorrected, "memory error")] : [])];

// The colour of use has five levels of 20 %; that of health says whether anything is reported of the GPU.
const levelOf = (use) => (use?.utilization_percent ?? null) === null ? "" : Math.min(4, Math.floor(use.utilization_percent / 20));
const healthOf = (gpu, use) => {
  if ((gpu.problems ?? []).length > 0 || use?.ecc_uncorrected > 0) return "bad";
  if (gpu.reboot_pending || use?.slowed_by_heat || use?.slowed_by_power) return "warn";
  return gpu.problems === null && (use?.ecc_uncorrected ?? null) === null ? "" : "good";
};

// A line of a week: 0 is the lower edge, `top` the upper one. What was not measured is a gap.
const chart = (numbers, top, label) => {
  const known = (numbers ?? []).filter((number) => number !== null);
  if (known.length === 0) return null;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const width = numbers.length, height = 20, most = Math.max(top ?? 0, ...known, 1);
  let joined = false, path = "";
  numbers.forEach((number, step) => {
    if (number === null) { joined = false; return; }
    const y = (height - 1 - number / most * (height - 2)).toFixed(1);
    path += joined ? `L${step + 1} ${y}` : `M${step} ${y}L${step + 1} ${y}`;
    joined = true;
  });
  line.setAttribute("d", path);
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  const mean = Math.round(known.reduce((sum, number) => sum + number, 0) / known.length);
  svg.setAttribute("aria-label", `${label} in the last seven days: mean ${mean}, highest ${Math.max(...known)}`);
  svg.append(line);
  return svg;
};
const historyOf = (kind, key) => measured?.history?.[kind]?.[key] ?? null;

{
  const place = document.getElementById("measured");
  const clusters = new Map();
  for (const host of report.hosts) {
    const name = host.cluster ?? "";
    if (!clusters.has(name)) clusters.set(name, []);
    clusters.get(name).push(...host.numa_nodes.flatMap((node) => node.gpus.map((gpu) => measuredGpu(`${host.ref} ${gpu.address}`))));
  }
  const cell = (className, text, drawn) => {
    const made = element("td", className);
    if (text !== "") made.append(element("span", "now", text));
    if (drawn) made.append(drawn);
    return made;
  };
  const mean = (numbers) => numbers.length === 0 ? null : numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  const table = (label, heads, rows) => {
    const area = element("div", "scroll");
    area.tabIndex = 0;
    area.setAttribute("role", "region");
    area.setAttribute("aria-label", label);
    const made = element("table"), head = element("thead"), body = element("tbody"), line = element("tr");
    line.append(...heads.map(([text, className]) => { const th = element("th", className, text); th.scope = "col"; return th; }));
    head.append(line);
    body.append(...rows);
    made.append(head, body);
    area.append(made);
    return area;
  };
  const row = (name, cells) => {
    const made = element("tr"), head = element("th");
    head.scope = "row";
    head.append(element("bdi", "", visible(name)));
    made.append(head, ...cells);
    return made;
  };

  const clusterRow = ([name, gpus]) => {
    const now = gpus.filter((use) => use !== null), week = historyOf("clusters", name);
    const numbers = (field) => now.map((use) => use[field]).filter((number) => number !== null);
    const text = (number, unit) => number === null ? "-" : `${Math.round(number)} ${unit}`;
    const memory = numbers("memory_used_mib"), power = numbers("power_w"), heat = numbers("temperature_c");
    const split = historyOf("fragmentation", name), last = (series) => text(series?.findLast((number) => number !== null) ?? null, "%");
    const slowed = now.filter((use) => slowdowns(use).length > 0).length;
    return row(name || "standalone hosts", [
      cell("n", `${now.length} of ${gpus.length}`),
      cell("", text(mean(numbers("utilization_percent")), "%"), chart(week?.utilization_percent, 100, "use in percent")),
      cell("", memory.length === 0 ? "-" : `${gib(memory.reduce((sum, number) => sum + number, 0))} GiB`, chart(week?.memory_percent, 100, "frame buffer in percent")),
      cell("", power.length === 0 ? "-" : `${power.reduce((sum, number) => sum + number, 0)} W`, chart(week?.power_w, 0, "power in watts")),
      cell("", heat.length === 0 ? "-" : `${Math.max(...heat)} °C`, chart(week?.temperature_c, 100, "temperature of the hottest GPU in °C")),
      cell("", now.length === 0 ? "-" : `${slowed}`, chart(week?.slowed, 0, "GPUs that were slowed")),
      cell("", last(split?.percent), chart(split?.percent, 100, "free memory that the average VM cannot use, in percent")),
      cell("", last(split?.unusable_gpus_percent), chart(split?.unusable_gpus_percent, 100, "GPUs with free memory that can take no waiting VM, in percent")),
    ]);
  };
  if (place !== null) {
    const rows = [...clusters].sort(([one], [other]) => (one < other ? -1 : 1)).map(clusterRow);
    place.replaceChildren(table("Use of GPUs by cluster", [["Cluster"], ["GPUs measured", "n"], ["Use"], ["Frame buffer"], ["Power"], ["Hottest"], ["Slowed or with errors"], ["Free memory fragmented"], ["GPUs no waiting VM can use"]], rows));
    const busiest = Object.entries(measured?.vms ?? {}).filter(([ref, use]) => use.utilization_percent > 0 && vms.has(ref))
      .sort(([, one], [, other]) => other.utilization_percent - one.utilization_percent).slice(0, 10);
    if (busiest.length > 0) {
      place.append(element("h3", "", "VMs that use their vGPUs most"), table("VMs that use their vGPUs most", [["VM"], ["Use", "n"], ["Frame buffer", "n"], ["Profiles"]],
        busiest.map(([ref, use]) => row(vms.get(ref).name, [cell("n", `${Math.round(use.utilization_percent)} %`),
          cell("n", use.memory_used_mib === null ? "-" : `${gib(use.memory_used_mib)} GiB`), cell("", vms.get(ref).profiles.join(", "))]))));
    }
  }
}
