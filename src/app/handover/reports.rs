//! Reports about requests that the process before this one admitted for other programs: they arrive
//! here, and it has the permits.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::message::Message;
use super::peer::Peer;
use super::wire::Wire;
use tollgate_gateway::decide::{Outcome, Permits, Predecessor, Told};

/// Carries out reports that the process which has taken over passes on, until it ends.
pub(super) fn serve(mut wire: Wire, permits: Arc<Permits>) -> io::Result<()> {
    wire.patience(None)?;
    let serve = move || {
        while let Ok(Some(Message::Report(told))) = wire.receive() {
            let outcome = permits.carry_out(&told);
            if wire.send(&Message::Reported(outcome)).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("reports".to_owned());
    thread.spawn(serve).map(drop)
}

impl Predecessor for Peer {
    fn report(&self, told: Told) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>> {
        let outcome = self.ask(Message::Report(told), |response| match response {
            Message::Reported(outcome) => Some(outcome),
            _ => None,
        });
        Box::pin(async { outcome.await.ok() })
    }
}
