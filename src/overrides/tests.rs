use super::*;
use tollgate_gateway::proxy_defaults::ProxyDefaults;
use tollgate_limit::Micros;
use tollgate_limiter::Limiter;
use tollgate_store::Backend;
use tollgate_store::local::ColdStart;
use tollgate_telemetry::Metrics;

const FILE: &str = "[limits.few]\nrate = \"1/day\"\nper = \"address\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"few\"]\n";

/// Overrides of a gateway that keeps none in a file, and its only limit.
fn overrides(clock: &Clock) -> (Overrides, Arc<Limit>) {
    overrides_beside(clock, None)
}

/// The same with this state file.
fn overrides_beside(
    clock: &Clock,
    state_file: Option<&std::path::Path>,
) -> (Overrides, Arc<Limit>) {
    let config = tollgate_config::parse(FILE, "test", &|_| None, clock.now());
    let policy = config.expect("a valid file").policy;
    let limit = Arc::clone(&policy.limits[0]);
    let limiter = Limiter::new(
        &policy.limits,
        Arc::new(Backend::None),
        clock.clone(),
        ColdStart::Full,
    );
    let metrics = Metrics::new(clock.now().as_micros());
    let snapshot = Snapshot::new(policy, limiter, &metrics, ProxyDefaults::default());
    let current = Arc::new(arc_swap::ArcSwap::from_pointee(snapshot));
    let overrides = Overrides::start(current, clock.clone(), state_file, None, b"a secret");
    (overrides, limit)
}

fn block(until: Timestamp) -> NewOverride {
    NewOverride {
        key: ("a key".to_owned(), "name".to_owned()),
        setting: Setting {
            block: true,
            ..Setting::default()
        },
        end: End::At(until),
        operator: "ann".to_owned(),
        reason: "r".to_owned(),
        grant: None,
    }
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// Each of two gateways, or operators, has asked by what it knew before the other's change.
#[tokio::test]
async fn grants_are_added_to_what_the_document_has() {
    let clock = clock();
    let (overrides, limit) = overrides(&clock);
    let grant = |units: u64, reason: &str| {
        let grant = Grant {
            limit: Arc::clone(&limit),
            units,
        };
        NewOverride {
            setting: grant.setting(None).expect("a rate"),
            reason: reason.to_owned(),
            grant: Some(grant),
            ..block(clock.now().after(Micros::from_secs(60)))
        }
    };
    let rate = || {
        overrides
            .find(&limit, b"k")
            .and_then(|one| one.setting.rate)
    };
    for (units, reason) in [(2, "x"), (3, "y")] {
        let new = grant(units, reason);
        let made = overrides.change(&limit, b"k", Some(&new)).await;
        made.expect("it is added");
    }
    assert_eq!(rate().as_deref(), Some("6/day"));
    let again = overrides.change(&limit, b"k", Some(&grant(2, "x"))).await;
    assert!(matches!(again, Err(ChangeError::Conflict(_))), "{again:?}");
    assert_eq!(rate().as_deref(), Some("6/day"));
    let raised = block(clock.now().after(Micros::from_secs(60)));
    let set = overrides.change(&limit, b"k", Some(&raised)).await;
    set.expect("it is set");
    let erases = overrides.change(&limit, b"k", Some(&grant(2, "z"))).await;
    assert!(
        matches!(erases, Err(ChangeError::Conflict(_))),
        "{erases:?}"
    );
    clock.advance(Micros::from_secs(61));
    let next = overrides.change(&limit, b"k", Some(&grant(2, "x"))).await;
    next.expect("the window has ended");
    assert_eq!(rate().as_deref(), Some("3/day"));
}

/// Ten thousand changes of ever new keys: those beyond the bound are refused by its number, and what is kept does not grow.
#[tokio::test]
async fn overrides_beyond_the_bound_are_refused_and_keep_nothing() {
    let clock = clock();
    let (overrides, limit) = overrides(&clock);
    let new = block(clock.now().after(Micros::from_secs(60)));
    let mut refused = 0;
    for number in 0..10_000_u32 {
        let key = number.to_be_bytes();
        match overrides.change(&limit, &key, Some(&new)).await {
            Ok(_) => assert!(number < 1_000, "{number}"),
            Err(ChangeError::TooMany(words)) => {
                assert!(
                    words.contains("1000 overrides are in force already"),
                    "{words}"
                );
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((refused, overrides.count()), (9_000, OVERRIDES_MAX));
    let limiter = overrides.0.current.load().limiter.clone();
    assert!(limiter.overridden(&limit, &0_u32.to_be_bytes()).is_some());
    assert!(
        limiter
            .overridden(&limit, &1_000_u32.to_be_bytes())
            .is_none()
    );
    clock.advance(Micros::from_secs(60));
    let new = block(clock.now().after(Micros::from_secs(60)));
    let set = overrides.change(&limit, b"another", Some(&new)).await;
    assert!(set.is_ok(), "those that have ended make room: {set:?}");
    assert_eq!(overrides.0.known.lock().local.overrides.len(), 1);
}

/// Two operators change one override over and over: listeners hear of its beginnings and ends in turn.
#[test]
fn overrides_of_two_operators_are_told_in_the_order_in_which_they_come_into_force() {
    let clock = clock();
    let (overrides, limit) = overrides(&clock);
    let told: Arc<Mutex<Vec<bool>>> = Arc::default();
    let listener = Arc::clone(&told);
    overrides.on_change(move |event| {
        // Whichever thread is slower here must not be overtaken.
        if event.set {
            std::thread::yield_now();
        }
        listener.lock().push(event.set);
    });
    let change = |new: Option<&NewOverride>| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().expect("a runtime");
        for _ in 0..2_000 {
            let changed = overrides.change(&limit, b"k", new);
            runtime.block_on(changed).expect("there is room");
        }
    };
    let new = block(clock.now().after(Micros::from_secs(60)));
    std::thread::scope(|scope| {
        scope.spawn(|| change(Some(&new)));
        scope.spawn(|| change(None));
    });
    let told = told.lock();
    // An override that is set again unchanged is not told.
    let in_turn = told.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(
        in_turn && told.first() == Some(&true),
        "{} events",
        told.len()
    );
}

/// An override of a limit that a reload has removed ends a day later, and does not wait for a later limit
/// of that name. One that ends earlier keeps its end.
#[tokio::test]
async fn overrides_of_a_limit_that_is_removed_end_a_day_later() {
    let clock = clock();
    let (overrides, limit) = overrides(&clock);
    let day = Micros::from_secs(86_400);
    let ends = [
        clock.now().after(Micros(20 * day.0)),
        clock.now().after(Micros(day.0 / 2)),
    ];
    for (key, end) in [b"a", b"b"].into_iter().zip(ends) {
        let set = overrides.change(&limit, key, Some(&block(end))).await;
        set.expect("there is room");
    }
    let removed = [(Arc::clone(&limit.name), Placement::Local)];
    let other = [(Arc::from("other"), Placement::Local)];
    overrides.end_a_day_after(&other).await.expect("in memory");
    let found = |key: &[u8]| overrides.find(&limit, key).map(|one| one.until);
    assert_eq!([b"a", b"b"].map(|key| found(key)), ends.map(Some));
    overrides
        .end_a_day_after(&removed)
        .await
        .expect("in memory");
    assert_eq!(found(b"a"), Some(clock.now().after(day)));
    assert_eq!(found(b"b"), Some(ends[1]));
    clock.advance(day);
    assert_eq!(found(b"a"), None);
}

/// An absolute end is a moment of the clock of the place that keeps the override; a duration counts from
/// now. The store's clock is an hour ahead here.
#[test]
fn overrides_end_at_a_moment_of_the_clock_that_keeps_them() {
    let clock = clock();
    let (overrides, _) = overrides(&clock);
    let hour = Micros::from_secs(3_600);
    overrides.0.known.lock().ahead = i64::try_from(hour.0).expect("small");
    let noon = clock.now().after(Micros(5 * hour.0));
    let end = |placement, end| overrides.end(placement, end).since(clock.now());
    assert_eq!(end(Placement::Shared, End::At(noon)), Micros(4 * hour.0));
    assert_eq!(end(Placement::Local, End::At(noon)), Micros(5 * hour.0));
    for placement in PLACES {
        assert_eq!(end(placement, End::After(hour)), hour);
    }
}

/// The thread sleeps until the next end, and without overrides until something is changed.
#[tokio::test]
async fn overrides_thread_has_nothing_to_do_without_overrides() {
    let clock = Clock::system();
    let (overrides, limit) = overrides(&clock);
    let idle = || overrides.0.idle_for(clock.now());
    assert_eq!(idle(), None);
    let new = |secs| block(clock.now().after(Micros::from_secs(secs)));
    let set = async |key: &[u8], new: Option<&NewOverride>| {
        let set = overrides.change(&limit, key, new).await;
        set.expect("there is room");
    };
    set(b"later", Some(&new(7_200))).await;
    set(b"first", Some(&new(3_600))).await;
    let span = idle().expect("an end").as_secs();
    assert!((3_590..=3_600).contains(&span), "{span}");
    set(b"first", None).await;
    let span = idle().expect("an end").as_secs();
    assert!((7_190..=7_200).contains(&span), "{span}");
}

#[tokio::test]
async fn overrides_thread_is_idle_again_after_the_last_end() {
    let clock = clock();
    let (overrides, limit) = overrides(&clock);
    let new = block(clock.now().after(Micros::from_secs(60)));
    let set = overrides.change(&limit, b"k", Some(&new)).await;
    set.expect("there is room");
    clock.advance(Micros::from_secs(59));
    assert!(overrides.0.idle_for(clock.now()).is_some());
    clock.advance(Micros::from_secs(1));
    assert_eq!(overrides.0.idle_for(clock.now()), None);
}

/// An older gateway would forget what a newer one has written there.
#[test]
fn overrides_of_another_version_of_the_document_are_not_read() {
    let text = Document::default().text();
    assert_eq!(Document::read(&text), Ok(Document::default()));
    let newer = text.replacen("\"format\":1", "\"format\":2", 1);
    let refused = Document::read(&newer).expect_err("another version");
    assert_eq!(refused, "it is of another version: 2");
}

/// A store that told this, on a clock that is `ahead` of the gateway's.
fn told(text: &str, ahead: i64) -> tokio::sync::watch::Receiver<tollgate_store::Document> {
    let mut document = tollgate_store::Document::default();
    (document.heard, document.text, document.ahead) = (true, text.into(), ahead);
    tokio::sync::watch::channel(document).1
}

/// What a gateway that starts on this clock finds in the file.
fn found(state_file: &std::path::Path, clock: &Clock) -> Option<(String, i64)> {
    let found = CacheFile::of(state_file).document(clock);
    found.map(|(document, ahead)| (document.text(), ahead))
}

/// A gateway that starts in an outage then still obeys what this one obeys: an older program cannot read
/// what a newer one has written.
#[test]
fn overrides_that_cannot_be_read_leave_the_file_of_those_that_are_known() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let (state_file, clock) = (home.path().join("state"), clock());
    let (overrides, _) = overrides_beside(&clock, Some(&state_file));
    let known = Document::default().text();
    overrides.0.learn_shared(&told(&known, 0));
    overrides.0.learn_shared(&told("{\"format\":9}", 0));
    assert_eq!(found(&state_file, &clock), Some((known, 0)));
}

/// A block that was lifted while the disk was full would come back with the next start in an outage.
#[test]
fn overrides_of_a_store_are_written_again_if_that_failed() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let (state_file, clock) = (home.path().join("state"), clock());
    let (overrides, _) = overrides_beside(&clock, Some(&state_file));
    let in_the_way = home.path().join("state.store-overrides.new");
    std::fs::create_dir(&in_the_way).expect("a directory");
    let known = Document::default().text();
    let store = told(&known, 0);
    overrides.0.learn_shared(&store);
    assert_eq!(found(&state_file, &clock), None);
    assert!(
        overrides.0.idle_for(clock.now()).is_some(),
        "it is tried again"
    );
    std::fs::remove_dir(&in_the_way).expect("removed");
    overrides.0.keep_told(&store);
    assert_eq!(found(&state_file, &clock), Some((known, 0)));
    assert_eq!(overrides.0.idle_for(clock.now()), None);
}

/// The store's clock is right. The wall clock was an hour late when the first process began, and was set
/// right since then; the clock of the second process is right.
#[test]
fn overrides_of_a_store_end_at_their_time_also_if_the_clock_was_set_while_the_gateway_ran() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let (state_file, first) = (home.path().join("state"), clock());
    let (overrides, _) = overrides_beside(&first, Some(&state_file));
    let hour = Micros::from_secs(3600);
    first.set_wall_forward(hour);
    let known = Document::default().text();
    let ahead = hour.0.cast_signed();
    overrides.0.learn_shared(&told(&known, ahead));
    let second = Clock::manual(first.wall());
    assert_eq!(found(&state_file, &second), Some((known.clone(), 0)));
    // The wall clock is set again, and the store tells how far its clock is from that of the process.
    first.set_wall_forward(hour);
    overrides.0.learn_shared(&told(&known, ahead));
    let third = Clock::manual(first.wall());
    assert_eq!(found(&state_file, &third), Some((known, -ahead)));
}

/// Anybody who may write to the directory could keep the gateway from starting.
#[test]
fn overrides_of_a_store_are_not_waited_for_at_a_pipe() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let home = tempfile::tempdir().expect("a temporary directory");
    let state_file = home.path().join("state");
    let pipe = home.path().join("state.store-overrides");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let (done, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(found(&state_file, &clock())));
    let found = read.recv_timeout(std::time::Duration::from_secs(10));
    assert_eq!(found, Ok(None));
}
