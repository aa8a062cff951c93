//! CSV and JSON lines by a mapping that the user gives: `--fields time=TIMESTAMP,cost=GeneratedTokens,key=..`.

use std::borrow::Cow;

use serde_json::Value;

use super::json::Object;
use super::record::{
    Kind, Record, Text, decimal, given, is_method, number, request_line, split_url, status,
    without_port,
};
use super::time::Times;

/// Which column or member holds what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields(Vec<(Role, String)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Time,
    Cost,
    Key,
    Client,
    User,
    Method,
    Path,
    Request,
    Host,
    Status,
    Duration,
    Header(String),
}

impl Fields {
    /// Reads `ROLE=NAME,…`.
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
        let value = |place: usize| values.get(*csv.places.get(place)?).cloned();
        self.record(value, times)
    }

    pub(crate) fn object<'a>(&self, line: &[u8], times: &Times) -> Option<Record<'a>> {
        let object: Object = serde_json::from_slice(line).ok()?;
        let value = |place: usize| {
            let (_, name) = self.0.get(place)?;
            let found = object.get(name).or_else(|| {
                let mut steps = name.split('.');
                let first = object.get(steps.next()?)?;
                steps.try_fold(first, |value, step| value.get(step))
            })?;
            match found {
                Value::String(text) => Some(text.clone().into_bytes()),
                Value::Number(number) => Some(number.to_string().into_bytes()),
                _ => None,
            }
        };
        self.record(value, times)
    }

    fn record<'a>(
        &self,
        value: impl Fn(usize) -> Option<Vec<u8>>,
        times: &Times,
    ) -> Option<Record<'a>> {
        let mut record = Record {
            kind: Kind::Fields,
            method: Cow::Borrowed(b"GET"),
            target: Cow::Borrowed(b"/"),
            ..Record::default()
        };
        let mut timed = false;
        for (place, (role, _)) in self.0.iter().enumerate() {
            let Some(text) = value(place) else {
                if matches!(role, Role::Time | Role::Cost) {
                    return None;
                }
                continue;
            };
            let text = text.trim_ascii().to_vec();
            let some = |text: Vec<u8>| given(&text).map(|text| Text::Owned(text.into_owned()));
            match role {
                Role::Time => {
                    (record.at, record.resolution) = times.any(&text)?;
                    timed = true;
                }
                Role::Cost => record.cost = Some(number(&text)?),
                Role::Key => record.key = some(text),
                Role::Client => record.client = some(without_port(&text).to_vec()),
                Role::User => record.user = some(text),
                Role::Method => record.method = text.to_ascii_uppercase().into(),
                Role::Path => {
                    let (host, path) = split_url(&text);
                    record.host = host.map(|host| without_port(host).to_vec().into());
                    record.target = path.to_vec().into();
                }
                Role::Request => {
                    let (method, target) = request_line(&text)?;
                    record.method = method.to_vec().into();
                    record.target = target.to_vec().into();
                }
                Role::Host => record.host = some(without_port(&text).to_vec()),
                Role::Status => record.status = status(&text),
                Role::Duration => record.duration = decimal(&text, 6),
                Role::Header(name) => {
                    if let Some(value) = some(text) {
                        record
                            .headers
                            .push((name.clone().into_bytes().into(), value));
                    }
                }
            }
        }
        (timed && is_method(&record.method)).then_some(record)
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
