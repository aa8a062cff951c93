//! Finds or opens a connection for a request, at most until the request's total time is over.
//!
//! An attempt to connect may then go on without the request: the server is judged by its own connect
//! timeout, because the request may have had little time left, or a deadline that its caller chose.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::forward::ForwardError;
use crate::forward::http2_pool::Placed;
use crate::forward::pool::{Connection, Slot};
use crate::forward::request::Outgoing;
use crate::forward::server::ServerState;

pub(super) async fn http1(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
) -> Result<(Box<Connection>, Slot), ForwardError> {
    let (its, client) = (Rc::clone(server), outgoing.client);
    let opening = async move { its.connector.http1(client).await };
    let keep = |connection, server: &ServerState| server.pool.put(connection);
    open(server, outgoing, slot, Box::pin(opening), keep).await
}

/// A place for a stream. `fresh`: the first one of a connection that is opened for it.
pub(super) async fn place(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
    fresh: bool,
) -> Result<(Placed, Slot), ForwardError> {
    // Most requests find a connection with room, and need no allocation to wait for one.
    if !fresh && let Some(place) = server.http2_pool.free() {
        return Ok((Placed::Stream(place), slot));
    }
    let its = Rc::clone(server);
    let opening = async move {
        match fresh {
            true => its.http2_pool.fresh(&its.connector).await,
            false => its.http2_pool.place(&its.connector).await,
        }
    };
    // The connection of a stream is in the pool already.
    let keep = |opened, server: &ServerState| {
        if let Placed::Http1(connection) = opened {
            server.pool.put(connection);
        }
    };
    open(server, outgoing, slot, Box::pin(opening), keep).await
}

/// Waits for an attempt to connect. The future is boxed, because most requests find an open connection
/// and need no space for connecting. The attempt holds the slot until it ends; `keep` receives what it
/// opens without its request.
async fn open<T: 'static>(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
    mut opening: Pin<Box<impl Future<Output = Result<T, ForwardError>> + 'static>>,
    keep: fn(T, &ServerState),
) -> Result<(T, Slot), ForwardError> {
    let late = match outgoing.in_time(&mut opening).await {
        Ok(opened) => return Ok((opened?, slot)),
        Err(late) => late,
    };
    // Only one attempt for each server goes on. Otherwise one caller with short deadlines could take
    // all slots and have one failure counted many times.
    if server.connects_alone.replace(true) {
        return Err(late);
    }
    let alone = Alone(Rc::clone(server));
    tokio::task::spawn_local(async move {
        match opening.await {
            Ok(opened) => keep(opened, &alone.0),
            Err(error) => alone.0.observe(&Err(error)),
        }
        drop(slot);
    });
    Err(late)
}

/// The attempt to connect to a server that goes on without its request, while this exists.
struct Alone(Rc<ServerState>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.connects_alone.set(false);
    }
}
