// Keeps a page fresh: the server says that something is new, and the parts marked data-live are taken from the page as
// it is now. The server makes all markup; here text is only ever set as text.
"use strict";

const lockstep = {
  run: location.pathname.startsWith("/runs/") ? decodeURIComponent(location.pathname.slice("/runs/".length)) : "",
  listeners: [],
};

(() => {
  const status = document.getElementById("live");
  const GAP_MS = 1500; // between two refreshments
  const AWAY_MS = 10000; // between two attempts while nothing is told
  const known = new Map();
  let waiting = null, last = 0, isBusy = false, isStale = false;

  for (const part of document.querySelectorAll("[data-live]")) known.set(part.id, part.innerHTML);

  function say(text, isLive) {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("on", isLive);
  }

  // Replaces one part; what was unfolded and what had the focus stay so.
  function replace(part, fresh) {
    const open = [...part.querySelectorAll("details[open][id]")].map(each => each.id);
    const held = part.contains(document.activeElement) ? document.activeElement : null;
    const key = held && (held.id || held.getAttribute("href"));
    const index = held && [...part.querySelectorAll("summary")].indexOf(held);
    part.replaceChildren(...fresh.childNodes);
    for (const id of open) { const each = document.getElementById(id); if (each) each.open = true; }
    if (!held) return;
    const same = [...part.querySelectorAll("[id],[href]")].find(each => (each.id || each.getAttribute("href")) === key);
    (same && key ? same : part.querySelectorAll("summary")[index])?.focus({ preventScroll: true });
  }

  async function refresh() {
    if (isBusy) { isStale = true; return; }
    isBusy = true;
    try {
      const answer = await fetch(location.pathname, { cache: "no-store" });
      if (answer.status === 404) { say("this run is not watched any more", false); isBusy = false; return; }
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.title = fresh.title;
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = fresh.getElementById(part.id);
        if (!other || known.get(part.id) === other.innerHTML) continue;
        known.set(part.id, other.innerHTML);
        replace(part, other);
      }
    } catch { say("the coordinator does not answer", false); }
    last = performance.now();
    isBusy = false;
    for (const each of lockstep.listeners) each();
    if (isStale) { isStale = false; soon(); }
  }

  function soon() {
    if (waiting !== null || document.hidden) return; // a page that nobody sees asks for nothing
    const wait = Math.max(0, last + GAP_MS - performance.now());
    waiting = setTimeout(() => { waiting = null; refresh(); }, wait);
  }

  function listen() {
    const source = new EventSource("/api/v1/events" + (lockstep.run ? `?run=${encodeURIComponent(lockstep.run)}` : ""));
    source.addEventListener("open", () => say("live", true));
    source.addEventListener("runs", () => { say("live", true); soon(); });
    source.addEventListener("error", () => {
      say(source.readyState === EventSource.CLOSED ? "not live: looking now and then" : "reconnecting", false);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { refresh(); listen(); }, AWAY_MS);
    });
    addEventListener("pagehide", () => source.close(), { once: true });
  }

  last = performance.now();
  document.addEventListener("visibilitychange", soon);
  listen();
})();
