// One recovery: its facts, progress, verdict and attempts.

import { get } from "./api.js";
import { card, empty, h, notice } from "./dom.js";
import { ago, bytes, count, DASH, duration, kind, tail, time, word } from "./format.js";
import { checkpoints } from "./checkpoints.js";
import { evidence } from "./evidence.js";
import { flow } from "./flow.js";
import { routing } from "./routing.js";
import { startOver } from "./start-over.js";
import { timeline } from "./timeline.js";

const FINAL = ["DONE", "CANCELLED", "REPLACED"];

export function recovery(id, crumbs = true) {
  const memory = { pending: null, busy: false, outcome: null, over: {} };
  return {
    load: () => get(`recoveries/${encodeURIComponent(id)}`),
    seconds: (answer) => (kind(answer.state) === "busy" ? 1.5 : FINAL.includes(answer.state) ? 60 : 5),
    show(answer, refresh) {
      document.title = `${answer.job || answer.recovery}: recovery`;
      return [
        head(answer, crumbs),
        outcome(answer),
        startOver(answer, memory.over, refresh),
        card("Phases", "phases", timeline(answer)),
        h("div", { class: "columns" }, flowCard(answer), ledger(answer)),
        routing(answer),
        evidence(answer),
        checkpoints(answer, memory, refresh),
        attempts(answer),
        about(answer),
      ];
    },
  };
}

function head(answer, crumbs) {
  const download = answer.receipt && h("a", { class: "button", href: `api/v1/recoveries/${encodeURIComponent(answer.recovery)}/receipt`, download: true, "data-testid": "download-receipt" }, "Download receipt");
  return h(
    "div", { class: "bar-row" },
    h(
      "div", {},
      crumbs && h("div", { class: "crumbs" }, h("a", { href: "./" }, "‹ All recoveries")),
      h("div", { class: "title" }, h("h1", { class: "wraps", "data-testid": "job" }, answer.job || answer.recovery), h("span", { class: `pill ${kind(answer.state)}`, "data-testid": "state" }, word(answer.state)), h("span", { class: "mono quiet", "data-testid": "recovery-id" }, answer.recovery)),
    ),
    h("div", { class: "side" }, download),
  );
}

const VERDICTS = {
  balanced: ["good", "Balanced: every record of the checkpoint was published once, in order."],
  partial: ["warn", "Partial: the readable records were published once; the rest is listed in the receipt."],
  unbalanced: ["bad", "Unbalanced: the published records differ from those that were read. Do not use them."],
};

/** The label of its seconds: a recovery that was only created has not started. */
function spent(answer) {
  if (answer.ended_at) return "Took (RTO)";
  if (answer.state === "CREATED") return "Waiting for";
  return kind(answer.state) === "busy" ? "Running for" : "Ran for";
}

function outcome(answer) {
  const parts = [];
  if (answer.error) parts.push(notice("bad", "error", answer.error[0].toUpperCase() + answer.error.slice(1), answer.hint));
  if (answer.verdict) {
    const [how, sentence] = VERDICTS[answer.verdict] ?? ["warn", `Verdict: ${answer.verdict}.`];
    const aside = answer.quarantined ? `${count(answer.quarantined)} ${answer.quarantined === 1 ? "channel was" : "channels were"} damaged; the bytes from the damage on are in quarantine.` : "";
    const unproven = answer.proven === false ? `Verdict: ${answer.verdict_text}. Nothing in the checkpoint proves the key by which records were routed; see Types and keys.` : "";
    parts.push(notice(how, "verdict", sentence, aside, unproven));
  }
  if (answer.state === "CANCELLED") parts.push(notice("warn", "cancelled", "The recovery was cancelled; nothing was published."));
  if (answer.state === "REPLACED") parts.push(notice("warn", "replaced", "The recovery was replaced: its user started over before anything was published.", h("a", { href: `recoveries/${encodeURIComponent(answer.replaced_by)}`, "data-testid": "replaced-by" }, `Open ${answer.replaced_by}`)));
  if (answer.drill) parts.push(h("p", { class: "quiet" }, "This recovery is a ", h("a", { href: `drills/${encodeURIComponent(answer.drill)}` }, "restore drill"), ": its output is scratch and goes when the drill ends."));
  const facts = [
    ["Records", count(answer.records), "big"], ["In flight", bytes(answer.bytes), "big"],
    [spent(answer), duration(answer.seconds), "big"], ["Checkpoint's age (RPO)", duration(answer.rpo_s), "big"],
    ["Parallelism", answer.parallelism], ["Epoch", count(answer.epoch)],
    ["Checkpoint", h("span", { title: answer.source }, tail(answer.source, 3)), "", "wide"],
    [answer.location ? "Published at" : "Target", h("span", { title: answer.target }, answer.location ?? answer.target), "", "wide"],
  ];
  parts.push(h("section", { class: "card" }, h("div", { class: "body" }, h("dl", { class: "facts", "data-testid": "facts" }, facts.map(([name, value, size, wide]) => h("div", { class: wide }, h("dt", {}, name), h("dd", { class: size || null }, value)))))));
  return parts;
}

function flowCard(answer) {
  const shown = answer.flow.length ? answer.flow.map((each) => flow(each)) : empty("No plan yet", "The first phase makes it.");
  return card("Records from old to new subtasks", "flow", shown);
}

function ledger(answer) {
  if (!answer.ledger.length) return card("Ledger", "ledger", empty("Nothing counted yet", "Each phase stores its counts when it ends."));
  const waiting = answer.phases.filter((phase) => !answer.ledger.some((line) => line.phase === phase.name));
  const rows = answer.ledger.map((line) =>
    h(
      "tr", { "data-testid": `ledger-${line.phase}` },
      h("td", {}, line.phase), h("td", { class: "num" }, count(line.records)), h("td", { class: "num" }, bytes(line.bytes)), h("td", { class: "num" }, count(line.entries)),
      h("td", {}, line.balances === null ? h("span", { class: "quiet" }, "the source") : h("span", { class: `pill ${line.balances ? "good" : "bad"}` }, line.balances ? "equal" : "differs")),
    ),
  );
  const missing = waiting.map((phase) => h("tr", {}, h("td", { class: "quiet" }, phase.name), h("td", { class: "num quiet" }, DASH), h("td", { class: "num quiet" }, DASH), h("td", { class: "num quiet" }, DASH), h("td", { class: "quiet" }, "not yet")));
  const table = h("table", {}, h("thead", {}, h("tr", {}, ["Phase", "Records", "Bytes", "Lines", "vs. previous phase"].map((name, place) => h("th", { class: place > 0 && place < 4 ? "num" : null }, name)))), h("tbody", {}, rows, missing));
  const verdict = answer.verdict ? h("span", { class: `pill ${kind(answer.verdict)}`, "data-testid": "ledger-verdict" }, answer.verdict_text) : h("span", { class: "quiet" }, "no verdict before commit");
  return card("Ledger", "ledger", [table, h("p", { class: "sub pad" }, "Every phase compares records, bytes, a fingerprint and the order, channel by channel, before it is done.")], { side: verdict, tight: true });
}

function attempts(answer) {
  if (!answer.attempts.length) return card("Attempts", "attempts", empty("No attempt has begun yet"));
  const fenced = answer.attempts.filter((each) => each.state === "FENCED").length;
  const rows = answer.attempts.map((each) =>
    h(
      "tr", { "data-testid": "attempt-row" },
      h("td", {}, each.epoch), h("td", {}, each.phase),
      h("td", {}, h("span", { class: `pill ${kind(each.state)}` }, word(each.state)), each.fenced_by && h("div", { class: "sub nowrap" }, `overtaken by epoch ${each.fenced_by}`)),
      h("td", {}, h("div", { class: "clip run", title: each.run }, each.run), h("div", { class: "sub" }, `${each.task}, try ${each.try}`)),
      h("td", {}, h("div", { class: "clip host", title: each.host }, each.host), h("div", { class: "sub" }, `process ${each.pid}`)),
      h("td", { class: "nowrap", title: time(each.started_at) }, ago(each.started_at)), h("td", { class: "num" }, duration(each.seconds)),
      h("td", { class: "wraps" }, each.error ?? ""),
    ),
  );
  const table = h("table", {}, h("thead", {}, h("tr", {}, ["Epoch", "Phase", "State", "Run", "Host", "Started", "Took", "Error"].map((name) => h("th", { class: name === "Took" ? "num" : null }, name)))), h("tbody", {}, rows));
  return card("Attempts", "attempts", table, { side: fenced ? fenced === 1 ? "1 fenced: it could not write after a newer epoch began" : `${fenced} fenced: they could not write after a newer epoch began` : null, tight: true });
}

function about(answer) {
  const facts = [
    ["Source checkpoint", answer.source], ["Flink's checkpoint id", count(answer.checkpoint_id)], ["Target", answer.target], ["Workspace", answer.workspace],
    ["On corrupt data", answer.options.on_corrupt ?? "fail"], ["Commit", answer.options.commit ?? "at the end"], ["Generation", count(answer.generation)], ["Created by", `cdr ${answer.version}`], ["Created", time(answer.created_at)], ["Last change", time(answer.updated_at)],
  ];
  return card("About", "about", [
    h("dl", { class: "facts roomy" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("details", { class: "gap" }, h("summary", {}, "Job spec"), h("pre", { "data-testid": "spec" }, answer.spec)),
  ]);
}
