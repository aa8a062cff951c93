//! A session on a MariaDB or MySQL. A task of its own runs texts of statements one after the other,
//! so that a call that is given up does not break off the reading of a response.

use std::cell::OnceCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::sql::FAREWELL;

pub(super) type Sets = Vec<Vec<Row>>;

struct Statements {
    text: String,
    reply: oneshot::Sender<Result<Sets, Error>>,
}

#[derive(Debug)]
pub(super) enum Failed {
    Error(Error),
    /// The session had ended before.
    Ended,
}

/// A session. Its task ends with it, and closes the connection.
pub(super) struct Client {
    queue: mpsc::UnboundedSender<Statements>,
    /// Why its connection ended, once it has.
    ended: Rc<OnceCell<String>>,
    _alive: oneshot::Sender<()>,
}

impl Client {
    pub(super) async fn connect(opts: Opts) -> Result<Self, Error> {
        let connection = Conn::new(opts).await?;
        let (queue, statements) = mpsc::unbounded_channel();
        let (alive, gone) = oneshot::channel::<()>();
        let ended = Rc::new(OnceCell::new());
        let tell = ended.clone();
        tokio::task::spawn_local(async move {
            let mut serving = std::pin::pin!(serve(connection, statements, tell));
            tokio::select! {
                () = &mut serving => {}
                // What was sent is completed; a server that does not respond is not waited for.
                _ = gone => drop(tokio::time::timeout(FAREWELL, serving).await),
            }
        });
        Ok(Self {
            queue,
            ended,
            _alive: alive,
        })
    }

    /// Queues a text of statements at once, without waiting for its turn.
    pub(super) fn send(&self, text: String) -> oneshot::Receiver<Result<Sets, Error>> {
        let (reply, outcome) = oneshot::channel();
        // If the task has ended, the receiver reports that.
        let _ = self.queue.send(Statements { text, reply });
        outcome
    }

    /// Runs a text of statements. An error ends it: later statements of the text are not run.
    pub(super) async fn run(&self, text: impl Into<String>) -> Result<Sets, Failed> {
        match self.send(text.into()).await {
            Ok(outcome) => outcome.map_err(Failed::Error),
            Err(_) => Err(Failed::Ended),
        }
    }

    /// Why the connection ended; `None`: it has not, as far as known.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

async fn serve(
    mut connection: Conn,
    mut statements: mpsc::UnboundedReceiver<Statements>,
    ended: Rc<OnceCell<String>>,
) {
    let (mut number, mut used) = (0_u64, Instant::now());
    while let Some(Statements { text, reply }) = statements.recv().await {
        // The driver does not notice that the server has closed an idle connection. A text that was
        // sent over one may have been executed, as far as is known.
        if used.elapsed() >= IDLE
            && let Err(error) = connection.ping().await
        {
            let _ = ended.set(error.to_string());
            return;
        }
        number += 1;
        let outcome = run(&mut connection, &text, number).await;
        used = Instant::now();
        let broken = match &outcome {
            Err(error) if error.is_fatal() => ended.set(error.to_string()).is_ok(),
            _ => false,
        };
        if broken {
            // Stored before the statement's user learns of it.
            statements.close();
        }
        let _ = reply.send(outcome);
        if broken {
            return;
        }
    }
    // A connection that cannot be closed cleanly is closed by dropping it.
    let _ = connection.disconnect().await;
}

/// Runs a text and a statement that returns `number`, by which its response is told from that of an
/// earlier text: a proxy may send one twice.
async fn run(connection: &mut Conn, text: &str, number: u64) -> Result<Sets, Error> {
    let mut result = connection
        .query_iter(format!("{text}; SELECT {number}"))
        .await?;
    let mut sets = Vec::new();
    loop {
        let returns_rows = !result.columns_ref().is_empty();
        let rows: Vec<Row> = result.collect().await?;
        if returns_rows {
            sets.push(rows);
        }
        if result.is_empty() {
            // The driver keeps the error of any statement but the first for the next reading.
            result.drop_result().await?;
            break;
        }
    }
    let last = sets.pop();
    let stated = last.and_then(|rows| rows.first()?.get_opt::<u64, _>(0)?.ok());
    if stated == Some(number) {
        Ok(sets)
    } else {
        let words = "the response is that of another statement";
        Err(io::Error::new(io::ErrorKind::InvalidData, words).into())
    }
}

/// A connection that was not used for as long is tested before it is used: a round trip more for a
/// request that comes alone.
const IDLE: Duration = Duration::from_millis(50);
