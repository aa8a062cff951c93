//! Cells, columns and numbers of a frame. Nothing of a stranger's reaches the terminal unescaped.

use tollgate_limit::printable::printable;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Strong,
    Faint,
    Good,
    Warn,
    Bad,
}

impl Look {
    /// The sequence that begins it, and ends what was before.
    const fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "\x1b[0m",
            Self::Strong => "\x1b[0;1m",
            Self::Faint => "\x1b[0;2m",
            Self::Good => "\x1b[0;32m",
            Self::Warn => "\x1b[0;33m",
            Self::Bad => "\x1b[0;31m",
        }
    }
}

/// Text that a terminal can show, and how it looks.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    look: Look,
}

impl Cell {
    /// A cell with `text`; what a terminal would obey in it is escaped.
    pub(super) fn new(text: &str, look: Look) -> Self {
        // Marks without a width pile up on the character before them, without a bound.
        let shown: String = printable(text)
            .chars()
            .filter(|c| c.width() != Some(0))
            .collect();
        Self { text: shown, look }
    }
}

/// Rows under headings. A heading that begins with `>` is of numbers.
pub(super) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Whether the last column names the gateway.
    several: bool,
}

impl Table {
    pub(super) fn new(heads: &[&'static str], several: bool) -> Self {
        let last = several.then_some("GATEWAY");
        Self {
            heads: heads.iter().copied().chain(last).collect(),
            rows: Vec::new(),
            several,
        }
    }

    pub(super) fn row(&mut self, gateway: &str, mut cells: Vec<Cell>) {
        if self.several {
            cells.push(Cell::new(gateway, Look::Faint));
        }
        self.rows.push(cells);
    }

    /// The lines. In a terminal, no cell is wider than a part of `width`.
    pub(super) fn lines(self, width: Option<usize>) -> Vec<Vec<Cell>> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let cell_max = width.map_or(usize::MAX, |width| (width * 2 / 5).max(12));
        let heads = self.heads.iter();
        let heads: Vec<Cell> = heads
            .map(|head| Cell::new(head.trim_start_matches('>'), Look::Faint))
            .collect();
        let all: Vec<Vec<Cell>> = std::iter::once(heads).chain(self.rows).collect();
        let last = self.heads.len() - 1;
        let widths: Vec<usize> = (0..=last)
            .map(|column| {
                let widths = all.iter().map(|row| row[column].text.width());
                widths.max().unwrap_or(0).min(cell_max)
            })
            .collect();
        let placed = |row: Vec<Cell>| {
            let cells = row.into_iter().enumerate();
            cells
                .map(|(column, cell)| {
                    let room = if column == last {
                        usize::MAX
                    } else {
                        widths[column]
                    };
                    let text = cut(&cell.text, room);
                    let pad = " ".repeat(widths[column].saturating_sub(text.width()));
                    let text = match (column == last, self.heads[column].starts_with('>')) {
                        (true, _) => text,
                        (false, true) => format!("{pad}{text}  "),
                        (false, false) => format!("{text}{pad}  "),
                    };
                    Cell { text, ..cell }
                })
                .collect()
        };
        all.into_iter().map(placed).collect()
    }
}

/// A line of at most `columns`; with the sequences of a terminal if `styled`.
pub(super) fn line(cells: &[Cell], columns: usize, styled: bool) -> String {
    let (mut text, mut left) = (String::new(), columns);
    for cell in cells {
        let shown = cut(&cell.text, left);
        left -= shown.width().min(left);
        if styled {
            text.push_str(cell.look.sequence());
        }
        text.push_str(&shown);
    }
    if styled {
        text.push_str(Look::Plain.sequence());
    }
    text
}

/// The beginning of `text` that is at most `width` wide.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut shown, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        shown.push(c);
    }
    if width > 0 {
        shown.push('…');
    }
    shown
}

pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

/// Milliseconds since the epoch; 0: it is no moment.
pub(super) fn instant(at: &str) -> i64 {
    at.parse::<jiff::Timestamp>()
        .map_or(0, jiff::Timestamp::as_millisecond)
}

/// The time of day of a moment in UTC, as the API writes it.
pub(super) fn of_day(at: &str) -> &str {
    at.get(11..19).unwrap_or(at)
}

pub(super) fn span(millis: i64) -> String {
    match millis.max(0).saturating_add(999) / 1_000 {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_cell_of_a_hostile_key_has_nothing_that_a_terminal_obeys() {
        let hostile = "\u{1b}[2J\u{9b}31m\u{202e}a\u{301}\u{301}\r\n\u{200b}end";
        let cell = Cell::new(hostile, Look::Plain);
        assert_eq!(cell.text, "\\u001b[2J\\u009b31m\\u202ea\\u000d\\nend");
        let shown = line(&[cell], 12, true);
        assert_eq!(shown, "\u{1b}[0m\\u001b[2J\\u…\u{1b}[0m");
    }

    #[test]
    fn top_tables_are_cut_to_the_width() {
        let mut table = Table::new(&["KEY", ">LOST", "LIMIT"], false);
        for (key, lost) in [
            ("漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字", "7"),
            ("b", "1,234"),
        ] {
            table.row(
                "",
                vec![
                    Cell::new(key, Look::Plain),
                    Cell::new(lost, Look::Bad),
                    Cell::new("a limit", Look::Plain),
                ],
            );
        }
        let lines: Vec<String> = table
            .lines(Some(40))
            .iter()
            .map(|cells| line(cells, 40, false))
            .collect();
        assert_eq!(
            lines,
            [
                "KEY                LOST  LIMIT",
                "漢字漢字漢字漢…       7  a limit",
                "b                 1,234  a limit",
            ]
            .map(str::to_owned)
        );
    }

    #[test]
    fn top_times_are_in_words() {
        assert_eq!(
            [span(-1), span(1), span(119_500), span(7_199_000)],
            ["0 s", "1 s", "2 min", "119 min"]
        );
        assert_eq!(of_day("2027-01-15T08:00:12.000Z"), "08:00:12");
        assert_eq!(instant("1970-01-01T00:00:01.500Z"), 1_500);
    }
}
