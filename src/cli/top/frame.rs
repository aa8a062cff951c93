//! One frame of `tollgate top`, as lines of a given width.

mod tables;
mod text;

use std::fmt;

use super::Seen;
use super::terminal::Size;
use crate::admin::figures::{Exact, Figures, KeysNow};
pub(super) use tables::Order;
use tables::{limit_table, limits, near_table, refused_table, sorted};
use text::{Cell, Look, Table};
use tollgate_replay::report::grouped;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) top: usize,
}

#[derive(Debug)]
pub(super) struct Frame {
    /// What stays when the rest is scrolled.
    head: Vec<Vec<Cell>>,
    lines: Vec<Vec<Cell>>,
    size: Option<Size>,
    top: usize,
}

impl Frame {
    /// A frame for a terminal of this size; `None`: one that is as long as it must be. `view` is
    /// scrolled back to the last lines where there are no more.
    pub(super) fn new(seen: &[Seen], size: Option<Size>, view: &mut View) -> Self {
        let mut frame = Self {
            head: Vec::new(),
            lines: Vec::new(),
            size,
            top: 0,
        };
        let figures: Vec<&Figures> = seen
            .iter()
            .filter_map(|one| one.reported.as_ref().ok())
            .collect();
        frame.head(seen, &figures, view.order);
        let several = seen.len() > 1;
        let listed = |keys: fn(&Figures) -> &KeysNow| {
            let rows = sorted(seen, view.order, |figures| &keys(figures).keys);
            let found: usize = figures.iter().map(|one| keys(one).found).sum();
            (found.saturating_sub(rows.repeated), rows.rows)
        };
        let (found, rows) = listed(|figures| &figures.refused);
        frame.title("REFUSED NOW", found, rows.len(), "key", Look::Bad);
        frame.table(refused_table(&rows, several));
        let (found, rows) = listed(|figures| &figures.near);
        frame.title("CLOSE", found, rows.len(), "key", Look::Warn);
        frame.table(near_table(&rows, several));
        let (found, rows) = listed(|figures| &figures.shadow);
        if found > 0 {
            frame.title("WOULD BE REFUSED", found, rows.len(), "key", Look::Warn);
            frame.table(refused_table(&rows, several));
        }
        let limits = limits(&figures);
        frame.title("LIMITS", limits.len(), limits.len(), "limit", Look::Plain);
        frame.table(limit_table(&limits));
        let over = frame.lines.len().saturating_sub(frame.room());
        view.top = view.top.min(over);
        frame.top = view.top;
        frame
    }

    /// The lines of a terminal below the head, without the last one.
    fn room(&self) -> usize {
        let rows = self.size.map_or(usize::MAX, |size| size.rows);
        rows.saturating_sub(self.head.len() + 1).max(1)
    }

    fn head(&mut self, seen: &[Seen], figures: &[&Figures], order: Order) {
        let at = figures.iter().map(|one| one.at.as_str()).max();
        let keys = match self.size {
            Some(_) => format!("   {}   q quits, s sorts, arrows scroll", order.word()),
            None => String::new(),
        };
        self.head.push(vec![
            Cell::new("tollgate top", Look::Strong),
            Cell::new(
                &format!("   {}{keys}", at.unwrap_or("no response")),
                Look::Faint,
            ),
        ]);
        let (look, words) = exactness(figures, seen.len());
        self.head.push(vec![
            Cell::new("exact      ", Look::Faint),
            Cell::new(&words, look),
        ]);
        for one in seen {
            let (look, words) = match &one.reported {
                Ok(figures) => gateway(figures),
                Err(why) => (Look::Bad, format!("no figures: {why}")),
            };
            self.head.push(vec![
                Cell::new("gateway    ", Look::Faint),
                Cell::new(&one.name, Look::Strong),
                Cell::new(&format!("  {words}"), look),
            ]);
        }
    }

    fn title(&mut self, title: &str, found: usize, shown: usize, what: &str, look: Look) {
        let plural = if found == 1 { "" } else { "s" };
        let look = if found == 0 { Look::Faint } else { look };
        let more = match found.saturating_sub(shown) {
            0 => String::new(),
            more => format!(", {} more than these", grouped(more as u64)),
        };
        self.lines.push(Vec::new());
        self.lines.push(vec![
            Cell::new(&format!("{title}  "), Look::Strong),
            Cell::new(
                &format!("{} {what}{plural}{more}", grouped(found as u64)),
                look,
            ),
        ]);
    }

    fn table(&mut self, table: Table) {
        let width = self.size.map(|size| size.columns);
        self.lines.extend(table.lines(width));
    }

    /// The frame with the sequences of a terminal.
    pub(super) fn for_terminal(&self) -> String {
        let (rows, columns) = self
            .size
            .map_or((usize::MAX, usize::MAX), |size| (size.rows, size.columns));
        let shown = self.lines.iter().skip(self.top).take(self.room());
        let below = self.lines.len().saturating_sub(self.top + self.room());
        let more = match below {
            0 => Vec::new(),
            _ => vec![Cell::new(&format!("{below} more lines"), Look::Faint)],
        };
        let all = self.head.iter().chain(shown).chain(std::iter::once(&more));
        let lines: Vec<String> = all
            .take(rows)
            .map(|line| text::line(line, columns, true))
            .collect();
        // The rest of each line is blanked; no line end follows the last one, which would scroll.
        lines.join("\x1b[K\r\n") + "\x1b[K"
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.head.iter().chain(&self.lines) {
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
