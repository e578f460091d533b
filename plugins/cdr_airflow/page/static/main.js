// Chooses the page by the address, keeps it fresh, and shows failures.

import { Failure } from "./api.js";
import { h, notice, redraw } from "./dom.js";
import { clock } from "./format.js";
import { drills } from "./drills.js";
import { list } from "./list.js";
import { recovery } from "./recovery.js";
import { run } from "./run.js";

const main = document.getElementById("main");
const fresh = document.getElementById("fresh");
const PAGES = [
  [/^recoveries\/([^/]+)$/, (found) => recovery(decodeURIComponent(found[1]))],
  [/^drills$/, () => drills(null)],
  [/^drills\/([^/]+)$/, (found) => drills(decodeURIComponent(found[1]))],
  [/^runs\/([^/]+)\/(.+)$/, (found) => run(decodeURIComponent(found[1]), decodeURIComponent(found[2]))],
  [/^$/, () => list()],
];

function here() {
  const base = new URL(document.baseURI).pathname;
  return window.location.pathname.slice(base.length).replace(/\/$/, "");
}

function choose() {
  const path = here();
  for (const [pattern, make] of PAGES) {
    const found = pattern.exec(path);
    if (found) return make(found);
  }
  return list();
}

function mark() {
  const section = here().startsWith("drills") ? "drills" : "./";
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.getAttribute("href") === section) link.setAttribute("aria-current", "page");
  }
}

/** Calls the page's `load` repeatedly; its result has the contents and the time of the next call. */
async function follow(page) {
  let last = null;
  let shown = null;
  let lastFresh = null;
  let timer = null;
  const again = (seconds) => {
    clearTimeout(timer);
    timer = setTimeout(() => tick(), 1000 * seconds);
  };
  // A button must not be replaced while it is pressed.
  let pressed = false;
  document.addEventListener("pointerdown", () => (pressed = true), true);
  for (const over of ["pointerup", "pointercancel"]) document.addEventListener(over, () => setTimeout(() => (pressed = false)), true);

  // Only the newest request counts: an older one may be answered later, for an earlier filter.
  let newest = 0;
  async function tick(forced = false) {
    if (document.hidden) return again(2);
    const mine = ++newest;
    try {
      const answer = await page.load();
      if (mine !== newest) return;
      if (pressed) return again(0.2);
      const text = JSON.stringify(answer);
      if (forced || text !== last || shown !== "page") redraw(main, [page.show(answer, tick)].flat(Infinity).filter(Boolean));
      [last, shown] = [text, "page"];
      lastFresh = new Date().toISOString();
      fresh.textContent = `As of ${clock(lastFresh)}`;
      fresh.classList.remove("old");
      again(page.seconds(answer));
    } catch (error) {
      if (mine !== newest) return;
      if (!(error instanceof Failure)) console.error(error);
      failed(error);
      again(error.status === 401 || error.status === 404 ? 30 : 5);
    }
  }
  function failed(error) {
    shown = "failure";
    const hint = error.hint ? `${error.hint[0].toUpperCase()}${error.hint.slice(1)}.` : "";
    const sentence = error instanceof Failure ? `${error.message[0].toUpperCase()}${error.message.slice(1)}.` : "Something went wrong (a bug in this page).";
    const title = { 401: "You are signed out", 403: "Not allowed", 404: "Not found", 503: "The metadata database is unavailable" }[error.status] ?? "Something failed";
    const back = error.status === 404 && h("p", {}, h("a", { href: here().startsWith("drills") ? "drills" : "./", "data-testid": "back" }, here().startsWith("drills") ? "‹ All drills" : "‹ All recoveries"));
    main.replaceChildren(h("h1", {}, title), notice("bad", "failure", sentence, hint, error.status === 503 && "This page tries again by itself."), ...[back].filter(Boolean));
    fresh.textContent = lastFresh ? `Last answer at ${clock(lastFresh)}` : "";
    fresh.classList.add("old");
  }
  document.addEventListener("visibilitychange", () => document.hidden || tick());
  await tick();
}

mark();
follow(choose());
