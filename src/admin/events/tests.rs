//! The ring, its readers and their bounds.

use serde_json::{Value, json};

use super::*;

fn next(subscription: &mut Subscription) -> Option<(Kind, Value)> {
    let mut context = Context::from_waker(std::task::Waker::noop());
    match subscription.poll_next(&mut context) {
        Poll::Ready(Some(message)) => {
            let data = serde_json::from_slice(&message.data()).expect("JSON");
            Some((message.kind, data))
        }
        _ => None,
    }
}

fn subscribe(events: &Events, last: Option<&str>) -> Subscription {
    events.subscribe(last, Arc::default()).expect("few readers")
}

#[test]
fn events_are_numbered_documents_on_one_line() {
    let events = Events::new(Clock::system());
    let mut reader = subscribe(&events, None);
    assert_eq!(next(&mut reader).map(|(kind, _)| kind), Some(Kind::Hello));
    events.emit(Kind::Reload, &json!({ "message": "two\nlines\r\u{2028}" }));
    let mut context = Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(Some(message)) = reader.poll_next(&mut context) else {
        panic!("an event");
    };
    let text = String::from_utf8(message.wire.to_vec()).expect("text");
    let process = &events.0.process;
    let begin = format!("id: {process}-0\nevent: reload\ndata: {{\"format\":1,\"at\":\"");
    assert!(text.starts_with(&begin), "{text}");
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.ends_with("}\n\n") && !text.contains('\r'));
}

#[test]
fn events_resume_where_a_reader_stopped() {
    let events = Events::new(Clock::system());
    events.begin();
    for number in 0..3 {
        events.emit(Kind::Reset, &json!({ "number": number }));
    }
    let id = |number: u64| format!("{}-{number}", events.0.process);
    let mut reader = subscribe(&events, Some(&id(0)));
    assert_eq!(next(&mut reader).expect("hello").1["missed"], false);
    assert_eq!(next(&mut reader).expect("an event").1["number"], 1);
    assert_eq!(next(&mut reader).expect("an event").1["number"], 2);
    assert!(next(&mut reader).is_none());
    events.emit(Kind::Reset, &json!({ "number": 3 }));
    assert_eq!(next(&mut reader).expect("an event").1["number"], 3);

    for last in ["0-0", "nonsense", &id(9), ""] {
        let mut reader = subscribe(&events, Some(last));
        assert_eq!(
            next(&mut reader).expect("hello").1["missed"],
            true,
            "{last}"
        );
        assert!(next(&mut reader).is_none(), "{last}");
    }
    // Without a reader the gateway does not look for changes.
    events.pause();
    events.begin();
    let mut reader = subscribe(&events, Some(&id(2)));
    assert_eq!(next(&mut reader).expect("hello").1["missed"], true);
    let mut reader = subscribe(&events, Some(&id(3)));
    assert_eq!(next(&mut reader).expect("hello").1["missed"], false);
}

#[test]
fn readers_that_do_not_keep_up_are_dropped_and_the_others_are_not() {
    let events = Events::new(Clock::system());
    let cut = Arc::new(Notify::new());
    let slow = events.subscribe(None, Arc::clone(&cut)).expect("few");
    let mut quick = subscribe(&events, None);
    let mut read = 0;
    for number in 0..=QUEUE {
        events.emit(Kind::Reset, &json!({ "number": number }));
        while next(&mut quick).is_some() {
            read += 1;
        }
    }
    assert_eq!(events.readers(), 1);
    assert_eq!(read, 1 + QUEUE + 1);
    let mut told = std::pin::pin!(cut.notified());
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(told.as_mut().poll(&mut context).is_ready());
    drop((slow, quick));
    assert_eq!(events.readers(), 0);
}

#[test]
fn readers_are_bounded() {
    let events = Events::new(Clock::system());
    let mut readers: Vec<_> = (0..READERS_MAX).map(|_| subscribe(&events, None)).collect();
    assert_eq!(events.subscribe(None, Arc::default()).err(), Some(TooMany));
    readers.pop();
    assert!(events.subscribe(None, Arc::default()).is_ok());
}
