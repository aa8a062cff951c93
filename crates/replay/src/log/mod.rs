//! Access logs of many servers, read line by line into [`Record`]s. It judges nothing.

mod clf;
mod decisions;
mod fields;
mod json;
mod lines;
mod pattern;
mod prefix;
mod record;
mod role;
mod survey;
mod text;
mod time;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use tollgate_limit::UNITS_MAX;

pub use fields::Fields;
pub use pattern::Pattern;
pub use record::{Kind, Own, OwnLimit, Record, Stamp};
pub(crate) use record::{decimal, split_url};
pub(crate) use survey::is_recorded_refusal;
pub use survey::{Sample, Survey, With};

use fields::Csv;
use lines::{Line, Lines};
use text::Columns;
use time::Times;

#[derive(Clone, Debug)]
pub struct Options {
    /// What stamps mark, where the user says so; otherwise by the format.
    pub stamps: Option<Stamp>,
    /// The zone of stamps that name none.
    pub zone: TimeZone,
    pub pattern: Option<Pattern>,
    pub fields: Option<Fields>,
    /// The longest that a request took, where the log holds no durations, microseconds.
    pub longest: u64,
    /// Whether lines that cannot be read are shown with the addresses in them.
    pub show_keys: bool,
    /// The present, microseconds since the Unix epoch: requests that are stamped later are reported.
    pub now: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stamps: None,
            zone: TimeZone::UTC,
            pattern: None,
            fields: None,
            longest: 0,
            show_keys: false,
            now: u64::MAX,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`: {error}", file.display())]
pub struct ReadError {
    pub file: PathBuf,
    pub error: io::Error,
}

/// Reads `files` one after another and hands every request on, with the moment it began.
/// The error: a file cannot be opened; one that breaks off later is a warning of the survey.
pub fn read(
    files: &[PathBuf],
    options: &Options,
    mut progress: impl FnMut(u64),
    mut each: impl FnMut(&Record<'_>, u64),
) -> Result<Survey, ReadError> {
    let mut survey = Survey::new(options);
    let mut before = 0;
    for file in files {
        let input = lines::open(file).map_err(|error| ReadError {
            file: file.clone(),
            error,
        })?;
        let mut taken = 0;
        let mut of_file = |bytes| {
            taken = bytes;
            progress(before + bytes);
        };
        read_one(file, input, options, &mut survey, &mut of_file, &mut each);
        before += taken;
    }
    survey.finish();
    Ok(survey)
}

/// Reads one text that is in memory, as [`read`] does a file.
pub fn read_text(text: &[u8], options: &Options, mut each: impl FnMut(&Record<'_>, u64)) -> Survey {
    let mut survey = Survey::new(options);
    let name = Path::new("-");
    read_one(name, text, options, &mut survey, &mut |_| {}, &mut each);
    survey.finish();
    survey
}

fn read_one(
    file: &Path,
    input: impl io::Read,
    options: &Options,
    survey: &mut Survey,
    progress: &mut impl FnMut(u64),
    each: &mut impl FnMut(&Record<'_>, u64),
) {
    let mut lines = Lines::new(input);
    let mut parser = Parser::new(options);
    let mut number = 0_u64;
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                survey.broken(file, number, &error);
                break;
            }
        };
        number += 1;
        survey.lines += 1;
        match line {
            Line::TooLong(opening) => survey.unreadable(file, number, opening),
            Line::Whole(line) => match parser.parse(line) {
                Parsed::Request(record) => {
                    let at = survey.add(&record);
                    each(&record, at);
                }
                Parsed::Directive => {}
                Parsed::Unreadable => survey.unreadable(file, number, line),
            },
        }
        if number.is_multiple_of(PROGRESS) {
            progress(lines.taken);
        }
    }
    progress(lines.taken);
}

struct Parser<'o> {
    options: &'o Options,
    times: Times,
    columns: Columns,
    csv: Option<Csv>,
    first: bool,
}

#[expect(
    clippy::large_enum_variant,
    reason = "handed on at once: a box would cost an allocation for every line"
)]
enum Parsed<'a> {
    Request(Record<'a>),
    /// A line that says something of the lines after it.
    Directive,
    Unreadable,
}

impl<'o> Parser<'o> {
    fn new(options: &'o Options) -> Self {
        Self {
            options,
            times: Times(options.zone.clone()),
            columns: Columns::default(),
            csv: None,
            first: true,
        }
    }

    fn parse<'a>(&mut self, line: &'a [u8]) -> Parsed<'a> {
        let line = if std::mem::take(&mut self.first) {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        } else {
            line
        };
        if let Some(fields) = &self.options.fields
            && !line.starts_with(b"{")
            && let Some(csv) = fields.columns(line)
        {
            // Files that were joined have their first line in the middle, too.
            self.csv = Some(csv);
            return Parsed::Directive;
        }
        if line.starts_with(b"#") {
            if let Some(columns) = Columns::read(line) {
                self.columns = columns;
            }
            return Parsed::Directive;
        }
        let mut record = self.request(line).filter(is_sound);
        if record.is_none()
            && let Some(line) = prefix::stripped(line)
        {
            record = self.request(line).filter(is_sound);
        }
        record.map_or(Parsed::Unreadable, Parsed::Request)
    }

    fn request<'a>(&mut self, line: &'a [u8]) -> Option<Record<'a>> {
        let times = &self.times;
        if let Some(pattern) = &self.options.pattern
            && let Some(record) = pattern.parse(line, times)
        {
            return Some(record);
        }
        match line.first()? {
            b'{' => {
                let mapped = self.options.fields.as_ref();
                if let Some(record) = mapped.and_then(|fields| fields.object(line, times)) {
                    return Some(record);
                }
                json::parse(line, times)
            }
            b'[' => text::envoy(line, times).or_else(|| clf::parse(line, times)),
            _ => {
                if let (Some(fields), Some(csv)) = (&self.options.fields, &self.csv)
                    && let Some(record) = fields.row(csv, line, times)
                {
                    return Some(record);
                }
                if !self.columns.is_empty()
                    && let Some(record) = self.columns.parse(line, times)
                {
                    return Some(record);
                }
                clf::parse(line, times)
                    .or_else(|| text::alb(line, times))
                    .or_else(|| text::haproxy(line, times))
            }
        }
    }
}

/// Whether a line can be the request that it was read as. A stamp before 1971 means a clock that was never set. Sums of
/// moments after 2255 would overflow, and no limit can be written that pays a greater cost.
fn is_sound(record: &Record<'_>) -> bool {
    (YEAR..MOMENT_MAX).contains(&record.at)
        && record.names_one_client()
        && record.greatest_cost() <= UNITS_MAX
}

/// Lines between two words of progress.
const PROGRESS: u64 = 1 << 14;
const YEAR: u64 = 365 * 86_400 * 1_000_000;
const MOMENT_MAX: u64 = 1 << 53;
