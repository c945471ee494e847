// Keeps a page up to date: when the server announces a change, the page is fetched again and its parts marked
// data-live are replaced. The server creates all markup; this script only sets text as text.
"use strict";

const lockstep = {
  run: location.pathname.startsWith("/runs/") ? decodeURIComponent(location.pathname.slice("/runs/".length)) : "",
  listeners: [],
};

(() => {
  const status = document.getElementById("live");
  const GAP_MS = 1500; // least time between two refreshes
  const TICK_MS = 20000, COPYING_MS = 60000;
  const ANSWER_MS = 30000; // without a timeout, a response lost with the network would block the page forever
  const AWAY_MS = 10000; // time between two attempts while no update arrives
  const known = new Map();
  let waiting = null, last = 0, chosenAt = 0, isBusy = false, isStale = false;

  for (const part of document.querySelectorAll("[data-live]")) known.set(part.id, part.innerHTML);

  function show(text, isLive) {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("on", isLive);
  }

  // Adds the local time and the age to times, which are in UTC.
  function clocks(part) {
    for (const each of part.querySelectorAll("time")) {
      const at = new Date(each.dateTime), minutes = Math.floor((Date.now() - at) / 60000);
      const here = at.getTimezoneOffset() ? `, ${at.toTimeString().slice(0, 8)} here` : "";
      const ago = minutes < 0 ? "" : minutes < 120 ? `, ${minutes} min ago`
        : minutes < 2880 ? `, ${Math.floor(minutes / 60)} h ago` : `, ${Math.floor(minutes / 1440)} days ago`;
      each.dataset.utc ??= each.textContent;
      const text = each.dataset.utc + here + ago;
      if (each.textContent !== text) each.textContent = text;
    }
  }

  const parts = page => [...page.querySelectorAll("[data-live]")].map(each => each.id).join();

  // Whether the reader is copying from a part or about to click in it, which replacing it would interrupt. A selection
  // that is merely left behind must not stop updates.
  function isHeld(part) {
    const chosen = getSelection(), isFresh = performance.now() - chosenAt < COPYING_MS;
    return part.matches(":active") || (isFresh && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  }

  // Replaces one part; unfolded details and the focus are preserved.
  function replace(part, fresh) {
    const open = [...part.querySelectorAll("details[open][id]")].map(each => each.id);
    const held = part.contains(document.activeElement) ? document.activeElement : null;
    const key = held && (held.id || held.getAttribute("href"));
    const index = held && [...part.querySelectorAll("summary")].indexOf(held);
    part.replaceChildren(...fresh.childNodes);
    clocks(part);
    for (const id of open) { const each = document.getElementById(id); if (each) each.open = true; }
    if (!held) return;
    const same = [...part.querySelectorAll("[id],[href]")].find(each => (each.id || each.getAttribute("href")) === key);
    (same && key ? same : part.querySelectorAll("summary")[index])?.focus({ preventScroll: true });
  }

  async function refresh() {
    if (isBusy) { isStale = true; return; }
    isBusy = true;
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.status === 404) { show("this run is not watched any more", false); isBusy = false; return; }
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (parts(fresh) !== parts(document)) { location.reload(); return; } // a run that did not exist before, or another version
      document.title = fresh.title;
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = fresh.getElementById(part.id);
        if (known.get(part.id) === other.innerHTML || isHeld(part)) continue;
        known.set(part.id, other.innerHTML);
        replace(part, other);
      }
    } catch { show("the coordinator does not answer", false); }
    last = performance.now();
    isBusy = false;
    for (const each of lockstep.listeners) each();
    if (isStale) { isStale = false; soon(); }
  }

  function soon() {
    if (waiting !== null || document.hidden) return; // a hidden page requests nothing
    const wait = Math.max(0, last + GAP_MS - performance.now());
    waiting = setTimeout(() => { waiting = null; refresh(); }, wait);
  }

  function listen() {
    const source = new EventSource("/api/v1/events" + (lockstep.run ? `?run=${encodeURIComponent(lockstep.run)}` : ""));
    source.addEventListener("open", () => show("live", true));
    source.addEventListener("runs", () => { show("live", true); soon(); });
    source.addEventListener("error", () => {
      show(source.readyState === EventSource.CLOSED ? "not live: looking now and then" : "reconnecting", false);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { refresh(); listen(); }, AWAY_MS);
    });
    addEventListener("pagehide", () => source.close(), { once: true });
  }

  last = performance.now();
  clocks(document);
  document.addEventListener("visibilitychange", soon);
  document.addEventListener("selectionchange", () => { chosenAt = performance.now(); });
  setInterval(() => { clocks(document); soon(); }, TICK_MS); // a hang or a lost broker sends no event
  listen();
})();
