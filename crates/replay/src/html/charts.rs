//! The charts of a report, as SVG.

use std::fmt::Write;

use super::{Page, escaped};
use crate::hull::Need;
use crate::log::Survey;
use crate::outcome::Outcome;
use crate::report::{grouped, moment};
use crate::suggest::{Rate, Suggestion};

impl Page {
    pub(super) fn over_time(&mut self, outcome: &Outcome, survey: &Survey) {
        let totals = outcome.series.iter();
        let totals = totals.map(|[admitted, refused]| admitted + refused);
        let most = totals.max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let columns = outcome.series.len() as u64;
        let left = |column: usize| column as u64 * WIDTH / columns;
        let height = |count: u64| (count * HEIGHT).div_ceil(most);
        self.body
            .push_str("<h2>Admitted and refused over time</h2>");
        let _ = write!(
            self.body,
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=img aria-label=\"requests over time\">",
            HEIGHT + 24
        );
        for (column, [admitted, refused]) in outcome.series.iter().enumerate() {
            let (x, wide) = (left(column), (left(column + 1) - left(column)).max(1));
            let (low, high) = (height(*admitted), height(admitted + refused));
            for (class, from, to) in [("admitted", 0, low), ("refused", low, high)] {
                if to > from {
                    let _ = write!(
                        self.body,
                        "<rect class={class} x={x} y={} width={wide} height={}></rect>",
                        HEIGHT - to,
                        to - from
                    );
                }
            }
        }
        let _ = write!(
            self.body,
            "<text x=0 y={0}>{1}</text><text x={WIDTH} y={0} text-anchor=end>{2}</text></svg>\
             <p class=legend><span class=admitted></span>admitted {3} <span class=refused></span>refused {4}; the tallest column is {5} requests in {6}</p>",
            HEIGHT + 18,
            moment(survey.from),
            moment(survey.to),
            grouped(outcome.admitted),
            grouped(outcome.refused),
            grouped(most),
            tollgate_limit::words::span(tollgate_limit::Micros(outcome.step))
        );
    }

    /// Rate x burst: the share of keys each refuses, with contours at 0.1 % and 1 %, today's numbers as a cross.
    pub(super) fn map(&mut self, suggestion: &Suggestion) {
        let map = &suggestion.map;
        let (columns, rows) = (map.rates.len() as u64, map.bursts.len() as u64);
        if columns == 0 || rows == 0 {
            return;
        }
        let (wide, high) = (((WIDTH - LEFT - RIGHT) / columns).max(8), 18);
        let total = rows * high;
        let _ = write!(
            self.body,
            "<h2>Keys that are refused, by rate and burst</h2><svg viewBox=\"0 0 {} {}\" role=img aria-label=\"map of rate and burst\">",
            LEFT + columns * wide + RIGHT,
            total + 70
        );
        let share = |row: usize, column: usize| {
            map.refused[row][column] * 1_000_000 / suggestion.keys.max(1)
        };
        for (row, burst) in map.bursts.iter().enumerate() {
            let y = total - (row as u64 + 1) * high;
            let _ = write!(
                self.body,
                "<text x={} y={} text-anchor=end>{}</text>",
                LEFT - 4,
                y + 13,
                grouped(*burst)
            );
            for (column, rate) in map.rates.iter().enumerate() {
                let (x, parts) = (LEFT + column as u64 * wide, share(row, column));
                let class = match parts {
                    0 if map.refused[row][column] == 0 => "none",
                    0..=1_000 => "few",
                    1_001..=10_000 => "some",
                    _ => "many",
                };
                let _ = write!(
                    self.body,
                    "<rect class={class} x={x} y={y} width={wide} height={high}><title>{} burst {}: {} keys</title></rect>",
                    escaped(&rate.text),
                    grouped(*burst),
                    grouped(map.refused[row][column])
                );
                // A contour runs between two cells that lie on its two sides.
                for (name, line) in [("contour-low", 1_000), ("contour-high", 10_000)] {
                    let is_below = |row: usize, column: usize| {
                        let is_cell = row < map.bursts.len() && column < map.rates.len();
                        is_cell && parts > line && share(row, column) <= line
                    };
                    if is_below(row + 1, column) {
                        let _ = write!(self.body, "<path class={name} d=\"M{x} {y}h{wide}\"/>");
                    }
                    if is_below(row, column + 1) {
                        let x = x + wide;
                        let _ = write!(self.body, "<path class={name} d=\"M{x} {y}v{high}\"/>");
                    }
                }
            }
        }
        self.rates(&map.rates, [LEFT + wide / 2, total + 8], wide);
        for (name, choice) in &suggestion.choices {
            let column = map.rates.iter().position(|rate| rate.text == choice.rate);
            let above = map.bursts.partition_point(|burst| *burst <= choice.burst);
            let row = above.checked_sub(1);
            if let (Some(column), Some(row)) = (column, row) {
                let x = LEFT + column as u64 * wide + wide / 2;
                let y = total - row as u64 * high - high / 2;
                let mark = match *name {
                    "today" => {
                        let (x, y) = (x - 5, y - 5);
                        format!("<path class=today d=\"M{x} {y}l10 10m0 -10l-10 10\"/>")
                    }
                    _ => format!(
                        "<circle class=choice cx={x} cy={y} r=4><title>{name}</title></circle>"
                    ),
                };
                self.body.push_str(&mark);
            }
        }
        self.body.push_str(
            "</svg><p class=legend><span class=none></span>no key <span class=few></span>up to 0.1 % of keys <span class=some></span>up to 1 % \
             <span class=many></span>more; the lines are 0.1 % and 1 %, the cross is today's limit, circles are the choices</p>",
        );
    }

    /// The frontier of the keys that need most: the burst each needs, by rate.
    pub(super) fn nearest(&mut self, suggestion: &Suggestion) {
        let rates = &suggestion.map.rates;
        let bursts = |need: &Need| {
            let bursts = rates
                .iter()
                .map(|rate: &Rate| need.burst(rate.amount, rate.period));
            bursts.collect::<Vec<u64>>()
        };
        let nearest = suggestion.nearest.iter();
        let lines: Vec<(String, Vec<u64>)> = nearest
            .map(|(key, need)| (escaped(key), bursts(need)))
            .collect();
        let most = lines.iter().flat_map(|(_, bursts)| bursts).copied().max();
        let most = most.unwrap_or(0);
        if most == 0 || rates.len() < 2 {
            return;
        }
        let step = (WIDTH - LEFT - RIGHT) / (rates.len() as u64 - 1);
        let _ = write!(
            self.body,
            "<h2>The burst that the ten keys nearest the line need</h2><svg viewBox=\"0 0 {WIDTH} {}\" role=img aria-label=\"frontiers\">\
             <text x=0 y=12>{}</text><text x=0 y={HEIGHT}>0</text>",
            HEIGHT + 70,
            grouped(most)
        );
        for (place, (key, bursts)) in lines.iter().enumerate() {
            let point = |(column, burst): (usize, &u64)| {
                let (x, y) = (LEFT + column as u64 * step, HEIGHT - burst * HEIGHT / most);
                format!("{x},{y}")
            };
            let points: Vec<String> = bursts.iter().enumerate().map(point).collect();
            let points = points.join(" ");
            let _ = write!(
                self.body,
                "<polyline class=\"line l{place}\" points=\"{points}\"><title>{key}</title></polyline>"
            );
        }
        self.rates(rates, [LEFT, HEIGHT + 10], step);
        self.body.push_str("</svg><p class=legend>");
        for (place, (key, _)) in lines.iter().enumerate() {
            let _ = write!(self.body, "<span class=\"key l{place}\"></span>{key} ");
        }
        self.body.push_str("</p>");
    }

    /// Slanted labels below a chart: the first at `x` and `y`, the others `step` apart.
    fn rates(&mut self, rates: &[Rate], [x, y]: [u64; 2], step: u64) {
        for (column, rate) in rates.iter().enumerate() {
            let (x, rate) = (x + column as u64 * step, escaped(&rate.text));
            let _ = write!(
                self.body,
                "<text transform=\"translate({x} {y}) rotate(60)\">{rate}</text>"
            );
        }
    }
}

const WIDTH: u64 = 960;
const HEIGHT: u64 = 200;
const LEFT: u64 = 70;
/// Room for the last of the slanted labels.
const RIGHT: u64 = 60;
