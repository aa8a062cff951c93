use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{Deadline, TICK, pause, within};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test(start_paused = true)]
async fn a_deadline_never_passes_early_and_hardly_late() {
    for span in [0, 1, 19, 20, 21, 55, 1000, 20_470, 20_480, 75_000, 300_000].map(millis) {
        let start = tokio::time::Instant::now();
        pause(span).await;
        let took = start.elapsed();
        assert!(took >= span, "{span:?} passed after {took:?}");
        assert!(
            took <= span + TICK + millis(2),
            "{span:?} passed only after {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_moves_it_both_ways() {
    let start = tokio::time::Instant::now();
    let mut deadline = Deadline::after(millis(500));
    deadline.reset(millis(2000));
    (&mut deadline).await;
    assert!(start.elapsed() >= millis(2000));
    assert!(deadline.passed());

    let start = tokio::time::Instant::now();
    deadline.reset(millis(60_000));
    assert!(!deadline.passed());
    deadline.reset(millis(100));
    (&mut deadline).await;
    assert!(start.elapsed() >= millis(100) && start.elapsed() < millis(200));
}

#[tokio::test(start_paused = true)]
async fn timer_reset_to_its_rest_passes_at_the_same_time() {
    let start = tokio::time::Instant::now();
    let mut deadline = Deadline::after(millis(1000));
    while !deadline.passed() {
        let left = deadline.left();
        assert!(left <= millis(1000));
        deadline.reset(left);
        tokio::time::sleep(millis(7)).await;
        assert!(start.elapsed() < millis(1100), "not put off");
    }
    assert!(start.elapsed() >= millis(1000));
}

#[tokio::test(start_paused = true)]
async fn a_cleared_deadline_does_not_pass() {
    let mut deadline = Deadline::after(millis(100));
    deadline.clear();
    assert!(
        tokio::time::timeout(millis(10_000), &mut deadline)
            .await
            .is_err()
    );
    deadline.reset(millis(40));
    tokio::time::timeout(millis(100), deadline)
        .await
        .expect("it was set again");
}

/// Each task says how long a deadline had, and how long it took to pass.
async fn all_in_time(tasks: Vec<JoinHandle<(Duration, Duration)>>) {
    for task in tasks {
        let (span, took) = task.await.expect("no panic");
        assert!(
            took >= span && took <= span + TICK + millis(2),
            "{span:?} took {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn many_deadlines_each_pass_in_their_turn() {
    let tasks: Vec<_> = (0..500u64)
        .map(|i| {
            // Every third is dropped while it hangs, and must not disturb its neighbours.
            if i % 3 == 0 {
                drop(Deadline::after(millis(i)));
            }
            let span = millis(i * 97 % 45_000);
            tokio::spawn(async move {
                let start = tokio::time::Instant::now();
                pause(span).await;
                (span, start.elapsed())
            })
        })
        .collect();
    all_in_time(tasks).await;
}

#[tokio::test(start_paused = true)]
async fn deadlines_set_while_the_worker_sleeps_pass_in_their_turn() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut tasks = Vec::new();
    for _ in 0..300 {
        let first = millis(random.u64(0..90_000));
        let span = millis(random.u64(0..90_000));
        // Before the first one passes, or after.
        let wait = first.mul_f64(2.0 * random.f64());
        tasks.push(tokio::spawn(async move {
            let mut deadline = Deadline::after(first);
            tokio::time::sleep(wait).await;
            let start = tokio::time::Instant::now();
            deadline.reset(span);
            deadline.await;
            (span, start.elapsed())
        }));
        tokio::time::sleep(millis(random.u64(0..400))).await;
    }
    all_in_time(tasks).await;
}

#[tokio::test(start_paused = true)]
async fn worker_sleeps_while_no_deadline_is_near() {
    let parks = || Handle::current().metrics().worker_park_count(0);
    let mut far = Vec::new();
    let mut moved = Deadline::after(millis(1000));
    let before = parks();
    for _ in 0..50 {
        moved.reset(millis(1000));
        far.push(Deadline::after(millis(75_000)));
        tokio::time::sleep(millis(900)).await;
    }
    let parked = parks() - before;
    assert!(parked < 450, "parked {parked} times in 45 s");
}

#[tokio::test(start_paused = true)]
async fn within_gives_up_in_time() {
    assert_eq!(within(millis(50), async { 7 }).await, Ok(7));
    assert!(
        within(millis(50), std::future::pending::<()>())
            .await
            .is_err()
    );
    let slow = async { tokio::time::sleep(millis(30)).await };
    assert!(within(millis(500), slow).await.is_ok());
}

#[test]
fn a_wheel_survives_the_runtime_that_turned_it() {
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            pause(millis(1)).await;
            // Left hanging: the next runtime on this thread must turn the wheel again.
            std::mem::forget(Deadline::after(millis(60_000)));
        });
    }
}
