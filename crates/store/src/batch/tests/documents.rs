//! How often a gateway asks for the document of overrides.

use super::*;
use crate::batch::StoredDocument;

/// A server whose heartbeats find this epoch, and how often the document was read.
struct Server {
    shared: Arc<LaneState>,
    epoch: Cell<u64>,
    beats: Cell<u64>,
    reads: Cell<u64>,
    /// What is sent over the connection takes turns.
    turn: tokio::sync::Mutex<()>,
}

impl Server {
    fn new(shared: &Arc<LaneState>) -> Rc<Self> {
        Rc::new(Self {
            shared: shared.clone(),
            epoch: Cell::new(1),
            beats: Cell::new(0),
            reads: Cell::new(0),
            turn: tokio::sync::Mutex::new(()),
        })
    }
}

impl Link for Server {
    type Connection = ();

    async fn connect(&self) -> Result<(), Obstacle> {
        Ok(())
    }

    async fn call(&self, (): &(), batch: &Batch) -> Result<Answer, Trouble> {
        Ok(granted(batch))
    }

    fn has_document(&self, (): &()) -> bool {
        true
    }

    async fn document(
        &self,
        (): &(),
        _known: u64,
        _new: Option<&NewDocument>,
    ) -> Result<StoredDocument, Trouble> {
        let _turn = self.turn.lock().await;
        self.reads.update(|reads| reads + 1);
        Ok(StoredDocument {
            epoch: self.epoch.get(),
            now: self.shared.clock.now(),
            written: false,
            text: Some(format!("{}", self.epoch.get())),
            origin: None,
        })
    }

    /// The document changes while the subscription is made.
    async fn listen(&self, (): &()) {
        {
            let _turn = self.turn.lock().await;
            self.shared.documents.changed();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        std::future::pending().await
    }

    async fn housekeep(&self, (): &()) -> Result<(), Trouble> {
        self.beats.update(|beats| beats + 1);
        let now = self.shared.clock.now();
        self.shared.documents.seen(self.epoch.get(), None, now, now);
        Ok(())
    }

    fn housekeep_every(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A gateway without requests makes its heartbeats and nothing else. A change is read when the server
/// publishes it, or by the next heartbeat.
#[tokio::test(start_paused = true)]
async fn document_is_read_when_it_has_changed_and_not_before() {
    let clock = Clock::system();
    let shared = Arc::new(LaneState::new(clock, Micros::from_secs(60), true));
    let server = Server::new(&shared);
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), server.clone()));
    let mut watched = shared.documents.subscribe();
    let test = async {
        let beats = async |more: u64| {
            let enough = server.beats.get() + more;
            while server.beats.get() < enough {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let heard = watched.wait_for(|document| document.epoch == 1);
        assert!(heard.await.is_ok());
        beats(5).await;
        let reads = server.reads.get();
        beats(50).await;
        assert_eq!(server.reads.get(), reads, "nothing has changed");
        server.epoch.set(2);
        let heard = watched.wait_for(|document| &*document.text == "2");
        assert!(heard.await.is_ok(), "by a heartbeat");
        let (beaten, begun) = (server.beats.get(), tokio::time::Instant::now());
        beats(1).await;
        server.epoch.set(3);
        shared.documents.changed();
        let heard = watched.wait_for(|document| &*document.text == "3");
        assert!(heard.await.is_ok(), "published");
        assert_eq!(server.beats.get(), beaten + 1, "before the next heartbeat");
        assert!(begun.elapsed() < Duration::from_millis(1500));
    };
    local.run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn document_waits_for_its_subscription_no_longer_than_that_takes() {
    let shared = Arc::new(LaneState::new(Clock::system(), Micros::from_secs(60), true));
    let server = Server::new(&shared);
    let local = tokio::task::LocalSet::new();
    local.spawn_local(lane(shared.clone(), server.clone()));
    let begun = tokio::time::Instant::now();
    let read_again = async {
        while server.reads.get() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    local.run_until(read_again).await;
    assert!(
        begun.elapsed() < Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
}
