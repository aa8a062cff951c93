//! CSV and JSON lines by a mapping that the user gives: `--fields time=TIMESTAMP,cost=GeneratedTokens,key=..`.

use super::json::{Object, text};
use super::record::{Kind, Record, Text, given, is_method, status, without_port};
use super::role::{Draft, Role};
use super::time::Times;

/// Which column or member holds what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields(Vec<(Role, String)>);

impl Fields {
    /// Reads `ROLE=NAME,…` as `--fields` has it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut fields = Vec::new();
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (role, name) = pair
                .split_once('=')
                .ok_or_else(|| format!("`{pair}`: a role, `=` and a column were expected"))?;
            let role = match role.trim() {
                "time" => Role::Time,
                "cost" => Role::Cost,
                "key" | "caller" => Role::Key,
                "client" | "address" => Role::Client,
                "user" => Role::User,
                "method" => Role::Method,
                "path" | "url" | "uri" => Role::Path,
                "request" => Role::Request,
                "host" => Role::Host,
                "status" => Role::Status,
                "duration" => Role::Duration,
                other => match other.strip_prefix("header:") {
                    Some(name) if !name.is_empty() => Role::Header(name.to_ascii_lowercase()),
                    _ => return Err(format!("`{other}` is no role: {ROLES}")),
                },
            };
            if fields.iter().any(|(given, _)| *given == role) {
                return Err(format!("`{pair}`: this role is given twice"));
            }
            fields.push((role, name.trim().to_owned()));
        }
        if !fields.iter().any(|(role, _)| *role == Role::Time) {
            return Err("the column of the time is missing: time=COLUMN".into());
        }
        Ok(Self(fields))
    }

    /// Where the columns of a CSV stand, by its first line; `None`: that is no such line.
    pub(crate) fn columns(&self, line: &[u8]) -> Option<Csv> {
        [b',', b';', b'\t'].into_iter().find_map(|mark| {
            let names = split(line, mark);
            let place = |wanted: &String| {
                let same =
                    |name: &Vec<u8>| name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes());
                names.iter().position(same)
            };
            let places: Option<Vec<usize>> = self.0.iter().map(|(_, name)| place(name)).collect();
            places.map(|places| Csv { mark, places })
        })
    }

    pub(crate) fn row<'a>(&self, csv: &Csv, line: &[u8], times: &Times) -> Option<Record<'a>> {
        let values = split(line, csv.mark);
        let value = |place: usize| Some(values.get(*csv.places.get(place)?)?.clone().into());
        self.record(value, times)
    }

    pub(crate) fn object<'a>(&self, line: &[u8], times: &Times) -> Option<Record<'a>> {
        let object: Object = serde_json::from_slice(line).ok()?;
        self.record(|place| text(&object, &self.0.get(place)?.1), times)
    }

    fn record<'a>(
        &self,
        value: impl Fn(usize) -> Option<Text<'static>>,
        times: &Times,
    ) -> Option<Record<'a>> {
        let mut draft = Draft::new(Kind::Fields);
        for (place, (role, _)) in self.0.iter().enumerate() {
            let found = value(place).unwrap_or_default();
            match (given(found.trim_ascii()), role) {
                (Some(method), Role::Method) => {
                    draft.take(role, &method.to_ascii_uppercase(), times)?;
                }
                (Some(client), Role::Client) => draft.take(role, without_port(&client), times)?,
                // A tool writes `0` or `-1` where no response was sent.
                (Some(text), Role::Status) => draft.record.status = status(&text),
                (Some(text), _) => draft.take(role, &text, times)?,
                (None, Role::Time | Role::Cost) => return None,
                (None, _) => {}
            }
        }
        let mut record = draft.finished();
        if record.method.is_empty() {
            record.method = Text::Borrowed(b"GET");
        }
        if record.target.is_empty() {
            record.target = Text::Borrowed(b"/");
        }
        is_method(&record.method).then_some(record)
    }
}

/// Where the columns of one CSV stand.
#[derive(Clone, Debug)]
pub(crate) struct Csv {
    mark: u8,
    places: Vec<usize>,
}

/// The values of one row, quotes undone.
fn split(line: &[u8], mark: u8) -> Vec<Vec<u8>> {
    let mut reader = csv_core::ReaderBuilder::new().delimiter(mark).build();
    let mut output = vec![0; line.len() + 1];
    let mut ends = vec![0; line.iter().filter(|byte| **byte == mark).count() + 2];
    let (_, _, mut wrote, mut fields) = reader.read_record(line, &mut output, &mut ends);
    let (_, _, more, last) = reader.read_record(&[], &mut output[wrote..], &mut ends[fields..]);
    wrote += more;
    fields += last;
    let mut values = Vec::with_capacity(fields);
    let mut from = 0;
    for end in &ends[..fields] {
        let end = (*end).clamp(from, wrote);
        values.push(output[from..end].to_vec());
        from = end;
    }
    values
}

const ROLES: &str = "time, cost, key, client, user, method, path, request, host, status, duration \
                     or header:NAME";
