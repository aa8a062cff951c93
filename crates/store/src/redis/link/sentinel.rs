//! Finds the master through sentinels, and connects when no sentinel responds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::task::JoinSet;

use super::{CONNECT_WITHIN, open};
use crate::redis::certificates::{Certificates, with_certificates};

/// How long sentinels have to name the master before the last known one is tried.
const PATIENCE: Duration = Duration::from_millis(300);

type Place = (String, u16);

/// The connection settings of a master, independent of its address.
type Like<'l> = (&'l ConnectionInfo, bool, Option<&'l Certificates>);

#[derive(Clone, Debug, Default)]
pub(super) struct Masters {
    /// The last server that was a master when a connection to it was established.
    last: Arc<Mutex<Option<Place>>>,
}

impl Masters {
    /// Connects to the master named by the first sentinel that responds. If none responds, connects
    /// to the last master if it still is one: without sentinels no server is promoted, so the other
    /// gateways write there too.
    pub(super) async fn open(
        &self,
        sentinels: &[ConnectionInfo],
        name: &str,
        like: Like<'_>,
    ) -> Result<(MultiplexedConnection, ConnectionInfo), RedisError> {
        let last = self.last.lock().clone();
        let asked = named(sentinels, name);
        let named = match &last {
            None => asked.await,
            Some(_) => tokio::time::timeout(PATIENCE, asked)
                .await
                .unwrap_or_else(|_| Err((ErrorKind::Io, "no sentinel answers in time").into())),
        };
        let (place, certain) = match (named, last) {
            (Ok(place), _) => (place, true),
            (Err(_), Some(last)) => (last, false),
            (Err(error), None) => return Err(error),
        };
        let info = address(&place, like)?;
        // In time, because a master that was frozen may not know yet that another was promoted.
        let opened = tokio::time::timeout(CONNECT_WITHIN, async {
            let mut wire = open(info.clone()).await?;
            let role = redis::cmd("ROLE").query_async::<Value>(&mut wire).await;
            Ok::<_, RedisError>((wire, role))
        });
        let late = |_| RedisError::from((ErrorKind::Io, "the primary does not answer in time"));
        let (wire, role) = opened.await.map_err(late)??;
        match role {
            Ok(role) if is_master(&role) => {}
            Ok(_) => return Err((ErrorKind::Client, "it is a replica, not the primary").into()),
            // A user without the right to check the role relies on the sentinels alone.
            Err(error) if error.code() == Some("NOPERM") && certain => {}
            Err(error) => return Err(error),
        }
        if !certain {
            tracing::warn!(
                "no sentinel answers: going on with the master they named last, which still is one"
            );
        }
        *self.last.lock() = Some(place);
        Ok((wire, info))
    }
}

fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else {
        return false;
    };
    match parts.first() {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}

fn address(place: &Place, like: Like<'_>) -> Result<ConnectionInfo, RedisError> {
    let (master, tls, certificates) = like;
    let (host, port) = place.clone();
    let addr = if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    with_certificates(master.clone().set_addr(addr), certificates)
}

/// The response of the first sentinel; all are asked at once, because some may be silently gone.
async fn named(sentinels: &[ConnectionInfo], name: &str) -> Result<Place, RedisError> {
    let mut answers = JoinSet::new();
    for sentinel in sentinels {
        let (sentinel, name) = (sentinel.clone(), name.to_owned());
        answers.spawn(async move {
            let mut wire = open(sentinel).await?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
            let place: Option<Place> = question.query_async(&mut wire).await?;
            place.ok_or_else(|| {
                (
                    ErrorKind::MasterNameNotFoundBySentinel,
                    "a sentinel knows no master of this name",
                )
                    .into()
            })
        });
    }
    let mut last = RedisError::from((
        ErrorKind::MasterNameNotFoundBySentinel,
        "no sentinel answers",
    ));
    while let Some(answer) = answers.join_next().await {
        match answer {
            Ok(Ok(place)) => return Ok(place),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}
