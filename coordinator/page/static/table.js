// Searches rows and cards, and sorts tables by any column; both settings survive the updates of page.js.
"use strict";

(() => {
  const find = id => document.getElementById(id);
  const search = find("search"), count = find("search-count"), bar = find("search-bar");
  const chosen = new Map(); // by position of the table: its column and whether it ascends

  const rows = () => document.querySelectorAll("table.sorted tbody tr, .cards > .card");

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), all = rows();
    let shown = 0;
    for (const each of all) {
      const text = each.textContent.toLowerCase();
      each.hidden = !words.every(word => text.includes(word));
      if (!each.hidden) shown += 1;
    }
    count.textContent = words.length ? `${shown} of ${all.length} match` : "";
  }

  function key(row, column) {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.value);
  }

  function compare(one, other) {
    const isText = typeof one === "string" || typeof other === "string";
    return isText ? String(one).localeCompare(String(other), undefined, { numeric: true }) : one - other;
  }

  function sort(table, place) {
    const state = chosen.get(place);
    if (!state) return;
    const body = table.tBodies[0], sorted = [...body.rows].sort((one, other) =>
      compare(key(one, state.column), key(other, state.column)) * (state.ascends ? 1 : -1));
    body.append(...sorted);
    [...table.tHead.rows[0].cells].forEach((head, column) =>
      head.setAttribute("aria-sort", column === state.column ? (state.ascends ? "ascending" : "descending") : "none"));
  }

  // Numbers start with the largest, names alphabetically; choosing the same column again reverses the order.
  function choose(place, column, isNumber) {
    const state = chosen.get(place);
    chosen.set(place, { column, ascends: state?.column === column ? !state.ascends : !isNumber });
    prepare();
  }

  function prepare() {
    document.querySelectorAll("table.sorted").forEach((table, place) => {
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        if (head.querySelector("button")) return;
        const button = document.createElement("button");
        button.textContent = head.textContent; button.type = "button"; button.className = "head";
        const first = table.tBodies[0].rows[0];
        button.addEventListener("click", () => choose(place, column, first?.cells[column].dataset.value !== undefined));
        head.replaceChildren(button);
      });
      sort(table, place);
    });
    filter();
  }

  // On a narrow screen, rows are shown as cards without column headings.
  function offer(select) {
    const table = document.querySelector("table.sorted");
    if (!table) { select.closest("label").hidden = true; return; }
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const option = document.createElement("option");
      option.value = column; option.textContent = head.textContent;
      select.append(option);
    });
    select.addEventListener("change", () => {
      chosen.delete(0);
      if (select.value !== "") choose(0, Number(select.value), table.tBodies[0].rows[0]?.cells[Number(select.value)].dataset.value !== undefined);
    });
  }

  bar.hidden = false;
  offer(find("sort"));
  search.addEventListener("input", filter);
  lockstep.listeners.push(prepare);
  prepare();
})();
