//! Changes of overrides, as operators make them.

use std::sync::Arc;
use std::time::Duration;

use super::document::hexadecimal;
use super::{Document, Entry, Grant, InForce, Inner, Overrides, Setting, theirs};
use tollgate_limit::{Limit, Micros, Placement, Timestamp};

#[derive(Clone, Debug)]
pub(crate) struct NewOverride {
    /// The key in words, without what may be a secret, and its name in logs.
    pub(crate) key: (String, String),
    pub(crate) setting: Setting,
    pub(crate) end: End,
    pub(crate) operator: String,
    pub(crate) reason: String,
    /// What is added to the number in the document, which replaces `setting`.
    pub(crate) grant: Option<Grant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    After(Micros),
    /// At this moment, by the clock of the place that keeps the override.
    At(Timestamp),
}

impl End {
    /// The moment by the clock of that place, which is `ahead` of ours; `now`: by ours.
    fn there(self, now: Timestamp, ahead: i64) -> Timestamp {
        match self {
            Self::After(span) => theirs(now.after(span), ahead),
            Self::At(moment) => moment,
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("{0}")]
    TooMany(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Unsure(String),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'b> {
    pub(crate) limit: &'b str,
    pub(crate) placement: Placement,
    pub(crate) hash: u128,
}

/// How long overrides stay in force that have no limit any more.
const DAY: Micros = Micros::from_secs(86_400);

/// How often a change is made again after another gateway's.
const ATTEMPTS: u32 = 16;

/// How long a store keeps the document after its last override has ended.
const KEPT: Duration = Duration::from_secs(86_400);

impl Overrides {
    /// Sets an override, or lifts one (`new`: `None`); returns the one that this change replaced in
    /// the document, whatever other gateways change at the same time.
    /// When it returns, this gateway obeys.
    pub(crate) async fn change(
        &self,
        limit: &Limit,
        key: &[u8],
        new: Option<&NewOverride>,
    ) -> Result<Option<InForce>, ChangeError> {
        let bucket = self.0.current.load().limiter.bucket_hash(limit, key);
        let Some(bucket) = bucket else {
            let words = "there is no shared store".to_owned();
            return Err(ChangeError::Unavailable(words));
        };
        if new.is_some() {
            // A flood of changes is refused before the store's document is read.
            let known = self.0.known.lock();
            let now = theirs(self.0.clock.now(), known.ahead_of(limit.placement));
            let room = known.of(limit.placement).has_room(&limit.name, bucket, now);
            room.map_err(ChangeError::TooMany)?;
        }
        let of = Bucket {
            limit: &limit.name,
            placement: limit.placement,
            hash: bucket,
        };
        self.change_bucket(of, new).await
    }

    /// The same for a bucket of which the key may not be known.
    pub(crate) async fn change_bucket(
        &self,
        of: Bucket<'_>,
        new: Option<&NewOverride>,
    ) -> Result<Option<InForce>, ChangeError> {
        let (limit, bucket) = (of.limit, of.hash);
        let edit = |document: &mut Document, ahead: i64| {
            let found = document.find(limit, bucket).cloned();
            match new {
                None => document.remove(limit, bucket),
                Some(new) => {
                    let now = self.0.clock.now();
                    let setting = new.grant.as_ref().and_then(|grant| {
                        let before = found.as_ref().map(|entry| &entry.setting);
                        grant.setting(before).ok()
                    });
                    let grants = new
                        .grant
                        .as_ref()
                        .map(|grant| grant.with_last(found.as_ref(), &new.reason));
                    let entry = Entry {
                        limit: limit.to_owned(),
                        bucket: hexadecimal(bucket),
                        key: new.key.0.clone(),
                        name: new.key.1.clone(),
                        setting: setting.unwrap_or_else(|| new.setting.clone()),
                        set: theirs(now, ahead).as_micros(),
                        until: new.end.there(now, ahead).as_micros(),
                        operator: new.operator.clone(),
                        reason: new.reason.clone(),
                        grants: grants.unwrap_or_default(),
                    };
                    document.set(entry);
                }
            }
            found.map(|entry| entry.by_our_clock(of.placement, ahead))
        };
        // Before a document is copied or read: a flood of changes is refused cheaply.
        let has_room = |document: &Document, now: Timestamp| match new {
            Some(new) => {
                if let Some(grant) = &new.grant {
                    let before = document.find(limit, bucket);
                    let before = before.filter(|entry| entry.until() > now);
                    let allowed = grant.allows(before, &new.reason);
                    allowed.map_err(ChangeError::Conflict)?;
                }
                document
                    .has_room(limit, bucket, now)
                    .map_err(ChangeError::TooMany)
            }
            None => Ok(()),
        };
        match of.placement {
            Placement::Local => self.0.change_local(has_room, edit),
            Placement::Shared => self.0.change_shared(has_room, edit).await,
        }
    }

    /// Ends the overrides of limits that the policy does not have any more, a day from now, so that
    /// none waits for a later limit of that name. Until then they can be lifted.
    pub(super) async fn end_a_day_after(
        &self,
        removed: &[(Arc<str>, Placement)],
    ) -> Result<(), ChangeError> {
        let now = self.0.clock.now();
        for placement in super::PLACES {
            let is_removed = |entry: &Entry| {
                let mut removed = removed.iter();
                removed.any(|(name, of)| *of == placement && **name == *entry.limit)
            };
            let cut = |document: &mut Document, ahead: i64| {
                let latest = theirs(now.after(DAY), ahead).as_micros();
                let entries = document.overrides.iter_mut();
                for entry in entries.filter(|entry| is_removed(entry)) {
                    entry.until = entry.until.min(latest);
                }
            };
            {
                let known = self.0.known.lock();
                let mut document = known.of(placement).clone();
                cut(&mut document, known.ahead_of(placement));
                if document == *known.of(placement) {
                    continue;
                }
            }
            match placement {
                Placement::Local => self.0.change_local(|_, _| Ok(()), cut)?,
                Placement::Shared => self.0.change_shared(|_, _| Ok(()), cut).await?,
            }
        }
        Ok(())
    }

    /// Tells all gateways that this bucket was filled, so that none refuses by what it knew.
    pub(crate) fn was_reset(
        &self,
        limit: &Limit,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let (kept, placement) = (Arc::clone(&self.0), limit.placement);
        async move {
            if placement == Placement::Local {
                return Ok(());
            }
            let raise = |document: &mut Document, _| {
                document.resets = document.resets.wrapping_add(1);
            };
            kept.change_shared(|_, _| Ok(()), raise).await
        }
    }
}

impl Inner {
    fn change_local<T>(
        &self,
        allows: impl FnOnce(&Document, Timestamp) -> Result<(), ChangeError>,
        edit: impl FnOnce(&mut Document, i64) -> T,
    ) -> Result<T, ChangeError> {
        let _writing = self.writing.lock();
        let now = self.clock.now();
        let mut document = {
            let known = self.known.lock();
            allows(&known.local, now)?;
            known.local.clone()
        };
        document.remove_ended(now);
        let edited = edit(&mut document, 0);
        if let Some(file) = &self.file {
            file.write(&document).map_err(|error| {
                let words = format!("the file of overrides cannot be written: {error}");
                ChangeError::Unavailable(words)
            })?;
        }
        self.learn_local(document);
        Ok(edited)
    }

    async fn change_shared<T>(
        &self,
        allows: impl Fn(&Document, Timestamp) -> Result<(), ChangeError>,
        edit: impl Fn(&mut Document, i64) -> T,
    ) -> Result<T, ChangeError> {
        let snapshot = self.current.load_full();
        let unavailable = |words: String| ChangeError::Unavailable(format!("the store: {words}"));
        let Some(store) = snapshot.limiter.shared().remote() else {
            return Err(unavailable("none is configured".to_owned()));
        };
        // Changes of this gateway are made one after the other: only those of others are in the way.
        let _changing = self.changing.lock().await;
        let mut watched = store.document();
        for _ in 0..ATTEMPTS {
            let present = watched.borrow_and_update().clone();
            if !present.heard {
                let words = "it has not responded yet, or keeps no overrides: PostgreSQL, MariaDB and MySQL need the table tollgate_overrides, which `tollgate schema --sql` prints, and rights to it (SELECT, INSERT, UPDATE)";
                return Err(unavailable(words.to_owned()));
            }
            let mut document = Document::read(&present.text)
                .map_err(|error| unavailable(format!("its overrides cannot be read: {error}")))?;
            let now = theirs(self.clock.now(), present.ahead);
            document.remove_ended(now);
            if let Err(refused) = allows(&document, now) {
                self.learn_shared(&watched);
                return Err(refused);
            }
            let edited = edit(&mut document, present.ahead);
            let last = document.overrides.iter().map(Entry::until).max();
            let keep = Duration::from(last.unwrap_or(now).since(now)) + KEPT;
            let replaced = store.replace_document(present.epoch, document.text(), keep);
            match replaced.await {
                Ok(true) => {
                    self.learn_shared(&watched);
                    return Ok(edited);
                }
                Ok(false) => {}
                Err(error) if error.may_have_charged() => {
                    let words = format!("the store: {error}; the change may have been made");
                    return Err(ChangeError::Unsure(words));
                }
                Err(error) => return Err(unavailable(error.to_string())),
            }
        }
        Err(unavailable(
            "other gateways change overrides at the same time; try again".to_owned(),
        ))
    }
}
