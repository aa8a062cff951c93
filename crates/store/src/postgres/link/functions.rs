//! Decides batches by the functions of the schema, and remembers which buckets they leave to the
//! transaction.

use tokio_postgres::types::{ToSql, Type};

use super::fault::Fault;
use super::{PostgresLink, Session};
use crate::batch::{Answer, Batch};
use crate::postgres::columns::{Columns, DRAW};
use crate::postgres::several::{DRAW_SEVERAL, Several};
use crate::simple::{Simple, all_simple};
use crate::wire_form::Name;
use tollgate_limit::Micros;

/// The error that the functions raise for a bucket that the transaction must decide.
const ELSEWHERE: &str = "TG001";
/// How long a bucket that the functions left to the transaction is decided there directly: calling
/// the functions first would be wasted, and the server would roll it back.
const ELSEWHERE_FOR: Micros = Micros(250_000);
/// The most buckets for which that is remembered.
const ELSEWHERE_MAX: usize = 4096;

impl PostgresLink {
    /// Calls a function that decides the whole batch; `None`: it leaves the batch to the
    /// transaction.
    async fn draw(
        &self,
        session: &Session,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Option<Vec<i64>>, Fault> {
        match self.one(session, statement, parameters).await {
            Ok(row) => Ok(row.try_get(0)?),
            Err(error) if error.code().is_some_and(|code| code.code() == ELSEWHERE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the functions are known to leave a bucket to the transaction.
    pub(super) fn is_elsewhere(&self, name: &Name) -> bool {
        let elsewhere = self.elsewhere.borrow();
        !elsewhere.is_empty()
            && elsewhere
                .get(&name.hash)
                .is_some_and(|until| self.options.clock.now() < *until)
    }

    /// Records whether the transaction must decide a bucket.
    pub(super) fn remember(&self, name: &Name, is_elsewhere: bool) {
        let mut elsewhere = self.elsewhere.borrow_mut();
        if !is_elsewhere {
            elsewhere.remove(&name.hash);
            return;
        }
        let now = self.options.clock.now();
        if elsewhere.len() >= ELSEWHERE_MAX {
            elsewhere.retain(|_, until| now < *until);
        }
        if elsewhere.len() < ELSEWHERE_MAX {
            elsewhere.insert(name.hash, now.after(ELSEWHERE_FOR));
        }
    }

    /// Calls the functions first, if they support the batch.
    pub(super) async fn decided_there(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Answer>, Fault> {
        if batch
            .buckets
            .iter()
            .any(|(name, _)| self.is_elsewhere(name))
        {
            return Ok(None);
        }
        let (fingerprint, pinned) = (&session.print.get(), self.pinned());
        if let Some(columns) =
            all_simple(batch, Simple::even_leased).and_then(|wanted| Columns::of(batch, &wanted))
        {
            let Some(answer) = self
                .draw(session, DRAW, &columns.parameters(fingerprint, &pinned))
                .await?
            else {
                return Ok(None);
            };
            return columns
                .read(batch, &answer)
                .map(Some)
                .ok_or(Fault::Corrupt("not an answer of tollgate_draw"));
        }
        let about = self
            .options
            .pinned
            .as_ref()
            .unwrap_or(&self.options.clock)
            .now();
        let Some(several) = Several::of(batch, about) else {
            return Ok(None);
        };
        let Some(answer) = self
            .draw(
                session,
                DRAW_SEVERAL,
                &several.parameters(fingerprint, &pinned),
            )
            .await?
        else {
            return Ok(None);
        };
        several
            .read(batch, &answer)
            .map(Some)
            .ok_or(Fault::Corrupt("not an answer of tollgate_draw_several"))
    }
}
