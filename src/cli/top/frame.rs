//! One frame of `tollgate top`, as lines of a given width.

mod tables;
mod text;

use std::fmt;

use super::Seen;
use super::terminal::Size;
use crate::admin::figures::{Exact, Figures};
use tables::{limit_table, limits, near_table, refused_table, sorted};
use text::{Cell, Look, Table};
use tollgate_replay::report::grouped;

/// A frame.
#[derive(Debug)]
pub(super) struct Frame {
    lines: Vec<Vec<Cell>>,
    size: Option<Size>,
}

impl Frame {
    /// A frame for a terminal of this size; `None`: one that is as long as it must be.
    pub(super) fn new(seen: &[Seen], size: Option<Size>) -> Self {
        let mut frame = Self {
            lines: Vec::new(),
            size,
        };
        let figures: Vec<&Figures> = seen
            .iter()
            .filter_map(|one| one.told.as_ref().ok())
            .collect();
        frame.head(seen, &figures);
        let (refused, near) = (
            sorted(seen, |figures| &figures.refused.keys),
            sorted(seen, |figures| &figures.near.keys),
        );
        let sum =
            |count: fn(&Figures) -> usize| -> usize { figures.iter().map(|one| count(one)).sum() };
        let limits = limits(&figures);
        let [refused_rows, near_rows, limit_rows] =
            frame.shares([refused.rows.len(), near.rows.len(), limits.len()]);
        let fleet = seen.len() > 1;
        frame.title(
            "REFUSED NOW",
            sum(|one| one.refused.found).saturating_sub(refused.repeated),
            "key",
            Look::Bad,
        );
        frame.table(refused_table(&refused.rows, fleet), refused_rows);
        let close = sum(|one| one.near.found).saturating_sub(near.repeated);
        frame.title("CLOSE", close, "key", Look::Warn);
        frame.table(near_table(&near.rows, fleet), near_rows);
        frame.title("LIMITS", limits.len(), "limit", Look::Plain);
        frame.table(limit_table(&limits), limit_rows);
        frame
    }

    fn head(&mut self, seen: &[Seen], figures: &[&Figures]) {
        let at = figures.iter().map(|one| one.at.as_str()).max();
        let keys = if self.size.is_some() {
            "   q quits"
        } else {
            ""
        };
        self.lines.push(vec![
            Cell::new("tollgate top", Look::Strong),
            Cell::new(
                &format!("   {}{keys}", at.unwrap_or("no response")),
                Look::Faint,
            ),
        ]);
        let (look, words) = exactness(figures, seen.len());
        self.lines.push(vec![
            Cell::new("exact      ", Look::Faint),
            Cell::new(&words, look),
        ]);
        for one in seen {
            let (look, words) = match &one.told {
                Ok(figures) => gateway(figures),
                Err(why) => (Look::Bad, format!("no figures: {why}")),
            };
            self.lines.push(vec![
                Cell::new("gateway    ", Look::Faint),
                Cell::new(&one.name, Look::Strong),
                Cell::new(&format!("  {words}"), look),
            ]);
        }
    }

    fn title(&mut self, title: &str, found: usize, what: &str, look: Look) {
        let plural = if found == 1 { "" } else { "s" };
        let look = if found == 0 { Look::Faint } else { look };
        self.lines.push(Vec::new());
        self.lines.push(vec![
            Cell::new(&format!("{title}  "), Look::Strong),
            Cell::new(&format!("{} {what}{plural}", grouped(found as u64)), look),
        ]);
    }

    /// Adds as many rows of a table as there is room for.
    fn table(&mut self, table: Table, rows: usize) {
        let width = self.size.map(|size| size.columns);
        self.lines.extend(table.lines(width, rows));
    }

    /// How many rows each of the three tables may have.
    fn shares(&self, wanted: [usize; 3]) -> [usize; 3] {
        let Some(size) = self.size else {
            return wanted;
        };
        // Each table has a blank line, a title and a heading.
        let room = size.rows.saturating_sub(self.lines.len() + 9).max(3);
        let [refused, near, limits] = wanted;
        let limits = limits.min(room / 3 + (room * 2 / 3).saturating_sub(refused + near));
        let near = near.min(
            (room - limits) / 3 + (room - limits - (room - limits) / 3).saturating_sub(refused),
        );
        [refused.min(room - limits - near), near, limits]
    }

    /// The frame with the sequences of a terminal.
    pub(super) fn for_terminal(&self) -> String {
        let rows = self.size.map_or(usize::MAX, |size| size.rows);
        let columns = self.size.map_or(usize::MAX, |size| size.columns);
        let lines: Vec<String> = self
            .lines
            .iter()
            .take(rows)
            .map(|line| text::line(line, columns, true))
            .collect();
        // The rest of each line is blanked; no line end follows the last one, which would scroll.
        lines.join("\x1b[K\r\n") + "\x1b[K"
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{}", text::line(line, usize::MAX, false).trim_end())?;
        }
        Ok(())
    }
}

/// Whether the limits of these gateways are exact; `asked` were asked for their figures.
fn exactness(figures: &[&Figures], asked: usize) -> (Look, String) {
    if figures.is_empty() {
        return (Look::Bad, "not known: no gateway responds".to_owned());
    }
    let sum = |count: fn(&Exact) -> u64| figures.iter().map(|one| count(&one.exact)).sum::<u64>();
    let counts = [
        (sum(|one| one.ungoverned), "decisions without the store"),
        (sum(|one| one.key_evictions), "buckets evicted"),
        (
            sum(|one| one.inherited_refusals),
            "refusals by an inherited debt",
        ),
    ];
    let stores = figures.iter().filter_map(|one| one.exact.store.as_ref());
    let down: Vec<_> = stores.filter(|store| !store.answers).collect();
    let counted = counts.iter().filter(|(count, _)| *count > 0);
    let counted: Vec<String> = counted
        .map(|(count, what)| format!("{} {what}", grouped(*count)))
        .collect();
    let since = match counted.is_empty() {
        true => String::new(),
        false => format!("{} since the start", counted.join(", ")),
    };
    match (down.first(), since.is_empty()) {
        (Some(store), _) => {
            let rule = store
                .when_down
                .as_deref()
                .unwrap_or("its limits are not exact");
            let separator = if since.is_empty() { "" } else { "; " };
            (
                Look::Bad,
                format!("no: the store does not respond ({rule}){separator}{since}"),
            )
        }
        (None, true) if figures.len() < asked => (
            Look::Warn,
            format!("not known: {} of {asked} gateways respond", figures.len()),
        ),
        (None, true) => (Look::Good, "yes, since the start".to_owned()),
        (None, false) => (Look::Warn, format!("now, and not always: {since}")),
    }
}

fn gateway(figures: &Figures) -> (Look, String) {
    let mut words = format!(
        "{}, configuration {}, {} connections",
        figures.phase, figures.generation, figures.connections
    );
    let mut look = Look::Plain;
    if let Some(store) = &figures.exact.store {
        let state = if store.answers {
            "responds"
        } else {
            "does not respond"
        };
        words += &format!(
            ", {} {state}, {} gateway{}",
            store.kind,
            store.replicas,
            if store.replicas == 1 { "" } else { "s" }
        );
        if !store.answers {
            look = Look::Bad;
        }
    }
    if !figures.exact.upstreams_out.is_empty() {
        words += &format!(
            ", {} upstream servers out",
            figures.exact.upstreams_out.len()
        );
        look = Look::Warn;
    }
    if figures.last_error.is_some() {
        words += ", the last reload was refused";
        look = Look::Warn;
    }
    (look, words)
}
