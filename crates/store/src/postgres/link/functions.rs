//! Decides batches by the functions of the schema.

use tokio_postgres::types::{ToSql, Type};

use super::fault::Fault;
use super::{PostgresLink, Session};
use crate::batch::{Answer, Batch};
use crate::postgres::columns::{Columns, DRAW};
use crate::postgres::several::{DRAW_SEVERAL, Several};
use crate::simple::{Simple, all_simple};

/// The error that the functions raise for a bucket that the transaction must decide.
const ELSEWHERE: &str = "TG001";

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

    /// Calls the functions first, if they support the batch.
    pub(super) async fn decided_there(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Answer>, Fault> {
        let elsewhere = |(name, _): &(_, _)| self.base.is_elsewhere(name);
        if batch.buckets.iter().any(elsewhere) {
            return Ok(None);
        }
        let (fingerprint, pinned) = (&session.print.get(), self.base.pinned());
        if let Some(columns) =
            all_simple(batch, Simple::even_leased).and_then(|wanted| Columns::of(batch, &wanted))
        {
            let parameters = columns.parameters(fingerprint, &pinned);
            let answer = self.draw(session, DRAW, &parameters).await?;
            let read = |answer: Vec<i64>| columns.read(batch, &answer);
            return told(answer, read, "not an answer of tollgate_draw");
        }
        let options = &self.base.options;
        let about = options.pinned.as_ref().unwrap_or(&options.clock).now();
        let Some(several) = Several::of(batch, about) else {
            return Ok(None);
        };
        let parameters = several.parameters(fingerprint, &pinned);
        let answer = self.draw(session, DRAW_SEVERAL, &parameters).await?;
        let read = |answer: Vec<i64>| several.read(batch, &answer);
        told(answer, read, "not an answer of tollgate_draw_several")
    }
}

/// Reads the answer of a function, unless it left the batch to the transaction.
fn told(
    answer: Option<Vec<i64>>,
    read: impl FnOnce(Vec<i64>) -> Option<Answer>,
    corrupt: &'static str,
) -> Result<Option<Answer>, Fault> {
    let read = |answer| read(answer).ok_or(Fault::Corrupt(corrupt));
    answer.map(read).transpose()
}
