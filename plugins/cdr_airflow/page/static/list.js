// All recoveries, newest first: the filter is in the address, so that a link to it can be shared.

import { get } from "./api.js";
import { across, empty, h } from "./dom.js";
import { ago, bytes, count, duration, kind, tail, time, word } from "./format.js";
import { pager } from "./pager.js";

const SIZE = 50;
const GROUPS = [
  ["", "All"], ["running", "Running"], ["DONE", "Done"], ["FAILED", "Failed"], ["CANCELLED", "Cancelled"], ["REPLACED", "Replaced"], ["CREATED", "Created"],
];
const RUNNING = ["READING", "FILTERING", "SPILLING", "DRAINING", "COMMITTING"];

export function list() {
  const query = new URLSearchParams(window.location.search);
  const at = { state: query.get("state") ?? "", q: query.get("q") ?? "", offset: Number(query.get("offset")) || 0 };
  const search = h("input", { type: "search", placeholder: "Job, checkpoint, target or id", value: at.q, "aria-label": "Search", "data-testid": "search" });
  let busy = null;

  function move(change, refresh) {
    Object.assign(at, { offset: 0 }, change);
    if (search.value.trim() !== at.q) search.value = at.q;
    const query = new URLSearchParams(Object.entries(at).filter(([, value]) => value)).toString();
    window.history.replaceState(null, "", `${window.location.pathname}${query ? `?${query}` : ""}`);
    refresh();
  }

  return {
    load() {
      document.title = "Recoveries";
      const query = new URLSearchParams({ limit: SIZE, offset: at.offset });
      if (at.state) query.set("state", at.state);
      if (at.q) query.set("q", at.q);
      return get(`recoveries?${query}`);
    },
    seconds: (answer) => (RUNNING.some((state) => answer.by_state[state]) ? 3 : 15),
    show(answer, refresh) {
      search.oninput = () => {
        clearTimeout(busy);
        busy = setTimeout(() => move({ q: search.value.trim() }, refresh), 250);
      };
      const had = document.activeElement === search;
      if (had) queueMicrotask(() => search.focus());
      const all = Object.values(answer.by_state).reduce((sum, each) => sum + each, 0);
      return [head(answer, at, search, all, (change) => move(change, refresh)), body(answer, at, all, (change) => move(change, refresh))];
    },
  };
}

function head(answer, at, search, all, move) {
  const counts = { ...answer.by_state, "": all, running: RUNNING.reduce((sum, state) => sum + answer.by_state[state], 0) };
  const chips = GROUPS.filter(([state]) => state === "" || counts[state] || at.state === state).map(([state, name]) =>
    h("button", { class: "chip", "aria-pressed": String(at.state === state), "data-testid": `filter-${state || "all"}`, onclick: () => move({ state }) }, `${name} ${count(counts[state])}`),
  );
  return h("div", { class: "stack" }, h("h1", {}, "Recoveries"), all > 0 && h("div", { class: "bar-row" }, h("div", { class: "chips" }, chips), search));
}

function body(answer, at, all, move) {
  if (all === 0) {
    return h("section", { class: "card" }, empty(
      "No recoveries yet",
      "Trigger the DAG “Recover a checkpoint” (cdr_recover) and fill in its form, or run cdr recover in a shell.",
      "Each recovery appears here as soon as its first task has read the checkpoint's metadata.",
    ));
  }
  if (answer.recoveries.length === 0) {
    return h("section", { class: "card" }, empty("No recovery matches this filter", "", h("button", { onclick: () => move({ state: "", q: "" }), "data-testid": "clear-filter" }, "Show all")));
  }
  const names = ["State", "Job", "Checkpoint", "Target", "Records", "Progress", "Started"];
  const table = h(
    "table", { "data-testid": "recoveries" },
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { class: name === "Records" ? "num" : null }, name)))),
    h("tbody", {}, answer.recoveries.map(row)),
  );
  return h("section", { class: "card" }, h("div", { class: "body tight" }, table), pager(answer, SIZE, (offset) => move({ offset })));
}

function row(each) {
  const state = each.verdict && each.verdict !== "balanced" ? each.verdict : each.state;
  return h(
    "tr", { "data-testid": "recovery-row", "data-recovery": each.recovery },
    h("td", {}, h("span", { class: `pill ${kind(state)}`, title: each.error }, word(state))),
    h("td", {}, h("a", { class: "clip name", href: `recoveries/${encodeURIComponent(each.recovery)}`, title: each.job }, each.job || each.recovery), h("div", { class: "sub mono" }, each.recovery)),
    h("td", {}, h("div", { class: "clip", title: each.source }, tail(each.source))),
    h("td", {}, h("div", { class: "clip", title: each.target }, each.target.split(":")[0], " ", h("span", { class: "sub" }, tail(each.target.slice(each.target.indexOf(":") + 1), 1))), h("div", { class: "sub clip" }, `parallelism ${each.parallelism}`)),
    h("td", { class: "num" }, count(each.records), each.bytes !== null && h("div", { class: "sub" }, bytes(each.bytes))),
    h("td", {}, steps(each)),
    h("td", { class: "nowrap", title: time(each.created_at) }, ago(each.created_at), each.ended_at && h("div", { class: "sub" }, `took ${duration(each.seconds)}`)),
  );
}

function steps(each) {
  const bars = each.phases.map((phase) => {
    const failed = phase.state === "FAILED";
    const unknown = phase.state === "RUNNING" && phase.fraction === null;
    const meter = h("div", { class: `meter ${failed ? "bad" : phase.state === "DONE" ? "good" : ""} ${unknown ? "unknown" : ""}`, title: `${phase.name}: ${word(phase.state)}` });
    const filled = h("i");
    if (!unknown) across(filled, { width: failed ? Math.max(phase.fraction ?? 0, 0.15) : (phase.fraction ?? 0) });
    meter.append(filled);
    return meter;
  });
  const running = each.phases.find((phase) => phase.state === "RUNNING");
  const left = running?.eta_s !== null && running?.eta_s !== undefined ? `${running.name}, about ${duration(running.eta_s)} left` : running?.name;
  return [h("div", { class: "steps" }, bars), left && h("div", { class: "sub nowrap" }, left)];
}
