// The rank x step map on a canvas, its cursor, and the form that requests a capture.
"use strict";

(() => {
  const find = id => document.getElementById(id);
  const box = find("heat"), canvas = box.querySelector("canvas"), cursor = box.querySelector(".cursor");
  const quantity = find("quantity"), by = find("by"), cell = find("cell");
  const HEAD = 22; // pixels above the first row: steps, and where incidents began
  const MISSING = 255, LEVELS = 254, PAGE_ROWS = 16;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let map = null, cells = null, place = null, size = null, isAsking = false, isStale = false;

  const text = (seconds) => seconds >= 10 ? `${seconds.toFixed(1)} s` : seconds >= 0.001
    ? `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const anchors = [...Array(9).keys()].map(at => style.getPropertyValue(`--l${at}`).trim())
      .map(each => [1, 3, 5].map(at => parseInt(each.slice(at, at + 2), 16)));
    const of = level => {
      const at = level / LEVELS * 8, low = Math.min(7, Math.floor(at)), part = at - low;
      return `rgb(${anchors[low].map((value, i) => Math.round(value + part * (anchors[low + 1][i] - value)))})`;
    };
    const name = key => style.getPropertyValue(key).trim();
    return { scale: [...Array(LEVELS + 1).keys()].map(of), missing: name("--missing"), ink: name("--ink"),
      soft: name("--soft"), bad: name("--bad"), back: name("--back"), line: name("--line") };
  }

  function measure() {
    const rows = map.rows.counts.length, steps = map.steps.length, room = box.clientWidth;
    const gutter = room < 600 ? 84 : 150;
    const height = rows <= 32 ? 18 : rows <= 64 ? 12 : rows <= 128 ? 7 : rows <= 256 ? 4 : 3;
    const width = Math.max(6, Math.min(44, Math.floor((room - gutter - 2) / steps)));
    size = { rows, steps, gutter, width, height, full: gutter + width * steps + 1, tall: HEAD + height * rows + 1 };
    Object.assign(box.dataset, { rows, steps, gutter, head: HEAD, cellWidth: width, rowHeight: height });
  }

  function draw() {
    if (!map || !map.steps.length) return;
    measure();
    const paint = canvas.getContext("2d"), ratio = devicePixelRatio || 1, colour = colours();
    canvas.width = Math.round(size.full * ratio); canvas.height = Math.round(size.tall * ratio);
    canvas.style.width = `${size.full}px`; canvas.style.height = `${size.tall}px`;
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.font = "11px system-ui, sans-serif";
    const gap = size.height > 6 ? 1 : 0;
    for (let row = 0; row < size.rows; row++) for (let step = 0; step < size.steps; step++) {
      const level = cells[row * size.steps + step];
      paint.fillStyle = level === MISSING ? colour.missing : colour.scale[level];
      paint.fillRect(size.gutter + step * size.width, HEAD + row * size.height, size.width - (size.width > 8 ? 1 : 0), size.height - gap);
    }
    labels(paint, colour);
    marks(paint, colour);
    showCursor();
  }

  function labels(paint, colour) {
    const rows = map.rows, every = Math.ceil(56 / size.width);
    paint.fillStyle = colour.soft; paint.textBaseline = "middle"; paint.textAlign = "center";
    const firsts = map.incidents.map(each => each.column);
    for (let step = 0; step < size.steps; step += every) if (!firsts.some(at => at >= 0 && Math.abs(at - step) * size.width < 34)) {
      paint.fillText(map.steps[step], size.gutter + (step + 0.5) * size.width, HEAD / 2);
    }
    let free = 0;
    for (let row = 0; row < size.rows; row++) {
      const y = HEAD + row * size.height, isFirst = !row || rows.groups[row] !== rows.groups[row - 1];
      const isWide = rows.groups[row] === rows.groups[Math.min(row + Math.ceil(8 / size.height) - 1, size.rows - 1)];
      if (isFirst && row && isWide) { paint.fillStyle = colour.line; paint.fillRect(0, y - 0.5, size.full, 1); }
      if (isFirst && y >= free) {
        paint.fillStyle = colour.ink; paint.textAlign = "left";
        paint.fillText(map.groups[rows.groups[row]].name, 0, y + Math.max(size.height, 11) / 2, size.gutter - (size.height >= 11 ? 40 : 8));
        free = y + 13;
      }
      if (size.height >= 11) {
        paint.fillStyle = colour.soft; paint.textAlign = "right";
        paint.fillText(rows.ranks[row], size.gutter - 8, y + size.height / 2, 60);
      }
    }
  }

  // Marks an incident by shape, not by colour alone: a triangle above the step of the onset, and an outline around the
  // ranks from there on. An outline would hide rows of a few pixels; those have a triangle and their ranks in the margin instead.
  function marks(paint, colour) {
    for (const each of map.incidents) {
      const x = size.gutter + Math.max(0, each.column) * size.width;
      paint.fillStyle = colour.bad; paint.strokeStyle = colour.bad; paint.lineWidth = 2;
      paint.beginPath();
      if (each.column < 0) { paint.moveTo(x + 8, HEAD - 12); paint.lineTo(x + 8, HEAD - 2); paint.lineTo(x, HEAD - 7); }
      else { paint.moveTo(x - 5, HEAD - 10); paint.lineTo(x + 5, HEAD - 10); paint.lineTo(x, HEAD - 2); }
      paint.fill();
      for (const [first, last] of each.rows) {
        const y = HEAD + (first + last + 1) / 2 * size.height, tall = (last - first + 1) * size.height;
        if (tall < 8) {
          paint.beginPath(); paint.moveTo(size.gutter - 9, y - 5); paint.lineTo(size.gutter - 9, y + 5); paint.lineTo(size.gutter - 1, y);
          paint.fill();
          const name = map.rows.ranks[first], wide = Math.min(40, paint.measureText(name).width);
          paint.fillStyle = colour.back; paint.fillRect(size.gutter - 14 - wide, y - 7, wide + 3, 14); // covers a group's name
          paint.fillStyle = colour.bad; paint.textAlign = "right"; paint.fillText(name, size.gutter - 12, y, 40);
          continue;
        }
        paint.strokeRect(x, HEAD + first * size.height, size.full - x - 2, (last - first + 1) * size.height - 1);
      }
    }
  }

  const value = (row, step, name) => {
    const { low_seconds: low, high_seconds: high, bytes } = map.quantities[name], level = bytes[row * size.steps + step];
    if (level === MISSING) return "not measured";
    return (level === LEVELS ? "at least " : "") + text(low + (high - low) * level / LEVELS);
  };

  function describe(row, step) {
    const { ranks, counts, hosts, domains, groups } = map.rows, group = map.groups[groups[row]];
    const who = counts[row] === 1 ? `rank ${ranks[row]}` : `${counts[row]} ranks (${ranks[row]}), median`;
    const place = counts[row] === 1 ? hosts[row] : group.name;
    const incident = map.incidents.find(each => each.rows.some(([first, last]) => first <= row && row <= last));
    return [`${who}, step ${map.steps[step]}: own work ${value(row, step, "self")}, waiting ${value(row, step, "wait")}`,
      place, domains[row], map.grouped_by !== "node" ? `${group.name} is ranks ${group.ranks}` : "",
      incident ? `incident: ${incident.kind.replaceAll("_", " ")}, cause ${incident.cause}${incident.onset_step === null ? "" : `, since step ${incident.onset_step}`}` : ""]
      .filter(Boolean).join(" · ");
  }

  function showCursor() {
    cursor.hidden = place === null;
    if (place === null) return;
    place = { row: Math.min(place.row, size.rows - 1), step: Math.min(place.step, size.steps - 1) };
    const x = size.gutter + place.step * size.width, y = HEAD + place.row * size.height;
    cursor.style.transform = `translate(${x}px, ${y}px)`;
    cursor.style.width = `${size.width}px`; cursor.style.height = `${Math.max(3, size.height)}px`;
    cell.textContent = describe(place.row, place.step);
  }

  function move(row, step) {
    place = { row: Math.max(0, Math.min(size.rows - 1, row)), step: Math.max(0, Math.min(size.steps - 1, step)) };
    showCursor();
    const y = HEAD + place.row * size.height, x = size.gutter + place.step * size.width;
    if (y < box.scrollTop + HEAD || y + size.height > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
    if (x < box.scrollLeft || x + size.width > box.scrollLeft + box.clientWidth) box.scrollLeft = x - box.clientWidth / 2;
  }

  box.addEventListener("keydown", event => {
    if (!size || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = place || { row: 0, step: size.steps - 1 };
    const to = { ArrowUp: [at.row - 1, at.step], ArrowDown: [at.row + 1, at.step], ArrowLeft: [at.row, at.step - 1],
      ArrowRight: [at.row, at.step + 1], Home: [at.row, 0], End: [at.row, size.steps - 1],
      PageUp: [at.row - PAGE_ROWS, at.step], PageDown: [at.row + PAGE_ROWS, at.step] }[event.key];
    if (to) { event.preventDefault(); move(...to); }
    else if (event.key === "Enter" && place) take();
  });
  box.addEventListener("focus", () => { if (size && !place) move(firstRow(), size.steps - 1); });
  box.addEventListener("pointermove", event => { const at = under(event); if (at) { place = at; showCursor(); } });
  box.addEventListener("click", event => { const at = under(event); if (at) move(at.row, at.step); });
  box.addEventListener("dblclick", take);

  const firstRow = () => map.incidents.find(each => each.rows.length)?.rows[0][0] ?? 0;

  function under(event) {
    if (!size) return null;
    const edge = canvas.getBoundingClientRect();
    const step = Math.floor((event.clientX - edge.left - size.gutter) / size.width);
    const row = Math.floor((event.clientY - edge.top - HEAD) / size.height);
    return step < 0 || row < 0 || step >= size.steps || row >= size.rows ? null : { row, step };
  }

  // --- requests

  async function load() {
    if (isAsking) { isStale = true; return; }
    isAsking = true;
    try {
      const url = `/api/v1/runs/${encodeURIComponent(lockstep.run)}/heatmap?by=${encodeURIComponent(by.value)}`;
      const answer = await fetch(url, { signal: AbortSignal.timeout(30000) });
      if (answer.ok) take_map(await answer.json());
    } catch { /* page.js shows that there is no response */ }
    isAsking = false;
    if (isStale) { isStale = false; load(); }
  }

  function take_map(fresh) {
    find("map-live").hidden = false;
    box.hidden = find("legend").hidden = !fresh.steps.length;
    if (box.hidden) { cell.textContent = "No undisturbed step yet."; return; }
    for (const each of Object.values(fresh.quantities)) each.bytes = Uint8Array.from(atob(each.cells), sign => sign.charCodeAt(0));
    const before = map && place ? map.rows.ranks[place.row] : null;
    map = fresh;
    if (before !== null) place.row = Math.max(0, map.rows.ranks.indexOf(before));
    find("map-note").textContent = `The last ${map.steps.length} undisturbed steps. ${map.note}`;
    if (!place) cell.textContent = "Point at a cell, or focus the map and use the arrow keys.";
    show();
    box.dataset.last = map.steps.at(-1);
  }

  function show() {
    if (!map) return;
    const shown = map.quantities[quantity.value];
    cells = shown.bytes;
    find("low").textContent = text(shown.low_seconds); find("high").textContent = `${text(shown.high_seconds)} and more`;
    draw();
  }

  quantity.addEventListener("change", show);
  by.addEventListener("change", load);
  dark.addEventListener("change", draw);
  new ResizeObserver(() => draw()).observe(box);
  lockstep.listeners.push(load);
  load();

  // --- profile

  const form = find("profile"), status = find("profile-status"), list = find("profile-ranks"), bar = form.querySelector("progress");
  const ranksIn = form.elements.ranks, tokenIn = form.elements.token;
  const path = `/api/v1/runs/${encodeURIComponent(lockstep.run)}/profile`;
  form.hidden = false;
  tokenIn.value = sessionStorage.getItem("token") || "";

  function take() {
    if (!place || map.rows.counts[place.row] !== 1) return;
    const own = ranksIn.value.split(",").map(each => each.trim()).filter(Boolean), rank = map.rows.ranks[place.row];
    if (!own.includes(rank)) own.push(rank);
    ranksIn.value = own.join(", ");
    status.textContent = `Rank ${rank} is in the profile form.`;
  }

  function parsed(list) {
    const ranks = new Set();
    for (const part of list.split(",")) {
      const [, first, last] = /^\s*(\d{1,7})(?:\s*-\s*(\d{1,7}))?\s*$/.exec(part) || [];
      if (first === undefined || +(last ?? first) < +first || +(last ?? first) - +first > 64) throw new Error(`ranks: ${part} is no rank and no range like 8-11`);
      for (let rank = +first; rank <= +(last ?? first); rank++) ranks.add(rank);
    }
    return [...ranks];
  }

  form.addEventListener("submit", async event => {
    event.preventDefault();
    list.replaceChildren();
    try {
      const body = JSON.stringify({ ranks: parsed(ranksIn.value), steps: +form.elements.steps.value });
      const headers = { Authorization: `Bearer ${tokenIn.value}`, "Content-Type": "application/json" };
      status.textContent = "requesting ...";
      const answer = await fetch(path, { method: "POST", body, headers }), reply = await answer.json();
      if (answer.status === 401 || answer.status === 403) sessionStorage.removeItem("token");
      if (!answer.ok) throw new Error(reply.error);
      sessionStorage.setItem("token", tokenIn.value);
      status.textContent = `Request ${reply.request_id} is accepted: ${reply.steps} steps from step ${reply.first_step}.`;
      follow(reply.request_id);
    } catch (error) { status.textContent = `Refused: ${error.message}`; }
  });

  async function follow(id) {
    try {
      const reply = await (await fetch(path)).json();
      const capture = [reply.running, ...reply.past].find(each => each?.request_id === id);
      if (!capture) { status.textContent = `Request ${id} is not known any more.`; return; }
      list.replaceChildren(...capture.ranks.map(each => {
        const item = document.createElement("li");
        item.textContent = `rank ${each.rank}: ${each.state}${each.reason ? ` (${each.reason})` : ""}`;
        return item;
      }));
      bar.hidden = false; bar.max = capture.ranks.length;
      bar.value = capture.ranks.filter(each => ["summarised", "refused", "expired"].includes(each.state)).length;
      const isDelivered = capture.ranks.some(each => each.state === "summarised");
      if (capture.ended_unix_seconds !== null && (capture.diagnosis || !isDelivered)) {
        status.textContent = capture.diagnosis ? `${capture.diagnosis.function}: ${capture.diagnosis.evidence.join("; ")}` : "No rank delivered a trace.";
        return;
      }
    } catch { status.textContent = "The coordinator does not answer; trying again."; }
    setTimeout(follow, 1000, id);
  }
})();
