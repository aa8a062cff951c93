// What the panels are drawn with. Text goes in as text only: no markup is made from what was sent.

// An element with these attributes and children.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, take] of Object.entries(value)) element.addEventListener(event, take);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Controls, and marks that change the direction of text or look like nothing, as their numbers.
const DECEPTIVE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu;
const safe = (text) => String(text ?? "").replace(DECEPTIVE, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);

// Text of strangers, cut so that no key fills the page.
function foreign(text, most = 160) {
  const shown = safe(text);
  return make("bdi", {}, shown.length > most ? `${shown.slice(0, most)}…` : shown);
}

// Whether a key is not shown, as `a key`, so that only its name in logs tells it from others.
const hidden = (key) => key.split(" + ").some((piece) => piece === "a key" || piece.endsWith(" a key"));
// What tells a key from the others: it stands first, everywhere.
const keyName = (key) => safe(hidden(key.key) ? key.name : key.key);
const keyWords = (key) => (hidden(key.key) ? `${key.name} (${safe(key.key)})` : safe(key.key));

// Sets text only where it differs: a screen reader or a selection is not disturbed.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, words) {
  element.dataset.state = name;
  say(element, words);
}

const whole = new Intl.NumberFormat("en");
const count = (number) => whole.format(number);

// Units as their limit counts them: a unit of money is a millionth of its currency.
function amount(units, currency) {
  if (!currency) return count(units);
  const part = String(units % 1e6).padStart(6, "0").replace(/0+$/, "");
  const digits = part ? `.${part.padEnd(2, "0")}` : "";
  return `${count(Math.floor(units / 1e6))}${digits} ${safe(currency)}`;
}
function left(level) {
  const rest = level.owed ? `-${amount(level.owed, level.currency)}` : amount(level.remaining, level.currency);
  return level.currency || level.owed ? `${rest} of ${amount(level.capacity, level.currency)}` : rest;
}
const perSecond = (rate) => (rate === null || rate === undefined ? "–" : rate >= 100 ? count(Math.round(rate)) : rate.toFixed(1));

function span(millis) {
  const seconds = Math.max(0, Math.ceil(millis / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

const clock = (at) => new Date(at).toLocaleTimeString("en-GB");
const dated = (at) => (Math.abs(gatewayNow() - Date.parse(at)) < 43200000 ? clock(at) : new Date(at).toLocaleString("en-GB"));

// A line of the last minute.
function spark(place, series, label) {
  let svg = place.firstElementChild;
  if (!svg) {
    const part = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      return element;
    };
    svg = part("svg", { viewBox: `0 0 ${LOOKS - 1} 30`, preserveAspectRatio: "none", role: "img" });
    svg.append(part("path", { class: "area" }), part("path", { class: "edge" }));
    place.append(svg);
  }
  const top = Math.max(1, ...series);
  place.classList.toggle("zero", !series.some((value) => value > 0));
  const first = LOOKS - series.length;
  const points = series.map((value, at) => `${first + at},${(29 - (value / top) * 27).toFixed(1)}`);
  const [area, edge] = svg.children;
  const line = points.length > 1 ? `M${points.join("L")}` : "M0,29";
  edge.setAttribute("d", points.length > 1 && first > 0 ? `M0,29L${first},29L${points.join("L")}` : line);
  area.setAttribute("d", points.length > 1 ? `${line}L${LOOKS - 1},30L${first},30Z` : "");
  svg.setAttribute("aria-label", `${label}: ${perSecond(series.at(-1) ?? 0)} a second now, at most ${perSecond(Math.max(0, ...series))} in the last minute`);
}

// Keeps the rows of a table by name: a row that stays is changed in place, so that a button in it
// keeps the focus. `fill` makes the cells of a new row, and `change` writes into them.
function rows(table, list, name, fill, change) {
  const body = table.tBodies[0];
  table.rowsByName ??= new Map();
  const known = table.rowsByName;
  const first = !table.drawn;
  table.drawn = true;
  table.hidden = list.length === 0;
  const wanted = list.map((item) => {
    const key = name(item);
    let row = known.get(key);
    if (!row) {
      row = fill(item);
      if (!first) row.classList.add("new");
      known.set(key, row);
    }
    row.item = item;
    change(row, item);
    return row;
  });
  const there = new Set(wanted);
  for (const [key, row] of known) {
    if (!there.has(row)) {
      if (row.contains(document.activeElement)) table.closest("section").focus();
      row.remove();
      known.delete(key);
    }
  }
  // Rows are not moved under the focus or the pointer.
  const busy = body.contains(document.activeElement) || body.matches(":hover");
  wanted.forEach((row, at) => {
    if (!row.isConnected || (!busy && body.rows[at] !== row)) body.insertBefore(row, body.rows[at] ?? null);
  });
}

// A row of cells: a heading, and the others by class.
function row(heading, ...classes) {
  return make("tr", {}, make("th", { scope: "row" }, heading), ...classes.map((name) => make("td", name ? { class: name } : {})));
}
