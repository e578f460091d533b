// Restore drills: results, recovery times, and the age of the last success.

import { get } from "./api.js";
import { card, empty, h, notice } from "./dom.js";
import { ago, DASH, duration, kind, percent, tail, time, word } from "./format.js";
import { pager } from "./pager.js";
import { trend } from "./trend.js";

const SIZE = 100;
const MEANS = [
  ["PASSED", "All checks passed within the limits: on that day this checkpoint could be recovered."],
  ["FAILED", "A real recovery would have failed or been incomplete; see the failed check."],
  ["TIMED_OUT", "Recovered correctly, but exceeded its RTO."],
  ["COULD_NOT_RUN", "The drill itself could not be carried out. It proves nothing about the checkpoint and is excluded from the pass rate."],
];

export function drills(chosen) {
  const query = new URLSearchParams(window.location.search);
  const at = { plan: query.get("plan"), offset: Number(query.get("offset")) || 0 };
  const open = new Set(chosen ? [chosen] : []);
  return {
    async load() {
      document.title = "Restore drills";
      const query = new URLSearchParams({ limit: SIZE, offset: at.offset });
      if (at.plan) query.set("plan", at.plan);
      const answer = await get(`drills?${query}`);
      if (chosen && !answer.drills.some((each) => each.drill === chosen)) answer.drills.push(await get(`drills/${encodeURIComponent(chosen)}`));
      return answer;
    },
    seconds: (answer) => (answer.drills.some((each) => each.result === null) ? 5 : 30),
    show(answer, refresh) {
      const choose = (plan, offset = 0) => {
        Object.assign(at, { plan, offset });
        const query = new URLSearchParams(Object.entries(at).filter(([, value]) => value)).toString();
        window.history.replaceState(null, "", `drills${query ? `?${query}` : ""}`);
        refresh(true);
      };
      if (!answer.drills.length && answer.plans.length) return [head(answer, at, choose), alarms(answer), plans(answer, choose), h("section", { class: "card" }, empty(at.plan ? `No drill of ${at.plan} here` : "No drills yet", at.plan ? "The plan has no drill yet, or the address is an old one." : "The plans above have not run yet.", at.plan && h("button", { onclick: () => choose(null), "data-testid": "all-drills" }, "Show all drills")))];
      if (!answer.drills.length) return [h("h1", {}, "Restore drills"), h("section", { class: "card" }, empty("No drills yet", "A drill recovers a checkpoint to scratch, checks the result and removes it, so that the night it is needed is not the first time it runs.", "Describe a plan in drills.yaml and let the DAG cdr_restore_drill run on its schedule, or run cdr drill run in a shell."))];
      return [head(answer, at, choose), alarms(answer), plans(answer, choose), card("Recovery time and checkpoint age", "trend", trend(answer.drills)), history(answer, at, open, choose, refresh), meaning()];
    },
  };
}

function head(answer, at, choose) {
  return h("div", { class: "bar-row" }, h("h1", {}, at.plan ? `Restore drills of ${at.plan}` : "Restore drills"), at.plan && h("button", { onclick: () => choose(null), "data-testid": "all-plans" }, "All plans"));
}

function alarms(answer) {
  return answer.plans.filter((plan) => plan.is_stale).slice(0, 5).map((plan) => notice("warn", "stale-drill", plan.sentence, "This plan has no recent passing drill: recoverability is unverified."));
}

function plans(answer, choose) {
  const rows = answer.plans.map((plan) =>
    h(
      "tr", { "data-testid": "plan-row", "data-plan": plan.plan },
      h("td", {}, plan.plan ? h("a", { href: `drills?plan=${encodeURIComponent(plan.plan)}`, onclick: (event) => { event.preventDefault(); choose(plan.plan); } }, plan.plan) : h("span", { class: "quiet" }, "by hand"), plan.job !== plan.plan && h("div", { class: "sub" }, plan.job), plan.plan && !plan.is_planned && h("div", { class: "sub" }, "no longer in drills.yaml"), plan.refusal && h("div", { class: "sub" }, plan.refusal)),
      h("td", {}, plan.last_result ? h("span", { class: `pill ${kind(plan.last_result)}` }, word(plan.last_result)) : h("span", { class: "quiet" }, "no result yet")),
      h("td", { class: plan.is_stale ? "stale" : null, title: time(plan.last_success) }, plan.last_success ? ago(plan.last_success) : "never"),
      h("td", { class: "num", "data-testid": "pass-rate" }, percent(plan.pass_rate)),
      ["PASSED", "FAILED", "TIMED_OUT", "COULD_NOT_RUN"].map((result) => h("td", { class: "num" }, plan.counts[result] || h("span", { class: "quiet" }, "0"))),
      h("td", { class: "num" }, plan.running || ""),
    ),
  );
  const names = ["Plan", "Last result", "Last success", "Pass rate", "Passed", "Failed", "Too slow", "Could not run", "Running"];
  return card("Plans", "plans", h("table", {}, h("thead", {}, h("tr", {}, names.map((name, place) => h("th", { class: place > 2 ? "num" : null }, name)))), h("tbody", {}, rows)), { tight: true });
}

function history(answer, at, open, choose, refresh) {
  const rows = answer.drills.flatMap((each) => {
    const line = h(
      "tr", { "data-testid": "drill-row", "data-drill": each.drill },
      h("td", {}, each.result ? h("span", { class: `pill ${kind(each.result)}` }, word(each.result)) : h("span", { class: "pill busy" }, "running")),
      h("td", {}, each.plan || each.job || DASH, h("div", { class: "sub mono" }, each.drill)),
      h("td", {}, h("div", { class: "clip", title: each.checkpoint }, tail(each.checkpoint))),
      h("td", { class: "num" }, duration(each.rto_s), each.rto_limit_s && h("div", { class: "sub" }, `of ${duration(each.rto_limit_s)}`)),
      h("td", { class: "num" }, duration(each.rpo_s), each.rpo_limit_s && h("div", { class: "sub" }, `of ${duration(each.rpo_limit_s)}`)),
      h("td", { class: "nowrap", title: time(each.started_at) }, ago(each.started_at)),
      h("td", {}, each.recovery && h("a", { href: `recoveries/${encodeURIComponent(each.recovery)}` }, "recovery")),
      h("td", { class: "num" }, h("button", { "aria-expanded": String(open.has(each.drill)), "data-testid": `checks-${each.drill}`, onclick: () => { open.has(each.drill) ? open.delete(each.drill) : open.add(each.drill); refresh(true); } }, open.has(each.drill) ? "Hide checks" : "Checks")),
    );
    return open.has(each.drill) ? [line, h("tr", {}, h("td", { colspan: 8 }, checks(each)))] : [line];
  });
  const names = ["Result", "Plan", "Checkpoint", "Took (RTO)", "Age (RPO)", "Started", "", ""];
  const table = h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { class: name.includes("(") ? "num" : null }, name)))), h("tbody", {}, rows));
  return card("History", "history", [table, pager(answer, SIZE, (offset) => choose(at.plan, offset))], { tight: true });
}

function checks(each) {
  if (!each.checks.length) return h("div", { class: "checks" }, h("p", {}, each.error ?? "No checks yet: the drill runs."));
  return h("div", { class: "checks", "data-testid": "checks" }, each.checks.map((check) =>
    h(
      "div", { class: "check named" },
      h("div", {}, h("span", { class: `pill ${kind(check.result)}` }, word(check.result))), h("b", { class: "wraps" }, check.name),
      h("div", {}, check.sentence, check.means && h("div", { class: "means" }, check.means), check.do && h("div", { class: "do" }, h("b", {}, "What to do: "), check.do)),
    ),
  ));
}

function meaning() {
  return card("What a result means", "meaning", h("div", { class: "stack" }, MEANS.map(([result, sentence]) => h("div", { class: "check" }, h("div", {}, h("span", { class: `pill ${kind(result)}` }, word(result))), h("div", {}, sentence)))));
}
