//! Requests whose call fails, or that wait too long in the queue.

use std::pin::Pin;

use super::failing::Failing;
use super::*;

#[tokio::test]
async fn requests_that_did_not_fit_in_a_call_fail_by_their_own_deadline() {
    let clock = Clock::system();
    let shared = Shared::new(clock.clone(), Micros::from_secs(60), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    // One that is in the call under way, and one that came before it and waits for the next.
    let (reply, mut told) = oneshot::channel();
    let early = Ask {
        wants: wants(&names, &limit),
        peek: false,
        deadline: clock.now().after(Micros(1_000)),
        reply: Some(reply),
    };
    let mut asked = pin!(shared.ask(wants(&names, &limit), false));
    begin(asked.as_mut());
    let work = shared.take().expect("a request");
    shared.put_back(vec![early]);
    let never = Made::new((), async |(), _: &Batch| std::future::pending().await);
    let mut call = pin!(flush(&shared, &never, &(), work));
    let answer = tokio::select! {
        _ = &mut call => unreachable!("its own deadline is a minute away"),
        answer = &mut told => answer,
    };
    assert!(matches!(answer, Ok(Err(StoreError::Overdue))), "{answer:?}");
}

#[tokio::test]
async fn requests_of_a_failed_call_know_whether_they_may_have_been_charged() {
    type Fails = fn(String) -> Trouble;
    let troubles: [(Fails, bool); 6] = [
        (Trouble::Lost, true),
        (Trouble::Astray, true),
        (Trouble::Corrupt, true),
        (Trouble::Refused, false),
        (Trouble::Unfit, false),
        (Trouble::Moved, false),
    ];
    for (trouble, charged) in troubles {
        let shared = Shared::new(Clock::system(), Micros::from_secs(60), true);
        shared.lanes_up.store(1, Ordering::Relaxed);
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        let mut asked = pin!(shared.ask(wants(&names, &limit), false));
        begin(asked.as_mut());
        let work = shared.take().expect("a request");
        let (landed, _) = flush(&shared, &Failing(trouble), &(), work).await;
        assert!(landed.is_empty());
        let error = asked.await.expect_err("no answer");
        assert_eq!(error.may_have_charged(), charged, "{error:?}");
    }
}

/// Polls a request once, which enters the queue then.
fn begin(asked: Pin<&mut impl Future>) {
    let polled = asked.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}
