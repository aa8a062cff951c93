use std::cell::RefCell;
use std::hash::Hasher;
use std::io::{BufWriter, Write};
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tollgate_limit::{Limit, Placement, Timestamp};

use super::heading::{Name, Numbers};
use super::{MAGIC, Remembered, SnapshotError, Summed, VERSION, write_count, write_unpaid};
use crate::local::state_bytes::{OWN, write_end, write_moving};
use crate::local::table::Table;
use crate::local::{LocalStore, learnt, penalized};

impl LocalStore {
    /// Writes the limits that are kept, with their buckets. Those of limits that have `shares` are in
    /// these; nothing is in them that a request holds.
    pub(super) fn write(
        &self,
        writer: impl Write,
        shares: Option<&Self>,
        also: &Remembered,
        is_kept: impl Fn(&Limit) -> bool,
    ) -> Result<(), SnapshotError> {
        let now = self.clock.now();
        let mut out = Summed {
            inner: BufWriter::new(writer),
            sum: SipHasher13::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let clocks = [now, self.clock.wall()].map(Timestamp::as_micros);
        for word in [self.seed.raw(), self.seed.tag(MAGIC)]
            .into_iter()
            .chain(clocks)
        {
            out.write_all(&word.to_le_bytes())?;
        }
        let is_mine = |limit: &Limit| shares.is_none() || limit.placement == Placement::Local;
        let mine: Vec<_> = self
            .kept(|limit| is_kept(limit) && is_mine(limit))
            .collect();
        let of_shares = shares.map(|shares| {
            let kept = shares.kept(|limit| !limit.algorithm.holds_places());
            (shares, kept.collect::<Vec<_>>())
        });
        let all = [Some((self, mine)), of_shares];
        let all = || all.iter().flatten();
        write_count(all().map(|(_, kept)| kept.len()).sum(), &mut out)?;
        for (store, kept) in all() {
            for (limit, table) in kept {
                store.write_limit(limit, table, now, &mut out)?;
            }
        }
        learnt::write(&self.limits, &also.learnt, &mut out)?;
        penalized::write(&also.penalized, &mut out)?;
        write_unpaid(&self.limits, &also.unpaid, &mut out)?;
        out.write_all(&also.replicas.to_le_bytes())?;
        let sum = out.sum.finish();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()?;
        Ok(())
    }

    fn kept(
        &self,
        is_kept: impl Fn(&Limit) -> bool,
    ) -> impl Iterator<Item = (&Limit, &Arc<Table>)> {
        let limits = self.limits.iter().zip(&self.tables);
        limits
            .map(|(limit, table)| (&**limit, table))
            .filter(move |(limit, _)| is_kept(limit))
    }

    fn write_limit(
        &self,
        limit: &Limit,
        table: &Arc<Table>,
        now: Timestamp,
        out: &mut impl Write,
    ) -> Result<(), SnapshotError> {
        Name::write(limit, &mut *out)?;
        Numbers::of(&limit.algorithm).write(&mut *out)?;
        let table = table.latest();
        let cell = RefCell::new((&mut *out, Ok(())));
        let variant = table.variant_of(limit.tier.as_deref());
        table.visit(|moving| {
            let (out, result) = &mut *cell.borrow_mut();
            if result.is_ok()
                && moving.bucket.variant == variant
                // (A held place never expires.)
                && moving
                    .bucket
                    .expiry(&limit.algorithm)
                    .is_none_or(|expiry| expiry > now)
            {
                let own = moving.bucket.own.as_deref().map(Numbers::of);
                let numbers = own.map_or(Ok(()), |own| {
                    out.write_all(&[OWN]).and_then(|()| own.write(*out))
                });
                *result = numbers.and_then(|()| write_moving(&moving, *out));
            }
        });
        cell.into_inner().1?;
        write_end(&mut *out)?;
        Ok(())
    }
}
