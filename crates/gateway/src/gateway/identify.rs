//! Identifies the caller, and derives from it the buckets a request draws from.

use tollgate_limiter::Look;
use tollgate_policy::route::Match;
use tollgate_policy::{Claimed, Descriptor, Identified};
use tollgate_store::StoreError;

use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use super::{Gateway, judge};
use crate::rejection::Rejection;

/// The result of identifying the caller.
#[derive(Default)]
pub(super) struct Identification {
    /// The refusal of an unidentified request, sent after the request has been charged.
    pub(super) refusal: Option<Rejection>,
    /// The error of the shared store if it did not answer; it is not asked again.
    pub(super) store_error: Option<StoreError>,
}

impl Gateway {
    /// Identifies `who` sends the request and records the claims ([`tollgate_policy::Claimed`]).
    /// `length` is the length of the request's body.
    pub(super) async fn identify(
        &self,
        snapshot: &Snapshot,
        matched: &Match<'_>,
        described: &Descriptor<'_>,
        length: Option<u64>,
        who: &mut Identified,
        context: &mut RequestContext,
    ) -> Result<Identification, Rejection> {
        let (policy, now) = (&snapshot.policy, context.seconds());
        let into = (&mut *who, context.claims_mut());
        let refusal = match policy.claim(into, matched, described, length, now) {
            Claimed::Complete => return Ok(Identification::default()),
            Claimed::Refused(refusal) => (refusal, None),
            Claimed::Unverified => {
                let store_error = Box::pin(look(snapshot, context)).await?;
                let into = (who, context.claims_mut());
                match policy.claim_verified(into, matched, described, length, now) {
                    Err(refusal) => (refusal, store_error),
                    Ok(()) => {
                        return Ok(Identification {
                            refusal: None,
                            store_error,
                        });
                    }
                }
            }
        };
        let (refusal, store_error) = refusal;
        Ok(Identification {
            refusal: Some(snapshot.unidentified(refusal)),
            store_error,
        })
    }
}

/// Checks whether the limits would admit the request, without drawing from them. Returns the error
/// of the shared store if it did not answer.
async fn look(
    snapshot: &Snapshot,
    context: &mut RequestContext,
) -> Result<Option<StoreError>, Rejection> {
    let claims = context.claims().list(&snapshot.policy);
    if claims.is_empty() {
        return Ok(None);
    }
    let look = snapshot.limiter.look(&claims, context.at()).await;
    drop(claims);
    match look {
        Look::Open => Ok(None),
        Look::Unavailable(error) => Ok(Some(error)),
        Look::Denied(denied) => Err(judge::denial(context, denied)),
    }
}
