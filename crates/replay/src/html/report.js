"use strict";
// Draws the report from its data. Text goes in as text only: no markup is made from what a log holds.

const { replay, limit, suggestion } = JSON.parse(document.getElementById("data").textContent);
const [WIDTH, HEIGHT, LEFT, RIGHT] = [960, 200, 70, 60];

// Controls, and marks that change the direction of text or look like nothing, as their numbers.
const DECEPTIVE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu;
const safe = (text) => String(text).replace(DECEPTIVE, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
const count = (number) => new Intl.NumberFormat("en").format(number);
const counted = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (typeof child === "string" ? safe(child) : child)));
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const show = (tag, ...children) => document.body.append(make(tag, {}, ...children));
const warn = (text) => document.body.append(make("p", { class: "warning" }, text));

function table(id, columns, rows) {
  const head = make("tr", {}, ...columns.map((column) => make("th", {}, column)));
  const body = rows.map(([first, ...cells]) => make("tr", {}, make("th", {}, ...[first].flat()), ...cells.map((cell) => (typeof cell === "number" ? make("td", {}, count(cell)) : cell))));
  document.body.append(make("table", id ? { id } : {}, head, ...body));
}

// A picture, and below it what its colours mean: pairs of a class and words.
function picture(label, height, parts, legend, note = "") {
  document.body.append(draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, ...parts));
  const keys = legend.flatMap(([name, words]) => [make("span", { class: name }), `${words} `]);
  document.body.append(make("p", { class: "legend" }, ...keys, note));
}

// Slanted labels below a picture: the first at `x` and `y`, the others `step` apart.
const slanted = (texts, x, y, step) => texts.map((text, at) => draw("text", { transform: `translate(${x + at * step} ${y}) rotate(60)` }, text));

function overTime({ series, step, from, to, admitted, refused }) {
  const most = Math.max(...series.map(([paid, lost]) => paid + lost));
  if (!most) return;
  show("h2", "Admitted and refused over time");
  const height = (number) => Math.ceil((number * HEIGHT) / most);
  const wide = WIDTH / series.length;
  const bar = (name, at, low, high) => draw("rect", { class: name, x: at * wide, y: HEIGHT - high, width: Math.max(wide, 1), height: high - low });
  const bars = series.flatMap(([paid, lost], at) => [bar("admitted", at, 0, height(paid)), bar("refused", at, height(paid), height(paid + lost))]);
  const ends = [draw("text", { x: 0, y: HEIGHT + 18 }, from), draw("text", { x: WIDTH, y: HEIGHT + 18, "text-anchor": "end" }, to)];
  const legend = [["admitted", `admitted ${count(admitted)}`], ["refused", `refused ${count(refused)}; the tallest column is ${count(most)} requests in ${step}`]];
  picture("requests over time", HEIGHT + 24, [...bars, ...ends], legend);
}

function limits(all) {
  show("h2", "Limits");
  const columns = ["limit", "requests it could pay", "could not", "keys", "keys that lost some", "busiest key, in a second", "in a minute"];
  const row = (one) => {
    const name = [one.name, " ", make("small", {}, `${one.words} (${one.mode})`)];
    if (one.not_judged) return [name, make("td", { class: "warning", colspan: 6 }, `not judged: ${one.not_judged}`)];
    return [name, one.admitted, one.refused, one.keys, one.keys_refused, one.peak.per_second, one.peak.per_minute];
  };
  table("limits", columns, all.map(row));
  for (const { name, top } of all.filter((one) => one.top?.length)) {
    show("h3", `Who lost most by ${name}`);
    table("", ["key", "requests", "refused"], top.map((one) => [one.key, one.requests, one.refused]));
  }
}

function change(title, { requests, keys, examples }) {
  show("h2", title);
  show("p", `${counted(requests, "request")} of ${counted(keys, "key")}`);
  const row = (one) => [one.key, make("td", {}, one.limit), one.requests];
  if (examples.length) table("", ["key", "limit", "requests"], examples.map(row));
}

// Rate and burst: the share of keys that each refuses, with contours at 0.1 % and 1 %.
function map({ map: { rates, bursts, refused }, keys, choices }) {
  if (!rates.length || !bursts.length) return;
  show("h2", "Keys that are refused, by rate and burst");
  const [wide, high] = [(WIDTH - LEFT - RIGHT) / rates.length, 18];
  const total = bursts.length * high;
  const share = (row, column) => (refused[row]?.[column] ?? Infinity) / Math.max(keys, 1);
  const parts = [];
  bursts.forEach((burst, row) => {
    const y = total - (row + 1) * high;
    parts.push(draw("text", { x: LEFT - 4, y: y + 13, "text-anchor": "end" }, count(burst)));
    rates.forEach((rate, column) => {
      const [x, part] = [LEFT + column * wide, share(row, column)];
      const name = part === 0 ? "none" : part <= 0.001 ? "few" : part <= 0.01 ? "some" : "many";
      const title = draw("title", {}, `${rate} burst ${count(burst)}: ${count(refused[row][column])} keys`);
      parts.push(draw("rect", { class: name, x, y, width: wide, height: high }, title));
      for (const [line, bound] of [["contour-low", 0.001], ["contour-high", 0.01]]) {
        if (part > bound && share(row + 1, column) <= bound) parts.push(draw("path", { class: line, d: `M${x} ${y}h${wide}` }));
        if (part > bound && share(row, column + 1) <= bound) parts.push(draw("path", { class: line, d: `M${x + wide} ${y}v${high}` }));
      }
    });
  });
  for (const [name, { rate, burst }] of Object.entries(choices)) {
    const [column, row] = [rates.indexOf(rate), bursts.findLastIndex((one) => one <= burst)];
    if (column < 0 || row < 0) continue;
    const [x, y] = [LEFT + (column + 0.5) * wide, total - (row + 0.5) * high];
    if (name === "today") parts.push(draw("path", { class: name, d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` }));
    else parts.push(draw("circle", { class: "choice", cx: x, cy: y, r: 4 }, draw("title", {}, name)));
  }
  const legend = [["none", "no key"], ["few", "up to 0.1 % of keys"], ["some", "up to 1 %"], ["many", "more"]];
  const note = "; the lines are 0.1 % and 1 %, the cross is today's limit, circles are the choices";
  picture("map of rate and burst", total + 70, [...parts, ...slanted(rates, LEFT + wide / 2, total + 8, wide)], legend, note);
}

// The burst that each of the keys nearest the line needs, by rate.
function nearest({ map: { rates }, nearest: lines }) {
  const most = Math.max(0, ...lines.flatMap((one) => one.bursts));
  if (!most || rates.length < 2) return;
  show("h2", "The burst that the ten keys nearest the line need");
  const step = (WIDTH - LEFT - RIGHT) / (rates.length - 1);
  const points = (bursts) => bursts.map((burst, at) => `${LEFT + at * step},${HEIGHT - (burst * HEIGHT) / most}`).join(" ");
  const line = (one, at) => draw("polyline", { class: `line l${at}`, points: points(one.bursts) }, draw("title", {}, one.key));
  const scale = [draw("text", { x: 0, y: 12 }, count(most)), draw("text", { x: 0, y: HEIGHT }, "0")];
  const legend = lines.map((one, at) => [`line l${at}`, one.key]);
  picture("frontiers", HEIGHT + 70, [...scale, ...lines.map(line), ...slanted(rates, LEFT, HEIGHT + 10, step)], legend);
}

function suggested(all) {
  const row = ([name, one]) => [name, make("td", {}, one.rate), one.burst, one.keys_refused, one.requests_refused, one.most_per_minute ?? make("td", {}, "-")];
  const choices = ["tight", "balanced", "loose", "today"].filter((name) => all.choices[name]);
  table("choices", ["", "rate", "burst", "keys refused", "requests refused", "most in a minute"], choices.map((name) => row([name, all.choices[name]])));
  for (const { key, why } of all.floods) warn(`flood ${key}: ${why}`);
  map(all);
  nearest(all);
  show("h2", "The least burst that refuses no key");
  const admitted = all.frontier_admitted;
  const corner = ({ rate, burst, bar }, at) => [rate, burst, all.frontier_without_floods[at].burst, bar, ...(admitted ? [admitted[at].burst] : [])];
  table("frontier", ["rate", "burst", "without floods", "give or take", ...(admitted ? ["of what was admitted then"] : [])], all.frontier.map(corner));
}

const head = replay ?? suggestion;
show("h1", document.title);
show("p", `${count(head.requests)} requests in ${count(head.lines)} lines (${count(head.unreadable)} unreadable), ${head.from} to ${head.to}`);
head.warnings.forEach(warn);
if (replay) {
  overTime(replay);
  limits(replay.limits);
  if (replay.newly_refused) {
    change("Newly refused", replay.newly_refused);
    change("Newly admitted", replay.newly_admitted);
  }
}
if (limit) show("h2", `Limit ${limit}`);
if (suggestion) suggested(suggestion);
