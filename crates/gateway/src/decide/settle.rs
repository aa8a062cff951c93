//! `/v1/settle` and `/v1/give-back`: what became of a request that another program forwarded.

use std::collections::BTreeMap;
use std::fmt;

use http::StatusCode;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::json::Refused;
use super::permits::{Open, PermitId, Permits};
use tollgate_response::Problem;

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    permit: String,
    status: Option<u16>,
    units: Option<Units>,
}

/// Units for every limit that a response settles, or for each by name.
#[derive(Debug, PartialEq, Eq)]
enum Units {
    All(u64),
    Each(BTreeMap<String, u64>),
}

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reads;

        impl<'de> Visitor<'de> for Reads {
            type Value = Units;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of units, or an object of numbers by limit")
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<Units, E> {
                Ok(Units::All(units))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Units, A::Error> {
                let mut each = BTreeMap::new();
                while let Some((limit, units)) = map.next_entry::<String, u64>()? {
                    // Programs that read the first or the last one would report different costs.
                    if each.contains_key(&limit) {
                        return Err(A::Error::custom(format!("`{limit}` is there twice")));
                    }
                    each.insert(limit, units);
                }
                Ok(Units::Each(each))
            }
        }

        from.deserialize_any(Reads)
    }
}

/// What the limits of a request are charged after its report.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Settled {
    charged: BTreeMap<String, u64>,
}

/// The return of a permit without a report.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Return {
    permit: String,
}

impl Return {
    pub(super) fn carry_out(&self, permits: &Permits) -> Result<(), Refused> {
        let open = close(permits, &self.permit, |_| Ok(()))?;
        open.settle(None, |_| None);
        Ok(())
    }
}

impl Report {
    pub(super) fn carry_out(&self, permits: &Permits) -> Result<Settled, Refused> {
        let status = self.status.map(StatusCode::from_u16).transpose();
        let status = status.map_err(|_| Refused::bad("`status` is not a status of HTTP."))?;
        if status.is_none() && self.units.is_none() {
            return Err(Refused::bad(
                "`status` or `units` is missing: without both, give the permit back.",
            ));
        }
        let known = |open: &Open| match &self.units {
            Some(Units::Each(units)) => units
                .keys()
                .find(|limit| !open.owed.is_settled_by_cost(limit))
                .map_or(Ok(()), |limit| {
                    Err(Refused::bad(format!(
                        "no charge of the limit `{limit}` is open under this permit."
                    )))
                }),
            _ => Ok(()),
        };
        let open = close(permits, &self.permit, known)?;
        let charged = open.settle(status, |limit| match &self.units {
            Some(Units::All(units)) => Some(*units),
            Some(Units::Each(units)) => units.get(limit).copied(),
            None => None,
        });
        Ok(Settled {
            charged: charged.into_iter().collect(),
        })
    }
}

fn close(
    permits: &Permits,
    id: &str,
    accept: impl FnOnce(&Open) -> Result<(), Refused>,
) -> Result<Open, Refused> {
    PermitId::parse(id)
        .and_then(|id| permits.close(id, accept))
        .unwrap_or_else(|| Err(Problem::UNKNOWN_PERMIT.into()))
}
