//! The calls under way, one step at a time.

use std::task::Poll;
use std::time::Duration;

use super::super::gather::Gathering;
use super::super::turns::Turns;
use super::*;

/// Requests that stand in the queue, each for a key of its own or all for one.
fn ask<'a>(
    shared: &'a Shared,
    limit: &Limit,
    keys: u8,
) -> Vec<Pin<Box<dyn Future<Output = bool> + 'a>>> {
    let names = Names::new(b"secret");
    let each = (0..32).map(|caller| {
        let wants = names.wants(&[Claim::new(limit, &[caller % keys], 1)]);
        let mut asked: Pin<Box<dyn Future<Output = bool>>> = Box::pin(async move {
            shared
                .ask(wants, false)
                .await
                .is_ok_and(|draw| draw.granted)
        });
        assert!(
            asked
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        asked
    });
    each.collect()
}

/// How many of them have been answered by now.
fn answered(asked: &mut Vec<Pin<Box<dyn Future<Output = bool> + '_>>>) -> usize {
    let before = asked.len();
    asked.retain_mut(
        |one| match one.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(granted) => {
                assert!(granted);
                false
            }
            Poll::Pending => true,
        },
    );
    before - asked.len()
}

fn up() -> Shared {
    let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    shared
}

#[tokio::test]
async fn who_asks_for_one_bucket_is_told_before_the_next_call_and_waited_for_and_others_after_it() {
    for (keys, told_first) in [(1, true), (32, false)] {
        let (shared, link, limit) = (up(), pipe(), bucket(1 << 20));
        let mut gathering = Gathering::default();
        let mut turns = Turns::new(&shared, &link, &());
        let mut asked = ask(&shared, &limit, keys);
        assert!(turns.begin(shared.take().expect("requests")).await.is_ok());
        assert!(turns.is_flying() && answered(&mut asked) == 0);
        assert!(turns.go_on(&mut gathering).await.is_ok());
        assert!(!turns.is_flying());
        assert_eq!(
            (turns.has_landed(), answered(&mut asked)),
            (!told_first, if told_first { 32 } else { 0 })
        );
        let waited = format!("{gathering:?}") != format!("{:?}", Gathering::default());
        assert_eq!(waited, told_first, "{gathering:?}");
        // The next call leaves, and those of the last are told.
        let mut more = ask(&shared, &limit, keys);
        assert!(turns.begin(shared.take().expect("requests")).await.is_ok());
        assert!(turns.is_flying());
        assert_eq!(
            (answered(&mut asked), answered(&mut more)),
            (if told_first { 0 } else { 32 }, 0)
        );
        // The connection is given up: what is under way is waited for, and told of.
        turns.end().await;
        assert_eq!(answered(&mut more), 32);
    }
}

#[tokio::test]
async fn a_call_has_one_beside_it_at_most_and_none_where_it_grants_places() {
    let (units, places) = (
        bucket(1 << 20),
        limit("places", &terms(Kind::InFlight, 1 << 40, Micros::ZERO)),
    );
    for (first, calls) in [(&units, 2), (&places, 1)] {
        let (shared, link) = (up(), pipe());
        let mut turns = Turns::new(&shared, &link, &());
        let mut asked = ask(&shared, first, 32);
        assert!(turns.begin(shared.take().expect("requests")).await.is_ok());
        let mut second = ask(&shared, &units, 32);
        let more = async {
            while link.kept.calls.get() < calls {
                tokio::task::yield_now().await;
            }
            ask(&shared, &units, 32)
        };
        let mut gathering = Gathering::default();
        let both = async { tokio::join!(turns.go_on(&mut gathering), more) };
        let (gone_on, _third) = tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .expect("both go on");
        assert!(gone_on.is_ok());
        assert_eq!(link.kept.most.get(), calls, "{}", first.name);
        // While another call is under way those of the one that landed need not wait for it.
        let told = answered(&mut asked) + answered(&mut second);
        assert_eq!(
            (turns.is_flying(), told),
            if calls == 2 { (true, 32) } else { (false, 0) }
        );
        turns.end().await;
    }
}
