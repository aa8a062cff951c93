//! Requests whose call fails, or that wait too long in the queue.

use std::pin::Pin;

use tokio::sync::Notify;

use super::failing::Failing;
use super::*;

#[tokio::test]
async fn requests_that_did_not_fit_in_a_call_fail_by_their_own_deadline() {
    let clock = Clock::system();
    let shared = LaneState::new(clock.clone(), Micros::from_secs(60), true);
    shared.lanes_up.store(1, Ordering::Relaxed);
    let (names, limit) = (Names::new(b"secret"), bucket(10));
    // One that is in the call under way, and one that came before it and waits for the next.
    let (reply, mut told) = oneshot::channel();
    let early = Ask {
        wants: wants(&names, &limit),
        peek: false,
        deadline: clock.now().after(Micros(1_000)),
        reply: Some(reply),
        unanswered: None,
        repeats: 0,
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
    let outcome = answer.expect("a reply").outcome;
    assert!(matches!(outcome, Err(StoreError::Overdue)), "{outcome:?}");
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
        let shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
        shared.lanes_up.store(1, Ordering::Relaxed);
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        let mut asked = pin!(shared.ask(wants(&names, &limit), false));
        begin(asked.as_mut());
        let work = shared.take().expect("a request");
        let _ = flush(&shared, &Failing(trouble), &(), work).await;
        // Over a connection of no use it goes again.
        let mut repeats = 0;
        while let Some(work) = shared.take() {
            repeats += 1;
            let _ = flush(&shared, &Failing(trouble), &(), work).await;
        }
        let error = asked.await.expect_err("no answer");
        assert_eq!(error.may_have_charged(), charged, "{error:?}");
        let is_unfit = matches!(trouble(String::new()), Trouble::Unfit(_));
        assert_eq!(repeats, if is_unfit { 4 } else { 0 });
    }
}

/// The units that were given back so far.
fn given_back(shared: &LaneState) -> u64 {
    let Some(work) = shared.take() else { return 0 };
    let units = work.corrections.iter().map(|one| match one.adjust {
        Adjust::Change(Change::Refund { units }, _) => units,
        other => panic!("not a refund: {other:?}"),
    });
    units.sum()
}

fn unknown(shared: &LaneState) -> u64 {
    shared.counters.draws_unknown.load(Ordering::Relaxed)
}

/// Whatever is between the client and the store, what nobody takes is given back.
#[tokio::test]
async fn draw_whose_client_leaves_before_or_after_it_is_answered_is_given_back() {
    for leaves_before in [true, false] {
        let shared = LaneState::new(Clock::system(), Micros::from_secs(60), true);
        shared.lanes_up.store(1, Ordering::Relaxed);
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        let mut asked = Box::pin(shared.ask(wants(&names, &limit), false));
        begin(asked.as_mut());
        let work = shared.take().expect("a request");
        let flights = assemble(&shared, &granting(), work);
        let asked = Some(asked).filter(|_| !leaves_before);
        let flown = fly(&shared, &granting(), &(), flights, None).await;
        assert!(flown.settle(&shared).is_ok());
        drop(asked);
        assert_eq!(given_back(&shared), 1, "{leaves_before}");
        // One that is taken stays charged.
        let mut asked = Box::pin(shared.ask(wants(&names, &limit), false));
        begin(asked.as_mut());
        let work = shared.take().expect("a request");
        assert!(flush(&shared, &granting(), &(), work).await.is_ok());
        assert!(asked.await.expect("answered").granted);
        assert_eq!((given_back(&shared), unknown(&shared)), (0, 0));
    }
}

/// A request is told that no response came in time, and its call is answered later, or never.
#[tokio::test]
async fn draw_of_a_refused_request_is_given_back_when_its_late_call_says_that_it_was_granted() {
    enum Does {
        Refuses,
        RefusesLate,
        Admits,
        Leaves,
    }
    for (does, is_answered) in [
        (Does::Refuses, true),
        (Does::RefusesLate, true),
        (Does::Admits, true),
        (Does::Leaves, true),
        (Does::Refuses, false),
        (Does::Admits, false),
    ] {
        let shared = Arc::new(LaneState::new(Clock::system(), Micros(1_000), true));
        shared.lanes_up.store(1, Ordering::Relaxed);
        let servers = Servers::one(shared.clone());
        let (names, limit) = (Names::new(b"secret"), bucket(10));
        let deadline = Deadline::default();
        let mut asked = Box::pin(shared.ask_by(wants(&names, &limit), false, &deadline));
        begin(asked.as_mut());
        let work = shared.take().expect("a request");
        let (release, released) = oneshot::channel::<()>();
        let released = std::cell::RefCell::new(Some(released));
        let server = Made::new(released, async |released, batch: &Batch| {
            let released: Option<oneshot::Receiver<()>> = released.borrow_mut().take();
            // It never answers if the test drops the other end.
            if released.expect("one call").await.is_err() {
                std::future::pending::<()>().await;
            }
            granted(batch)
        });
        let late = Notify::new();
        let flights = assemble(&shared, &server, work);
        let mut flying = pin!(fly(&shared, &server, &(), flights, Some(&late)));
        tokio::select! {
            _ = &mut flying => panic!("it is waited for"),
            () = late.notified() => {}
        }
        match does {
            Does::Leaves => drop(asked),
            Does::Refuses => {
                assert_eq!(asked.await, Err(StoreError::Timeout));
                servers.forgo(&deadline);
            }
            Does::Admits | Does::RefusesLate => {
                assert_eq!(asked.await, Err(StoreError::Timeout));
            }
        }
        assert_eq!(given_back(&shared), 0);
        if !is_answered {
            drop(release);
            tokio::time::pause();
            tokio::time::advance(super::super::STRAGGLES).await;
            assert!(flying.await.settle(&shared).is_err());
            tokio::time::resume();
            let expected = u64::from(matches!(does, Does::Refuses));
            assert_eq!((given_back(&shared), unknown(&shared)), (0, expected));
            continue;
        }
        release.send(()).expect("it waits");
        assert!(flying.await.settle(&shared).is_ok());
        if matches!(does, Does::RefusesLate) {
            assert_eq!(given_back(&shared), 0);
            servers.forgo(&deadline);
        }
        let expected = u64::from(!matches!(does, Does::Admits));
        assert_eq!((given_back(&shared), unknown(&shared)), (expected, 0));
    }
}

/// Polls a request once, which enters the queue then.
fn begin(asked: Pin<&mut impl Future>) {
    let polled = asked.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}
