// The last night as lanes: when each VM was held, each step on it, what went wrong, and the deadline. Times are in UTC.
if (report.last_night !== null) {
  const night = report.last_night;
  const HOUR = 3600000;
  const HELD = { desktop: "suspended", "desktop-off": "shut down", ml: "ran" };
  const time = (moment) => Date.parse(moment);
  const taken = night.vms.filter((vm) => vm.held.length > 0);
  const goesOn = night.vms.some((vm) => vm.held.some((held) => held.until === null));
  const moments = [night.began, night.ended === null || goesOn ? report.read_at : night.ended, night.back_by,
    ...night.vms.flatMap((vm) => [...vm.held.flatMap((held) => [held.from, held.until]), ...vm.steps.flatMap((step) => [step.from, step.until])]),
    ...night.incidents.map((incident) => incident.at)].filter((moment) => moment !== null).map(time);
  const first = Math.min(...moments), span = Math.max(Math.max(...moments) - first, 60000);
  const left = (moment) => `${100 * (time(moment) - first) / span}%`;
  const width = (from, until) => `${100 * Math.max(time(until) - time(from), 0) / span}%`;
  // A bar of what goes on ends when vCenter was read; one whose begin no record tells begins at the left edge.
  const from = (held) => held.from ?? new Date(first).toISOString();
  const until = (held) => held.until ?? report.read_at;

  const placed = (className, moment, label, lines) => {
    const made = element("button", className);
    made.type = "button";
    made.tabIndex = -1;
    made.setAttribute("aria-label", visible(label));
    made.style.left = left(moment);
    explain(made, lines);
    return made;
  };
  const heldBar = (held, vm) => {
    const word = vm.role === "ml" && held.until === null && !vm.given_up ? "runs" : HELD[vm.role];
    const times = `${clock(held.from)} to ${held.until === null ? (vm.given_up ? "given up" : "not yet") : clock(held.until)}`;
    const made = placed(`held ${vm.role === "ml" ? "ml" : "desktop"}${held.by_itself || held.until === null ? " unsure" : ""}`, from(held),
      `${vm.name} ${word} ${times}`, () => [vm.name, `${word} ${minute(held.from)} to ${held.until === null ? "now" : minute(held.until)} UTC`,
        ...(held.by_itself ? ["it ended by itself, at some moment before that"] : []),
        held.gpu_hours === null ? "GPU-hours not known" : `${held.gpu_hours.toFixed(2)} GPU-hours`, vm.profiles.join(", ")]);
    made.textContent = word;
    made.style.width = width(from(held), until(held));
    made.dataset.from = held.from ?? "";
    made.dataset.until = held.until ?? "";
    return made;
  };
  const stepBar = (step, vm) => {
    const end = step.until ?? step.from;
    const how = step.done === true ? "done" : step.done === false ? "failed" : "outcome not known";
    const kind = step.done === false ? " failed" : step.what.includes("gate") ? " gate" : "";
    const made = placed(`step${kind}`, step.from, `${vm.name} ${step.what} ${clock(step.from)}: ${how}`,
      () => [vm.name, `${step.what}: ${how}`, `${minute(step.from)} UTC, for ${((time(end) - time(step.from)) / 1000).toFixed(0)} s`]);
    made.style.width = width(step.from, end);
    made.dataset.step = `${step.what} ${step.from}`;
    return made;
  };
  // From when the broker's gate was closed until it was open again, below the bar.
  const gated = (vm) => {
    const closed = vm.steps.find((step) => step.what === "gate" && step.done);
    if (closed === undefined) return [];
    const opened = vm.steps.findLast((step) => step.what === "opening of the gate" && step.done);
    const made = element("span", "gated");
    made.style.left = left(closed.until);
    made.style.width = width(closed.until, opened?.until ?? report.read_at);
    return [made];
  };
  const mark = (incident) => {
    const made = placed("incident", incident.at, `${incident.of}: ${incident.what}`,
      () => [incident.of, incident.what, incident.reason ?? "", `${minute(incident.at)} UTC`]);
    made.textContent = "▲";
    return made;
  };
  const ticks = () => {
    const step = [1, 2, 3, 6, 12, 24, 48, 168].find((hours) => span / (hours * HOUR) <= 12) ?? 336;
    const found = [];
    for (let at = Math.ceil(first / (step * HOUR)) * step * HOUR; at <= first + span; at += step * HOUR) found.push(new Date(at).toISOString());
    return found;
  };
  const grid = ticks();
  const track = (labelled) => {
    const made = element("div", "track");
    for (const moment of grid) {
      const tick = element("span", "tick", labelled ? clock(moment) : undefined);
      tick.style.left = left(moment);
      made.append(tick);
    }
    if (night.back_by !== null) {
      const line = element("span", "deadline");
      line.style.left = left(night.back_by);
      made.append(line);
    }
    return made;
  };
  const lane = (className, name, gpus, times, ...bars) => {
    const made = element("div", `lane ${className}`);
    const own = track(className === "axis");
    own.append(...bars);
    const head = element("span");
    head.append(element("bdi", "", visible(name)));
    made.append(head, element("span", "gpus", gpus), element("span", "times dim", times), own);
    return made;
  };
  const ofVm = new Set(night.vms.map((vm) => vm.name));
  const vmLane = (vm) => {
    const last = vm.held[vm.held.length - 1];
    const times = last ? `${clock(vm.held[0].from)} – ${last.until === null ? "now" : clock(last.until)}` : "not taken";
    const made = lane("", vm.name, vm.gpus === null ? "?" : `${Number(vm.gpus.toFixed(2))}`, times, ...gated(vm), ...vm.held.map((held) => heldBar(held, vm)),
      ...vm.steps.map((step) => stepBar(step, vm)), ...night.incidents.filter((incident) => incident.of === vm.name).map(mark));
    made.dataset.lane = vm.ref;
    return made;
  };
  const group = (text) => element("div", "lane group", text);
  const elsewhere = night.incidents.filter((incident) => !ofVm.has(incident.of));
  const shown = night.vms.filter((vm) => vm.held.length > 0 || vm.steps.length > 0);
  const desktops = shown.filter((vm) => vm.role !== "ml"), ml = shown.filter((vm) => vm.role === "ml");
  const lanes = document.getElementById("lanes");
  lanes.replaceChildren(lane("axis", "UTC", "GPUs", "held"));
  if (elsewhere.length) lanes.append(lane("", "of runs and hosts", "", "", ...elsewhere.map(mark)));
  if (desktops.length) lanes.append(group(counted(desktops.length, "desktop")), ...desktops.map(vmLane));
  if (ml.length) lanes.append(group(counted(ml.length, "ML VM")), ...ml.map(vmLane));
  walkable(lanes)();
}
