mod ended;
mod shared;

use std::sync::atomic::AtomicUsize;
use std::task::Poll;

use super::*;
use crate::permit::DrawnFrom;
use crate::{Decision, Effect, Override};
use tollgate_limit::{
    Algorithm, Kind, Micros, Penalty, Placement, Rate, RateConditions, Terms, Timestamp, fixtures,
};
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

#[test]
fn handover_refund_while_frozen_gives_back_its_grant() {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let terms = Terms {
        burst: Some(100),
        ..fixtures::terms(Kind::TokenBucket, 100, Micros::from_secs(60))
    };
    let limit = Arc::new(Limit {
        algorithm: Algorithm::new(&terms)
            .and_then(|rate| rate.following(Rate::new(10, Micros::from_secs(60))))
            .expect("within the rate"),
        ..fixtures::limit("gentle", &terms)
    });
    let limiter = Limiter::new(
        &[Arc::clone(&limit)],
        Arc::new(Backend::None),
        Clock::manual(start),
        ColdStart::Full,
    );
    // At half the rate a grant takes twice its cost.
    let halved = Conditions::Rate(RateConditions {
        factor: 512,
        ..RateConditions::AS_WRITTEN
    });
    let left = || {
        let looked = [Claim::new(&limit, b"k", 0)];
        limiter.local().peek_at(&looked, start)[0].remaining
    };
    let claim = Claim {
        conditions: Some(&halved),
        ..Claim::new(&limit, b"k", 10)
    };
    assert!(limiter.local().draw_at(&[claim], start).granted);
    assert_eq!(left(), 80);
    limiter.freeze();
    let refund = Settlement {
        conditions: Some(&halved),
        ..Settlement::new(&limit, b"k", Change::Refund { units: 10 })
    };
    limiter
        .generation
        .settle_local(refund, DrawnFrom::Bucket, start);
    assert_eq!(left(), 80, "kept");
    limiter.thaw();
    assert_eq!(left(), 100);
}

/// A process that has the buckets of `taken` until it ends.
struct Mortal {
    taken: &'static [&'static str],
    limiter: Limiter<Backend>,
    ended: AtomicBool,
}

impl Mortal {
    fn new(taken: &'static [&'static str], limiter: Limiter<Backend>) -> Arc<Self> {
        let ended = AtomicBool::new(false);
        Arc::new(Self {
            taken,
            limiter,
            ended,
        })
    }
}

impl Successor for Mortal {
    fn has(&self, limit: &Limit) -> bool {
        self.taken.contains(&&*limit.name)
    }

    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>> {
        let ended = self.ended.load(Ordering::Relaxed);
        Box::pin(async move {
            match ended {
                true => Err(Undrawn::Ended),
                false => Ok(self.limiter.draw_for(claims)),
            }
        })
    }

    fn settle(&self, settlement: &Settlement<'_>) {
        if !self.ended.load(Ordering::Relaxed) {
            self.limiter.settle_for(*settlement);
        }
    }
}

/// Refusals of both processes count together, and both refuse the key that is blocked then.
#[tokio::test]
async fn handover_penalty_is_counted_and_kept_by_the_process_that_has_the_buckets() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let block = Micros::from_secs(600);
    let limit = Arc::new(Limit {
        penalty: Some(Penalty {
            refusals: 4,
            span: Micros::from_secs(60),
            block,
        }),
        ..fixtures::limit(
            "each",
            &fixtures::terms(Kind::TokenBucket, 1, Micros::from_secs(60)),
        )
    });
    let limiter = || {
        let limits = [Arc::clone(&limit)];
        let backend = Arc::new(Backend::None);
        Limiter::new(&limits, backend, Clock::manual(now), ColdStart::Full)
    };
    let (old, new) = (limiter(), limiter());
    old.freeze();
    old.hand_to(Mortal::new(&["each"], new.clone()));
    let claims = [Claim::new(&limit, b"k", 1)];
    let wait = async |limiter: &Limiter<Backend>| match limiter.check(&claims, now).await {
        Decision::Deny(denied) => denied.retry_after(),
        _ => None,
    };
    assert!(matches!(old.check(&claims, now).await, Decision::Allow(_)));
    for limiter in [&old, &new, &old] {
        assert_eq!(wait(limiter).await, Some(Micros::from_secs(60)));
    }
    assert_eq!(wait(&old).await, Some(block), "the fourth refusal");
    assert_eq!(wait(&new).await, Some(block), "known to the new process");
    assert_eq!(wait(&old).await, Some(block));
    let other = [Claim::new(&limit, b"other", 1)];
    new.put_overrides([Override {
        limit: Arc::clone(&limit.name),
        placement: Placement::Local,
        bucket: new.bucket_hash(&limit, b"other").expect("a name"),
        effect: Effect::Block,
        since: now,
        until: now.after(block),
    }]);
    let decided = old.check(&other, now).await;
    assert!(
        matches!(&decided, Decision::Deny(denied) if denied.retry_after() == Some(block)),
        "an operator's block after the handover: {decided:?}"
    );
    assert_eq!(new.take_penalties().len(), 1);
    assert_eq!(old.take_penalties().len(), 0, "it is told once");
}

/// A process that has the buckets of `taken` and makes no draw.
struct Mute {
    taken: &'static [&'static str],
    /// Why it makes none; `None`: it never responds.
    why: Option<Undrawn>,
    /// The number of corrections that it was told.
    told: AtomicUsize,
}

impl Mute {
    fn new(taken: &'static [&'static str], why: impl Into<Option<Undrawn>>) -> Arc<Self> {
        let why = why.into();
        let told = AtomicUsize::default();
        Arc::new(Self { taken, why, told })
    }
}

impl Successor for Mute {
    fn has(&self, limit: &Limit) -> bool {
        self.taken.contains(&&*limit.name)
    }

    fn draw<'a>(
        &'a self,
        _: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>> {
        Box::pin(async {
            match self.why {
                Some(why) => Err(why),
                None => std::future::pending().await,
            }
        })
    }

    fn settle(&self, _: &Settlement<'_>) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }
}

/// One unit a minute under each name, with charges that can be refunded.
fn limiter_of(names: &[&str], now: Timestamp) -> (Limiter<Backend>, Vec<Arc<Limit>>) {
    let terms = fixtures::terms(Kind::TokenBucket, 1, Micros::from_secs(60));
    let limit = |(index, name): (usize, &&str)| {
        Arc::new(Limit {
            index,
            refundable: true,
            ..fixtures::limit(name, &terms)
        })
    };
    let limits: Vec<_> = names.iter().enumerate().map(limit).collect();
    let backend = Arc::new(Backend::None);
    let limiter = Limiter::new(&limits, backend, Clock::manual(now), ColdStart::Full);
    (limiter, limits)
}

/// While the other process may grant from the buckets, their copy here grants nothing, and what was
/// drawn from others is given back. Its end makes the copy the only one.
#[tokio::test]
async fn handover_draw_is_refused_while_the_process_with_the_buckets_lives_and_is_silent() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let (limiter, limits) = limiter_of(&["kept", "taken"], now);
    let claims = [
        Claim::new(&limits[0], b"k", 1),
        Claim::new(&limits[1], b"k", 1),
    ];
    limiter.freeze();
    limiter.hand_to(Mute::new(&["taken"], Undrawn::Silent));
    for _ in 0..2 {
        let decided = limiter.check(&claims, now).await;
        let Decision::Unavailable(unavailable) = decided else {
            panic!("{decided:?}");
        };
        assert_eq!(&*unavailable.limit, "taken");
    }
    limiter.hand_to(Mute::new(&["taken"], Undrawn::Ended));
    let decided = limiter.check(&claims, now).await;
    assert!(matches!(decided, Decision::Allow(_)), "{decided:?}");
}

/// A limit that only counts refuses nothing, and a refusal names one that enforces.
#[tokio::test]
async fn handover_limit_that_only_counts_refuses_nothing_while_the_process_with_its_bucket_is_silent()
 {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let (limiter, limits) = limiter_of(&["counts", "kept", "strict"], now);
    let counts = Claim {
        enforced: false,
        ..Claim::new(&limits[0], b"k", 1)
    };
    let kept = Claim::new(&limits[1], b"k", 1);
    let strict = Claim::new(&limits[2], b"k", 1);
    let other = Mute::new(&["counts", "strict"], Undrawn::Silent);
    limiter.freeze();
    limiter.hand_to(Arc::clone(&other) as Arc<dyn Successor>);
    for _ in 0..2 {
        let decided = limiter.check(&[counts, kept], now).await;
        let Decision::Allow(permit) = decided else {
            panic!("{decided:?}");
        };
        assert!(permit.is_unasked(0) && !permit.is_unasked(1));
        assert!(!permit.is_settled(), "what it took here is given back");
    }
    assert_eq!(
        other.told.load(Ordering::Relaxed),
        0,
        "nothing is drawn there"
    );
    let left = limiter.local().peek_at(&[counts], now)[0].remaining;
    assert_eq!(left, 1, "nothing is drawn from the copy");
    let decided = limiter.check(&[counts, strict], now).await;
    let Decision::Unavailable(unavailable) = decided else {
        panic!("{decided:?}");
    };
    assert_eq!(&*unavailable.limit, "strict");
}

/// A caller that does not wait for the other process keeps no units of the buckets here.
#[tokio::test]
async fn handover_caller_that_leaves_while_the_process_with_a_bucket_is_asked_is_charged_nothing_here()
 {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let (limiter, limits) = limiter_of(&["kept", "taken"], now);
    let [kept, taken] = [0, 1].map(|index| Claim::new(&limits[index], b"k", 1));
    limiter.freeze();
    limiter.hand_to(Mute::new(&["taken"], None));
    let claims = [kept, taken];
    let left = || limiter.local().peek_at(&[kept], now)[0].remaining;
    let mut asking = Box::pin(limiter.check(&claims, now));
    let polled = std::future::poll_fn(|context| Poll::Ready(asking.as_mut().poll(context)));
    assert!(polled.await.is_pending());
    assert_eq!(left(), 0, "it is charged while the other process is asked");
    drop(asking);
    assert_eq!(left(), 1);
}
