//! The heading of a limit's records in a snapshot: its name, and the numbers of its states.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{SnapshotError, read_bytes, read_u8, read_u64};
use crate::local::carry::place_of_variant;
use crate::local::{Carried, Carry};
use tollgate_limit::key::stable_hash;
use tollgate_limit::{Algorithm, Align, Kind, Limit, Micros, Role, Terms};

pub(in crate::local) struct Name {
    name: String,
    tier: Option<String>,
    role: Role,
}

impl Name {
    pub(in crate::local) fn write(limit: &Limit, out: &mut impl Write) -> io::Result<()> {
        write_text(&limit.name, out)?;
        match &limit.tier {
            Some(tier) => {
                out.write_all(&[1])?;
                write_text(tier, out)?;
            }
            None => out.write_all(&[0])?,
        }
        out.write_all(&[u8::from(limit.role == Role::Candidate)])
    }

    pub(in crate::local) fn read(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let name = read_text(input)?;
        let tier = match read_u8(input)? {
            0 => None,
            _ => Some(read_text(input)?),
        };
        let role = if read_u8(input)? == 0 {
            Role::Live
        } else {
            Role::Candidate
        };
        Ok(Self { name, tier, role })
    }

    pub(in crate::local) fn is_of(&self, limit: &Limit) -> bool {
        *limit.name == *self.name
            && limit.tier.as_deref() == self.tier.as_deref()
            && limit.role == self.role
    }

    /// The place in `limits` of the numbers that its buckets are drawn under.
    pub(super) fn place_in(&self, limits: &[Arc<Limit>]) -> Option<usize> {
        place_of_variant(limits, &self.name, self.role, self.tier.as_deref())
    }

    pub(super) fn gone(&self) -> Carried {
        let (name, tier) = (
            self.name.as_str().into(),
            self.tier.as_deref().map(Into::into),
        );
        Carried {
            name,
            tier,
            role: self.role,
            carry: Carry::Gone,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    form: u8,
    amount: u64,
    period: u64,
    burst: u64,
    align: u64,
}

impl Numbers {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        let form = match algorithm {
            Algorithm::TokenBucket(_) => 0,
            Algorithm::Interval(_) => 1,
            Algorithm::FixedWindow(_) => 2,
            Algorithm::SlidingWindow(_) => 3,
            Algorithm::SlidingLog(_) => 4,
            Algorithm::InFlight(_) => 5,
        };
        let numbers = algorithm.quota().map(|q| (q.amount, q.period.0, q.burst));
        let (amount, period, burst) = numbers.unwrap_or_default();
        Self {
            form,
            amount,
            period,
            burst,
            align: match align_of(algorithm) {
                Align::FirstHit => 0,
                Align::Clock => 1,
                Align::Calendar(calendar) => stable_hash(calendar.words.as_bytes()) | 2,
            },
        }
    }

    /// The effect on states in these numbers under `algorithm`, and their own algorithm.
    pub(super) fn carry(self, algorithm: &Algorithm) -> (Carry, Option<Algorithm>) {
        let new = Self::of(algorithm);
        if self == new {
            return (Carry::Kept, None);
        }
        let kind = match self.form {
            0 => Kind::TokenBucket,
            1 => Kind::Interval,
            2 => Kind::FixedWindow,
            3 => Kind::SlidingWindow,
            4 => Kind::SlidingLog,
            _ => return (Carry::Afresh, None),
        };
        let bursts = matches!(kind, Kind::TokenBucket | Kind::Interval);
        let terms = Terms {
            burst: bursts.then_some(self.burst),
            align: align_of(algorithm).clone(),
            ..Terms::new(kind, self.amount, Micros(self.period))
        };
        match Algorithm::new(&terms) {
            Ok(old) if self.align == new.align && old.has_buckets_of(algorithm) => {
                (Carry::Renumbered, Some(old))
            }
            _ => (Carry::Afresh, None),
        }
    }

    /// Whether its windows begin at boundaries of the clock or of a calendar.
    pub(super) fn is_aligned(self) -> bool {
        self.align > 0
    }

    pub(super) fn write(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&[self.form])?;
        for number in [self.amount, self.period, self.burst, self.align] {
            out.write_all(&number.to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let form = read_u8(input)?;
        Ok(Self {
            form,
            amount: read_u64(input)?,
            period: read_u64(input)?,
            burst: read_u64(input)?,
            align: read_u64(input)?,
        })
    }
}

fn align_of(algorithm: &Algorithm) -> &Align {
    match algorithm {
        Algorithm::FixedWindow(window) => window.align(),
        _ => &Align::FirstHit,
    }
}

fn write_text(text: &str, out: &mut impl Write) -> io::Result<()> {
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.write_all(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes())?;
    out.write_all(text)
}

fn read_text(input: &mut impl Read) -> Result<String, SnapshotError> {
    let length = u16::from_le_bytes(read_bytes(input)?);
    let mut text = vec![0; usize::from(length)];
    input.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|_| SnapshotError::Corrupt("a name is not text"))
}
